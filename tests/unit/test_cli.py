"""Every command: what it does, what it prints, its exit code, and its one line when something is wrong."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flask import Flask
from flask.cli import ScriptInfo

from flask_singlejob import SingleJob, StoreError
from flask_singlejob.cli import COMMANDS, register_commands
from flask_singlejob.records import ClaimKey, ClaimRequest, new_id
from tests.unit.cli_kit import WIDE_ID, Line, lines_wider_than, make_line

DOCS = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return make_line(tmp_path)


def hold(line: Line, kind: str, name: str, **more: Any) -> int:
    """Hold something as another host would, and return the token."""
    info = {"host": "web-2", "pid": 4242, "cause": "manual", "scope": "cluster", "attempt": 1}
    request = ClaimRequest(holder=new_id(), lease_ms=60_000, info=info, **more)
    outcome = line.engine.ready_store().claim(ClaimKey(kind, name), request)
    assert outcome.won
    return outcome.row.token


def break_store(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every verb of the store fail as if its server were down."""

    def fail(*arguments: Any, **options: Any) -> Any:
        raise StoreError("the store postgresql://app@db:5432/app failed: connection refused")

    store = line.engine.store
    for verb in ("create", "poll", "docs", "doc", "rows", "runs", "put", "claim", "checks"):
        monkeypatch.setattr(store, verb, fail)


# -- for all ---------------------------------------------------------------------------------------------


