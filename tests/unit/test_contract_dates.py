"""A date that is past when the cluster first sees it: run once however late, or recorded as missed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.unit.rig import SteppedClock, TroubledStore, hosts_on, wait_until

PAST = datetime.now(timezone.utc) - timedelta(days=400)
ran: list[str] = []


def work(name: str) -> None:
    """Note a run."""
    ran.append(name)


@pytest.mark.parametrize("stored", [False, True])
def test_a_past_date_runs_once_in_the_cluster_or_is_missed_by_its_grace_time(
    stored: bool, tmp_path: Path
) -> None:
    store = TroubledStore(clock=SteppedClock())
    ran.clear()
    with hosts_on(store, tmp_path) as make:
        for number, name in enumerate(("one", "two")):
            host = make(name)
            host.jobs.init_app(host.app)

            def add(id: str, host: Any = host, number: int = number, **options: Any) -> None:
                if stored and number:
                    return
                host.jobs.add_job(
                    id, work, args=[id], trigger="date", run_date=PAST, persist=stored, **options
                )

            add("late")
            add("graced", misfire_grace_time=5)
            host.jobs.start(force=True)
            wait_until(lambda: "late" in ran, "the date runs")
            wait_until(
                lambda host=host: host.jobs.runs("graced", status="missed"),  # type: ignore[misc]
                "the other is recorded as missed",
            )
            (missed,) = host.jobs.runs("graced")
            assert (missed.reason, missed.scheduled_at.date()) == ("no_owner", PAST.date())
            assert not [reason for reason in host.jobs.health("jobs").reasons if "succeeded" in reason]
            jobs = host.jobs
        # The second host has looked at the jobs by the time that a job of its own has run.
        jobs.add_job("mark", work, args=["mark"], trigger="date", persist=True)
        wait_until(lambda: "mark" in ran, "the mark runs")
        assert sorted(ran) == ["late", "mark"]
