"""The configuration is read once, and what is wrong in it is refused with its cure."""

from __future__ import annotations

import logging
import os
import runpy
import socket
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from flask_singlejob.config import KEYS, Settings, load_settings, safe_url, safe_value
from flask_singlejob.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def settings(**config: Any) -> Settings:
    app = Flask("shop")
    app.config.update(config)
    return load_settings(app)


def refusal(**config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(**config)
    return str(caught.value)


def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
    return view


class Auth:
    def get_authorization(self) -> None: ...

    def get_authenticate_header(self) -> str:
        return "Basic"


def test_defaults_are_those_of_the_contract() -> None:
    found = settings()
    assert found.enabled is True
    assert (found.cluster, found.host_id) == ("shop", socket.gethostname().lower())
    assert found.host_id_is_default
    assert found.store_is_default
    assert (found.groups, found.store, found.store_options) == (None, None, {})
    assert (found.table_prefix, found.schema, found.create_tables) == ("singlejob_", None, True)
    assert (found.election, found.lock_file, found.election_port) == ("file", None, None)
    assert (found.lease, found.poll_interval, found.shutdown_timeout) == (30, 1, 25)
    assert (found.history_days, found.history_runs) == (30, 10000)
    assert (found.guard, found.dashboard, found.dashboard_prefix) == (None, False, "/singlejob")
    assert (found.health_prefix, found.metrics_path) == (None, None)
    assert (found.api_enabled, found.api_prefix, found.endpoint_prefix) == (False, "/scheduler", "scheduler.")
    assert (found.auth, found.allowed_hosts, found.scheduler_jobs) == (None, ["*"], ())


def test_election_on_windows_is_by_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert settings().election == "socket"


def test_every_key_has_an_attribute_and_every_attribute_a_key() -> None:
    derived = {"store_is_default", "host_id_is_default"}
    assert {key.field for key in KEYS} - {""} == {item.name for item in fields(Settings)} - derived


def test_settings_do_not_change_after_init_app() -> None:
    app = Flask("shop")
    found = load_settings(app)
    app.config["SINGLEJOB_LEASE"] = 5
    assert found.lease == 30
    with pytest.raises(FrozenInstanceError):
        found.lease = 5  # type: ignore[misc]
    found.store_options["echo"] = True
    found.allowed_hosts.append("a")
    assert load_settings(app).store_options == {}
    assert load_settings(app).allowed_hosts == ["*"]


@pytest.mark.parametrize(
    ("given", "seconds"), [(20, 20.0), (2.5, 2.5), (timedelta(minutes=2), 120.0), (1, 1.0), (86400, 86400.0)]
)
def test_durations_are_seconds_or_a_timedelta(given: Any, seconds: float) -> None:
    assert settings(SINGLEJOB_LEASE=given).lease == seconds


@pytest.mark.parametrize(
    "given",
    [
        "30",
        True,
        None,
        0,
        0.99,
        -1,
        86401,
        float("nan"),
        float("inf"),
        10**400,
        10**4290,
        timedelta(0),
        [30],
        {"x": 1},
    ],
)
def test_wrong_duration_is_refused_by_name_and_value(given: Any) -> None:
    message = refusal(SINGLEJOB_LEASE=given)
    assert message.startswith("SINGLEJOB_LEASE is ")
    assert safe_value(given) in message
    assert "1 to 86400 seconds" in message


@pytest.mark.parametrize(("given", "meant"), [("False", "false"), ("true", "true"), ("0", "false")])
def test_text_for_a_switch_is_refused_with_what_to_write(given: str, meant: str) -> None:
    assert f"write {meant} (" in refusal(SINGLEJOB_ENABLED=given)


@pytest.mark.parametrize("given", [0, 1, None, "", []])
def test_only_true_and_false_are_switches(given: Any) -> None:
    assert "True or False" in refusal(SINGLEJOB_DASHBOARD=given)


@pytest.mark.parametrize(
    "config",
    [
        {"SINGLEJOB_POLL_INTERVAL": 0},
        {"SINGLEJOB_POLL_INTERVAL": 31},
        {"SINGLEJOB_LEASE": 2, "SINGLEJOB_POLL_INTERVAL": 3},
        {"SINGLEJOB_SHUTDOWN_TIMEOUT": -1},
        {"SINGLEJOB_HISTORY_DAYS": 0},
        {"SINGLEJOB_HISTORY_RUNS": 1.5},
        {"SINGLEJOB_HISTORY_RUNS": 0},
        {"SINGLEJOB_ELECTION": "database"},
        {"SINGLEJOB_ELECTION_PORT": 0},
        {"SINGLEJOB_ELECTION_PORT": 65536},
        {"SINGLEJOB_ELECTION_PORT": True},
        {"SINGLEJOB_LOCK_FILE": "/run/shop/"},
        {"SINGLEJOB_LOCK_FILE": 3},
        {"SINGLEJOB_TABLE_PREFIX": "a-b"},
        {"SINGLEJOB_TABLE_PREFIX": ""},
        {"SINGLEJOB_TABLE_PREFIX": "1a"},
        {"SINGLEJOB_TABLE_PREFIX": "a\n"},
        {"SINGLEJOB_TABLE_PREFIX": "a" * 33},
        {"SINGLEJOB_SCHEMA": ""},
        {"SINGLEJOB_CLUSTER": ""},
        {"SINGLEJOB_CLUSTER": "a" * 256},
        {"SINGLEJOB_HOST_ID": "a\n"},
        {"SINGLEJOB_HOST_ID": "a\tb"},
        {"SINGLEJOB_HOST_ID": float("inf")},
        {"SINGLEJOB_HOST_ID": True},
        {"SINGLEJOB_GROUPS": ["web", ""]},
        {"SINGLEJOB_GROUPS": 3},
        {"SINGLEJOB_STORE": ""},
        {"SINGLEJOB_STORE": "shop.db"},
        {"SINGLEJOB_STORE": 3},
        {"SINGLEJOB_STORE": Path("shop.db")},
        {"SINGLEJOB_STORE_OPTIONS": [1]},
        {"SINGLEJOB_STORE_OPTIONS": {1: 2}},
        {"SINGLEJOB_GUARD": "login_required"},
        {"SINGLEJOB_GUARD": 3},
        {"SINGLEJOB_GUARD": "no_such_module:guard"},
        {"SINGLEJOB_GUARD": "os:no_such_name"},
        {"SINGLEJOB_GUARD": "os:sep"},
        {"SINGLEJOB_DASHBOARD_PREFIX": "singlejob"},
        {"SINGLEJOB_DASHBOARD_PREFIX": "/"},
        {"SINGLEJOB_DASHBOARD_PREFIX": "/a/<b>"},
        {"SINGLEJOB_METRICS_PATH": "/a b"},
        {"SINGLEJOB_HEALTH_PREFIX": ""},
        {"SCHEDULER_TIMEZONE": "Mars/Olympus"},
        {"SCHEDULER_TIMEZONE": "../etc/passwd"},
        {"SCHEDULER_EXECUTORS": {"default": {"max_workers": 3}}},
        {"SCHEDULER_EXECUTORS": {"default": {"type": "no such"}}},
        {"SCHEDULER_EXECUTORS": {"default": "threadpool"}},
        {"SCHEDULER_JOB_DEFAULTS": {"max_instances": 0}},
        {"SCHEDULER_JOB_DEFAULTS": {"scope": "planet"}},
        {"SCHEDULER_JOB_DEFAULTS": {"misfire_grace_time": 1.5}},
        {"SCHEDULER_JOB_DEFAULTS": {"coalesce": "no"}},
        {"SCHEDULER_JOBS": {"id": "a"}},
        {"SCHEDULER_JOBS": ["a"]},
        {"JOBS": "a"},
        {"SCHEDULER_API_ENABLED": "yes"},
        {"SCHEDULER_API_PREFIX": ""},
        {"SCHEDULER_AUTH": Auth},
        {"SCHEDULER_AUTH": "basic"},
        {"SCHEDULER_ALLOWED_HOSTS": "web1"},
    ],
)
def test_wrong_value_is_refused_by_its_key(config: dict[str, Any]) -> None:
    assert list(config)[-1] in refusal(**config)


def test_bare_text_for_groups_is_refused_with_the_list_to_write() -> None:
    assert "write a list, ['web']" in refusal(SINGLEJOB_GROUPS="web")


def test_environment_fills_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ENABLED": "false",
        "LEASE": "12.5",
        "HOST_ID": "7",
        "GROUPS": '["web", "mail"]',
        "STORE": "postgresql://u:p@h/d",
        "STORE_OPTIONS__pool_recycle": "300",
        "HEALTH_PREFIX": "/health/",
    }.items():
        monkeypatch.setenv(f"FLASK_SINGLEJOB_{name}", value)
    app = Flask("shop")
    app.config.from_prefixed_env()
    found = load_settings(app)
    assert (found.enabled, found.lease, found.host_id) == (False, 12.5, "7")
    assert found.groups == frozenset({"web", "mail"})
    assert found.store == "postgresql://u:p@h/d"
    assert found.store_options == {"pool_recycle": 300}
    assert found.health_prefix == "/health"
    assert not found.host_id_is_default


