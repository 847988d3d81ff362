"""Named locks over a store: ``lock()``, ``single_task`` and the runs of once-only work, with or without Flask.

Owns no thread but its keeper's. A lock keeps two holders apart while leases hold; it cannot stop a
holder whose lease was lost: see :class:`~flask_singlejob.lease.Lease`. Two hosts whose clocks differ still
run a short job twice one after the other unless ``hold_at_least`` spans the difference.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from . import forks
from .bodies import refuse_unrun
from .checks import safe_value
from .claims import Claimant, DeathProof, sweep
from .clock import steady_seconds
from .errors import ConfigError, LeaseLostError, LockHeldError
from .lease import Keeper, Lease
from .records import ClaimKey, ClaimRequest, ClaimRow, from_ms, new_id
from .references import may_stand_in
from .scheduler_checks import LEASE_LEAST, LEASE_MOST
from .stores.base import Store

__all__ = ["LockPlace", "held_error", "seconds_of", "single_task"]

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
#: While waiting for a lock the store is asked this often, seconds.
ASK_SECONDS = 0.2
#: No wait and no hold_at_least is longer: ten years.
MOST_SECONDS = 315_360_000.0
#: The lease of locks outside an app, seconds.
DEFAULT_LEASE = 30.0


def seconds_of(what: str, value: Any, *, least: float, most: float = MOST_SECONDS) -> float:
    """Return a duration as seconds.

    :param value: a number of seconds or a ``timedelta``.
    :raises ConfigError: naming what, the value and what is allowed.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ConfigError(f"{what} must be seconds ({least:g} to {most:.0f}) or a timedelta, not {value!r}")
    return float(value)


def check_name(name: Any, what: str = "a lock's name") -> str:
    """Return a usable name of a lock or a once-only task.

    :raises ConfigError: for anything but text of 1 to 255 characters without control characters.
    """
    if not isinstance(name, str) or not name or len(name) > 255 or any(ord(char) < 32 for char in name):
        raise ConfigError(
            f"{what} must be text of 1 to 255 characters without control characters, not {name!r}"
        )
    return name


def check_function(function: Any, decorator: str) -> None:
    """Check that what a decorator stands above can be called.

    :param decorator: how the decorator was written, for the error.
    :raises ConfigError: when it cannot.
    """
    if not callable(function):
        raise ConfigError(f"{decorator} decorates a function, not {safe_value(function)}")


def held_error(row: ClaimRow, now: int) -> LockHeldError:
    """Return the error that says who holds a row since when."""
    what = {"job": "job", "lock": "lock", "once": "once-only task"}[row.key.kind]
    info = row.info
    if row.holder is None:
        left = max(0, row.hold_until - now) / 1000
        return LockHeldError(
            f"{what} {row.key.name!r} stays taken for {left:.1f} s more (hold_at_least)", name=row.key.name
        )
    since = from_ms(row.since or now)
    return LockHeldError(
        f"{what} {row.key.name!r} is held by host {info.get('host')!r}, pid {info.get('pid')}, since {since.isoformat()}",
        name=row.key.name,
        holder_host=info.get("host"),
        holder_pid=info.get("pid"),
        since=since,
    )


