"""Stored jobs: text and JSON, whatever becomes of the code; and definitions that come late or twice."""

from __future__ import annotations

import functools
import importlib
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from flask import Blueprint, Flask

from flask_singlejob import JobDefinitionError, SingleJob
from flask_singlejob.engine_access import engine_of
from flask_singlejob.records import ClaimKey, from_ms
from flask_singlejob.stores.memory import MemoryStore
from tests.integration.waiting import wait_until
from tests.unit.schedule_kit import schedule

ran: list[tuple[Any, ...]] = []


def work(*args: Any, **kwargs: Any) -> None:
    """Note the arguments."""
    ran.append((args, kwargs))


def other() -> None:
    """Do nothing."""


class Shelf:
    """Something with methods."""

    def method(self) -> None:
        """Do nothing."""

    @staticmethod
    def static() -> None:
        """Note a call."""
        ran.append(("static",))

    @classmethod
    def of_class(cls) -> None:
        """Note the class."""
        ran.append((cls.__name__,))

    def __call__(self) -> None:
        """Do nothing."""


Process = Callable[..., tuple[SingleJob, Flask]]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """Return a maker of apps that stand for processes of one cluster: they share a store and nothing else."""
    name = uuid.uuid4().hex
    made: list[tuple[SingleJob, Flask]] = []

    def make(*, define: Callable[[SingleJob], Any] | None = None, **config: Any) -> tuple[SingleJob, Flask]:
        app = Flask("cluster", instance_path=str(tmp_path))
        app.config.update(
            TESTING=True,
            SINGLEJOB_STORE=f"memory://{name}",
            SINGLEJOB_LOCK_FILE=str(tmp_path / f"{len(made)}.lock"),
            SINGLEJOB_POLL_INTERVAL=0.05,
            SINGLEJOB_SHUTDOWN_TIMEOUT=2,
        )
        app.config.update(config)
        jobs = SingleJob()
        if define is not None:
            define(jobs)
        jobs.init_app(app)
        made.append((jobs, app))
        return jobs, app

    yield make
    for jobs, _ in made:
        jobs.shutdown(wait=False)


def own(jobs: SingleJob) -> None:
    """Make the process the owner of its host and wait until its jobs are read."""
    jobs.start(force=True)
    wait_until(
        lambda: jobs.is_owner and engine(jobs).term is not None and engine(jobs).term.loaded, 20, "owned"
    )


def engine(jobs: SingleJob) -> Any:
    """Return the engine of the only app."""
    assert jobs.app is not None
    return engine_of(jobs.app)


def store_job(jobs: SingleJob, id: str = "stored", func: Any = work, **options: Any) -> Any:
    """Store a job as a request would."""
    options.setdefault("trigger", "interval")
    if options["trigger"] == "interval":
        options.setdefault("hours", 1)
    return jobs.add_job(id, func, persist=True, **options)


# -- functions --------------------------------------------------------------------------------------------


def enclosing() -> Callable[[], None]:
    """Return a function that is defined inside another."""

    def nested() -> None: ...

    return nested


@pytest.mark.parametrize(
    ("func", "said"),
    [
        (lambda: None, "lambda"),
        (enclosing(), "inside another function"),
        (Shelf().method, "bound to an instance of Shelf"),
        (functools.partial(work, 1), "partial"),
        (Shelf(), "instance"),
    ],
    ids=["lambda", "nested", "method", "partial", "instance"],
)
def test_a_function_without_a_name_is_refused_in_a_request_with_the_cure(
    process: Process, func: Any, said: str
) -> None:
    jobs, app = process()

    @app.post("/add")
    def add() -> str:
        jobs.add_job("stored", func, trigger="interval", hours=1)
        return ""

    with pytest.raises(JobDefinitionError, match=said) as caught:
        app.test_client().post("/add")
    assert "register(func, name)" in str(caught.value)
    assert jobs.get_jobs() == []


@pytest.mark.parametrize("func", [lambda: ran.append(("lambda",)), enclosing()], ids=["lambda", "nested"])
def test_a_function_without_a_name_is_stored_by_the_name_it_was_registered_by(
    process: Process, func: Any
) -> None:
    jobs, _ = process()
    jobs.register(func, "by-name")
    assert store_job(jobs, func=func).func_ref == "by-name"


