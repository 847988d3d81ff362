"""Each finding of the doctor shows when its trouble is there, with a cure, and not otherwise."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob import SingleJob, StoreError
from flask_singlejob.election import instance_tag
from tests.unit import old_tasks
from tests.unit.cli_kit import Line, make_line


def define(jobs: SingleJob, said: list[str]) -> None:
    jobs.add_job("report", old_tasks.report, trigger="cron", hour=1, group="reports")


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return make_line(tmp_path, define=define)


def findings(line: Line, code: int = 0) -> list[dict[str, str]]:
    """Return what the doctor finds; each has a cure."""
    found = line.json("doctor", code=code)
    assert found["ok"] is (code == 0)
    for finding in found["findings"]:
        assert list(finding) == ["severity", "check", "finding", "cure"]
        assert finding["finding"]
        assert finding["cure"]
    kept: list[dict[str, str]] = found["findings"]
    return kept


def one(found: list[dict[str, str]], word: str) -> dict[str, str]:
    """Return the one finding that holds a word."""
    (match,) = [finding for finding in found if word in finding["finding"]]
    return match


def beat(line: Line, host: str, *, machine: str = "other", **body: Any) -> None:
    """Tell the store of a living owner."""
    told = {"host": host, "machine": machine, "instance": host, "pid": 77, "beat_ms": 10_000, "zone": "UTC"}
    told |= {"offset_ms": 0, "version": "0.1.0", "groups": None, **body}
    line.engine.ready_store().put("host", f"{host}@{machine}", told, quiet=True)


def test_sound_host_has_nothing_but_that_nobody_serves(line: Line) -> None:
    line("init-db")
    (finding,) = findings(line)
    assert (finding["severity"], finding["check"]) == ("warning", "hosts")
    assert "'web-1' has no owner" in finding["finding"]


def test_findings_read_as_text_with_their_cures(line: Line) -> None:
    line("init-db")
    lines = line("doctor").stdout.splitlines()
    assert lines[0].startswith("WARNING  hosts: Host 'web-1' has no owner")
    assert lines[1].strip().startswith("cure: ")
    assert lines[2] == "1 warning"


def test_store_that_is_away_is_a_finding_and_the_rest_is_looked_at(
    line: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> Any:
        raise StoreError("connection refused")

    monkeypatch.setattr(line.engine.store, "poll", fail)
    (tmp_path / "run").mkdir(mode=0o700)
    os.symlink("elsewhere", tmp_path / "run" / "owner.lock")
    found = findings(line, code=1)
    assert one(found, "connection refused")["check"] == "store"
    assert one(found, "symbolic link")["check"] == "lock"


@pytest.mark.parametrize(("may_create", "severity", "code"), [(True, "warning", 0), (False, "error", 1)])
def test_missing_tables_weigh_more_where_nobody_makes_them(
    tmp_path: Path, may_create: bool, severity: str, code: int
) -> None:
    found = findings(make_line(tmp_path, define=define, SINGLEJOB_CREATE_TABLES=may_create), code)
    assert one(found, "tables are missing")["severity"] == severity


def test_store_that_takes_no_writes_is_an_error(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line("init-db")

    def fail(*arguments: Any, **options: Any) -> Any:
        raise StoreError("read only")

    monkeypatch.setattr(line.engine.store, "put", fail)
    assert one(findings(line, code=1), "but not written")["check"] == "store"


def test_looking_leaves_no_document_behind(line: Line) -> None:
    line("doctor")
    line("init-db")
    line("doctor")
    assert line.engine.store.docs("doctor") == []


def test_lock_directory_that_others_may_write_is_an_error(line: Line, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.chmod(tmp_path / "run", 0o777)
    assert one(findings(line, code=1), "Every user can replace files")["check"] == "lock"


def test_lock_file_with_two_names_is_an_error(line: Line, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "owner.lock").touch(mode=0o600)
    os.link(tmp_path / "run" / "owner.lock", tmp_path / "run" / "second")
    assert "hard links" in one(findings(line, code=1), "owner.lock")["finding"]


@pytest.mark.parametrize(("kind", "severity"), [("nfs4", "error"), ("overlay", None)])
def test_lock_file_on_a_network_file_system_is_an_error(
    line: Line, monkeypatch: pytest.MonkeyPatch, kind: str, severity: str | None
) -> None:
    line("init-db")
    monkeypatch.setattr("flask_singlejob.stores.sql_checks.file_system_of", lambda path: kind)
    found = [
        finding["severity"] for finding in findings(line, 1 if severity else 0) if finding["check"] == "lock"
    ]
    assert found == ([severity] if severity else [])


def test_port_of_another_program_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = {"SINGLEJOB_ELECTION": "socket", "SINGLEJOB_ELECTION_PORT": port}
        line = make_line(tmp_path, define=define, **config)
        finding = one(findings(line, code=1), f"Port {port}")
    assert finding["check"] == "port"
    assert "another program" in finding["finding"]
    assert "SINGLEJOB_ELECTION_PORT" in finding["cure"]


def test_clock_that_is_off_is_told_for_each_host(line: Line) -> None:
    beat(line, "web-2", offset_ms=2500)
    beat(line, "web-3", offset_ms=-90_000)
    beat(line, "web-4", offset_ms=20)
    found = findings(line, code=1)
    assert "2.5 s ahead of" in one(found, "clock of host 'web-2'")["finding"]
    assert "90.0 s behind" in one(found, "clock of host 'web-3'")["finding"]
    assert not [
        finding for finding in found if "'web-4'" in finding["finding"] and finding["check"] == "clock"
    ]


def test_zones_that_differ_are_told(line: Line) -> None:
    beat(line, "web-2", zone="Europe/Berlin")
    beat(line, "web-3", zone="Asia/Tokyo")
    finding = one(findings(line, code=1), "time zones")
    assert "Asia/Tokyo: web-3" in finding["finding"]
    assert "SCHEDULER_TIMEZONE" in finding["cure"]


def test_two_hosts_with_one_id_are_an_error(line: Line) -> None:
    beat(line, "web-2", machine="one")
    beat(line, "web-2", machine="two")
    assert one(findings(line, code=1), "Two hosts have the id 'web-2'")["cure"].startswith(
        "Give each its own"
    )


def test_several_hosts_on_a_store_of_one_host_are_an_error(line: Line) -> None:
    beat(line, "web-2")
    assert not [finding for finding in findings(line) if "Several hosts" in finding["finding"]]
    beat(line, "web-3")
    assert one(findings(line, code=1), "Several hosts (web-2, web-3)")["severity"] == "error"


def test_local_store_on_a_container_platform_is_an_error(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert one(findings(line, code=1), "runs on Kubernetes")["check"] == "store"


def test_blocking_driver_under_gevent_and_preloading_are_told(line: Line) -> None:
    beat(line, "web-2", server={"patched": "gevent", "driver": "psycopg2", "preload": True})
    found = findings(line)
    assert "psycopg" in one(found, "serves with gevent")["cure"]
    assert one(found, "preloads the app")["severity"] == "note"
    beat(line, "web-2", server={"patched": "gevent", "driver": "psycopg", "preload": False})
    assert not [finding for finding in findings(line) if finding["check"] == "server"]


def test_group_that_no_living_host_runs_is_an_error(line: Line) -> None:
    beat(line, "web-2", groups=["web"])
    assert "'reports'" in one(findings(line, code=1), "no living host runs")["finding"]
    beat(line, "web-2", groups=["web", "reports"])
    findings(line)


def test_jobs_that_fail_are_broken_or_have_no_executor_are_told(tmp_path: Path) -> None:
    def define(jobs: SingleJob, said: list[str]) -> None:
        def failing() -> None:
            raise ValueError("no luck")

        jobs.add_job("failing", failing, trigger="cron", hour=1)

    line = make_line(tmp_path, define=define)
    line("run", "failing", code=1)
    with line.app.app_context():
        line.jobs.add_job("stored", "tests.unit.old_tasks:report", trigger="cron", hour=1, persist=True)
    doc = line.engine.store.doc("job", "stored")
    assert doc is not None
    line.engine.store.put("job", "stored", {**doc.body, "func": "tests.unit.old_tasks:nothing"})
    # By a process that has such an executor.
    line.engine.store.put("job", "lane", {**doc.body, "executor": "slow"})
    found = findings(line, code=1)
    assert "ValueError: no luck" in one(found, "'failing' has never succeeded")["finding"]
    assert one(found, "'stored' is broken here")["severity"] == "error"
    assert "SCHEDULER_EXECUTORS" in one(found, "names the executor 'slow'")["cure"]


def test_paused_cluster_and_no_jobs_are_told(tmp_path: Path) -> None:
    line = make_line(tmp_path, define=lambda jobs, said: None)
    line.engine.manager.pause_all()
    found = findings(line)
    assert one(found, "whole cluster is paused")
    assert one(found, "no jobs")


def test_owner_of_another_user_on_this_host_is_told_apart_from_none(line: Line) -> None:
    beat(line, "web-1", machine=instance_tag())
    finding = one(findings(line), "whose lock is not to be seen")
    assert "as the user of the web app" in finding["cure"]


def test_disabled_process_is_told(tmp_path: Path) -> None:
    line = make_line(tmp_path, define=define, SINGLEJOB_ENABLED=False)
    line("init-db")
    assert one(findings(line), "SINGLEJOB_ENABLED is False")
