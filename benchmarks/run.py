"""Runs every benchmark and prints one table; ``results/latest.md`` keeps it with the machine it ran on.

Databases: SQLite always; PostgreSQL and MariaDB where their servers are installed.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from tests.integration.databases import fresh_database

from . import boot, claims, failover, handover, lag, redis_claims, standby
from .report import Row, machine, table

RESULTS = Path(__file__).with_name("results") / "latest.md"
ENGINES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}


@contextlib.contextmanager
def databases(*engines: str) -> Iterator[dict[str, str]]:
    """Give the URL of an empty database per engine, of those that can be had."""
    with contextlib.ExitStack() as stack:
        urls = {}
        for engine in engines:
            if engine == "sqlite":
                directory = stack.enter_context(tempfile.TemporaryDirectory())
                urls[ENGINES[engine]] = f"sqlite:///{directory}/store.sqlite3"
                continue
            try:
                urls[ENGINES[engine]] = stack.enter_context(fresh_database(engine))
            except pytest.skip.Exception as missing:
                print(f"{ENGINES[engine]} is left out: {missing}")
        yield urls


def measure() -> Iterator[Row]:
    """Measure one thing after the other, so that none disturbs the next."""
    yield boot.measure()
    with databases(*ENGINES) as urls:
        for name, url in urls.items():
            yield claims.measure(name, url)
    if shutil.which("redis-server") is not None:
        with redis_claims.private_server() as url:
            yield redis_claims.measure(url)
    with databases("sqlite", "postgresql") as urls:
        for name, url in urls.items():
            yield failover.measure(name, url)
    with databases("sqlite", "postgresql") as urls:
        for name, url in urls.items():
            yield handover.measure_term(name, url)
            yield handover.measure_hup(name, url)
    with databases("sqlite", "postgresql") as urls:
        for name, url in urls.items():
            yield lag.measure(name, url)
    with databases("sqlite", "postgresql") as urls:
        for name, url in urls.items():
            yield standby.measure(name, url)


def main() -> None:
    """Print each row as it comes, then the table, and keep it."""
    rows = []
    for row in measure():
        print(f"{row.name}: {row.ratio} ({row.detail})", flush=True)
        rows.append(row)
    rows.sort(key=lambda row: row.name)
    text = table(rows)
    print("\n" + text)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"# Benchmarks\n\nMeasured {date.today()} on {machine()}.\n\n{text}\n")


if __name__ == "__main__":
    main()