def test_host_id_that_json_reads_as_a_large_float_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASK_SINGLEJOB_HOST_ID", "123e4567")
    app = Flask("shop")
    app.config.from_prefixed_env()
    with pytest.raises(ConfigError, match="double quotes"):
        load_settings(app)


@pytest.mark.parametrize(
    ("unknown", "guess"),
    [
        ("SINGLEJOB_LEASES", "SINGLEJOB_LEASE"),
        ("SINGLEJOB_POLL", "SINGLEJOB_POLL_INTERVAL"),
        ("SINGLEJOB_STORE_URL", "SINGLEJOB_STORE"),
        ("SINGLEJOB_HOSTID", "SINGLEJOB_HOST_ID"),
        ("SINGLEJOB_lease", "SINGLEJOB_LEASE"),
        ("SINGLEJOB_DASHBORD", "SINGLEJOB_DASHBOARD"),
    ],
)
def test_unknown_key_that_resembles_a_known_one_is_refused_with_the_guess(unknown: str, guess: str) -> None:
    message = refusal(**{unknown: 1})
    assert message.startswith(unknown)
    assert f"is {guess} meant" in message


def test_any_other_unknown_key_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        settings(SINGLEJOB_COLOUR="red", OTHER=1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "SINGLEJOB_COLOUR" in caplog.text


def test_configuration_beats_the_constructors_store() -> None:
    app = Flask("shop")
    assert load_settings(app, store="sqlite:///a.db").store == "sqlite:///a.db"
    app.config["SINGLEJOB_STORE"] = "sqlite:///b.db"
    found = load_settings(app, store="sqlite:///a.db")
    assert found.store == "sqlite:///b.db"
    assert not found.store_is_default


def test_wrong_store_of_the_constructor_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="SINGLEJOB_STORE"):
        load_settings(Flask("shop"), store=3)


