"""SingleJob is an APScheduler of Flask-APScheduler by name: nothing of it works on inherited state."""

from __future__ import annotations

import gc
import inspect
from pathlib import Path

import pytest
from flask import Flask
from flask_apscheduler import APScheduler
from flask_apscheduler.auth import HTTPBasicAuth

import flask_singlejob
from flask_singlejob import SingleJob

#: The parent's own plumbing, which nothing outside calls.
PUBLIC = sorted(name for name in vars(APScheduler) if not name.startswith("_"))
ATTRIBUTES = sorted(name for name in vars(APScheduler()) if not name.startswith("_"))


def app_of(tmp_path: Path, name: str = "shop", **config: object) -> Flask:
    """Return an app under test."""
    app = Flask(name, instance_path=str(tmp_path))
    app.config.update(TESTING=True, **config)
    return app


def work() -> None:
    """Do nothing."""


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_of_flask_apscheduler_is_overridden(name: str) -> None:
    assert name in vars(SingleJob), f"SingleJob inherits {name}"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_every_attribute_of_flask_apschedulers_objects_is_a_property_here(name: str) -> None:
    assert isinstance(inspect.getattr_static(SingleJob, name), property)


def test_the_walk_sees_names_at_all() -> None:
    assert {"init_app", "start", "add_job", "task", "authenticate", "scheduler"} <= set(PUBLIC)
    assert {"auth", "api_enabled", "api_prefix", "endpoint_prefix", "allowed_hosts", "app"} <= set(ATTRIBUTES)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_method_takes_what_flask_apschedulers_takes(name: str) -> None:
    theirs = inspect.getattr_static(APScheduler, name)
    if isinstance(theirs, property):
        return
    ours = inspect.signature(getattr(SingleJob, name)).parameters
    for parameter in inspect.signature(theirs).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            assert parameter.name in ours, f"{name} takes no {parameter.name}"
            assert ours[parameter.name].default == parameter.default


def test_nothing_of_the_parents_state_is_on_the_object(tmp_path: Path) -> None:
    jobs = SingleJob(app_of(tmp_path))
    assert isinstance(jobs, APScheduler)
    for name in ("_scheduler", "_host_name", "_authentication_callback", "app", "auth"):
        assert name not in vars(jobs)


@pytest.mark.parametrize("name", [name for name in vars(flask_singlejob) if name.startswith("STATE_")])
def test_states_are_apschedulers(name: str) -> None:
    from apscheduler.schedulers import base

    assert getattr(flask_singlejob, name) == getattr(base, name)


def test_two_apps_keep_their_jobs_and_settings_apart(tmp_path: Path) -> None:
    jobs = SingleJob()
    one = app_of(tmp_path, "one", SCHEDULER_ALLOWED_HOSTS=["a"])
    two = app_of(tmp_path, "two", SINGLEJOB_HOST_ID="second")
    jobs.init_app(one)
    jobs.init_app(two)
    with one.app_context():
        jobs.add_job("only-one", work, trigger="interval", hours=1)
        assert jobs.allowed_hosts == ["a"]
    with two.app_context():
        assert jobs.get_jobs() == []
        assert jobs.allowed_hosts == ["*"]
        assert jobs.host_name == "second"
        assert jobs.app is two
    with one.app_context():
        assert [job.id for job in jobs.get_jobs()] == ["only-one"]


def test_with_several_apps_a_method_needs_to_know_which(tmp_path: Path) -> None:
    jobs = SingleJob()
    one, two = app_of(tmp_path, "one"), app_of(tmp_path, "two")
    jobs.init_app(one)
    assert jobs.app is one
    jobs.init_app(two)
    with pytest.raises(RuntimeError, match="serves 2 apps"):
        jobs.get_jobs()


def test_an_app_that_is_gone_is_not_the_one_that_is_meant(tmp_path: Path) -> None:
    jobs = SingleJob()
    jobs.init_app(app_of(tmp_path, "gone"))
    gc.collect()
    stays = app_of(tmp_path, "stays")
    jobs.init_app(stays)
    assert jobs.app is stays


def test_attributes_set_before_an_app_are_its_own_afterwards(tmp_path: Path) -> None:
    jobs = SingleJob()
    jobs.api_enabled, jobs.api_prefix, jobs.auth = True, "/first", HTTPBasicAuth()
    one = app_of(tmp_path, "one")
    jobs.init_app(one)
    jobs.api_prefix = "/second"
    two = app_of(tmp_path, "two")
    jobs.init_app(two)
    prefixes = {}
    for app in (one, two):
        with app.app_context():
            prefixes[app.name] = jobs.api_prefix
        assert app.test_client().get(f"{prefixes[app.name]}/jobs").status_code == 401
    assert prefixes == {"one": "/first", "two": "/second"}


def test_the_configuration_beats_attributes(tmp_path: Path) -> None:
    jobs = SingleJob()
    jobs.api_enabled, jobs.api_prefix = True, "/attribute"
    app = app_of(tmp_path, SCHEDULER_API_PREFIX="/config", SINGLEJOB_GUARD="public")
    jobs.init_app(app)
    assert jobs.api_prefix == "/config"
    assert app.test_client().get("/config").status_code == 200
    assert app.test_client().get("/attribute").status_code == 404


def test_an_attribute_set_in_an_apps_context_is_for_that_app(tmp_path: Path) -> None:
    jobs = SingleJob()
    one, two = app_of(tmp_path, "one"), app_of(tmp_path, "two")
    jobs.init_app(one)
    jobs.init_app(two)
    with one.app_context():
        jobs.auth = "mine"
        assert jobs.auth == "mine"
    with two.app_context():
        assert jobs.auth is None
