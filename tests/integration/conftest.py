"""Fixtures of the scenarios: a cluster to start hosts in, reaped at the end however the test went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.clock import ClockUnavailable, HostClock
from tests.integration.databases import fresh_database
from tests.integration.harness import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without a host; set ``store`` or start hosts on the default one."""
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.reap()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of its own on each engine, or on the one that the test names."""
    engine = str(request.param)
    if engine == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.sqlite3'}"
        return
    with fresh_database(engine) as url:
        yield url


@pytest.fixture
def host_clocks(tmp_path: Path) -> None:
    """Skip, with the reason, where hosts cannot have clocks of their own."""
    try:
        HostClock(tmp_path)
    except ClockUnavailable as error:
        pytest.skip(str(error))