@pytest.mark.parametrize(("func", "said"), [(Shelf.static, "static"), (Shelf.of_class, "Shelf")])
def test_methods_of_classes_are_stored_and_run(process: Process, func: Any, said: str) -> None:
    store_job(process()[0], func=func)
    ran.clear()
    process()[0].run_job("stored")
    assert ran == [(said,)]


def test_a_job_whose_function_vanished_is_broken_left_alone_and_works_again(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "passing_module.py"
    source.write_text("ran = []\ndef work(): ran.append(1)\n")
    importlib.invalidate_caches()
    first, _ = process()
    store_job(first, func="passing_module:work", trigger="interval", hours=0, seconds=1)
    del sys.modules["passing_module"]
    source.rename(tmp_path / "away.py")
    importlib.invalidate_caches()

    second, _ = process()
    job = second.get_job("stored")
    assert job is not None
    assert "passing_module" in job.broken
    assert [entry["broken"] for entry in second.status()["jobs"]] == [job.broken]
    own(second)
    with pytest.raises(JobDefinitionError, match="passing_module"):
        second.run_job("stored")
    before = engine(second).store.docs("job")
    wait_until(
        lambda: from_ms(engine(second).store.poll().now) > job.next_run_time + timedelta(seconds=1), 20
    )
    assert engine(second).store.docs("job") == before
    assert engine(second).store.runs("stored") == []
    second.shutdown()

    (tmp_path / "away.py").rename(source)
    importlib.invalidate_caches()
    third, _ = process()
    back = third.get_job("stored")
    assert back is not None
    assert back.broken is None
    third.run_job("stored")
    assert importlib.import_module("passing_module").ran == [1]


def test_a_row_of_a_newer_version_is_left_alone_and_reported(process: Process) -> None:
    jobs, _ = process()
    store_job(jobs, trigger="interval", seconds=1, hours=0)
    body = dict(engine(jobs).store.docs("job")[0].body)
    engine(jobs).store.put("job", "stored", {**body, "v": 99, "something": "new"})
    later, _ = process()
    own(later)
    job = later.get_job("stored")
    assert job is not None
    assert "newer version" in job.broken
    assert any("newer version" in str(entry["broken"]) for entry in later.status()["jobs"])
    with pytest.raises(JobDefinitionError, match="newer version"):
        later.modify_job("stored", args=[1])
    observed = engine(later).store.poll().now
    wait_until(lambda: engine(later).store.poll().now > observed + 1500, 20)
    assert engine(later).store.docs("job")[0].body == {**body, "v": 99, "something": "new"}
    assert later.runs("stored") == []


# -- arguments --------------------------------------------------------------------------------------------

VALUES: list[Any] = [
    None,
    True,
    2**70,
    1.5,
    "ä\n",
    [1, [2]],
    {"a": {"$type": "b"}},
    (1, 2),
    datetime(2026, 1, 2, 3, 4, 5, 6, timezone.utc),
    date(2026, 1, 2),
    time(3, 4),
    timedelta(days=1, microseconds=5),
    uuid.UUID(int=5),
    Decimal("1.10"),
]


def test_arguments_come_back_in_another_process_as_they_were(process: Process) -> None:
    store_job(process()[0], args=VALUES, kwargs={"all": VALUES})
    ran.clear()
    process()[0].run_job("stored")
    args, kwargs = ran[0]
    assert list(args) == VALUES
    assert kwargs == {"all": VALUES}
    assert [type(value) for value in args] == [type(value) for value in VALUES]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"args": [1, object()]}, r"args\[1\] is of type builtins.object"),
        ({"kwargs": {"when": {1, 2}}}, r"kwargs\['when'\] is of type builtins.set"),
        ({"args": [[b"x"]]}, r"args\[0\]\[0\] is of type builtins.bytes"),
        ({"args": [float("nan")]}, r"args\[0\] is nan"),
    ],
)
def test_an_argument_that_cannot_be_stored_is_named(
    process: Process, options: dict[str, Any], said: str
) -> None:
    jobs, _ = process()
    with pytest.raises(JobDefinitionError, match=said):
        store_job(jobs, **options)
    store_job(jobs)
    with pytest.raises(JobDefinitionError, match=said):
        jobs.modify_job("stored", **options)


