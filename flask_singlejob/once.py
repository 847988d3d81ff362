"""Tasks that succeed one time ever per key and version in the whole cluster.

Owns their rows: ``resolved`` of a once-only row is when it was done, 0 before. A task that failed or whose
process died is tried by the next comer, and by the owner with back-off. Jobs do not wait for it.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .bodies import to_the_end
from .claims import sweep
from .clock import steady_seconds
from .errors import ConfigError, LockHeldError, StoreError
from .locks import ASK_SECONDS, check_name, held_error
from .records import ClaimKey, ClaimRow

if TYPE_CHECKING:
    from .engine import Engine
    from .locks import LockPlace

__all__ = ["OnceTask", "OnceTasks", "once_key"]

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 300.0


def once_key(key: str, version: str | None) -> ClaimKey:
    """Return the row of a task's key and version."""
    return ClaimKey("once", key if version is None else f"{key}@{version}")


@dataclass(frozen=True)
class OnceTask:
    """A once-only task as the code defines it.

    :param version: text, or a callable that is given the app.
    :param before_requests: workers answer 503 until it is done.
    :param wait: seconds that a caller waits for somebody else to finish it.
    """

    key: str
    function: Callable[..., Any]
    version: str | Callable[[Any], Any] | None = None
    before_requests: bool = False
    wait: float = 20.0

    def claim_key(self, app: Any) -> ClaimKey:
        """Return the task's row for this app.

        :raises ConfigError: when ``version`` gives no text.
        """
        version = self.version(app) if callable(self.version) else self.version
        if version is not None and (not isinstance(version, str) or not version):
            raise ConfigError(
                f"once({self.key!r}): version must be (or give) a nonempty text, not {version!r}"
            )
        name = once_key(self.key, version).name
        return ClaimKey("once", check_name(name))


