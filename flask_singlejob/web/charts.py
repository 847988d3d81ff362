"""Small pictures of one job's history: the strip of its last runs and the chart of their durations.

Owns geometry: numbers that a template draws as SVG. Knows no store and no Flask.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..records import Run, RunStatus
from .show import seconds_text, utc_text

__all__ = ["DurationChart", "History", "Strip", "duration_chart", "history_of", "strip_of"]

ENDED = (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.LOST)
#: A strip's cells are as high as the news is bad, so that it reads without colour too.
HEIGHTS = {
    RunStatus.SUCCEEDED: 12,
    RunStatus.RUNNING: 12,
    RunStatus.FAILED: 20,
    RunStatus.LOST: 20,
    RunStatus.SKIPPED: 6,
    RunStatus.MISSED: 6,
}
CELL = 5


@dataclass(frozen=True)
class Cell:
    """One record in a strip."""

    x: int
    y: int
    height: int
    status: str
    title: str


@dataclass(frozen=True)
class Strip:
    """The last records of a job, oldest at the left."""

    width: int
    cells: tuple[Cell, ...]
    label: str


@dataclass(frozen=True)
class History:
    """What a job's last records say.

    :param sample: how many ended runs the figures are of.
    :param success_rate: the share of them that succeeded, None without any.
    :param p50: median duration, seconds.
    """

    sample: int
    success_rate: float | None
    p50: float | None
    p95: float | None
    strip: Strip


def title_of(run: Run, now: datetime) -> str:
    """Return a record in one line."""
    began = run.started_at or run.scheduled_at
    text = f"{run.status} {utc_text(began, now)}"
    if run.duration is not None:
        text += f", {seconds_text(run.duration)}"
    if run.count > 1:
        text += f", {run.count} ticks"
    if run.reason:
        text += f" ({run.reason})"
    if run.host:
        text += f" on {run.host}"
    return text


def strip_of(runs: Sequence[Run], now: datetime, *, length: int = 30) -> Strip:
    """Return the strip of a job's records, given newest first."""
    chosen = list(runs[:length])[::-1]
    cells = tuple(
        Cell(
            x=place * CELL,
            y=20 - HEIGHTS[run.status],
            height=HEIGHTS[run.status],
            status=run.status.value,
            title=title_of(run, now),
        )
        for place, run in enumerate(chosen)
    )
    counts = Counter(run.status.value for run in chosen)
    words = ", ".join(f"{number} {status}" for status, number in counts.most_common())
    return Strip(length * CELL, cells, f"Last {len(chosen)}: {words}" if chosen else "No runs yet")


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value that so large a share of the values does not exceed (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def history_of(runs: Sequence[Run], now: datetime) -> History:
    """Return what a job's records say, given newest first."""
    ended = [run for run in runs if run.status in ENDED]
    good = sum(run.status is RunStatus.SUCCEEDED for run in ended)
    durations = [
        run.duration for run in ended if run.duration is not None and run.status is not RunStatus.LOST
    ]
    return History(
        sample=len(ended),
        success_rate=good / len(ended) if ended else None,
        p50=percentile(durations, 0.5),
        p95=percentile(durations, 0.95),
        strip=strip_of(runs, now),
    )


@dataclass(frozen=True)
class Point:
    """One run in the chart."""

    x: float
    y: float
    height: float
    status: str
    title: str
    run_id: str


@dataclass(frozen=True)
class DurationChart:
    """How long a job's runs took, oldest at the left; the scale begins at zero.

    :param lines: (y, label) of the scale's lines.
    :param median_y: where the median lies, None without any.
    """

    width: int
    height: int
    left: int
    points: tuple[Point, ...]
    bar: float
    lines: tuple[tuple[float, str], ...]
    median_y: float | None
    label: str


#: Round durations above ten seconds, seconds.
ROUND_SECONDS = (20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400)


def nice_top(value: float) -> float:
    """Return the next round duration, seconds, that is not below a value."""
    if value <= 0:
        return 0.001
    if value > 10:
        return next((step for step in ROUND_SECONDS if step >= value), 86400.0 * math.ceil(value / 86400))
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999999)


def duration_chart(runs: Sequence[Run], now: datetime, *, most: int = 100) -> DurationChart:
    """Return the chart of a job's records, given newest first; what has no duration is left out."""
    chosen = [run for run in runs if run.duration is not None and run.status in ENDED][:most][::-1]
    width, height, left, top, bottom = 900, 190, 76, 10, 14
    durations = [run.duration or 0.0 for run in chosen]
    highest = nice_top(max(durations, default=0.0))
    room = height - top - bottom
    step = (width - left - 6) / max(len(chosen), 30)

    def y_of(value: float) -> float:
        return round(top + room * (1 - value / highest), 1)

    points = tuple(
        Point(
            x=round(left + place * step, 1),
            y=min(y_of(run.duration or 0.0), height - bottom - 1.5),
            height=max(1.5, round(height - bottom - y_of(run.duration or 0.0), 1)),
            status=run.status.value,
            title=title_of(run, now),
            run_id=run.id,
        )
        for place, run in enumerate(chosen)
    )
    median = percentile(durations, 0.5)
    label = (
        f"Durations of the last {len(chosen)} runs, up to {seconds_text(max(durations))}, median {seconds_text(median)}"
        if chosen
        else "No run has ended yet"
    )
    return DurationChart(
        width=width,
        height=height,
        left=left,
        points=points,
        bar=round(max(1.5, step - 2), 1),
        lines=tuple((y_of(highest * part), seconds_text(highest * part)) for part in (0.0, 0.5, 1.0)),
        median_y=None if median is None else y_of(median),
        label=label,
    )
