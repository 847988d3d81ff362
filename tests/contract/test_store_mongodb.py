"""The MongoDB store: the contract on the server that SINGLEJOB_TEST_MONGODB_URL names, and its errors.

Without that variable the contract is not run, and says so; it needs a database that it may fill.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob.errors import ConfigError, StoreError
from flask_singlejob.records import ClaimKey, ClaimRequest, Run, RunStatus, from_ms, new_id
from flask_singlejob.stores import open_store
from flask_singlejob.stores.base import ANSWER_SECONDS, Store
from flask_singlejob.stores.mongodb import MongoStore
from flask_singlejob.testing import StoreContract
from tests.redis_server import free_port

KEY = ClaimKey("lock", "import")


def mongodb_url() -> str:
    """Return the server to test on; without one the test is skipped, and the reason says so."""
    url = os.environ.get("SINGLEJOB_TEST_MONGODB_URL")
    if not url:
        pytest.skip("the MongoDB store was not run against a server: set SINGLEJOB_TEST_MONGODB_URL")
    return url


class TestMongoStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self) -> None:
        self._url = mongodb_url()

    def make_store(self, cluster: str) -> Store:
        return open_store(self._url, cluster=cluster)


@pytest.fixture
def store() -> Iterator[MongoStore]:
    store = MongoStore(mongodb_url(), cluster=new_id(), table_prefix="singlejob_")
    store.create()
    yield store
    store.close()


def a_run(id: str, **values: Any) -> Run:
    values = {"status": RunStatus.SUCCEEDED, "scheduled_at": from_ms(1_700_000_000_000), **values}
    return Run(id=id, job_id="nightly", cause="schedule", **values)


def test_a_record_whose_writer_died_before_copying_it_is_found_by_the_next_reader(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = store.claim(KEY, ClaimRequest(holder="h1", lease_ms=60_000))

    def die(claim: object) -> None:
        raise StoreError("the process died here")

    monkeypatch.setattr(store._history, "flush", die)
    assert store.release(KEY, "h1", outcome.row.token, run=a_run("h1"))
    monkeypatch.undo()
    other = MongoStore(mongodb_url(), cluster=store.cluster, table_prefix="singlejob_")
    assert [run.id for run in other.runs()] == ["h1"]
    assert [run.id for run in other.runs()] == ["h1"]
    other.close()


def test_a_record_copied_late_does_not_replace_a_newer_one(store: MongoStore) -> None:
    resolved = store.ensure([KEY])[KEY].resolved
    captured: list[dict[str, Any]] = []
    flush = store._history.flush
    store._history.flush = lambda claim: captured.append(dict(claim))  # type: ignore[method-assign]
    assert store.settle(KEY, resolved, resolved + 1, a_run("s", status=RunStatus.SKIPPED, count=1))
    store._history.flush = flush  # type: ignore[method-assign]
    assert store.settle(KEY, resolved + 1, resolved + 2, a_run("s", status=RunStatus.SKIPPED, count=2))
    flush(captured[0])
    newest = store.run("s")
    assert newest is not None
    assert newest.count == 2


def test_many_processes_make_the_collections_at_once() -> None:
    url, cluster = mongodb_url(), new_id()
    code = (
        "import sys; from flask_singlejob.stores import open_store\n"
        "store = open_store(sys.argv[1], cluster=sys.argv[2]); store.create(); print(store.poll().revision)"
    )
    root = Path(__file__).parents[2]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, url, cluster], cwd=root, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in started] == ["0"] * 4


def test_a_server_that_is_away_is_a_store_error_within_the_limit() -> None:
    store = MongoStore(f"mongodb://me:s3cret@127.0.0.1:{free_port()}/x", cluster="c", table_prefix="sj_")
    started = time.monotonic()
    with pytest.raises(StoreError, match="no primary can be reached") as caught:
        store.poll()
    assert time.monotonic() - started < ANSWER_SECONDS + 2
    assert "s3cret" not in str(caught.value) + store.identity + store.describe()
    assert "{prefix}" not in store.ddl()
    store.close()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("mongodb://me:s3cret@host:port/x", {}),
        ("mongodb://me:s3:cret@x@host/x", {}),
        ("mongodb://me:s3cret@host/x", {"noSuchOption": 1}),
        ("mongodb://me:s3cret@host/x", {"maxPoolSize": "many"}),
    ],
)
def test_a_url_or_option_that_cannot_be_used_is_told_without_the_password(
    url: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        MongoStore(url, cluster="c", table_prefix="sj_", options=options)
    assert "s3" not in str(caught.value)
    assert "Allowed" in str(caught.value)


def test_a_missing_driver_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pymongo'] = None\n"
        "from flask_singlejob.stores import open_store\n"
        "open_store('mongodb://localhost', cluster='c')"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert 'pip install "flask-singlejob[mongodb]"' in done.stderr
