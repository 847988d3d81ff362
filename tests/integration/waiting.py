"""Waiting for a condition with a deadline, and the length of the windows that tests observe."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["observe", "wait_until", "window_seconds"]

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], deadline: float = 30.0, what: str = "", *, every: float = 0.02
) -> T:
    """Return the first true value of ``condition``; errors of a connection count as not yet.

    :param deadline: seconds until the wait is a failure; generous, since a busy machine is slow.
    :param what: what is waited for, for the failure's message.
    :raises AssertionError: when the deadline passed.
    """
    end = time.monotonic() + deadline
    trouble: Exception | None = None
    while True:
        try:
            value = condition()
            if value:
                return value
            trouble = None
        except (OSError, LookupError) as error:
            trouble = error
        if time.monotonic() >= end:
            name = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(
                f"not within {deadline:g} s: {name}" + (f" (last: {trouble!r})" if trouble else "")
            )
        time.sleep(every)


def window_seconds(default: float) -> float:
    """Return how long a scenario observes: ``SINGLEJOB_TEST_SECONDS``, or the default."""
    return float(os.environ.get("SINGLEJOB_TEST_SECONDS") or default)


def observe(seconds: float) -> None:
    """Let the servers run for a window of real time that a checker looks at afterwards."""
    time.sleep(seconds)