def test_configuration_beats_what_code_set_on_the_extension() -> None:
    app = Flask("shop")
    attributes = {"api_prefix": "/mine", "endpoint_prefix": "mine."}
    app.config["SCHEDULER_API_PREFIX"] = "/theirs"
    found = load_settings(app, attributes=attributes)
    assert (found.api_prefix, found.endpoint_prefix) == ("/theirs", "mine.")


@pytest.mark.parametrize(
    "config",
    [
        {"SINGLEJOB_STORE": ["postgresql://u:hunter2@h/d"]},
        {"SINGLEJOB_STORE": "u:hunter2@h/d"},
        {"SINGLEJOB_STORE_OPTIONS": ["hunter2"]},
        {"SINGLEJOB_STORES": "postgresql://u:hunter2@h/d"},
        {"SCHEDULER_JOBSTORES": {"default": {"type": "redis", "password": "hunter2"}}},
        {"SCHEDULER_JOBSTORES": {"default": {"type": "sqlalchemy", "url": "mysql://u:hunter2@h/d"}}},
    ],
)
def test_no_error_shows_a_password(config: dict[str, Any]) -> None:
    assert "hunter2" not in refusal(**config)


def test_repr_of_the_settings_shows_no_password() -> None:
    found = settings(SINGLEJOB_STORE="redis://:hunter2@h", SINGLEJOB_STORE_OPTIONS={"password": "hunter2"})
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:pw@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("redis://:pw@h/0", "redis://:***@h/0"),
        ("mysql://u:p@w/p?w@h/d", "mysql://u:***@h/d"),
        ("mongodb://u:pw@a,b:27017/?x=1", "mongodb://u:***@a,b:27017/?x=1"),
        ("postgresql:///d?user=u&password=pw&x=1", "postgresql:///d?user=u&password=***&x=1"),
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("cannot reach redis://:pw@h/0 today", "cannot reach redis://:***@h/0 today"),
        ("host=h password=pw user=u", "host=h password=*** user=u"),
        ("plain", "plain"),
    ],
)
def test_password_in_a_url_is_hidden(url: str, shown: str) -> None:
    assert safe_url(url) == shown