class LockPlace:
    """Where locks of one store and process are taken.

    :param store: gives the store, ready to be used.
    :param claimant: gives who claims.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        claimant: Callable[[], Claimant],
        *,
        keeper: Keeper,
        lease_seconds: float,
        proof: Callable[[], DeathProof | None] = lambda: None,
        on_lost: Callable[[Lease], None] | None = None,
    ) -> None:
        self._store = store
        self._claimant = claimant
        self._keeper = keeper
        self._lease_seconds = lease_seconds
        self._proof = proof
        self._on_lost = on_lost

    def try_claim(
        self,
        key: ClaimKey,
        *,
        lease_seconds: float | None = None,
        hold_seconds: float = 0.0,
        seen_resolved: int | None = None,
        info: dict[str, Any] | None = None,
    ) -> tuple[Lease | None, ClaimRow, int]:
        """Try once to take a row that has no tick; a dead holder is cleared away first.

        :returns: the lease or None, the row, and the store's clock.
        """
        length = self._lease_seconds if lease_seconds is None else lease_seconds
        store = self._store()
        request = ClaimRequest(
            holder=new_id(),
            lease_ms=int(length * 1000),
            seen_resolved=seen_resolved,
            hold_ms=int(hold_seconds * 1000),
            info=self._claimant().info(**(info or {})),
        )
        for _ in range(2):
            sent = steady_seconds()
            outcome = store.claim(key, request)
            if outcome.won:
                lease = self._keeper.hold(
                    key,
                    request.holder,
                    outcome.row.token,
                    lease_seconds=length,
                    sent=sent,
                    on_lost=self._on_lost,
                )
                if lease.lost:
                    # The answer came too late (a frozen process): it is not begun.
                    self._keeper.drop(lease, "its time was up before the answer came")
                    break
                return lease, outcome.row, outcome.now
            if outcome.row.holder is None or not sweep(
                store, (outcome.row,), now=outcome.now, proof=self._proof()
            ):
                break
        return None, outcome.row, outcome.now

    @contextmanager
    def lock(
        self, name: str, *, lease: Any = None, wait: Any = 0, hold_at_least: float = 0.0
    ) -> Iterator[Lease]:
        """Hold a named lock of the cluster.

        :param lease: seconds or ``timedelta``; renewed while the block runs.
        :param wait: how long to wait for it, seconds or ``timedelta``.
        :param hold_at_least: it stays taken this many seconds by the store's clock.
        :raises LockHeldError: when it is not free in time; also for a lock that this thread holds itself.
        :raises StoreError: when the store does not answer.
        """
        key = ClaimKey("lock", check_name(name))
        length = None if lease is None else seconds_of("lease", lease, least=LEASE_LEAST, most=LEASE_MOST)
        deadline = steady_seconds() + seconds_of("wait", wait, least=0.0)
        mine = threading.get_ident()
        while True:
            held, row, now = self.try_claim(
                key, lease_seconds=length, hold_seconds=hold_at_least, info={"thread": mine}
            )
            if held is not None:
                break
            own = row.info.get("instance") == self._claimant().instance and row.info.get("thread") == mine
            left = deadline - steady_seconds()
            if left <= 0 or (own and row.holder is not None):
                raise held_error(row, now)
            threading.Event().wait(min(ASK_SECONDS, max(0.0, left)))
        try:
            yield held
        finally:
            self._keeper.finish(held, wait_seconds=0)


class _StandAlone:
    """A lock place for a store that no app owns; made at the first use, remade after a fork."""

    def __init__(self, store: Any) -> None:
        self._given = store
        self._lock = threading.Lock()
        self._place: LockPlace | None = None
        self._opened: Store | None = None
        self._keeper: Keeper | None = None
        self._alive: Any = None
        forks.watch(self)

    def place(self) -> LockPlace:
        with self._lock:
            if self._place is None:
                from .election import AliveFile, alive_directory, instance_tag
                from .stores import open_store

                store = self._opened = self._opened or open_store(self._given)
                instance = new_id()
                proof: DeathProof | None = None
                try:
                    alive = AliveFile(alive_directory(), instance)
                    if alive.acquire():
                        self._alive = alive
                        proof = DeathProof(instance_tag(), alive.is_dead)
                except OSError as error:
                    logger.debug("no file can prove this process alive: %s", error)
                claimant = Claimant(socket.gethostname(), os.getpid(), instance, instance_tag())
                store.create()
                self._keeper = Keeper(lambda: store)
                self._place = LockPlace(
                    lambda: store,
                    lambda: claimant,
                    keeper=self._keeper,
                    lease_seconds=DEFAULT_LEASE,
                    proof=lambda: proof,
                )
            return self._place

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._place = None
        if self._keeper is not None:
            self._keeper.after_fork()
        if self._opened is not None:
            self._opened.after_fork()


_stand_alone: dict[Any, _StandAlone] = {}
_stand_alone_lock = threading.Lock()


def place_for(store: Any) -> LockPlace:
    """Return the lock place of a store: a URL, an engine or what ``open_store`` returned."""
    key = store if isinstance(store, str) else id(store)
    with _stand_alone_lock:
        known = _stand_alone.get(key)
        if known is None or (not isinstance(store, str) and known._given is not store):
            known = _stand_alone[key] = _StandAlone(store)
    return known.place()


def _place_of_app() -> LockPlace | None:
    """Return the lock place of the app whose context this is, if there is one."""
    import sys

    # Without Flask imported there is no app; and importing it here would make cron scripts pay for it.
    if "flask" not in sys.modules:
        return None
    from .engine_access import current_lock_place

    return current_lock_place()


def single_task(
    name: str,
    *,
    store: Any = None,
    lease: Any = None,
    hold_at_least: Any = 0,
    otherwise: Any = None,
) -> Callable[[F], F]:
    """Decorate a function to run in one place of the cluster at a time.

    Without ``hold_at_least`` the lock only keeps calls from overlapping: on two hosts whose clocks differ,
    a job shorter than the difference runs twice, one after the other.

    :param name: the lock's name.
    :param store: a URL, an ``Engine`` or what :func:`open_store` returned; default: the store of the app
        whose context the call is made in.
    :param lease: seconds or ``timedelta``; renewed while the function runs, so no limit to it.
    :param hold_at_least: seconds that the lock stays taken by the store's clock, even after the end.
    :param otherwise: what a call gives elsewhere, at once: a value, or a callable that is called with the
        same arguments.
    :raises ConfigError: for a wrong value; at the call, when there is neither ``store`` nor an app.
    :raises TypeError: from the decorator, when ``otherwise`` takes no call that the function takes.
    """
    check_name(name)
    length = None if lease is None else seconds_of("lease", lease, least=LEASE_LEAST, most=LEASE_MOST)
    hold = seconds_of("hold_at_least", hold_at_least, least=0.0)
    if store is not None:
        from .stores import check_store

        try:
            check_store(store)
        except ConfigError as error:
            raise ConfigError(f"single_task({name!r}): store= cannot be used. {error}") from error

    def place() -> LockPlace:
        found = place_for(store) if store is not None else _place_of_app()
        if found is None:
            raise ConfigError(
                f"single_task({name!r}) has no store: give store='postgresql://…', or call it in the application "
                "context of an app with SingleJob"
            )
        return found

    def elsewhere(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        logger.debug("%r runs elsewhere", name)
        return otherwise(*args, **kwargs) if callable(otherwise) else otherwise

    def decorate(function: F) -> F:
        check_function(function, f"single_task({name!r})")
        if callable(otherwise) and not may_stand_in(otherwise, function):
            raise TypeError(
                f"single_task({name!r}): otherwise is called with the arguments of the call, and {otherwise!r} does not "
                f"take those of {function!r}: give a function of the same arguments (lambda *args, **kwargs: …), or a value"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"single_task({name!r}): {function!r} is a generator function, whose body runs after the call, when the "
                "lock is free again: decorate the function that goes through it"
            )
        key = ClaimKey("lock", name)

        def take() -> tuple[LockPlace, Lease | None]:
            found = place()
            held, _, _ = found.try_claim(key, lease_seconds=length, hold_seconds=hold)
            return found, held

        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - asked for its kind, not whether it is there
        ):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                found, held = take()
                if held is None:
                    result = elsewhere(args, kwargs)
                    return await result if inspect.isawaitable(result) else result
                try:
                    return await function(*args, **kwargs)
                finally:
                    found._keeper.finish(held)

            return call_async  # type: ignore[return-value]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            found, held = take()
            if held is None:
                return elsewhere(args, kwargs)
            awaited = False
            try:
                result = function(*args, **kwargs)
                refuse_unrun(function, result)
                if inspect.iscoroutine(result):
                    # A decorator hid an async function: its body has not begun.
                    awaited = True
                    return _held_while_awaited(result, found, held)
                return result
            except LeaseLostError:
                logger.warning("%r ended because its lease was lost", name)
                raise
            finally:
                if not awaited:
                    found._keeper.finish(held)

        return call  # type: ignore[return-value]

    return decorate


def _held_while_awaited(coroutine: Any, place: LockPlace, held: Lease) -> Any:
    """Return a coroutine that frees the lock at the end of another one; one that nobody awaits loses it in time."""

    async def call() -> Any:
        left.detach()
        try:
            return await coroutine
        finally:
            place._keeper.finish(held)

    made = call()
    left = weakref.finalize(made, place._keeper.drop, held, "its coroutine was never awaited")
    left.atexit = False
    return made