def test_help_lists_every_command_in_order(line: Line) -> None:
    shown = line("--help").stdout.partition("Commands:")[2]
    assert [entry.split()[0] for entry in shown.strip().splitlines()] == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(line: Line, command: str) -> None:
    assert f"Usage: shop singlejob {command}" in line(command, "--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_option_is_wrong_use(line: Line, command: str) -> None:
    assert "No such option" in line(command, "--nonsense", code=2).stderr


@pytest.mark.parametrize("command", ["run", "pause", "resume", "remove", "reset"])
def test_unknown_job_is_one_line_that_names_it_and_what_may_be_meant(line: Line, command: str) -> None:
    message = line.error(command, "nigthly")
    assert "'nigthly'" in message
    assert "is 'nightly' meant?" in message


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["jobs"],
        ["history"],
        ["history", "--job", "nightly"],
        ["run", "nightly"],
        ["run", "nightly", "--no-wait"],
        ["pause", "nightly"],
        ["resume", "nightly"],
        ["remove", "nightly"],
        ["reset", "nightly"],
        ["locks"],
        ["unlock", "nightly", "--yes"],
        ["once"],
        ["once", "--forget", "seed"],
        ["init-db"],
    ],
)
def test_store_that_is_away_is_one_line_and_exit_code_one(
    line: Line, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    break_store(line, monkeypatch)
    assert line.error(*arguments) == (
        "Error: the store postgresql://app@db:5432/app failed: connection refused"
    )


@pytest.mark.parametrize(
    "arguments", [["status"], ["history"], ["run", "nightly"], ["pause", "nightly"], ["locks"]]
)
def test_missing_tables_are_one_line_with_the_cure(tmp_path: Path, arguments: list[str]) -> None:
    line = make_line(tmp_path, SINGLEJOB_CREATE_TABLES=False)
    assert "init-db" in line.error(*arguments)


def test_no_command_campaigns_or_starts_a_scheduler(line: Line) -> None:
    for arguments in (["jobs"], ["history"], ["locks"], ["once"], ["run", "nightly"], ["pause", "nightly"]):
        line(*arguments)
    line("status", code=1)
    assert line.engine.campaign is None
    assert line.engine.serving is None
    names = [thread.name for thread in threading.enumerate()]
    assert not [
        name for name in names if name.startswith(("singlejob-start", "singlejob-campaign", "APScheduler"))
    ]


def test_importing_the_group_imports_no_command() -> None:
    script = (
        "import sys, flask_singlejob.cli\n"
        "print(sorted(name for name in sys.modules if name.startswith('flask_singlejob.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == []


# -- looking -----------------------------------------------------------------------------------------------


def test_jobs_lists_what_the_code_defines_on_an_empty_store(line: Line) -> None:
    found = line.json("jobs")
    assert {job["id"] for job in found} == {"nightly", "failing", WIDE_ID, "x" * 255}
    nightly = next(job for job in found if job["id"] == "nightly")
    assert nightly["origin"] == "code"
    assert nightly["next_tick"].endswith("+00:00")
    assert nightly["last_run"] is None


def test_jobs_lists_what_the_code_defines_when_the_tables_are_missing(tmp_path: Path) -> None:
    result = make_line(tmp_path, SINGLEJOB_CREATE_TABLES=False)("jobs", code=1)
    assert "nightly" in result.stdout
    assert "init-db" in result.stderr


def test_jobs_of_an_app_without_any_says_so(tmp_path: Path) -> None:
    assert make_line(tmp_path, define=lambda jobs, said: None)("jobs").stdout.startswith("no jobs")


def test_tables_fit_a_hundred_columns_with_long_and_wide_ids(line: Line) -> None:
    hold(line, "job", WIDE_ID)
    hold(line, "lock", "x" * 255)
    line("run", "failing", code=1)
    for command in ("jobs", "locks", "history", "once"):
        text = line(command).stdout
        assert not lines_wider_than(100, text), command
    assert "…" in line("jobs").stdout
    shown = line("status", code=1).stdout.partition("Jobs")[2]
    assert not lines_wider_than(100, shown)


def test_status_without_any_owner_is_exit_code_one_and_says_so(line: Line) -> None:
    result = line("status", code=1)
    assert "'web-1': NO OWNER" in result.stdout
    assert "owner.lock" in result.stdout
    found = line.json("status", code=1)
    assert found["owner"]["held"] is False
    assert {job["id"] for job in found["jobs"]} >= {"nightly"}


def test_status_with_a_living_owner_elsewhere_is_exit_code_zero(line: Line) -> None:
    body = {
        "host": "web-2",
        "pid": 77,
        "beat_ms": 10_000,
        "offset_ms": 2500,
        "zone": "UTC",
        "owner_since": None,
    }
    line.engine.ready_store().put("host", "web-2@k", body, quiet=True)
    shown = line("status").stdout
    assert "web-2" in shown
    assert "pid 77" in shown
    assert "+2.50 s" in shown


def test_status_shows_what_is_held_and_what_is_paused(line: Line) -> None:
    hold(line, "lock", "import")
    line("pause", "nightly")
    shown = line("status", code=1).stdout
    assert "1 paused" in shown
    assert "import" in shown
    line.engine.manager.pause_all()
    assert "PAUSED: the whole cluster" in line("status", code=1).stdout
    assert "PAUSED: the whole cluster" in line("jobs").stdout


def test_health_gives_reasons_and_exit_code(line: Line) -> None:
    result = line("health", code=1)
    assert result.stdout.splitlines()[0] == "unhealthy"
    assert "'web-1' has no owner" in result.stdout
    assert line.json("health", "--jobs", code=1)["check"] == "jobs"
    assert line("health", "--live").stdout == "ok\n"
    assert line.json("health", "--ready") == {"ok": True, "check": "ready", "reasons": []}


def test_live_and_ready_stay_good_while_the_store_is_away(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_store(line, monkeypatch)
    line("health", "--live")
    line("health", "--ready")
    assert "the store is away" in line("health", "--jobs", code=1).stdout


def test_health_ready_waits_for_a_task_before_requests(tmp_path: Path) -> None:
    def define(jobs: SingleJob, said: list[str]) -> None:
        @jobs.once("migrate", before_requests=True)
        def migrate() -> None: ...

    line = make_line(tmp_path, define=define)
    assert "'migrate'" in line("health", "--ready", code=1).stdout
    assert "requests wait for it" in line("once").stdout


def test_health_does_not_wait_for_a_store_that_hangs(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line("init-db")
    gate = threading.Event()
    monkeypatch.setattr(line.engine.store, "poll", lambda: gate.wait(60))
    try:
        assert "did not answer" in line("health", "--jobs", code=1).stdout
        assert not gate.is_set()
    finally:
        gate.set()


def test_locks_shows_holder_lease_and_token(line: Line) -> None:
    token = hold(line, "lock", "import")
    shown = line("locks").stdout
    for word in ("lock", "import", "web-2", "4242", str(token)):
        assert word in shown
    (found,) = line.json("locks")
    assert (found["kind"], found["name"], found["token"]) == ("lock", "import", token)


def test_nothing_held_is_said(line: Line) -> None:
    assert line("locks").stdout == "nothing is held\n"
    assert line.json("locks") == []


# -- history -----------------------------------------------------------------------------------------------


def test_history_shows_runs_with_the_reason_of_a_failure(line: Line) -> None:
    line("run", "nightly")
    line("run", "failing", code=1)
    shown = line("history").stdout
    assert "succeeded" in shown
    assert "by hand; ValueError: no luck" in shown
    found = line.json("history")
    assert [run["job_id"] for run in found] == ["failing", "nightly"]
    assert [run["job_id"] for run in line.json("history", "--status", "failed")] == ["failing"]
    assert [run["job_id"] for run in line.json("history", "--job", "nightly")] == ["nightly"]
    assert len(line.json("history", "--limit", "1")) == 1
    assert len(line.json("history", "--since", "1h")) == 2
    assert line.json("history", "--since", "2100-01-01T00:00:00Z") == []


def test_history_of_nothing_is_said(line: Line) -> None:
    assert line("history").stdout == "no runs yet\n"
    assert line("history", "--status", "lost").stdout == "no runs match\n"
    assert "is 'nightly' meant?" in line.error("history", "--job", "nigthly")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--since", "soon"], "'soon' is neither an age"),
        (["--status", "dead"], "'dead' is not one of"),
        (["--limit", "0"], "0 is not in the range"),
    ],
)
def test_history_refuses_wrong_options_as_wrong_use(line: Line, arguments: list[str], word: str) -> None:
    assert word in line("history", *arguments, code=2).stderr


# -- steering -----------------------------------------------------------------------------------------------


def test_run_runs_here_and_shows_the_result(line: Line) -> None:
    assert "Job 'nightly' succeeded in" in line("run", "nightly").stdout
    assert line.said == ["nightly manual"]
    assert line.json("run", "nightly")["status"] == "succeeded"


def test_run_of_a_failing_job_is_exit_code_one_with_its_error(line: Line) -> None:
    result = line("run", "failing", code=1)
    assert "Job 'failing' failed after" in result.stderr
    assert "ValueError: no luck" in result.stderr
    assert line.json("run", "failing", code=1)["status"] == "failed"


def test_run_of_a_held_job_says_who_holds_it(line: Line) -> None:
    hold(line, "job", "nightly")
    message = line.error("run", "nightly")
    assert "held by host 'web-2', pid 4242, since" in message
    assert line.said == []


def test_run_of_a_job_that_exits_the_process_is_told_as_a_failure(tmp_path: Path) -> None:
    def define(jobs: SingleJob, said: list[str]) -> None:
        @jobs.task("cron", hour=3, id="leaver")
        def leaver() -> None:
            sys.exit(0)

    line = make_line(tmp_path, define=define)
    assert "sys.exit(0)" in line("run", "leaver", code=1).stderr


def test_run_no_wait_hands_the_job_to_an_owner(line: Line) -> None:
    result = line("run", "nightly", "--no-wait")
    assert result.stdout.startswith("Handed to an owner: job 'nightly'")
    assert "No host of the cluster has an owner now" in result.stderr
    (request,) = line.engine.store.docs("request")
    assert request.body["job_id"] == "nightly"
    assert line.said == []


def test_pause_and_resume_act_on_the_cluster(line: Line) -> None:
    assert line("pause", "nightly").stdout == "Job 'nightly' is paused.\n"
    assert line("pause", "nightly").stdout == "Job 'nightly' was paused already.\n"
    assert next(job for job in line.json("jobs") if job["id"] == "nightly")["paused"] is True
    assert line("resume", "nightly").stdout.startswith("Job 'nightly' is resumed: next tick ")
    assert line("resume", "nightly").stdout.startswith("Job 'nightly' was not paused: next tick ")


def test_removed_job_of_the_code_comes_back_by_reset(line: Line) -> None:
    assert "reset ID" in line("remove", "nightly").stdout
    assert "nightly" not in {job["id"] for job in line.json("jobs")}
    assert "was removed: 'flask singlejob reset ID'" in line.error("pause", "nightly")
    assert "as the code defines it again" in line("reset", "nightly").stdout
    assert line("reset", "nightly").stdout == "Job 'nightly' had no stored changes.\n"


def test_stored_job_is_removed_for_good_and_cannot_be_reset(line: Line) -> None:
    with line.app.app_context():
        line.jobs.add_job(
            "stored", "tests.unit.cli_kit:make_line", trigger="cron", hour=1, args=["x"], persist=True
        )
    assert "stored" in next(job for job in line.json("jobs") if job["id"] == "stored")["id"]
    assert "is a stored job" in line.error("reset", "stored")
    assert line("remove", "stored").stdout == "Job 'stored' is removed.\n"
    assert "no job 'stored'" in line.error("remove", "stored")


def test_unlock_asks_first_and_does_nothing_without_a_yes(line: Line) -> None:
    hold(line, "lock", "import")
    result = line("unlock", "import", input="n\n", code=1)
    assert "held by host 'web-2', pid 4242" in result.stdout
    assert len(line.json("locks")) == 1
    line("unlock", "import", code=1)
    assert len(line.json("locks")) == 1
    assert "is free" in line("unlock", "import", input="y\n").stdout
    assert line.json("locks") == []


def test_unlock_grows_the_token(line: Line) -> None:
    token = hold(line, "lock", "import")
    assert f"token {token} can write nothing back" in line("unlock", "import", "--yes").stdout
    (row,) = line.engine.store.rows([ClaimKey("lock", "import")])
    assert row.token > token


def test_unlock_ends_a_run_as_lost(line: Line) -> None:
    hold(line, "job", "nightly")
    line("unlock", "nightly", "--yes")
    (run,) = line.json("history")
    assert (run["status"], run["reason"]) == ("lost", "unlocked")


def test_unlock_of_a_kind_leaves_the_others(line: Line) -> None:
    hold(line, "lock", "same")
    hold(line, "once", "same")
    line("unlock", "same", "--kind", "lock", "--yes")
    assert [lock["kind"] for lock in line.json("locks")] == ["once"]


def test_unlock_of_something_not_held_is_exit_code_one(line: Line) -> None:
    hold(line, "lock", "import")
    message = line.error("unlock", "imprt", "--yes")
    assert "nothing is held under the name 'imprt'; is 'import' meant?" in message


def test_once_lists_and_forgets(line: Line) -> None:
    assert line.json("once") == [
        {
            "key": "seed",
            "version": "v1",
            "done": False,
            "done_at": None,
            "running": False,
            "defined": True,
            "before_requests": False,
        }
    ]
    task = line.engine.once.tasks["seed"]
    assert line.engine.once.run(task) is True
    assert line.engine.once.run(task) is False
    assert "done" in line("once").stdout
    assert line("once", "--forget", "seed").stdout.startswith("Forgotten: once-only task 'seed'")
    assert line.json("once")[0]["done"] is False
    assert line.engine.once.run(task) is True
    assert line.said == ["seed", "seed"]


def test_once_forget_of_an_unknown_or_running_task_is_exit_code_one(line: Line) -> None:
    assert "no once-only task 'sed'; is 'seed' meant?" in line.error("once", "--forget", "sed")
    hold(line, "once", "seed@v1")
    assert "is running (host 'web-2', pid 4242)" in line.error("once", "--forget", "seed")


# -- tables ---------------------------------------------------------------------------------------------------


def test_init_db_makes_the_tables_also_where_the_app_may_not(tmp_path: Path) -> None:
    line = make_line(tmp_path, SINGLEJOB_CREATE_TABLES=False)
    assert "init-db" in line.error("locks")
    assert "are there and up to date" in line("init-db").stdout
    line("init-db")
    assert line("locks").stdout == "nothing is held\n"


def test_init_db_sql_prints_the_statements_and_makes_nothing(tmp_path: Path) -> None:
    line = make_line(tmp_path, SINGLEJOB_CREATE_TABLES=False)
    shown = line("init-db", "--sql").stdout
    assert "CREATE TABLE" in shown
    assert "singlejob_" in shown
    assert not (tmp_path / "store.db").exists()


# -- surroundings ------------------------------------------------------------------------------------------------


def test_scheduler_refuses_where_it_is_disabled(tmp_path: Path) -> None:
    assert "SINGLEJOB_ENABLED is False" in make_line(tmp_path, SINGLEJOB_ENABLED=False).error("scheduler")


def test_app_without_singlejob_is_told() -> None:
    app = Flask("bare")
    register_commands(app)
    result = app.test_cli_runner().invoke(args=["singlejob", "jobs"])
    assert result.exit_code == 1
    assert "has no SingleJob" in result.stderr


def test_terminal_without_unicode_gets_escapes(line: Line) -> None:
    info = ScriptInfo(create_app=lambda: line.app)
    result = CliRunner(charset="ascii").invoke(line.app.cli, ["singlejob", "jobs"], obj=info)
    assert result.exit_code == 0, result.output
    assert "~" in result.stdout
    assert "\\u05e2" in result.stdout


# -- documentation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_page_has_the_help_of_each_command(line: Line, command: str) -> None:
    page = " ".join(DOCS.read_text(encoding="utf-8").partition("## Reference")[2].split())
    shown = line(command, "--help").stdout
    told = " ".join(shown.partition("\n\n")[2].partition("Options:")[0].split())
    assert told in page
    for word in shown.split():
        if word.startswith("--"):
            assert word.rstrip(".,") in page


def _documented_keys() -> dict[str, list[set[str]]]:
    rows = DOCS.read_text(encoding="utf-8").partition("## JSON")[2].partition("## ")[0].splitlines()
    found: dict[str, list[set[str]]] = {}
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if row.startswith("| `"):
            found[cells[0].strip("`")] = [set(part.split()) for part in cells[1].split("`")[1::2]]
    return found


def test_page_names_exactly_the_keys_of_the_json(line: Line) -> None:
    documented = _documented_keys()
    hold(line, "lock", "import")
    line("run", "nightly")
    for command, value in {
        "status": line.json("status", code=1),
        "health": line.json("health", code=1),
        "jobs": line.json("jobs")[0],
        "history": line.json("history")[0],
        "locks": line.json("locks")[0],
        "once": line.json("once")[0],
        "doctor": line.json("doctor"),
    }.items():
        assert documented[command][0] == set(value), command
    assert documented["run"][0] >= {"--no-wait"}
    assert documented["run"][1] == set(line.json("run", "nightly", "--no-wait"))
    assert documented["doctor"][1] == set(line.json("doctor")["findings"][0])