def test_password_in_an_engine_or_url_object_is_hidden() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    url = sqlalchemy.make_url("postgresql://u:hunter2@h/d?sslpassword=hunter2")
    assert "hunter2" not in safe_url(url)
    assert "@h/d" in safe_url(url)
    assert safe_url(sqlalchemy.create_engine("sqlite:///a.db")) == "sqlite:///a.db"
    assert safe_url(object()) == "<builtins.object>"


def test_guard_may_be_a_decorator_or_its_name_or_public() -> None:
    assert settings(SINGLEJOB_GUARD=login_required).guard is login_required
    assert settings(SINGLEJOB_GUARD=f"{__name__}:login_required").guard is login_required
    assert settings(SINGLEJOB_GUARD="public", SINGLEJOB_DASHBOARD=True).guard == "public"


def test_dashboard_without_guard_is_refused() -> None:
    assert "SINGLEJOB_GUARD" in refusal(SINGLEJOB_DASHBOARD=True)
    assert "SINGLEJOB_GUARD" in refusal(SINGLEJOB_DASHBOARD=True, SCHEDULER_AUTH=Auth())


def test_rest_api_without_guard_and_auth_is_refused() -> None:
    for key in ("SCHEDULER_API_ENABLED", "SCHEDULER_VIEWS_ENABLED"):
        assert "SINGLEJOB_GUARD" in refusal(**{key: True})
        assert settings(**{key: True}, SCHEDULER_AUTH=Auth()).api_enabled
        assert settings(**{key: True}, SINGLEJOB_GUARD="public").api_enabled
    with pytest.raises(ConfigError, match="SINGLEJOB_GUARD"):
        load_settings(Flask("shop"), attributes={"api_enabled": True})
    assert load_settings(Flask("shop"), attributes={"api_enabled": True, "auth": Auth()}).api_enabled


def test_new_name_of_a_switch_beats_its_old_one() -> None:
    assert not settings(SCHEDULER_API_ENABLED=False, SCHEDULER_VIEWS_ENABLED=True).api_enabled


def test_health_and_metrics_need_no_guard() -> None:
    found = settings(SINGLEJOB_HEALTH_PREFIX="/health", SINGLEJOB_METRICS_PATH="/metrics")
    assert (found.health_prefix, found.metrics_path) == ("/health", "/metrics")


@pytest.mark.parametrize(
    "paths",
    [
        {"SINGLEJOB_HEALTH_PREFIX": "/singlejob"},
        {"SINGLEJOB_HEALTH_PREFIX": "/scheduler"},
        {"SINGLEJOB_METRICS_PATH": "/singlejob/"},
        {"SINGLEJOB_HEALTH_PREFIX": "/h", "SINGLEJOB_METRICS_PATH": "/h/live"},
        {"SINGLEJOB_DASHBOARD_PREFIX": "/scheduler"},
    ],
)
def test_two_pages_with_one_path_are_refused(paths: dict[str, str]) -> None:
    pages = {"SINGLEJOB_DASHBOARD": True, "SCHEDULER_API_ENABLED": True, "SINGLEJOB_GUARD": "public"}
    assert "both lead to" in refusal(**pages, **paths)


def test_health_under_the_dashboards_path_is_allowed() -> None:
    assert settings(
        SINGLEJOB_DASHBOARD=True, SINGLEJOB_GUARD="public", SINGLEJOB_HEALTH_PREFIX="/singlejob/health"
    )


