"""Keeps SQLite at rest while this process forks.

SQLite notes in the process's memory which locks its connections hold. A child inherits the notes and not
the locks: what another thread held at the fork stays locked in the child for ever, and what idle connections
held (each holds a share of its file) the child believes to have, so that another process may delete the
write-ahead log that it writes to. A fork therefore waits, for a moment, until no verb is under way in any
store of the process, and closes their idle connections. The next verb opens new ones.

Uses no lock: a lock could be a greenlet's, or be held by whoever forks.
"""

from __future__ import annotations

import threading
import time
import weakref
from types import TracebackType
from typing import Protocol

from .. import forks

__all__ = ["WAIT_SECONDS", "Rest", "rest"]

#: A fork that has waited for so many seconds takes place all the same.
WAIT_SECONDS = 1.0
#: Whose end was not told after so many seconds is over: some servers fork without telling.
_FORK_SECONDS = 3.0
_LOOK_SECONDS = 0.001


class Closing(Protocol):
    """A store's connections."""

    def close_idle(self) -> None:
        """Close every connection that is not in use."""


class Rest:
    """The verbs and the forks under way: a context manager around each use of a connection.

    Each thread changes its own entries only. Who enters tells so first and looks for forks then; who forks
    does it the other way round; so that one of the two always sees the other.
    """

    def __init__(self) -> None:
        #: How deep each thread is in verbs, by its ident.
        self._inside: dict[int, int] = {}
        #: Since when each thread forks, by its ident; the first one's turn comes first.
        self._forking: dict[int, float] = {}
        self._stores: tuple[weakref.ReferenceType[Closing], ...] = ()

    def add(self, store: Closing) -> None:
        """Have a store's idle connections closed before each fork."""
        self._stores = (*(ref for ref in self._stores if ref() is not None), weakref.ref(store))

    def __enter__(self) -> None:
        me = threading.get_ident()
        depth = self._inside.get(me, 0)
        self._inside[me] = depth + 1
        # Who is inside already must not wait: the fork may be waiting for it.
        while self._forking and not depth and me not in self._forking:
            self._inside.pop(me, None)
            self._wait_for_forks()
            self._inside[me] = 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        me = threading.get_ident()
        depth = self._inside.get(me, 0)
        if depth > 1:
            self._inside[me] = depth - 1
        else:
            self._inside.pop(me, None)

    def _wait_for_forks(self) -> None:
        while self._forking:
            for thread, since in list(self._forking.items()):
                if time.monotonic() - since > _FORK_SECONDS:
                    self._forking.pop(thread, None)
            time.sleep(_LOOK_SECONDS)

    def before_fork(self) -> None:
        """Keep others out, wait for those inside, and close what is idle then."""
        me = threading.get_ident()
        started = time.monotonic()
        self._forking[me] = started
        # One fork after the other: closing connections is a use of them.
        while list(self._forking)[:1] != [me] or any(thread != me for thread in list(self._inside)):
            if time.monotonic() - started > WAIT_SECONDS:
                return
            time.sleep(_LOOK_SECONDS)
        if me not in self._inside:
            for ref in self._stores:
                store = ref()
                if store is not None:
                    store.close_idle()

    def after_fork_in_parent(self) -> None:
        """Let the others in."""
        self._forking.pop(threading.get_ident(), None)

    def after_fork(self) -> None:
        """Forget, in the child, the threads that the parent had."""
        me = threading.get_ident()
        self._inside = {me: self._inside[me]} if me in self._inside else {}
        self._forking = {}


#: The process's own: SQLite's notes are the process's as well.
rest = Rest()
forks.watch(rest)
