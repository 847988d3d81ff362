"""The text that goes to Redis and comes back, and the values it stands for.

Owns the shape of names, rows, records and documents on the wire. Knows no connection and no script.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import quote, unquote

from ..records import ClaimKey, ClaimRow, Doc, Run

__all__ = ["doc_of", "flag", "in_parts", "optional", "row_name", "row_of", "run_args", "to_bytes", "to_text"]


def to_bytes(value: Any) -> bytes:
    """Return an argument as it is sent; lone surrogates in a name survive the way."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def to_text(value: Any) -> str:
    """Return an answer as text."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)


def optional(value: Any) -> str:
    """Return a number as text, None as the empty text."""
    return "" if value is None else str(value)


def flag(value: bool) -> str:
    """Return a truth value as the scripts read it."""
    return "1" if value else "0"


def row_name(key: ClaimKey) -> str:
    """Return a row's name in the store: no host can be taken for a part of it."""
    return f"{key.kind}:{quote(key.host, safe='')}:{key.slot}:{key.name}"


@lru_cache(maxsize=1024)
def row_key(name: bytes) -> ClaimKey:
    """Return the key that a row's name stands for."""
    kind, host, slot, rest = to_text(name).split(":", 3)
    return ClaimKey(kind, rest, unquote(host), int(slot))


#: The fields of a row that are read, and how; what else stands there is the scripts' own.
_READ: dict[bytes, tuple[str, Callable[[bytes], Any]]] = {
    name.encode(): (name, read)
    for names, read in (
        (("resolved", "token", "held_tick", "since", "expires", "hold_until"), int),
        (("rerun_tick", "rerun_attempt", "last_success"), int),
        (("holder", "streak"), to_text),
        (("info", "progress", "last_run"), json.loads),
    )
    for name in names
}


def row_of(answer: Sequence[Any]) -> ClaimRow:
    """Return the row of a script's answer: its name, and its fields as Redis gives a hash."""
    name, flat = answer
    values: dict[str, Any] = {}
    for i in range(0, len(flat), 2):
        if (known := _READ.get(flat[i])) is not None:
            values[known[0]] = known[1](flat[i + 1])
    return ClaimRow(row_key(name), **values)


def run_args(run: Run | None) -> tuple[Any, ...]:
    """Return the five arguments of a record, empty for none."""
    if run is None:
        return ("", "", "", "", "")
    return (run.id, run.job_id, run.status.value, run.at_ms, json.dumps(run.to_record()))


def in_parts(keys: Iterable[ClaimKey], size: int = 200) -> Iterator[list[ClaimKey]]:
    """Cut many keys into scripts of a few milliseconds each: Redis does nothing else meanwhile."""
    left = iter(keys)
    while part := list(islice(left, size)):
        yield part


def doc_of(kind: str, answer: Sequence[Any]) -> Doc:
    """Return the document of a script's answer."""
    id, body, revision, updated, deleted = (to_text(value) for value in answer)
    return Doc(kind, id, json.loads(body), int(revision), int(updated), deleted == "1")