def test_relative_lock_file_is_below_the_instance_path() -> None:
    app = Flask("shop", instance_path=os.path.abspath("/srv/shop"))
    app.config["SINGLEJOB_LOCK_FILE"] = Path("owner.lock")
    assert load_settings(app).lock_file == os.path.join(app.instance_path, "owner.lock")


def test_key_of_the_other_election_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings(SINGLEJOB_ELECTION="file", SINGLEJOB_ELECTION_PORT=5000)
    assert "SINGLEJOB_ELECTION_PORT changes nothing" in caplog.text


class PersistentStore:
    """As an instance of one of APScheduler's persistent job stores looks from outside."""


class MemoryJobStore:
    """As an instance of APScheduler's memory job store looks from outside."""


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "sqlalchemy", "url": "sqlite:///jobs.db"},
        {"class": "apscheduler.jobstores.redis:RedisJobStore"},
        {},
        PersistentStore(),
        PersistentStore,
        "redis",
    ],
)
def test_persistent_job_store_is_refused_with_the_cure(spec: Any) -> None:
    message = refusal(SCHEDULER_JOBSTORES={"default": spec})
    assert "flask singlejob import-jobs URL" in message
    assert "Remove the key" in message


@pytest.mark.parametrize(
    "stores",
    [
        {},
        None,
        {"default": {"type": "memory"}},
        {"default": {"class": "apscheduler.jobstores.memory:MemoryJobStore"}},
        {"default": MemoryJobStore()},
    ],
)
def test_memory_job_store_changes_nothing(stores: Any) -> None:
    assert settings(SCHEDULER_JOBSTORES=stores) == settings()


class ProcessPoolExecutor:
    def submit_job(self) -> None: ...


class OurPool(ProcessPoolExecutor):
    pass


class ThreadPool:
    def submit_job(self) -> None: ...


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "processpool"},
        {"class": "apscheduler.executors.pool:ProcessPoolExecutor"},
        {"class": OurPool},
        {"class": f"{__name__}:OurPool"},
        OurPool(),
    ],
)
def test_process_pool_is_refused_with_the_reason(spec: Any) -> None:
    assert "no application context and no lease" in refusal(SCHEDULER_EXECUTORS={"default": spec})


def test_executors_are_copied_since_apscheduler_takes_them_apart() -> None:
    given = {"default": {"type": "threadpool", "max_workers": 3}, "mine": ThreadPool()}
    found = settings(SCHEDULER_EXECUTORS=given).scheduler_executors
    assert found == given
    found["default"].pop("type")
    assert given["default"] == {"type": "threadpool", "max_workers": 3}


def test_job_defaults_are_checked_and_normalised(caplog: pytest.LogCaptureFixture) -> None:
    found = settings(
        SCHEDULER_JOB_DEFAULTS={
            "misfire_grace_time": None,
            "coalesce": False,
            "max_instances": 3,
            "lease": timedelta(minutes=1),
            "jobstore": "x",
        }
    ).scheduler_job_defaults
    assert found == {"misfire_grace_time": None, "coalesce": False, "max_instances": 3, "lease": 60.0}
    assert "'jobstore' is no default of a job" in caplog.text
    assert "'max_instances' is close" in refusal(SCHEDULER_JOB_DEFAULTS={"max_instance": 3})


def test_jobs_come_from_either_key_as_dicts_of_our_own() -> None:
    job = {"id": "a", "func": "b:c"}
    for config in ({"JOBS": [job]}, {"SCHEDULER_JOBS": [], "JOBS": [job]}, {"SCHEDULER_JOBS": (job,)}):
        found = settings(**config).scheduler_jobs
        assert found == (job,)
        assert found[0] is not job
    assert settings(SCHEDULER_JOBS=[job], JOBS=[{"id": "other"}]).scheduler_jobs == (job,)


def test_zone_may_be_named() -> None:
    assert str(settings(SCHEDULER_TIMEZONE="Europe/Berlin").scheduler_timezone) == "Europe/Berlin"


def test_page_of_the_docs_is_up_to_date() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "generate_config.py"))
    written = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert written == generator["page"](), "run: python docs/generate_config.py"
    assert all(f"`{key.name}`" in written for key in KEYS)
