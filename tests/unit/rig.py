"""Several hosts in one process over one store in memory, whose clock and whose troubles a test controls."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flask import Flask

from flask_singlejob import SingleJob
from flask_singlejob.engine import Engine
from flask_singlejob.engine_access import engine_of
from flask_singlejob.errors import StoreError
from flask_singlejob.records import ClaimKey, ClaimOutcome, ClaimRequest, new_id
from flask_singlejob.stores.memory import MemoryStore

DEADLINE_SECONDS = 20.0


def wait_until(condition: Callable[[], Any], what: str, *, seconds: float = DEADLINE_SECONDS) -> Any:
    """Return what a condition gives once it is true.

    :raises AssertionError: when it is not in time.
    """
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        threading.Event().wait(0.01)


class SteppedClock:
    """The host's clock, moved by as much as a test says; gives UTC milliseconds."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class TroubledStore(MemoryStore):
    """A store in memory that fails, or hangs, where it is told to.

    :ivar around: called in a verb's place, with the verb itself and its arguments.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.away = False
        self.failing: set[str] = set()
        self.calls: list[str] = []
        self.around: dict[str, Callable[..., Any]] = {}

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in _VERBS:
            self.calls.append(name)
            if self.away or name in self.failing:
                raise StoreError(f"{name}: the store is away, as the test wants it")
            if name in self.around:
                return partial(self.around[name], found)
        return found

    def lose_answers(self, verb: str, count: int = 1) -> None:
        """Carry the next calls of a verb out, and fail all the same: their outcome is unknown."""

        def carry_out(found: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            answer = found(*args, **kwargs)
            count -= 1
            if count <= 0:
                del self.around[verb]
            raise StoreError(f"{verb}: the answer {answer!r} was lost, as the test wants it")

        self.around[verb] = carry_out


_VERBS = frozenset(
    [
        "create",
        "poll",
        "ensure",
        "rows",
        "claim",
        "renew",
        "release",
        "settle",
        "expire",
        "runs",
        "run",
        "add_run",
        "prune",
        "docs",
        "doc",
        "put",
        "delete",
    ]
)


class Host:
    """One host: an app with its own lock file and host id.

    :param store: shared by the hosts of a test.
    """

    def __init__(self, name: str, store: MemoryStore | str, directory: Path, **config: Any) -> None:
        self.name = name
        self.app = Flask(f"rig_{name}")
        self.app.config.update(
            SINGLEJOB_STORE=store,
            SINGLEJOB_CLUSTER="rig",
            SINGLEJOB_HOST_ID=name,
            SINGLEJOB_LOCK_FILE=str(directory / f"{name}.lock"),
            SINGLEJOB_POLL_INTERVAL=0.1,
            **config,
        )
        self.jobs = SingleJob()

    def start(self) -> Host:
        """Campaign, and wait until the jobs are being scheduled."""
        self.jobs.init_app(self.app)
        self.jobs.start(force=True)
        wait_until(lambda: self.engine.term is not None and self.engine.term.loaded, f"{self.name} schedules")
        return self

    @property
    def engine(self) -> Engine:
        engine = engine_of(self.app)
        assert engine is not None
        return engine

    def stop(self) -> None:
        if engine_of(self.app) is not None:
            self.engine.shutdown(wait=False)


@contextmanager
def hosts_on(store: MemoryStore | str, directory: Path) -> Iterator[Callable[..., Host]]:
    """Make hosts on one store; all are stopped at the end."""
    private = directory / "locks"
    private.mkdir(mode=0o700, exist_ok=True)
    os.chmod(private, 0o700)
    made: list[Host] = []

    def make(name: str, **config: Any) -> Host:
        host = Host(name, store, private, **config)
        made.append(host)
        return host

    try:
        yield make
    finally:
        for host in made:
            host.stop()


def claim_as_stranger(
    store: MemoryStore, key: ClaimKey, *, tick: int | None, lease_ms: int, **info: Any
) -> ClaimOutcome:
    """Take a row as a process of another host would, and never look after it."""
    row = store.ensure([key])[key]
    return store.claim(
        key,
        ClaimRequest(
            holder=new_id(),
            lease_ms=lease_ms,
            tick=tick,
            seen_resolved=row.resolved if tick is not None else None,
            info={"host": "elsewhere", "pid": 1, "instance": new_id(), "machine": "elsewhere", **info},
        ),
    )
