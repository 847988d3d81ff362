"""The REST API's OpenAPI description: it is served, complete, and true of whatever is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from flask_singlejob import SingleJob
from flask_singlejob.web.rest_json import ADD_FIELDS, CHANGE_FIELDS, description

#: More find more and take longer: about 10 ms each, over 14 operations.
EXAMPLES = 15


def nightly(value: object = None) -> None:
    """Do nothing."""


def open_app(path: Path, **config: object) -> Flask:
    """Return an app whose API anybody may use, with one job."""
    app = Flask("fuzzed", instance_path=str(path))
    app.config.update(TESTING=True, SCHEDULER_API_ENABLED=True, SINGLEJOB_GUARD="public", **config)
    jobs = SingleJob()
    jobs.task("cron", "nightly", hour=3)(nightly)
    jobs.init_app(app)
    return app


def described(app: Flask, prefix: str = "/scheduler") -> Any:
    """Return the description that an app serves."""
    answer = app.test_client().get(f"{prefix}/openapi.json")
    assert answer.status_code == 200
    assert answer.mimetype == "application/json"
    return answer.get_json()


def test_every_route_is_described_and_nothing_else(tmp_path: Path) -> None:
    app = open_app(tmp_path)
    routes = {
        (
            rule.rule.replace("<job_id:job_id>", "{job_id}"),
            method.lower(),
            rule.endpoint.removeprefix("scheduler."),
        )
        for rule in app.url_map.iter_rules()
        if rule.endpoint.startswith("scheduler.")
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    told = {
        (path, method, operation["operationId"])
        for path, item in described(app)["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    }
    assert told == routes


def test_the_description_names_the_addresses_as_they_are_here(tmp_path: Path) -> None:
    document = described(open_app(tmp_path, SCHEDULER_API_PREFIX="/api/jobs-of-ours"), "/api/jobs-of-ours")
    assert all(path.startswith("/api/jobs-of-ours") for path in document["paths"])
    mounted = (
        open_app(tmp_path)
        .test_client()
        .get("/scheduler/openapi.json", environ_overrides={"SCRIPT_NAME": "/under"})
    )
    assert mounted.get_json()["servers"] == [{"url": "/under"}]


def test_the_description_names_every_field_that_is_taken(tmp_path: Path) -> None:
    schemas = described(open_app(tmp_path))["components"]["schemas"]
    assert set(schemas["NewJob"]["properties"]) == ADD_FIELDS
    assert set(schemas["JobChange"]["properties"]) == CHANGE_FIELDS


def operations() -> list[str]:
    """Return the names of the described operations."""
    paths: dict[str, dict[str, Any]] = description("/scheduler", "")["paths"]
    return [
        f"{method.upper()} {path}"
        for path, item in paths.items()
        for method in item
        if method != "parameters"
    ]


@pytest.mark.parametrize("operation", operations())
def test_no_request_gets_an_answer_that_is_not_described(tmp_path: Path, operation: str) -> None:
    app = open_app(tmp_path)
    schema = schemathesis.openapi.from_wsgi("/scheduler/openapi.json", app=app)
    method, _, path = operation.partition(" ")
    requests = schema[path][method].as_strategy()

    # What a schema allows may still not fit together: an hour for an interval, an end before its start.
    @given(case=requests)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        with app.app_context():
            jobs: SingleJob = app.apscheduler  # type: ignore[attr-defined]
            jobs.add_job("nightly", nightly, trigger="cron", hour=3, replace_existing=True, persist=False)
        if isinstance(case.body, dict) and "func" in case.body:
            # A registered function, so that what else the request says is looked at.
            case.body["func"] = "nightly"
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    ask()
