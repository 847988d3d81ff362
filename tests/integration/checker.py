"""Reads what the witness saw and counts what must not be: the judge of every scenario.

Knows no product code: it works on the witness's lines, on samples of who held a host's lock, and on a
description of what was expected. It cannot see a run that neither began nor was expected.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["Expected", "Fault", "OwnerSample", "Report", "WitnessedRun", "check", "read_events", "runs_of"]


@dataclass(frozen=True)
class Expected:
    """What a job should have done.

    :param job: its id.
    :param every: seconds from tick to tick.
    :param scope: ``cluster``: each tick once; ``host``: once for each of ``hosts``; ``worker``: once in
        each process that ran it at all, from its first tick to its last.
    :param hosts: the host ids, for host scope.
    :param may_overlap: True for a job with ``max_instances`` > 1.
    :param attempts: how many times one tick may run (more than 1 for ``rerun_lost``).
    :param must_run: False for a job that may have run never.
    """

    job: str
    every: float = 1.0
    scope: str = "cluster"
    hosts: tuple[str, ...] = ()
    may_overlap: bool = False
    attempts: int = 1
    must_run: bool = True


@dataclass(frozen=True)
class OwnerSample:
    """Which processes of one host held its lock at one moment (``mono``: seconds, monotonic)."""

    mono: float
    host: str
    pids: tuple[int, ...]


@dataclass(frozen=True)
class Fault:
    """One thing that must not be.

    :param kind: ``double missing overlap owners token order off_grid unfinished silent``.
    """

    kind: str
    job: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.job}: {self.detail}"


@dataclass
class WitnessedRun:
    """One run as the witness saw it; ``end`` is None while no end was seen."""

    job: str
    tick: int | None
    token: int | None
    run: str | None
    host: str | None
    pid: int
    start: float
    end: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """What the checker found.

    :param ticks: per job how many different ticks ran within the window.
    :param late: seconds from each tick to its start, by the true clock (scheduled runs of the window).
    """

    faults: list[Fault] = field(default_factory=list)
    ticks: dict[str, int] = field(default_factory=dict)
    late: list[float] = field(default_factory=list)

    def of(self, kind: str) -> list[Fault]:
        """Return the faults of one kind."""
        return [fault for fault in self.faults if fault.kind == kind]

    def assert_clean(self, *, but: Iterable[str] = ()) -> None:
        """Fail with every fault, those of the kinds in ``but`` apart."""
        faults = [fault for fault in self.faults if fault.kind not in set(but)]
        if faults:
            shown = "\n  ".join(str(fault) for fault in faults[:40])
            raise AssertionError(f"{len(faults)} faults in {self.ticks}:\n  {shown}")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the witness's lines in the order in which they were written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def runs_of(events: Iterable[Mapping[str, Any]], job: str | None = None) -> list[WitnessedRun]:
    """Pair starts with ends and return the runs in the order of their starts.

    A run that a killed process left open ends with the process's death, when the witness was told of it.
    """
    runs: list[WitnessedRun] = []
    running: dict[tuple[int, str, Any], list[WitnessedRun]] = defaultdict(list)
    for event in sorted(events, key=lambda e: float(e["mono"])):
        if event["event"] == "killed":
            for (pid, _, _), left in running.items():
                if pid == event["killed"]:
                    for run in left:
                        run.end = float(event["mono"])
                    left.clear()
        if event["event"] not in ("start", "end") or (job is not None and event["job"] != job):
            continue
        key = (event["pid"], event["job"], event["run"] or event["tick"])
        if event["event"] == "start":
            run = WitnessedRun(
                job=event["job"],
                tick=event["tick"],
                token=event["token"],
                run=event["run"],
                host=event["host"],
                pid=event["pid"],
                start=float(event["mono"]),
                facts=event,
            )
            runs.append(run)
            running[key].append(run)
        elif running[key]:
            running[key].pop(0).end = float(event["mono"])
    return runs


def check(
    events: Sequence[Mapping[str, Any]],
    expected: Iterable[Expected],
    *,
    window: tuple[float, float],
    samples: Iterable[OwnerSample] = (),
    excused: Mapping[str, Iterable[int]] | None = None,
    finished: bool = True,
) -> Report:
    """Judge what the witness saw.

    :param window: from and to, seconds since 1970 by the true clock. Only ticks within it can be
        missing; whatever ran outside of it is still checked for doubles, overlaps and order.
    :param samples: who held each host's lock, see :class:`OwnerSample`.
    :param excused: per job the ticks (UTC milliseconds) that need not have run, since the history says
        that their process died between claim and start.
    :param finished: all servers were stopped in good order, so each run must have ended.
    """
    report = Report()
    for wanted in expected:
        runs = [run for run in runs_of(events, wanted.job) if run.facts.get("cause") != "manual"]
        if not runs and wanted.must_run:
            report.faults.append(Fault("silent", wanted.job, "never ran"))
            continue
        groups = _groups(wanted, runs)
        for host in wanted.hosts if wanted.scope == "host" else ():
            if host not in groups:
                report.faults.append(Fault("silent", wanted.job, f"never ran on {host}"))
        excused_ticks = set((excused or {}).get(wanted.job, ()))
        for name, group in groups.items():
            report.faults += _doubles(wanted, name, group)
            report.faults += _grid(wanted, name, group, window, excused_ticks)
            if not wanted.may_overlap:
                report.faults += _overlaps(wanted, name, group)
            if wanted.scope != "worker":
                report.faults += _order(wanted, name, group)
            if finished:
                report.faults += [
                    Fault("unfinished", wanted.job, f"tick {run.tick} in process {run.pid} never ended")
                    for run in group
                    if run.end is None
                ]
        report.ticks[wanted.job] = len({run.tick for run in runs if _within(run.tick, window)})
        report.late += [
            float(run.facts["real"]) - run.tick / 1000
            for run in runs
            if run.tick is not None and _within(run.tick, window) and "real" in run.facts
        ]
    report.faults += [
        Fault("owners", sample.host, f"{len(sample.pids)} at one moment: {sample.pids}")
        for sample in samples
        if len(sample.pids) > 1
    ]
    return report


def _within(tick: int | None, window: tuple[float, float]) -> bool:
    return tick is not None and window[0] * 1000 <= tick <= window[1] * 1000


def _groups(wanted: Expected, runs: Iterable[WitnessedRun]) -> dict[str, list[WitnessedRun]]:
    """Split runs into the groups within which a tick is single."""
    groups: dict[str, list[WitnessedRun]] = defaultdict(list)
    for run in runs:
        name = {"cluster": "the cluster", "host": str(run.host), "worker": f"process {run.pid}"}[wanted.scope]
        groups[name].append(run)
    return dict(groups)


def _doubles(wanted: Expected, name: str, runs: Iterable[WitnessedRun]) -> list[Fault]:
    by_tick: dict[int | None, list[WitnessedRun]] = defaultdict(list)
    for run in runs:
        by_tick[run.tick].append(run)
    return [
        Fault(
            "double",
            wanted.job,
            f"tick {tick} ran {len(same)} times in {name}: "
            + ", ".join(f"host {run.host} pid {run.pid} token {run.token}" for run in same),
        )
        for tick, same in by_tick.items()
        if tick is not None and len(same) > wanted.attempts
    ]


def _grid(
    wanted: Expected,
    name: str,
    runs: Sequence[WitnessedRun],
    window: tuple[float, float],
    excused: set[int],
) -> list[Fault]:
    """Compare the ticks that ran with anchor + n x interval; the first tick seen gives the anchor.

    A coalesced run stands for the ticks before its own that it says it stood for.
    """
    step = round(wanted.every * 1000)
    ticks = {run.tick for run in runs if run.tick is not None}
    if not ticks:
        return [Fault("silent", wanted.job, f"no run in {name} has a tick")]
    anchor = min(ticks)
    faults = [
        Fault("off_grid", wanted.job, f"tick {tick} in {name} is not {anchor} + n x {step}")
        for tick in sorted(ticks)
        if (tick - anchor) % step
    ]
    low, high = round(window[0] * 1000), round(window[1] * 1000)
    if wanted.scope == "worker":
        low, high = max(low, anchor), min(high, max(ticks))
    first = anchor + -((anchor - low) // step) * step
    stood_for = {
        run.tick - n * step
        for run in runs
        if run.tick is not None
        for n in range(run.facts.get("stood_for", 1))
    }
    missing = [tick for tick in range(first, high + 1, step) if tick not in stood_for | excused]
    return faults + [Fault("missing", wanted.job, f"tick {tick} never ran in {name}") for tick in missing]


def _overlaps(wanted: Expected, name: str, runs: Sequence[WitnessedRun]) -> list[Fault]:
    faults = []
    ordered = sorted(runs, key=lambda run: run.start)
    for position, run in enumerate(ordered):
        for later in ordered[position + 1 :]:
            if run.end is not None and later.start >= run.end:
                break
            faults.append(
                Fault(
                    "overlap",
                    wanted.job,
                    f"in {name}: tick {run.tick} (pid {run.pid}) "
                    + ("still ran" if run.end is not None else "never ended")
                    + f" when tick {later.tick} (pid {later.pid}) began",
                )
            )
            if run.end is None:
                break
    return faults


def _order(wanted: Expected, name: str, runs: Sequence[WitnessedRun]) -> list[Fault]:
    """Find tokens that do not grow and ticks that ran after a later one."""
    faults = []
    ordered = sorted(runs, key=lambda run: run.start)
    for earlier, later in pairwise(ordered):
        if wanted.may_overlap:
            continue
        if earlier.token is not None and later.token is not None and later.token <= earlier.token:
            faults.append(
                Fault("token", wanted.job, f"in {name}: token {later.token} came after {earlier.token}")
            )
        if earlier.tick is not None and later.tick is not None and later.tick < earlier.tick:
            faults.append(
                Fault("order", wanted.job, f"in {name}: tick {later.tick} ran after {earlier.tick}")
            )
    return faults
