"""Counts of runs that only grow, kept in the store over pruning: what a Prometheus counter needs.

Owns one document: the counts up to a moment a little ago. What came later is counted from history at each
look, so every worker of every host comes to the same numbers. Counting begins at the first look.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..records import Run, RunStatus, to_ms
from ..stores.base import Store

__all__ = ["DURATION_BUCKETS", "LAG_BUCKETS", "MAX_JOBS", "OTHER", "JobTally", "Spread", "Tally", "tally_of"]

#: Upper bounds, seconds; one more holds what is longer.
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
LAG_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3600.0)
#: So many jobs have counts of their own; the rest are counted together.
MAX_JOBS = 200
OTHER = "other"
#: A record is written at most so long after the moment it names, milliseconds; later ones are not counted.
SETTLE_MS = 120_000
#: The document is written again when what it lacks goes back further than this, milliseconds.
FOLD_MS = 180_000
PAGE = 1000
#: When nobody looked for so long that more runs than this came, counting goes on from now.
MAX_PAGES = 20
#: A skipped or missed record grows while its like follow: so many of a job are remembered by id.
GROWING = 8
VERSION = 1


@dataclass
class Spread:
    """How values are spread over buckets.

    :param counts: per bucket, not summed up; the last is what is above all bounds.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1:
            self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound, how many are not above it), as Prometheus wants them."""
        found, number = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            number += count
            found.append((bound, float(number)))
        return found


@dataclass
class JobTally:
    """One job's counts.

    :param numbers: by status; by ``status:reason`` for what was not run and what was lost.
    :param growing: how often each of the newest skipped and missed records was counted already.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    durations: Spread = field(default_factory=lambda: Spread(DURATION_BUCKETS))
    growing: dict[str, int] = field(default_factory=dict)

    def add(self, run: Run) -> None:
        """Count one record."""
        number = 1
        if run.status in (RunStatus.SKIPPED, RunStatus.MISSED):
            number = max(0, run.count - self.growing.pop(run.id, 0))
            self.growing[run.id] = run.count
            while len(self.growing) > GROWING:
                del self.growing[next(iter(self.growing))]
        names = [run.status.value]
        if run.reason is not None and run.status is not RunStatus.SUCCEEDED:
            names.append(f"{run.status.value}:{run.reason}")
        for name in names:
            self.numbers[name] = self.numbers.get(name, 0) + number
        if run.duration is not None and run.status in (RunStatus.SUCCEEDED, RunStatus.FAILED):
            self.durations.add(run.duration)


class Tally:
    """Counts of all jobs up to a moment.

    :param upto: (at_ms, id) of the newest record that is counted.
    """

    def __init__(self, upto: tuple[int, str]) -> None:
        self.upto = upto
        self.jobs: dict[str, JobTally] = {}
        self.lag = Spread(LAG_BUCKETS)

    def add(self, runs: Iterable[Run]) -> None:
        """Count records, given oldest first."""
        for run in runs:
            name = run.job_id if run.job_id in self.jobs or len(self.jobs) < MAX_JOBS else OTHER
            self.jobs.setdefault(name, JobTally()).add(run)
            if run.cause == "schedule" and run.started_at is not None:
                self.lag.add(
                    max(0, to_ms(run.started_at) - to_ms(run.last_scheduled_at or run.scheduled_at)) / 1000
                )
            self.upto = max(self.upto, (run.at_ms, run.id))

    def to_body(self) -> dict[str, Any]:
        """Return the document's body."""
        return {
            "v": VERSION,
            "upto": list(self.upto),
            "lag": [*self.lag.counts, self.lag.total],
            "jobs": {
                name: {"n": job.numbers, "d": [*job.durations.counts, job.durations.total], "g": job.growing}
                for name, job in self.jobs.items()
            },
        }

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Tally:
        """Return the counts of a document."""
        at, run_id = body["upto"]
        found = cls((int(at), str(run_id)))
        found.lag = Spread(LAG_BUCKETS, list(body["lag"][:-1]), float(body["lag"][-1]))
        for name, job in body["jobs"].items():
            durations = Spread(DURATION_BUCKETS, list(job["d"][:-1]), float(job["d"][-1]))
            found.jobs[name] = JobTally(dict(job["n"]), durations, dict(job["g"]))
        return found


def _newer(store: Store, upto: tuple[int, str]) -> list[Run] | None:
    """Return the records after a place in history, oldest first; None when there are too many."""
    found: list[Run] = []
    before: tuple[int, str] | None = None
    for _ in range(MAX_PAGES):
        page = store.runs(since=upto[0], before=before, limit=PAGE)
        found += [run for run in page if (run.at_ms, run.id) > upto]
        if len(page) < PAGE:
            return found[::-1]
        before = (page[-1].at_ms, page[-1].id)
    return None


def tally_of(store: Store, now: int) -> Tally:
    """Return the counts as of now, and bring the document up to date when it is time.

    :param now: the store's clock, UTC milliseconds.
    :raises StoreError: when the store does not answer.
    """
    doc = store.doc("metrics", "tally")
    if doc is None or doc.body.get("v") != VERSION:
        start = Tally((now - SETTLE_MS, ""))
        # Not quiet: only a revision tells two writers from each other. The first insert wins.
        doc = store.put("metrics", "tally", start.to_body(), expect=0 if doc is None else doc.revision)
        doc = doc or store.doc("metrics", "tally")
        if doc is None:
            return start
    base = Tally.from_body(doc.body)
    newer = _newer(store, base.upto)
    if newer is None:
        base.upto = (now - SETTLE_MS, "")
        store.put("metrics", "tally", base.to_body(), expect=doc.revision)
        newer = _newer(store, base.upto) or []
    elif base.upto[0] < now - FOLD_MS:
        settled = [run for run in newer if run.at_ms < now - SETTLE_MS]
        folded = Tally.from_body(doc.body)
        folded.add(settled)
        folded.upto = max(folded.upto, (now - SETTLE_MS, ""))
        # Lost to somebody who did the same: their document gives the same counts.
        store.put("metrics", "tally", folded.to_body(), expect=doc.revision)
    base.add(newer)
    return base