# -- triggers ---------------------------------------------------------------------------------------------

START = datetime(2031, 3, 1, 0, 30, tzinfo=timezone.utc)
TRIGGERS: dict[str, Any] = {
    "date": DateTrigger(datetime(2031, 5, 6, 7, 8, 9, tzinfo=timezone.utc)),
    "interval": IntervalTrigger(minutes=7, seconds=3, start_date=START, timezone="Europe/Berlin"),
    "cron": CronTrigger(
        hour="*/3", minute="5,50", day_of_week="mon-fri", start_date=START, timezone="Europe/Berlin"
    ),
    "cron-last": CronTrigger(day="last", hour=2, minute=30, start_date=START, timezone="America/New_York"),
    "or": OrTrigger(
        [
            CronTrigger(hour=2, minute=30, start_date=START, timezone="Europe/Berlin"),
            IntervalTrigger(hours=5, start_date=START, timezone="UTC"),
        ]
    ),
    "and": AndTrigger(
        [
            CronTrigger(minute="*/10", start_date=START, timezone="UTC"),
            CronTrigger(hour="8-17", minute="*/5", start_date=START, timezone="UTC"),
        ]
    ),
}


def fire_times(schedule: Any, count: int = 1000) -> list[int]:
    """Return the ticks of a schedule from 2031 on, UTC milliseconds."""
    tick: int | None = int(START.timestamp() * 1000) - 1
    found: list[int] = []
    while len(found) < count and tick is not None:
        tick = schedule.next_after(tick)
        if tick is not None:
            found.append(tick)
    return found


@pytest.mark.parametrize("kind", TRIGGERS)
def test_a_trigger_of_every_kind_comes_back_with_the_same_fire_times(process: Process, kind: str) -> None:
    store_job(process()[0], trigger=TRIGGERS[kind])
    jobs, _ = process()
    assert jobs.get_job("stored") is not None
    stored = engine(jobs).catalog.effective("stored", now=0).schedule
    expected = fire_times(schedule(TRIGGERS[kind]))
    assert len(expected) == (1 if kind == "date" else 1000)
    assert fire_times(stored) == expected


# -- changes ----------------------------------------------------------------------------------------------


def define(**trigger: Any) -> Callable[[SingleJob], Any]:
    """Return what defines the job of one release."""
    return lambda jobs: jobs.task("interval", "defined", **trigger)(other)


def test_changes_fall_away_when_the_definition_changes_but_a_pause_stays(process: Process) -> None:
    first, _ = process(define=define(hours=1))
    first.modify_job("defined", trigger="interval", minutes=5, name="changed")
    first.pause_job("defined")
    same, _ = process(define=define(hours=1))
    job = same.get_job("defined")
    assert (str(job.trigger), job.name, job.paused) == ("interval[0:05:00]", "changed", True)  # type: ignore[union-attr]
    released, _ = process(define=define(hours=2))
    job = released.get_job("defined")
    assert (str(job.trigger), job.name, job.paused) == ("interval[2:00:00]", "defined", True)  # type: ignore[union-attr]
    back = process(define=define(hours=1))[0].get_job("defined")
    assert str(back.trigger) == "interval[0:05:00]"  # type: ignore[union-attr]


def test_a_removed_definition_comes_back_with_the_next_one_or_by_reset(process: Process) -> None:
    jobs, _ = process(define=define(hours=1))
    jobs.remove_job("defined")
    assert process(define=define(hours=1))[0].get_job("defined") is None
    assert process(define=define(hours=2))[0].get_job("defined") is not None
    assert engine(jobs).manager.reset("defined") is True
    assert jobs.get_job("defined") is not None
    assert engine(jobs).manager.reset("defined") is False
    with pytest.raises(JobLookupError):
        engine(jobs).manager.reset("nothing")


def test_reset_drops_the_pause_too(process: Process) -> None:
    jobs, _ = process(define=define(hours=1))
    jobs.pause_job("defined")
    engine(jobs).manager.reset("defined")
    assert jobs.get_job("defined").paused is False  # type: ignore[union-attr]


