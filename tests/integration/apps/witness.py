"""Tells, outside the product, what really happened: one appended line per event.

A line is written with a single ``write`` to a descriptor opened with ``O_APPEND``, so lines of many
processes never mix and a killed process leaves whole lines. ``mono`` is CLOCK_MONOTONIC, one clock for
all processes of a machine, which no test shifts. Imports nothing of the project at module level.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["VARIABLE", "tell", "tell_to", "witnessed_run"]

#: The environment variable that names the witness's file.
VARIABLE = "SINGLEJOB_TEST_WITNESS"


def tell_to(path: str, event: str, **facts: Any) -> None:
    """Append one event to the witness at ``path``."""
    line = {"event": event, "pid": os.getpid(), "mono": time.monotonic(), "real": time.time(), **facts}
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


def tell(event: str, **facts: Any) -> None:
    """Append one event to the witness that the environment names, if it names one."""
    path = os.environ.get(VARIABLE)
    if path:
        tell_to(path, event, **facts)


@contextmanager
def witnessed_run(name: str | None = None, **facts: Any) -> Iterator[None]:
    """Witness the start and the end of the current run around the block.

    A worker-scope run has no tick of its own in APScheduler: its start and end are told without one
    when ``current_run`` knows none.
    """
    from flask_singlejob import current_run

    run: dict[str, Any] = {"job": name or "?", "tick": None, "token": None, "run": None, "host": None}
    if current_run:
        scheduled_at = current_run.scheduled_at
        run = {
            "job": current_run.job_id,
            "tick": round(scheduled_at.timestamp() * 1000) if scheduled_at else None,
            "token": current_run.token,
            "run": current_run.id,
            "host": current_run.host,
            "scope": current_run.scope,
            "cause": current_run.cause,
            "attempt": current_run.attempt,
            "stood_for": getattr(current_run, "stood_for", 1),
        }
    tell("start", thread=threading.get_native_id(), **run, **facts)
    try:
        yield
    finally:
        tell("end", **run, **facts)
