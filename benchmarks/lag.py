"""From a tick to the first line of its job, beside plain APScheduler in the same moment."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from tests.integration.harness import Cluster

from .report import Row, spread

#: One job by itself at each odd second, three together at each even one.
JOBS = [
    {"id": "alone", "trigger": "cron", "second": "1-59/2", "work": 0},
    *({"id": f"together-{n}", "trigger": "cron", "second": "*/2", "work": 0} for n in range(3)),
]


def measure(name: str, store: str, seconds: float = 40) -> Row:
    """Run the same jobs in both for some seconds, in one worker each.

    What may be added is one round trip to the store: the claim, as the bare driver of the plain app's process
    sends it in the same seconds.
    """
    with tempfile.TemporaryDirectory() as directory:
        # Two files of SQLite's, which lets one write at a time: neither waits for the other's.
        other_store = f"{store}.plain" if store.startswith("sqlite") else store
        ours, plain = (
            Cluster(Path(directory) / kind, store=at)
            for kind, at in (("ours", store), ("plain", other_store))
        )
        try:
            ours.host("a", workers=1, jobs=JOBS)
            plain.host("b", app="benchmarks.apps:create_apscheduler_app()", workers=1, jobs=JOBS)
            for cluster in (ours, plain):
                cluster.wait_runs("alone", 2)
            begun = time.time()
            time.sleep(seconds)
            lags, together = (
                [_lags(cluster, job, begun) for cluster in (ours, plain)] for job in ("alone", "together")
            )
            round_trip = statistics.median(
                event["seconds"] for event in plain.events("round trip") if event["job"] == "alone"
            )
        finally:
            ours.reap()
            plain.reap()
    mine, other = (statistics.median(values) for values in lags)
    more = mine - other
    mine_together, other_together = (statistics.median(values) * 1000 for values in together)
    return Row(
        f"(b) start lag, {name}",
        f"{more / round_trip:.2f} round trips more than APScheduler",
        "<= 1",
        more <= round_trip,
        f"{spread(lags[0], 1000, ' ms')} against {spread(lags[1], 1000, ' ms')}; a round trip takes "
        f"{round_trip * 1000:.2f} ms; of three jobs at once the median is {mine_together:.2f} ms against "
        f"{other_together:.2f} ms",
    )


def _lags(cluster: Cluster, job: str, begun: float) -> list[float]:
    """Return the seconds from a tick to the first line of its job, for the ticks after ``begun``."""
    return [
        run.facts["real"] - run.tick / 1000
        for run in cluster.runs()
        if run.job.startswith(job) and run.tick is not None and run.tick / 1000 > begun
    ]