def test_a_stored_job_lives_until_it_is_removed(process: Process) -> None:
    store_job(process()[0])
    process()[0].remove_job("stored")
    assert process()[0].get_job("stored") is None
    store_job(process()[0])
    assert process()[0].get_job("stored") is not None


def test_an_equal_job_is_no_conflict_and_another_one_is_unless_it_replaces(process: Process) -> None:
    jobs, _ = process()
    store_job(jobs, args=[1])
    store_job(process()[0], args=[1])
    with pytest.raises(ConflictingIdError):
        store_job(process()[0], args=[2])
    with pytest.raises(ConflictingIdError):
        store_job(process()[0], args=[1], hours=2)
    store_job(process()[0], args=[2], replace_existing=True)
    assert jobs.get_job("stored").args == (2,)  # type: ignore[union-attr]


def test_replacing_a_defined_job_takes_its_next_run_time_too(process: Process) -> None:
    jobs, _ = process(define=define(hours=1))
    at = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(minutes=3)
    store_job(jobs, "defined", trigger="interval", hours=9, next_run_time=at, replace_existing=True)
    assert jobs.get_job("defined").next_run_time == at  # type: ignore[union-attr]
    store_job(jobs, "defined", trigger="interval", hours=9, next_run_time=None, replace_existing=True)
    assert jobs.get_job("defined").paused is True  # type: ignore[union-attr]


def test_two_changes_of_one_job_at_once_are_both_kept(process: Process) -> None:
    one, two = process()[0], process()[0]
    store_job(one)
    one.modify_job("stored", name="named")
    two.modify_job("stored", args=[5])
    job = one.get_job("stored")
    assert (job.name, job.args) == ("named", (5,))  # type: ignore[union-attr]


def test_a_job_in_a_request_a_job_and_with_persist_is_stored_and_elsewhere_defined(process: Process) -> None:
    jobs, app = process()

    @app.post("/add")
    def add() -> str:
        jobs.add_job("by-request", other, trigger="interval", hours=1)
        return ""

    def adding() -> None:
        jobs.add_job("by-job", other, trigger="interval", hours=1)

    app.test_client().post("/add")
    jobs.add_job("adding", adding, trigger="interval", hours=1)
    jobs.run_job("adding")
    store_job(jobs, "by-persist")
    with app.app_context():
        jobs.add_job("in-context", other, trigger="interval", hours=1)
    assert {entry["id"]: entry["origin"] for entry in jobs.status()["jobs"]} == {
        "adding": "code",
        "in-context": "code",
        "by-request": "store",
        "by-job": "store",
        "by-persist": "store",
    }


# -- late and double definitions --------------------------------------------------------------------------


def test_definitions_after_init_app_and_in_a_blueprint_reach_a_running_owner(process: Process) -> None:
    jobs, app = process()
    own(jobs)
    ran.clear()

    @jobs.task("interval", "late", seconds=1)
    def late() -> None:
        ran.append(("late",))

    shop = Blueprint("shop", __name__)

    @shop.record
    def defined(state: Any) -> None:
        jobs.add_job("by-blueprint", work, trigger="interval", seconds=1, args=["blueprint"])

    app.register_blueprint(shop)
    wait_until(lambda: ("late",) in ran and (("blueprint",), {}) in ran, 20, "both run")


def test_two_functions_under_one_id_are_an_error_that_names_both(process: Process) -> None:
    jobs, _ = process()
    jobs.task("interval", "same", hours=1)(work)
    with pytest.raises(JobDefinitionError, match=r"work.*other"):
        jobs.task("interval", "same", hours=1)(other)


def test_two_functions_under_one_id_before_an_app_are_an_error_at_the_app(process: Process) -> None:
    def both(jobs: SingleJob) -> None:
        jobs.task("interval", "same", hours=1)(work)
        jobs.task("interval", "same", hours=1)(other)

    with pytest.raises(JobDefinitionError, match=r"work.*other"):
        process(define=both)


