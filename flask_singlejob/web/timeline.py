"""The timeline: runs of the last minutes or days, per job and host, as a picture.

Owns geometry: numbers that a template draws as SVG on the server. Knows no store and no Flask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ..records import Run, RunStatus, from_ms, to_ms
from .charts import title_of
from .show import shortened, span_text

__all__ = ["SPANS", "Timeline", "timeline_of"]

#: What can be chosen, seconds.
SPANS = {"15m": 900, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800}
#: Steps between labels of the axis, seconds.
STEPS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800)
WIDTH, LEFT, RIGHT = 1100, 250, 16
TOP, LANE = 30, 26
#: Of the span, how much of the future is shown.
AHEAD = 0.12
MARKS = {RunStatus.SKIPPED: "skipped", RunStatus.MISSED: "missed"}


@dataclass(frozen=True)
class Bar:
    """One run."""

    x: float
    width: float
    status: str
    title: str
    run_id: str


@dataclass(frozen=True)
class Mark:
    """A tick that was not run, or one to come; ``x0`` is where a record of several begins."""

    x0: float
    x: float
    kind: str
    title: str
    run_id: str | None = None


@dataclass
class Lane:
    """The runs of one job on one host."""

    job_id: str
    host: str
    y: int = 0
    first: bool = False
    bars: list[Bar] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The job's id, short enough for its place."""
        return shortened(self.job_id, 24)

    @property
    def host_label(self) -> str:
        """The host, short enough for its place."""
        return shortened(self.host, 13)


@dataclass(frozen=True)
class Timeline:
    """The picture.

    :param more_lanes: how many lanes found no place.
    :param summary: the picture in words.
    """

    width: int
    height: int
    left: int
    plot_right: int
    lane_height: int
    lanes: tuple[Lane, ...]
    axis: tuple[tuple[float, str], ...]
    now_x: float
    more_lanes: int
    summary: str


def _step_of(seconds: float) -> int:
    return next((step for step in STEPS if seconds / step <= 8), STEPS[-1])


def timeline_of(
    runs: Sequence[Run],
    next_ticks: Mapping[str, Sequence[int]],
    *,
    now: int,
    span_seconds: int,
    max_lanes: int = 40,
) -> Timeline:
    """Return the timeline.

    :param runs: newest first, those going on among them.
    :param next_ticks: ticks to come by job id, UTC milliseconds.
    :param now: UTC milliseconds.
    """
    moment = from_ms(now)
    begin = now - span_seconds * 1000
    end = now + int(span_seconds * AHEAD * 1000)
    plot = WIDTH - LEFT - RIGHT

    def x_of(ms: int) -> float:
        return round(LEFT + plot * (min(max(ms, begin), end) - begin) / (end - begin), 1)

    lanes: dict[tuple[str, str], Lane] = {}
    for run in runs:
        if run.at_ms < begin and run.status is not RunStatus.RUNNING:
            continue
        lane = lanes.setdefault((run.job_id, run.host or ""), Lane(run.job_id, run.host or ""))
        _place(lane, run, moment, x_of, now)
    _join_hostless(lanes)
    known = {job_id for job_id, _ in lanes}
    for job_id, ticks in next_ticks.items():
        if job_id not in known and any(tick <= end for tick in ticks):
            lanes[job_id, ""] = Lane(job_id, "")
    ordered = sorted(lanes.values(), key=lambda lane: (lane.job_id.lower(), lane.job_id, lane.host))
    chosen = ordered[:max_lanes]
    before: str | None = None
    for number, lane in enumerate(chosen):
        lane.y = TOP + number * LANE
        lane.first = lane.job_id != before
        before = lane.job_id
        if lane.first:
            for tick in next_ticks.get(lane.job_id, ()):
                if now <= tick <= end:
                    lane.marks.append(
                        Mark(x_of(tick), x_of(tick), "next", f"due {from_ms(tick):%Y-%m-%d %H:%M:%S} UTC")
                    )
    return Timeline(
        width=WIDTH,
        height=TOP + max(1, len(chosen)) * LANE + 10,
        left=LEFT,
        plot_right=WIDTH - RIGHT,
        lane_height=LANE,
        lanes=tuple(chosen),
        axis=_axis(begin, end, span_seconds, x_of),
        now_x=x_of(now),
        more_lanes=len(ordered) - len(chosen),
        summary=_summary(runs, begin, span_seconds),
    )


def _join_hostless(lanes: dict[tuple[str, str], Lane]) -> None:
    """Move what happened on no host (ticks that nobody ran) to the first lane of its job that has one."""
    for key in [key for key in lanes if not key[1]]:
        hosts = sorted(host for job_id, host in lanes if job_id == key[0] and host)
        if hosts:
            lanes[key[0], hosts[0]].marks += lanes.pop(key).marks


def _place(lane: Lane, run: Run, moment: datetime, x_of: object, now: int) -> None:
    assert callable(x_of)
    title = f"{shortened(run.job_id, 80)}: {shortened(title_of(run, moment), 200)}"
    if run.status in MARKS:
        first, last = to_ms(run.scheduled_at), to_ms(run.last_scheduled_at or run.scheduled_at)
        lane.marks.append(Mark(x_of(first), x_of(last), MARKS[run.status], title, run.id))
        return
    start = to_ms(run.started_at or run.scheduled_at)
    stop = now if run.finished_at is None else to_ms(run.finished_at)
    x = x_of(start)
    lane.bars.append(Bar(x, max(3.0, round(x_of(stop) - x, 1)), run.status.value, title, run.id))


def _axis(begin: int, end: int, span_seconds: int, x_of: object) -> tuple[tuple[float, str], ...]:
    assert callable(x_of)
    step = _step_of(span_seconds) * 1000
    form = "%H:%M" if span_seconds <= 86400 else "%m-%d %H:%M"
    first = (begin // step + 1) * step
    return tuple((x_of(ms), f"{from_ms(ms):{form}}") for ms in range(first, end, step))


def _summary(runs: Sequence[Run], begin: int, span_seconds: int) -> str:
    seen = [run for run in runs if run.at_ms >= begin or run.status is RunStatus.RUNNING]
    counts = Counter(run.status.value for run in seen)
    jobs = len({run.job_id for run in seen})
    words = ", ".join(
        f"{counts[status.value]} {status.value}" for status in RunStatus if counts[status.value]
    )
    if not seen:
        return f"No runs in the last {span_text(span_seconds)}."
    return f"The last {span_text(span_seconds)}: {len(seen)} records of {jobs} jobs: {words}."
