"""What all tests share: whatever a test started shows its log when the test fails."""

from __future__ import annotations

from collections.abc import Generator
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