class OnceTasks:
    """The once-only tasks of one app.

    :param place: where their rows are claimed.
    """

    def __init__(self, engine: Engine, place: Callable[[], LockPlace]) -> None:
        self._engine = engine
        self._place = place
        self.tasks: dict[str, OnceTask] = {}
        self._done: set[str] = set()
        self.renew_locks()

    def renew_locks(self) -> None:
        """Make the locks anew, in a forked child or after threads were replaced by greenlets."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, task: OnceTask) -> None:
        """Add a task; the same key from another function is refused.

        :raises ConfigError: naming both functions.
        """
        known = self.tasks.get(task.key)
        if known is not None and _name(known.function) != _name(task.function):
            raise ConfigError(
                f"once({task.key!r}) is defined twice: by {_name(known.function)} and by {_name(task.function)}"
            )
        self.tasks[task.key] = task
        self._open = False
        if self._engine.is_owner:
            self.start()

    @property
    def guards_requests(self) -> bool:
        """True while some ``before_requests`` task is not known to be done."""
        return any(task.before_requests for task in self.tasks.values()) and not self._open

    _open = False

    def run(self, task: OnceTask, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> bool:
        """Run the task unless it is done; wait for somebody else who does.

        :returns: True where it ran, False where it had run.
        :raises LockHeldError: when somebody else still runs it after ``wait`` seconds.
        :raises StoreError: when the store does not answer.
        """
        engine = self._engine
        key = task.claim_key(engine.app)
        if key.name in self._done:
            return False
        with engine.claiming():
            deadline = steady_seconds() + task.wait
            while True:
                lease, row, now = self._place().try_claim(key, seen_resolved=0, info={"cause": "once"})
                if lease is not None:
                    break
                if row.resolved > 0:
                    self._done.add(key.name)
                    return False
                if steady_seconds() >= deadline:
                    raise held_error(row, now)
                threading.Event().wait(ASK_SECONDS)
            done = False
            try:
                with engine.app.app_context():
                    to_the_end(engine.app, task.function)(*args, **(kwargs or {}))
                done = True
            finally:
                ended = engine.keeper.finish(
                    lease, done=done, wait_seconds=engine.settings.lease if done else 0
                )
                if done and ended:
                    self._done.add(key.name)
                    engine.bump_rows()
            if not ended:
                lease.check()
                raise StoreError(
                    f"once({task.key!r}) ran, but the store could not be told: it will run again"
                )
        logger.info("once-only task %r is done", key.name)
        return True

    # -- by the owner ------------------------------------------------------------------------------

    def start(self) -> None:
        """Run what is not done yet on a thread of this host's owner, again with back-off until it is."""
        if not self.tasks:
            return
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._thread = threading.Thread(target=self._loop, name="singlejob-once", daemon=True)
            self._thread.start()

    def look_again(self) -> None:
        """Ask the store anew which tasks are done: somebody may have had one forgotten."""
        self._done = set()
        self._open = False
        self.start()

    def _loop(self) -> None:
        pause = FIRST_RETRY_SECONDS
        while self._engine.is_owner or self._engine.term is not None:
            if self._round():
                return
            threading.Event().wait(pause * random.uniform(0.75, 1.25))
            pause = min(LONGEST_RETRY_SECONDS, pause * 2)

    def _round(self) -> bool:
        complete = True
        for task in list(self.tasks.values()):
            try:
                self.run(task)
            except LockHeldError as error:
                logger.debug("%s", error)
                complete = False
            except StoreError as error:
                logger.debug("once-only task %r waits for the store: %s", task.key, error)
                complete = False
            except Exception:
                self._engine.app.logger.exception(
                    "Once-only task %r failed; it will be tried again", task.key
                )
                complete = False
        return complete

    # -- before requests -----------------------------------------------------------------------------

    def pending(self) -> list[str]:
        """Return the keys of ``before_requests`` tasks that are not known to be done.

        Asks the store for those that are not; a store that does not answer leaves them pending.
        """
        engine = self._engine
        waiting: dict[str, str] = {}
        unknown: list[str] = []
        for task in list(self.tasks.values()):
            if task.before_requests:
                try:
                    name = task.claim_key(engine.app).name
                except Exception as error:
                    # Whatever a version's callable raises: what cannot be told is not done.
                    logger.warning("the version of once(%r) cannot be told: %r", task.key, error)
                    unknown.append(task.key)
                    continue
                if name not in self._done:
                    waiting[name] = task.key
        if not waiting:
            self._open = not unknown
            return unknown
        try:
            rows = engine.ready_store().rows([ClaimKey("once", name) for name in waiting])
        except StoreError as error:
            logger.debug("whether %s ran cannot be told: %s", list(waiting.values()), error)
            return [*unknown, *waiting.values()]
        self._done |= {row.key.name for row in rows if row.resolved > 0}
        return [*unknown, *(key for name, key in waiting.items() if name not in self._done)]

    def forget(self, key: str) -> int:
        """Let a task run again, whatever its version; its rows are set back.

        :returns: how many rows there were.
        """
        store = self._engine.ready_store()
        found = 0
        for row in store.rows(kind="once"):
            if row.key.name == key or row.key.name.startswith(f"{key}@"):
                if row.holder is not None:
                    sweep(store, (row,), now=store.poll().now, proof=None)
                found += bool(store.settle(row.key, row.resolved, 0, None))
                self._done.discard(row.key.name)
        if found:
            self._engine.bump_rows()
        return found

    def rows(self) -> list[ClaimRow]:
        """Return the rows of every once-only task that was ever tried."""
        return self._engine.ready_store().rows(kind="once")


def _name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def decorate_once(task: OnceTask, tasks: Callable[[], OnceTasks]) -> Callable[..., bool]:
    """Return the function that runs a task once wherever it is called."""

    @functools.wraps(task.function)
    def call(*args: Any, **kwargs: Any) -> bool:
        return tasks().run(task, args, kwargs)

    return call