def test_one_module_imported_twice_defines_its_jobs_once(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    jobs, _ = process()
    monkeypatch.setattr(sys.modules[__name__], "shared_jobs", jobs, raising=False)
    (tmp_path / "module_twice.py").write_text(
        f"from {__name__} import shared_jobs as jobs\n@jobs.task('interval', hours=1)\ndef twice(): pass\n"
    )
    importlib.invalidate_caches()
    first = importlib.import_module("module_twice")
    second = importlib.reload(first)
    assert [job.id for job in jobs.get_jobs()] == ["module_twice.twice"]
    assert jobs.get_jobs()[0].func is second.twice


def test_a_factory_called_twice_defines_its_nested_jobs_for_its_own_app(tmp_path: Path) -> None:
    jobs = SingleJob()

    def create_app(name: str, before: bool) -> Flask:
        app = Flask(name, instance_path=str(tmp_path))
        app.config["TESTING"] = True

        def define() -> None:
            @jobs.task("interval", "nested", hours=1)
            def nested() -> str:
                return name

        if before:
            define()
        jobs.init_app(app)
        if not before:
            define()
        return app

    for before in (True, False):
        apps = [create_app(f"{before}-{number}", before) for number in range(2)]
        for app in apps:
            with app.app_context():
                job = jobs.get_job("nested")
                assert job is not None
                assert job.func() == app.name


def test_a_process_runs_only_the_jobs_of_its_groups(process: Process) -> None:
    def both(jobs: SingleJob) -> None:
        jobs.task("interval", "web", seconds=1, group="web", args=["web"])(work)
        jobs.task("interval", "batch", seconds=1, group="batch", args=["batch"])(work)

    ran.clear()
    web, _ = process(define=both, SINGLEJOB_GROUPS=["web"], SINGLEJOB_HOST_ID="web")
    own(web)
    store_job(web, "stored-batch", trigger="interval", seconds=1, hours=0, group="batch", args=["stored"])
    wait_until(lambda: ran.count((("web",), {})) >= 2, 20, "its own group runs")
    assert {entry[0] for entry in ran} == {("web",)}
    batch, _ = process(define=both, SINGLEJOB_GROUPS=["batch"], SINGLEJOB_HOST_ID="batch")
    own(batch)
    wait_until(
        lambda: {("batch",), ("stored",)} <= {entry[0] for entry in ran}, 20, "the other group runs there"
    )


# -- many -------------------------------------------------------------------------------------------------


class Counting:
    """A store that counts the calls of each verb and how many documents and rows they gave."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.given: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def counted(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            self.calls[name] += 1
            if isinstance(answer, (list, dict)):
                self.given[name] += len(answer)
            return answer

        return counted


def test_with_five_thousand_stored_jobs_a_poll_is_one_question_and_a_change_is_read_alone(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling, _ = process()
    store_job(filling, "0", trigger="cron", hour=3, minute=7)
    store: MemoryStore = engine(filling).store
    body = store.docs("job")[0].body
    rows = store.ensure([ClaimKey("job", str(number)) for number in range(5000)])
    for key, row in rows.items():
        if key.name != "0":
            store.put("job", key.name, {**body, "since": row.resolved})

    jobs, _ = process()
    counting = Counting(engine(jobs).store)
    monkeypatch.setattr(engine(jobs), "_store", counting)
    own(jobs)
    planner = engine(jobs).term.planner

    def settled() -> bool:
        polls = counting.calls["poll"]
        wait_until(lambda: counting.calls["poll"] > polls + 3, 20, "it polls")
        plans = planner.plans()
        return len(plans) == 5000 and all(plan.row is not None for plan in plans)

    wait_until(settled, 60, "every job's row is known")
    counting.calls.clear()
    counting.given.clear()
    wait_until(lambda: counting.calls["poll"] >= 10, 20, "ten idle polls")
    idle = dict(counting.calls)
    beats = {name: idle.get(name, 0) for name in ("docs", "put")}
    assert set(idle) <= {"poll", "docs", "put", "prune", "delete"}
    assert all(count <= 2 for count in beats.values()), idle

    counting.calls.clear()
    counting.given.clear()
    filling.modify_job("4321", trigger="interval", seconds=1)
    ran.clear()
    wait_until(lambda: ran, 20, "the changed job runs")
    assert counting.given["docs"] <= 10, counting.given
    assert counting.given["rows"] + counting.given["ensure"] <= 10, counting.given
