"""The whole contract of a store: few verbs, each atomic, none of them waiting.

Owns no policy: when to claim, what to record and what a lost run means is written once, in
``claims.py``. A store answers by value when somebody else was quicker and raises
:class:`~flask_singlejob.errors.StoreError` for trouble only, within :data:`ANSWER_SECONDS`.

Every instant is an integer, UTC milliseconds **of the store's own clock, read inside the
statement that uses it**. A store is opened for one cluster and one table prefix; two clusters in
one database never see each other. It opens its first connection at the first verb, never in its
constructor, and is safe to use from several threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow, Doc, Poll, Run, RunStatus

__all__ = ["ANSWER_SECONDS", "Store", "initial_resolved"]

#: A store that has not answered after so many seconds counts as away.
ANSWER_SECONDS = 8.0


def initial_resolved(key: ClaimKey, now: int) -> int:
    """Return ``resolved`` of a new row: nothing before its making is ever due for a job."""
    return now if key.kind == "job" else 0


class Store(ABC):
    """A shared place for claims, documents and history.

    :param cluster: the cluster's name, the first part of every key.
    :param table_prefix: the prefix of tables, keys or collections.
    """

    #: True when only processes of one host can share it (an SQLite file, memory).
    local: bool = False

    def __init__(self, *, cluster: str, table_prefix: str) -> None:
        self.cluster = cluster
        self.table_prefix = table_prefix

    # -- life ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def identity(self) -> str:
        """What tells this store from others, without any secret: part of the election's identity."""

    @abstractmethod
    def describe(self) -> str:
        """Return a name for logs and pages, without any secret."""

    @abstractmethod
    def create(self) -> None:
        """Make what is missing (tables, indexes) and upgrade what is old.

        Many processes may do so at once, none sees an error of another's doing.
        """

    @abstractmethod
    def ddl(self) -> str:
        """Return, as text, what :meth:`create` would do on an empty database; no connection is made."""

    @abstractmethod
    def close(self) -> None:
        """Give back every connection. The next verb opens a new one."""

    @abstractmethod
    def after_fork(self) -> None:
        """Forget, in a forked child, every connection of the parent without closing or using it."""

    # -- claims -------------------------------------------------------------------------------

    @abstractmethod
    def poll(self) -> Poll:
        """Return the store's clock, the revision and the held rows, in one round trip."""

    @abstractmethod
    def ensure(self, keys: Iterable[ClaimKey]) -> dict[ClaimKey, ClaimRow]:
        """Return the rows of the keys; those that are missing are made (see :func:`initial_resolved`)."""

    @abstractmethod
    def rows(self, keys: Iterable[ClaimKey] | None = None, *, kind: str | None = None) -> list[ClaimRow]:
        """Return the rows there are, for the keys, or all of a kind, or all. Makes none."""

    @abstractmethod
    def claim(self, key: ClaimKey, request: ClaimRequest) -> ClaimOutcome:
        """Take a row with one conditional write; a missing row is made first.

        It is won only if, by the store's clock at the write: the row has no holder;
        ``hold_until <= now``; ``seen_resolved`` is None or equals ``resolved``; and

        * ``tick`` without ``rerun``: ``tick <= now``, ``tick > resolved`` and ``rerun_tick`` is None;
          then ``resolved = held_tick = tick``;
        * ``tick`` with ``rerun``: ``rerun_tick == tick``; then ``held_tick = tick``, ``rerun_tick = None``,
          ``resolved`` stays, and ``rerun_attempt`` stays too;
        * no ``tick``: ``held_tick = now``; ``resolved`` and ``rerun_tick`` stay.

        When won: ``holder``, ``since = now``, ``expires = now + lease_ms``,
        ``token = max(token + 1, now)``, ``hold_until = now + hold_ms`` (unchanged when ``hold_ms`` is 0),
        ``streak = None`` (unchanged without ``tick``), ``rerun_attempt = 0`` for a tick that is no rerun,
        ``info``, ``progress = None``.

        With ``request.slot`` the conditions on and the changes to ``resolved``, ``rerun_tick``, ``streak`` and
        ``token`` concern the key's own row, which keeps no holder; holder, lease, ``since``,
        ``held_tick``, ``info`` and the same ``token`` go to the slot's row, which must have no holder. Both
        change or neither does.

        A serialization failure, deadlock or lost race is "not won" when somebody else has the row then; a row that this
        claim could still take makes it trouble, tried again and in the end a StoreError. When the outcome of the write is
        unknown (the connection broke in mid-commit) the row is read again: it is won if and only if its
        holder is ``request.holder``.
        """

    @abstractmethod
    def renew(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        lease_ms: int,
        *,
        progress: Mapping[str, Any] | None = None,
    ) -> int | None:
        """Move ``expires`` to ``max(expires, now + lease_ms)``; store ``progress`` unless None.

        :returns: how many milliseconds the lease is good for from the store's now, or None when holder
            and token no longer hold it or the lease has ended already. ``lease_ms`` 0 only stores progress.
        """

    @abstractmethod
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
        """End a claim that is still held and unexpired; writes nothing and returns False otherwise.

        ``holder``, ``held_tick``, ``since``, ``expires`` and ``progress`` become None; ``hold_until`` stays. ``run``
        is added to history and becomes ``last_run`` (and ``last_success`` when it succeeded, at the
        store's now). ``resolved`` is raised to the given tick, and ``skipped`` added with ``streak`` as its
        id, when ``seen_resolved`` still equals it (always so while the claim is held). ``done``:
        ``resolved = now`` (a once-only task). For a slot's key, ``last_run``, ``last_success``, ``resolved``
        and ``streak`` concern the key's own row. All or nothing.
        """

    @abstractmethod
    def settle(self, key: ClaimKey, seen_resolved: int, resolved: int, record: Run | None = None) -> bool:
        """Set ``resolved`` of a row without holder, if it still equals ``seen_resolved``.

        ``record`` is written to history under its id (an older one of that id is replaced) and ``streak``
        becomes its id; without a record ``streak`` becomes None. ``resolved`` may go back: see the
        rule on a store's clock that went back.

        :returns: False, with nothing written, when the row changed meanwhile or is held.
        """

    @abstractmethod
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
        """End somebody's claim whose lease has ended (or, ``forced``, at once), if it still is that one.

        The row becomes free as by :meth:`release` but with ``token = max(token + 1, now)`` and
        ``hold_until`` kept. ``lost`` is added to history unless its id is there, and becomes ``last_run``.
        ``rerun``: ``rerun_tick = held_tick`` and ``rerun_attempt = info["attempt"]`` (in the key's own row).
        """

    # -- history ------------------------------------------------------------------------------

    @abstractmethod
    def runs(
        self,
        job_id: str | None = None,
        *,
        status: Sequence[RunStatus] | None = None,
        since: int | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Return finished runs and records, newest first by (:attr:`~flask_singlejob.records.Run.at_ms`, id).

        :param since: only those with ``at_ms >= since``.
        :param before: only those that sort after (are older than) this (``at_ms``, id): the next page.
        """

    @abstractmethod
    def run(self, run_id: str) -> Run | None:
        """Return one record of the history, or None."""

    @abstractmethod
    def add_run(self, run: Run) -> None:
        """Add a record that belongs to no claim (a worker-scope run)."""

    @abstractmethod
    def prune(self, *, before: int, keep: int, limit: int = 500) -> int:
        """Delete at most ``limit`` runs: those with ``at_ms < before``, and those beyond the newest ``keep`` of a job.

        :returns: how many were deleted; call again while it equals ``limit``.
        """

    # -- documents ----------------------------------------------------------------------------

    @abstractmethod
    def docs(self, kind: str, *, since: int = 0) -> list[Doc]:
        """Return the documents of a kind; with ``since`` only those of a greater revision, incl. traces of deleted ones."""

    def docs_of(self, kinds: Sequence[str], *, since: int = 0) -> list[Doc]:
        """Return the documents of several kinds, as :meth:`docs` does of one; in one round trip where it can be."""
        return [doc for kind in kinds for doc in self.docs(kind, since=since)]

    @abstractmethod
    def doc(self, kind: str, id: str) -> Doc | None:
        """Return one living document, or None."""

    @abstractmethod
    def put(
        self,
        kind: str,
        id: str,
        body: Mapping[str, Any],
        *,
        expect: int | None = None,
        quiet: bool = False,
    ) -> Doc | None:
        """Write a document and raise the cluster's revision, in one step.

        The revision of the document is the new one; revisions become visible in their order.

        :param expect: None: always; 0: only when there is none (first insert wins); else only when the
            document's revision is still this one.
        :param quiet: neither raises nor takes a revision (heartbeats).
        :returns: the document as written; None when ``expect`` was not met.
        """

    @abstractmethod
    def delete(self, kind: str, id: str, *, expect: int | None = None, quiet: bool = False) -> bool:
        """Remove a document, leaving a trace for :meth:`docs` (none when ``quiet``) for at least a day.

        :returns: False when there was none or ``expect`` was not met.
        """

    # -- looking after it ---------------------------------------------------------------------

    def checks(self) -> list[tuple[str, str]]:
        """Return what ``doctor`` should tell of this store: (finding, cure) pairs; none when all is well.

        :raises StoreError: when it cannot be reached.
        """
        return []
