"""The text that goes to Redis and comes back, and the values it stands for.

Owns the shape of names, rows, records and documents on the wire. Knows no connection and no script.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote, unquote

from ..records import ClaimKey, ClaimRow, Doc, Run

__all__ = ["doc_of", "flag", "in_parts", "optional", "row_name", "row_of", "run_args", "to_bytes", "to_text"]

_INTEGERS = ("held_tick", "since", "expires", "rerun_tick", "last_success")
_COUNTS = ("resolved", "token", "hold_until", "rerun_attempt")


def to_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def to_text(value: Any) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)


def optional(value: Any) -> str:
    return "" if value is None else str(value)


def flag(value: bool) -> str:
    return "1" if value else "0"


def row_name(key: ClaimKey) -> str:
    return f"{key.kind}:{quote(key.host, safe='')}:{key.slot}:{key.name}"


def row_key(name: str) -> ClaimKey:
    kind, host, slot, rest = name.split(":", 3)
    return ClaimKey(kind, rest, unquote(host), int(slot))


def row_of(answer: Sequence[Any]) -> ClaimRow:
    flat = [to_text(value) for value in answer[1]]
    stored = dict(zip(flat[::2], flat[1::2], strict=True))
    values: dict[str, Any] = {name: int(stored.get(name, 0)) for name in _COUNTS}
    values.update({name: int(stored[name]) for name in _INTEGERS if name in stored})
    values.update({name: stored[name] for name in ("holder", "streak") if name in stored})
    values.update(
        {name: json.loads(stored[name]) for name in ("info", "progress", "last_run") if name in stored}
    )
    return ClaimRow(row_key(to_text(answer[0])), **values)


def run_args(run: Run | None) -> tuple[Any, ...]:
    if run is None:
        return ("", "", "", "", "")
    return (run.id, run.job_id, run.status.value, run.at_ms, json.dumps(run.to_record()))


def in_parts(keys: Iterable[ClaimKey], size: int = 200) -> Iterator[list[ClaimKey]]:
    """Cut many keys into scripts of a few milliseconds each: Redis does nothing else meanwhile."""
    left = iter(keys)
    while part := list(islice(left, size)):
        yield part


def doc_of(kind: str, answer: Sequence[Any]) -> Doc:
    id, body, revision, updated, deleted = (to_text(value) for value in answer)
    return Doc(kind, id, json.loads(body), int(revision), int(updated), deleted == "1")
