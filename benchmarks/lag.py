"""From a tick to the first line of its job, beside plain APScheduler in the same moment."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from tests.integration.harness import Cluster

from .report import Row, spread

JOBS = [{"id": f"job-{n}", "trigger": "cron", "second": "*", "work": 0} for n in range(3)]


def measure(name: str, store: str, seconds: float = 20) -> Row:
    """Run the same three jobs in both for some seconds, in one worker each.

    What may be added is one round trip to the store, as the plain app measures it in the same seconds.
    """
    with tempfile.TemporaryDirectory() as directory:
        ours, plain = (Cluster(Path(directory) / kind, store=store) for kind in ("ours", "plain"))
        try:
            ours.host("a", workers=1, jobs=JOBS)
            plain.host("b", app="benchmarks.apps:create_apscheduler_app()", workers=1, jobs=JOBS)
            for cluster in (ours, plain):
                cluster.wait_runs("job-0", 2)
            begun = time.time()
            time.sleep(seconds)
            lags = []
            for cluster in (ours, plain):
                runs = [run for run in cluster.runs() if run.tick is not None and run.tick / 1000 > begun]
                lags.append([run.facts["real"] - (run.tick or 0) / 1000 for run in runs])
            round_trip = statistics.median(event["seconds"] for event in plain.events("round trip"))
        finally:
            ours.reap()
            plain.reap()
    mine, other = (statistics.median(values) for values in lags)
    more = mine - other
    return Row(
        f"(b) start lag, {name}",
        f"{more / round_trip:.2f} round trips more than APScheduler",
        "<= 1",
        more <= round_trip,
        f"{spread(lags[0], 1000, ' ms')} against {spread(lags[1], 1000, ' ms')}; "
        f"a round trip takes {round_trip * 1000:.2f} ms",
    )
