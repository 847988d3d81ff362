"""A store in Redis (6 or newer): each verb is one Lua script on the server, by the server's clock.

It does not promise more than Redis does: a failover to a replica may lose the last writes, and a
server without persistence forgets everything at a restart (docs/stores.md says what narrows this).
Tokens grow even then, as they never fall below the server's milliseconds. What the scripts write
is in ``redis_scripts.py``, how the server is reached in ``redis_link.py``.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ..errors import StoreError
from ..records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow, Doc, Poll, Run, RunStatus, new_id
from .base import ANSWER_SECONDS, Store
from .redis_link import SCHEMES, explain, findings, parse
from .redis_scripts import KEYS, SCRIPTS, Script
from .redis_values import doc_of, flag, in_parts, optional, row_name, row_of, run_args, to_bytes, to_text

__all__ = ["SCHEMES", "RedisStore"]

log = logging.getLogger(__name__)

#: A second try must not begin later than this, or its answer could come after ANSWER_SECONDS.
_RETRY_WITHIN_SECONDS = 3.5
#: How long after its sending a request that changes something is still carried out.
_LATE_MS = int(ANSWER_SECONDS * 1000) + 2000
_KINDS = ("job", "lock", "once")

#: Clients of a parent process, kept so that the child never closes what the parent uses.
_inherited: list[Any] = []


class RedisStore(Store):
    """A :class:`~flask_singlejob.stores.base.Store` in one Redis server, Sentinel group or cluster.

    :param url: one of the schemes in :data:`SCHEMES`.
    :param options: keyword arguments as for ``redis.from_url``. Time limits may be tightened, not
        widened; decoding and retries are the store's own.
    :raises ConfigError: if redis-py is missing, or URL or options cannot be used.
    """

    def __init__(
        self, url: str, *, cluster: str, table_prefix: str, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(cluster=cluster, table_prefix=table_prefix)
        self._target = parse(url, options)
        # Quoted, so that no name can end the hash tag early and no two pairs of names meet.
        self.root = f"{{{quote(table_prefix, safe='')}:{quote(cluster, safe='')}}}"
        self._root_bytes = self.root.encode()
        self._lock = threading.Lock()
        self._client: Any = None
        self._clock_ahead: float | None = None

    # -- life ---------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """What tells this store from others: its place and the keys' root."""
        return f"{self._target.name} {self.root}"

    def describe(self) -> str:
        """Return the URL without user, password and options, and the keys' root."""
        return f"{self._target.name} (keys {self.root}:*)"

    def create(self) -> None:
        """Reach the server once; Redis needs nothing made beforehand."""
        self.poll()

    def ddl(self) -> str:
        """Return which keys there are and what they hold; Redis needs no statement."""
        return KEYS.replace("{root}", self.root)

    def close(self) -> None:
        """Close every connection. The next verb opens a new one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
            pool = getattr(client, "connection_pool", None)
            if pool is not None:
                pool.disconnect()

    def after_fork(self) -> None:
        """Forget the parent's client: kept, never closed, as closing could end the parent's TLS session."""
        if self._client is not None:
            _inherited.append(self._client)
        self._lock = threading.Lock()
        self._client = None

    # -- one round trip ------------------------------------------------------------------------

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._target.connect()
            return self._client

    def _send(self, script: Script, args: Sequence[bytes]) -> Any:
        from redis.exceptions import NoScriptError

        client = self._connected()
        try:
            return client.execute_command("EVALSHA", script.sha, 1, self._root_bytes, *args)
        except NoScriptError:
            # After a restart or SCRIPT FLUSH. EVAL also loads it, on the very node that serves the keys.
            return client.execute_command("EVAL", script.text, 1, self._root_bytes, *args)

    def _call(self, name: str, *args: Any) -> list[Any]:
        """Run one script and return its answer, the server's milliseconds first.

        Sent again once when the connection broke: every script knows a request that it carried out
        already by the holder or the random id in it, so an answer lost on the way is given again.
        """
        from redis.exceptions import AuthenticationError, BusyLoadingError, ConnectionError, TimeoutError

        script = SCRIPTS[name]
        packed = [to_bytes(arg) for arg in args]
        started = time.monotonic()
        tries = 0
        while True:
            tries += 1
            sent = time.monotonic()
            deadline = ""
            if script.guarded and self._clock_ahead is not None:
                deadline = str(int(sent * 1000 + self._clock_ahead) + _LATE_MS)
            try:
                answer = self._send(script, [deadline.encode(), *packed])
            except (AuthenticationError, BusyLoadingError) as error:
                raise self._trouble(error) from error
            except (ConnectionError, TimeoutError) as error:
                again = tries < self._target.tries and time.monotonic() - started < _RETRY_WITHIN_SECONDS
                if not again:
                    raise self._trouble(error) from error
                continue
            except Exception as error:
                raise self._trouble(error) from error
            self._clock_ahead = int(answer[0]) - time.monotonic() * 1000
            if len(answer) > 1 and answer[1] == b"late":
                if tries > self._target.tries:
                    raise StoreError(f"The store {self.describe()} answered too late: nothing was changed")
                continue  # The server's clock was set forward; the right one is known now.
            return list(answer)

    def _trouble(self, error: Exception) -> StoreError:
        sentence = explain(error)
        if "READONLY" in sentence:
            # The next try resolves the address anew: behind it there may be another primary by now.
            self.close()
        return StoreError(f"The store {self.describe()} failed: {sentence}")

    # -- claims -------------------------------------------------------------------------------

    def poll(self) -> Poll:
        """Return clock, revision and held rows; fails on a server that takes no writes."""
        now, revision, *held = self._call("poll")
        return Poll(int(now), int(revision), tuple(row_of(answer) for answer in held))

    def ensure(self, keys: Iterable[ClaimKey]) -> dict[ClaimKey, ClaimRow]:
        """Return the rows of the keys, making those that are missing."""
        rows = [
            row_of(answer)
            for part in in_parts(keys)
            for answer in self._call("ensure", *map(row_name, part))[1:]
        ]
        return {row.key: row for row in rows}

    def rows(self, keys: Iterable[ClaimKey] | None = None, *, kind: str | None = None) -> list[ClaimRow]:
        """Return the rows there are, in the order of the keys, or all (of a kind) sorted by name."""
        if keys is not None:
            wanted = [key for key in dict.fromkeys(keys) if kind is None or key.kind == kind]
            return [
                row_of(answer)
                for part in in_parts(wanted)
                for answer in self._call("rows", "keys", *map(row_name, part))[1:]
            ]
        kinds = _KINDS if kind is None else (kind,)
        found = [row_of(answer) for answer in self._call("rows", "kinds", *kinds)[1:]]
        return sorted(found, key=lambda row: (row.key.kind, row.key.name, row.key.host, row.key.slot))

    def claim(self, key: ClaimKey, request: ClaimRequest) -> ClaimOutcome:
        """Take a row; a request whose answer was lost is told by its holder."""
        now, won, row = self._call(
            "claim",
            row_name(key),
            row_name(key.with_slot(request.slot)) if request.slot else "",
            request.holder,
            request.lease_ms,
            optional(request.tick),
            optional(request.seen_resolved),
            flag(request.rerun),
            request.hold_ms,
            int(request.info.get("attempt", 1)),
            json.dumps(dict(request.info)),
        )
        return ClaimOutcome(won == 1, row_of(row), int(now))

    def renew(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        lease_ms: int,
        *,
        progress: Mapping[str, Any] | None = None,
    ) -> int | None:
        """Lengthen a lease that is still good."""
        said = "" if progress is None else json.dumps(dict(progress))
        left = int(self._call("renew", row_name(key), holder, token, lease_ms, said)[1])
        return None if left < 0 else left

    def release(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        *,
        run: Run | None = None,
        resolved: int | None = None,
        seen_resolved: int | None = None,
        skipped: Run | None = None,
        done: bool = False,
    ) -> bool:
        """End a claim that is still good, with what came of it."""
        answer = self._call(
            "release",
            row_name(key),
            row_name(key.with_slot(0)),
            new_id(),
            holder,
            token,
            optional(resolved),
            optional(seen_resolved),
            flag(done),
            *run_args(run),
            *run_args(skipped),
        )
        return bool(answer[1])

    def settle(self, key: ClaimKey, seen_resolved: int, resolved: int, record: Run | None = None) -> bool:
        """Move ``resolved`` of a free row that nobody changed meanwhile."""
        answer = self._call("settle", row_name(key), new_id(), seen_resolved, resolved, *run_args(record))
        return bool(answer[1])

    def expire(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        *,
        lost: Run | None = None,
        rerun: bool = False,
        forced: bool = False,
    ) -> bool:
        """End somebody's claim, if it still is that one and its lease has ended or it is forced."""
        answer = self._call(
            "expire",
            row_name(key),
            row_name(key.with_slot(0)),
            new_id(),
            holder,
            token,
            flag(rerun),
            flag(forced),
            *run_args(lost),
        )
        return bool(answer[1])

    # -- history ------------------------------------------------------------------------------

    def runs(
        self,
        job_id: str | None = None,
        *,
        status: Sequence[RunStatus] | None = None,
        since: int | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Return records, newest first; each status is read from an index of its own."""
        if limit <= 0:
            return []
        statuses = [""] if status is None else sorted({RunStatus(one).value for one in status})
        if not statuses:
            return []
        at, id = (str(before[0]), before[1]) if before is not None else ("", "")
        indexes = [f"{one}:{job_id or ''}" for one in statuses]
        answer = self._call("history", optional(since), at, id, limit, *indexes)
        found = [Run.from_record(json.loads(record)) for record in answer[1:] if record]
        return sorted(found, key=lambda run: (run.at_ms, run.id), reverse=True)[:limit]

    def run(self, run_id: str) -> Run | None:
        """Return one record of the history, or None."""
        record = self._call("run", run_id)[1]
        return Run.from_record(json.loads(record)) if record else None

    def add_run(self, run: Run) -> None:
        """Add a record that belongs to no claim."""
        self._call("add_run", *run_args(run))

    def prune(self, *, before: int, keep: int, limit: int = 500) -> int:
        """Delete at most ``limit`` old or surplus records."""
        return int(self._call("prune", before, keep, limit)[1])

    # -- documents ----------------------------------------------------------------------------

    def docs(self, kind: str, *, since: int = 0) -> list[Doc]:
        """Return the documents of a kind by revision."""
        return [doc_of(kind, answer) for answer in self._call("docs", quote(kind, safe=""), since)[1:]]

    def doc(self, kind: str, id: str) -> Doc | None:
        """Return one living document, or None."""
        answer = self._call("doc", quote(kind, safe=""), id)
        return doc_of(kind, answer[1]) if len(answer) > 1 else None

    def put(
        self,
        kind: str,
        id: str,
        body: Mapping[str, Any],
        *,
        expect: int | None = None,
        quiet: bool = False,
    ) -> Doc | None:
        """Write a document and raise the cluster's revision."""
        answer = self._call(
            "put",
            quote(kind, safe=""),
            id,
            optional(expect),
            flag(quiet),
            new_id(),
            json.dumps(dict(body)),
        )
        return doc_of(kind, answer[1]) if len(answer) > 1 else None

    def delete(self, kind: str, id: str, *, expect: int | None = None, quiet: bool = False) -> bool:
        """Remove a document; unless ``quiet`` its trace stays for two days."""
        answer = self._call("delete", quote(kind, safe=""), id, optional(expect), flag(quiet), new_id())
        return bool(answer[1])

    # -- looking after it ---------------------------------------------------------------------

    def checks(self) -> list[tuple[str, str]]:
        """Return what of the server's version, memory, persistence and replication endangers claims."""
        try:
            info, config = self._server_facts()
        except Exception as error:
            raise self._trouble(error) from error
        return list(findings(info, config))

    def _server_facts(self) -> tuple[dict[str, str], dict[str, str]]:
        from redis.exceptions import ResponseError

        client = self._connected()
        node = {}
        if hasattr(client, "get_node_from_key"):
            node = {"target_nodes": client.get_node_from_key(self.root)}
        info = {to_text(name): to_text(value) for name, value in client.info(**node).items()}
        config: dict[str, str] = {}
        for setting in ("save", "appendonly", "maxmemory-policy", "min-replicas-to-write"):
            try:
                answer = client.config_get(setting, **node)
            except ResponseError:
                break  # Hosted servers often forbid CONFIG; INFO tells the most of it.
            config.update({to_text(name): to_text(value) for name, value in answer.items()})
        return info, config
