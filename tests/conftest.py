"""What all tests share: whatever a test started shows its log when the test fails."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the hosts that a failed test used to its report."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and cluster is not None and hasattr(cluster, "logs"):
        report.sections += [(f"log of host {name}", text) for name, text in cluster.logs()]
    return report


@pytest.fixture(autouse=True)
def _no_trace_of_flasks_command_line() -> Iterator[None]:
    """Take back what Flask's command line leaves in the environment when a test runs it in this process.

    Programs that later tests start would take themselves for children of a ``flask`` command.
    """
    before = os.environ.get("FLASK_RUN_FROM_CLI")
    yield
    if before is None:
        os.environ.pop("FLASK_RUN_FROM_CLI", None)
    else:
        os.environ["FLASK_RUN_FROM_CLI"] = before
