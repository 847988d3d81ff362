"""The scheduler object as users of Flask-APScheduler know it, with the import changed and nothing else."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest
from apscheduler.events import EVENT_JOB_ADDED, EVENT_JOB_EXECUTED, JobEvent
from apscheduler.jobstores.base import JobLookupError
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from flask import Flask
from flask_apscheduler import APScheduler
from flask_apscheduler.utils import job_to_dict

from flask_singlejob import STATE_PAUSED, STATE_RUNNING, STATE_STOPPED, ConfigError, SingleJob

from ..integration.waiting import wait_until
from .conftest import MakeApp

calls: list[object] = []


def note(value: object = None) -> None:
    """Note a call."""
    calls.append(value)


def other() -> None:
    """Do nothing."""


def test_an_app_runs_from_start_to_shutdown(jobs: SingleJob, app: Flask) -> None:
    jobs.init_app(app)
    assert isinstance(jobs, APScheduler)
    assert app.apscheduler is jobs  # type: ignore[attr-defined]
    assert jobs.app is app
    assert (jobs.running, jobs.state) == (False, STATE_STOPPED)
    jobs.start()
    assert (jobs.running, jobs.state) == (True, STATE_RUNNING)
    jobs.shutdown()
    assert (jobs.running, jobs.state) == (False, STATE_STOPPED)


def test_pause_and_resume_show_in_the_state(jobs: SingleJob, app: Flask) -> None:
    jobs.init_app(app)
    jobs.start()
    jobs.pause()
    assert jobs.state == STATE_PAUSED == 2
    jobs.resume()
    assert jobs.state == STATE_RUNNING == 1


def test_started_paused_it_waits_for_resume(jobs: SingleJob, app: Flask) -> None:
    jobs.init_app(app)
    jobs.start(paused=True)
    assert jobs.state == STATE_PAUSED


def test_started_before_it_has_an_app_it_starts_with_the_app(jobs: SingleJob, app: Flask) -> None:
    jobs.start()
    assert not jobs.running
    jobs.init_app(app)
    assert jobs.running


@pytest.mark.parametrize("hosts", [["somewhere-else"], []])
def test_a_host_that_is_not_allowed_does_not_run(
    jobs: SingleJob, make_app: MakeApp, hosts: list[str]
) -> None:
    jobs.init_app(make_app(SCHEDULER_ALLOWED_HOSTS=hosts))
    jobs.start()
    assert not jobs.running
    assert jobs.allowed_hosts == hosts


def test_a_second_object_takes_the_place_of_an_unused_one(app: Flask) -> None:
    unused = SingleJob(app=app)
    app.config["SCHEDULER_ALLOWED_HOSTS"] = ["somewhere-else"]
    second = SingleJob()
    second.init_app(app)
    assert second.allowed_hosts == ["somewhere-else"]
    assert app.apscheduler is second  # type: ignore[attr-defined]
    assert unused.app is None


def test_a_second_object_for_an_app_in_use_is_refused(app: Flask) -> None:
    first = SingleJob(app=app)
    first.add_job("note", note, trigger="interval", hours=1)
    with pytest.raises(ConfigError, match="init_app once per app"):
        SingleJob().init_app(app)


def test_jobs_come_from_the_configuration(jobs: SingleJob, make_app: MakeApp) -> None:
    app = make_app(
        JOBS=[{"id": "note", "func": f"{__name__}:note", "trigger": "interval", "seconds": 10, "args": (1,)}],
        SCHEDULER_JOBSTORES={"default": MemoryJobStore()},
        SCHEDULER_EXECUTORS={"default": {"type": "threadpool", "max_workers": 3}},
        SCHEDULER_JOB_DEFAULTS={"coalesce": False, "max_instances": 3},
        SCHEDULER_TIMEZONE=timezone.utc,
    )
    jobs.init_app(app)
    job = jobs.get_job("note")
    assert job is not None
    assert (job.coalesce, job.max_instances, job.args) == (False, 3, (1,))
    assert job.func is note


def test_old_forms_of_a_configured_trigger_are_read(jobs: SingleJob, make_app: MakeApp) -> None:
    run_date = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    app = make_app(
        JOBS=[
            {"id": "one", "func": note, "trigger": {"type": "cron", "minute": "*/5"}},
            {"id": "two", "func": note, "trigger": {"run_date": run_date}},
        ]
    )
    jobs.init_app(app)
    assert [str(job.trigger).partition("[")[0] for job in jobs.get_jobs()] == ["cron", "date"]


def test_a_job_is_there_before_an_app_is(jobs: SingleJob, app: Flask) -> None:
    jobs.add_job("added", note, trigger="interval", minutes=10)

    @jobs.task("interval", seconds=10, id="decorated")
    def decorated() -> None: ...

    job = jobs.get_job("decorated")
    assert job is not None
    assert job.func is decorated
    assert [job.id for job in jobs.get_jobs()] == ["added", "decorated"]
    jobs.init_app(app)
    assert {job.id for job in jobs.get_jobs()} == {"added", "decorated"}


def test_a_job_is_removed_alone_and_with_all_others(jobs: SingleJob, app: Flask) -> None:
    for id in ("one", "two", "three"):
        jobs.add_job(id, note, trigger="interval", hours=1)
    jobs.init_app(app)
    jobs.start()
    jobs.remove_job("one")
    assert jobs.get_job("one") is None
    assert len(jobs.get_jobs()) == 2
    jobs.remove_all_jobs()
    assert jobs.get_jobs() == []
    with pytest.raises(JobLookupError):
        jobs.remove_job("one")


def test_a_job_is_modified_paused_and_resumed(jobs: SingleJob, app: Flask) -> None:
    jobs.init_app(app)
    jobs.add_job("note", note, trigger="interval", hours=1)
    jobs.modify_job("note", trigger="cron", minute="*/5", args=[7], name="noted")
    job = jobs.get_job("note")
    assert job is not None
    assert (str(job.trigger), job.args, job.name) == ("cron[minute='*/5']", (7,), "noted")
    jobs.pause_job("note")
    paused = jobs.get_job("note")
    assert paused is not None
    assert paused.next_run_time is None
    jobs.resume_job("note")
    resumed = jobs.get_job("note")
    assert resumed is not None
    assert resumed.next_run_time is not None


def test_a_job_runs_by_hand_with_its_arguments(jobs: SingleJob, app: Flask) -> None:
    jobs.init_app(app)
    jobs.add_job("note", note, trigger="interval", hours=1, args=["by hand"])
    calls.clear()
    jobs.run_job("note")
    assert calls == ["by hand"]
    with pytest.raises(JobLookupError):
        jobs.run_job("nothing")


def test_a_listener_learns_of_events_until_it_is_removed(jobs: SingleJob, app: Flask) -> None:
    seen: list[JobEvent] = []
    jobs.init_app(app)
    jobs.add_listener(seen.append, EVENT_JOB_ADDED | EVENT_JOB_EXECUTED)
    jobs.add_job("note", note, trigger="interval", hours=1)
    jobs.run_job("note")
    assert [(event.code, event.job_id) for event in seen] == [
        (EVENT_JOB_ADDED, "note"),
        (EVENT_JOB_EXECUTED, "note"),
    ]
    jobs.remove_listener(seen.append)
    jobs.run_job("note")
    assert len(seen) == 2


def test_a_job_reads_as_flask_apscheduler_shows_jobs(jobs: SingleJob, app: Flask) -> None:
    jobs.init_app(app)
    ends = datetime.now(timezone.utc) + timedelta(days=90)
    jobs.add_job(
        "note", note, trigger="interval", weeks=1, days=2, hours=3, minutes=4, seconds=5, end_date=ends
    )
    job = jobs.get_job("note")
    shown = job_to_dict(job)
    assert {unit: shown[unit] for unit in ("weeks", "days", "hours", "minutes", "seconds")} == {
        "weeks": 1,
        "days": 2,
        "hours": 3,
        "minutes": 4,
        "seconds": 5,
    }
    assert shown["func"] == f"{__name__}:note"
    assert shown["end_date"] == ends.replace(microsecond=ends.microsecond // 1000 * 1000)
    assert re.match(r"note \(trigger: interval\[9 days, 3:04:05\], next run at: ", str(job))


def test_the_scheduler_underneath_acts_on_the_same_jobs(jobs: SingleJob, app: Flask) -> None:
    jobs.init_app(app)
    jobs.scheduler.add_job(note, "interval", minutes=5, id="note", args=["x"])
    jobs.scheduler.reschedule_job("note", trigger="interval", minutes=6)
    assert [(job.id, str(job.trigger)) for job in jobs.get_jobs()] == [("note", "interval[0:06:00]")]
    jobs.scheduler.pause_job("note")
    assert jobs.get_jobs()[0].next_run_time is None
    jobs.scheduler.resume_job("note")
    jobs.scheduler.modify_job("note", args=["y"])
    assert jobs.get_jobs()[0].args == ("y",)

    @jobs.scheduler.scheduled_job("interval", id="second", hours=2)  # type: ignore[untyped-decorator]
    def second() -> None: ...

    assert {job.id for job in jobs.scheduler.get_jobs()} == {"note", "second"}
    jobs.scheduler.remove_all_jobs()
    assert jobs.get_jobs() == []


def test_a_handle_acts_on_the_job(jobs: SingleJob, app: Flask) -> None:
    jobs.init_app(app)
    jobs.add_job("note", note, trigger="interval", minutes=5)

    def now() -> object:
        return jobs.get_job("note")

    for handle in (jobs.get_job("note"), jobs.get_jobs()[0]):
        assert handle is not None
        handle.modify(args=["z"])
        assert now().args == ("z",)  # type: ignore[attr-defined]
        handle.reschedule("interval", minutes=9)
        assert str(now().trigger) == "interval[0:09:00]"  # type: ignore[attr-defined]
        handle.pause()
        assert now().next_run_time is None  # type: ignore[attr-defined]
        handle.resume()
        assert now().next_run_time is not None  # type: ignore[attr-defined]
        assert handle.modify(max_instances=2).max_instances == 2
    assert handle is not None
    handle.remove()
    assert now() is None


def test_a_handle_from_before_the_app_acts_once_there_is_one(jobs: SingleJob, app: Flask) -> None:
    handle = jobs.add_job("note", note, trigger="interval", minutes=5)
    jobs.init_app(app)
    handle.pause()
    found = jobs.get_job("note")
    assert found is not None
    assert found.next_run_time is None
    handle.reschedule("interval", minutes=7)
    assert str(jobs.get_jobs()[0].trigger) == "interval[0:07:00]"


def test_a_scheduled_job_runs_in_an_application_context_by_itself(jobs: SingleJob, app: Flask) -> None:
    from flask import current_app

    ran: list[str] = []

    @jobs.task("interval", seconds=1, id="named")
    def named() -> None:
        ran.append(current_app.name)

    jobs.init_app(app)
    jobs.start()
    wait_until(lambda: ran, 20, "the job runs")
    assert ran[0] == app.name


@pytest.mark.parametrize("swapped", [False, True])
def test_positional_arguments_come_in_either_order(app: Flask, swapped: bool) -> None:
    pattern = BackgroundScheduler(job_defaults={"max_instances": 4})
    jobs = SingleJob(app, pattern) if swapped else SingleJob(pattern, app)
    job = jobs.add_job("note", note, trigger="interval", hours=1)
    assert job.max_instances == 4
    assert jobs.app is app


def test_the_patterns_pools_defaults_jobs_and_listeners_are_taken(app: Flask) -> None:
    seen: list[JobEvent] = []
    pattern = BackgroundScheduler(
        executors={
            "default": {"type": "threadpool", "max_workers": 2},
            "slow": {"type": "threadpool", "max_workers": 1},
        },
        job_defaults={"coalesce": False, "misfire_grace_time": 77},
        timezone="Europe/Berlin",
    )
    pattern.add_job(note, "cron", hour=3, id="pending", executor="slow", args=["pending"])
    pattern.add_listener(seen.append, EVENT_JOB_EXECUTED)
    jobs = SingleJob(scheduler=pattern)
    jobs.init_app(app)
    job = jobs.get_job("pending")
    assert job is not None
    assert (job.executor, job.coalesce, job.misfire_grace_time) == ("slow", False, 77)
    assert str(job.next_run_time.tzinfo) == "Europe/Berlin"
    assert job.next_run_time.hour == 3
    jobs.run_job("pending")
    assert [event.job_id for event in seen] == ["pending"]
    assert not pattern.running


class OwnScheduler(BackgroundScheduler):  # type: ignore[misc]
    """A scheduler class of a user's own."""

    def colour(self) -> str:
        """Return what only this class knows."""
        return "green"


@pytest.mark.parametrize(
    "given", [OwnScheduler, OwnScheduler(), lambda: OwnScheduler()], ids=["class", "instance", "factory"]
)
def test_a_scheduler_class_of_ones_own_is_kept(app: Flask, given: object) -> None:
    jobs = SingleJob(app, scheduler=given)
    jobs.add_job("note", note, trigger="interval", hours=1)
    jobs.start()
    wait_until(lambda: jobs.is_owner, 20, "this process owns the schedule")
    assert isinstance(jobs.scheduler, OwnScheduler)
    assert jobs.scheduler.colour() == "green"
    first = jobs.scheduler
    jobs.shutdown()
    jobs.start()
    wait_until(lambda: jobs.is_owner and jobs.scheduler is not first, 20, "it owns the schedule again")
    assert [job.id for job in jobs.get_jobs()] == ["note"]
