"""Fixtures of the scenarios: a cluster to start hosts in, reaped at the end however the test went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.clock import ClockUnavailable, HostClock
from tests.integration.harness import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without a host; set ``store`` or start hosts on the default one."""
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.reap()


@pytest.fixture
def host_clocks(tmp_path: Path) -> None:
    """Skip, with the reason, where hosts cannot have clocks of their own."""
    try:
        HostClock(tmp_path)
    except ClockUnavailable as error:
        pytest.skip(str(error))
