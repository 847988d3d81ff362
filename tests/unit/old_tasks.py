"""What the jobs of an old APScheduler job store refer to."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apscheduler.triggers.interval import IntervalTrigger

__all__ = ["OddTrigger", "Thing", "gone", "report"]


def report(a: Any = None, b: Any = None, *, c: Any = None) -> None:
    """Be a job."""


def gone() -> None:
    """Be a job whose function a test takes away."""


class Thing:
    """An argument that is no JSON."""


class OddTrigger(IntervalTrigger):  # type: ignore[misc]
    """A trigger of a kind of its own."""

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> Any:
        """Return the next time."""
        return super().get_next_fire_time(previous_fire_time, now)
