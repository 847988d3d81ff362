"""The Redis store: the contract on a real server, and what is its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob.errors import ConfigError, StoreError
from flask_singlejob.records import ClaimKey, ClaimRequest, Run, RunStatus, from_ms, new_id
from flask_singlejob.stores import open_store, redis_link
from flask_singlejob.stores.base import Store
from flask_singlejob.stores.redis import RedisStore
from flask_singlejob.stores.redis_link import parse
from flask_singlejob.testing import StoreContract
from tests.integration.waiting import wait_until
from tests.redis_server import RedisServer, free_port

KEY = ClaimKey("job", "nightly")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: RedisServer) -> None:
        self._url = server.url

    def make_store(self, cluster: str) -> Store:
        return open_store(self._url, cluster=cluster)


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(server.url, cluster=new_id(), table_prefix="sj_")
    store.create()
    yield store
    store.close()


def fill(store: RedisStore) -> None:
    """Write something of every kind."""
    for key in (KEY, ClaimKey("lock", "import"), ClaimKey("once", "seed"), ClaimKey("job", "x", host="h:1")):
        outcome = store.claim(key, ClaimRequest(holder=new_id(), lease_ms=60_000, hold_ms=10))
        assert outcome.row.holder is not None
        run = Run(
            id=outcome.row.holder,
            job_id=key.name,
            cause="manual",
            scheduled_at=from_ms(outcome.now),
            status=RunStatus.SUCCEEDED,
        )
        store.release(key, outcome.row.holder, outcome.row.token, run=run)
    store.claim(KEY.with_slot(0), ClaimRequest(holder=new_id(), lease_ms=1, slot=2))
    store.put("job", "stored", {"trigger": "interval"})
    store.put("host", "web-1", {}, quiet=True)
    store.put("job", "gone", {})
    store.delete("job", "gone")


def keys_of(server: RedisServer, store: RedisStore) -> list[str]:
    pattern = store.root.replace("{", "?").replace("}", "?") + "*"
    return [str(key) for key in server.client().scan_iter(match=pattern, count=1000)]


def test_no_key_expires_and_all_share_one_slot(server: RedisServer, store: RedisStore) -> None:
    fill(store)
    keys = keys_of(server, store)
    assert len(keys) > 15
    assert {server.client().ttl(key) for key in keys} == {-1}
    assert all(key.startswith(f"{store.root}:") for key in keys)
    assert store.root.startswith("{")
    assert store.root.endswith("}")


@pytest.mark.parametrize(
    ("one", "other"), [(("a", "bc"), ("ab", "c")), (("a", "b}c"), ("a", "b}d")), (("a", ":b"), ("a:", "b"))]
)
def test_names_that_look_alike_do_not_meet(
    server: RedisServer, one: tuple[str, str], other: tuple[str, str]
) -> None:
    stores = [
        RedisStore(server.url, table_prefix=prefix, cluster=cluster) for prefix, cluster in (one, other)
    ]
    request = ClaimRequest(holder=new_id(), lease_ms=60_000)
    lock = ClaimKey("lock", new_id())
    assert stores[0].claim(lock, request).won
    assert stores[1].claim(lock, ClaimRequest(holder=new_id(), lease_ms=60_000)).won
    assert stores[0].identity != stores[1].identity
    assert stores[0].root.count("}") == 1, "the hash tag would end early"
    for store in stores:
        store.expire(lock, *_holder(store, lock), forced=True)
        store.close()


def _holder(store: RedisStore, key: ClaimKey) -> tuple[str, int]:
    row = store.rows([key])[0]
    return row.holder or "", row.token


def test_answers_are_read_whatever_options_say_of_decoding(server: RedisServer) -> None:
    options = {"decode_responses": True, "encoding": "latin-1", "retry_on_timeout": True, "protocol": 3}
    store = RedisStore(f"{server.url}?decode_responses=True", cluster="ü", table_prefix="p_", options=options)
    key = ClaimKey("lock", "schließen")
    outcome = store.claim(key, ClaimRequest(holder=new_id(), lease_ms=1, info={"host": "büro"}))
    assert outcome.row.info == {"host": "büro"}
    assert outcome.row.key == key
    store.close()


def test_numbers_and_odd_text_in_bodies_come_back_as_they_were(store: RedisStore) -> None:
    body = {"big": 2**62 + 1, "tiny": 0.1, "list": [], "none": None, "odd": "\ud800\x00{}"}
    store.put("job", "x", body)
    doc = store.doc("job", "x")
    assert doc is not None
    assert doc.body == body


def test_a_history_longer_than_any_page_is_read_page_by_page(store: RedisStore) -> None:
    # All at the same millisecond: the order is then by id, and pages begin in the middle of it.
    moment = from_ms(1_700_000_000_000)
    names = {f"{n:04}" for n in range(230)} | {"B", "a", "Z"}
    for name in names:
        store.add_run(
            Run(id=name, job_id="j", cause="schedule", scheduled_at=moment, status=RunStatus.FAILED)
        )
    seen: list[str] = []
    before = None
    while page := store.runs("j", status=[RunStatus.FAILED, RunStatus.LOST], before=before, limit=50):
        seen += [run.id for run in page]
        before = (page[-1].at_ms, page[-1].id)
    assert seen == sorted(names, reverse=True)


def test_many_threads_win_each_tick_once(store: RedisStore) -> None:
    row = store.ensure([KEY])[KEY]
    ticks = [row.resolved + n for n in range(1, 31)]
    wait_until(lambda: store.poll().now > ticks[-1])
    wins: list[int] = []
    errors: list[BaseException] = []
    barrier = threading.Barrier(6)

    def contend() -> None:
        try:
            barrier.wait(timeout=30)
            for tick in ticks:
                while (seen := store.rows([KEY])[0]).resolved < tick:
                    request = ClaimRequest(
                        holder=new_id(), lease_ms=60_000, tick=tick, seen_resolved=seen.resolved
                    )
                    outcome = store.claim(KEY, request)
                    if outcome.won:
                        wins.append(tick)
                        assert store.release(KEY, request.holder, outcome.row.token)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert errors == []
    assert wins == ticks


def test_a_forked_child_uses_its_own_connection_and_leaves_the_parents_open(
    server: RedisServer, store: RedisStore
) -> None:
    store.poll()
    ours = {client["id"] for client in server.client().client_list()}
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            store.after_fork()
            store.put("job", "from-child", {})
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.doc("job", "from-child") is not None
    assert any(client["id"] in ours for client in server.client().client_list())


def test_nothing_is_connected_before_the_first_verb() -> None:
    port = free_port()
    for url in (
        f"redis://127.0.0.1:{port}/0",
        f"redis+sentinel://127.0.0.1:{port}/main/0",
        f"redis+cluster://127.0.0.1:{port}",
    ):
        store = RedisStore(url, cluster="c", table_prefix="sj_")
        assert "claims" in store.ddl()
        assert store.identity
        with pytest.raises(StoreError, match="cannot be reached"):
            store.poll()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://me:s3cret@redis.example/2", "redis://redis.example:6379/2"),
        ("rediss://:s3cret@redis.example:7000?db=3", "rediss://redis.example:7000/3"),
        ("redis+unix:///run/redis.sock?db=1&password=s3cret", "redis+unix:///run/redis.sock?db=1"),
        (
            "redis+sentinel://me:s3cret@a,b:26380/main/4?sentinel_password=s3cret",
            "redis+sentinel://a:26379,b:26380/main/4",
        ),
        ("rediss+cluster://:s3cret@a:7001,b", "rediss+cluster://a:7001,b:6379"),
    ],
)
def test_a_store_is_named_by_its_place_without_any_secret(url: str, name: str) -> None:
    assert parse(url).name == name
    store = open_store(url, cluster="c")
    assert store.identity == f"{name} {{singlejob_:c}}"
    assert "s3cret" not in store.describe()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://:s3cret/x@host/0", {}),
        ("redis://:s3cret@host:port/0", {}),
        ("redis://:s3cret@host?db=first", {}),
        ("redis+sentinel://:s3cret@host:26379", {}),
        ("redis://:s3cret@host", {"no_such_option": 1}),
    ],
)
def test_a_url_or_option_that_cannot_be_used_is_told_without_the_password(
    url: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisStore(url, cluster="c", table_prefix="sj_", options=options)
    assert "s3c" not in str(caught.value)
    assert "Allowed" in str(caught.value)


def test_time_limits_may_be_tightened_and_not_widened() -> None:
    assert redis_link._capped(600, 2.5) == 2.5
    assert redis_link._capped(None, 2.5) == 2.5
    assert redis_link._capped("0.5", 2.5) == 0.5
    assert redis_link._capped(0, 2.5) == 2.5


def test_a_missing_driver_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from flask_singlejob.stores.redis import RedisStore\n"
        "RedisStore('redis://localhost', cluster='c', table_prefix='sj_')"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert "ConfigError: " in done.stderr
    assert 'pip install "flask-singlejob[redis]"' in done.stderr


def test_doctor_tells_of_settings_that_lose_claims(server: RedisServer, store: RedisStore) -> None:
    assert store.checks() == []
    client = server.client()
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("appendonly", "no")
    try:
        findings = " ".join(finding for finding, _ in store.checks())
        assert "allkeys-lru" in findings
        assert "nothing is persisted" in findings
        client.config_set("save", "3600 1")
        assert any("since the last snapshot" in finding for finding, _ in store.checks())
    finally:
        client.config_set("save", "")
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("appendonly", "yes")


@pytest.fixture(scope="module")
def sentinel(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory = tmp_path_factory.mktemp("sentinel")
    config = directory / "sentinel.conf"
    config.write_text(f"sentinel monitor main 127.0.0.1 {server.port} 1\n")
    process = RedisServer(directory, [])
    process.program_arguments = [str(config), "--sentinel", "--port", str(process.port)]
    process.start()
    yield process.port
    process.kill()


def test_the_primary_is_found_through_sentinels(server: RedisServer, sentinel: int) -> None:
    dead = free_port()
    store = RedisStore(
        f"redis+sentinel://127.0.0.1:{dead},127.0.0.1:{sentinel}/main/0", cluster="s", table_prefix="sj_"
    )
    assert store.claim(ClaimKey("lock", new_id()), ClaimRequest(holder=new_id(), lease_ms=1)).won
    assert any(key.startswith("{sj_:s}") for key in server.client().scan_iter(count=1000))
    store.close()


def test_a_redis_cluster_of_one_url_serves_all_verbs(tmp_path: Path) -> None:
    buses = [free_port(), free_port()]
    nodes = [
        RedisServer(tmp_path / str(bus), ["--cluster-enabled", "yes", "--cluster-port", str(bus)]).start()
        for bus in buses
    ]
    try:
        first, second = (node.client() for node in nodes)
        first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        second.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, buses[1])
        wait_until(lambda: _cluster_is_up(first))
        wait_until(lambda: _cluster_is_up(second))
        for cluster in ("a", "b", "c", "d"):
            store = RedisStore(
                f"redis+cluster://127.0.0.1:{nodes[0].port}", cluster=cluster, table_prefix="p_"
            )
            fill(store)
            assert len(store.runs()) == 4
            assert store.checks() == []
            store.close()
        assert all(node.client().dbsize() > 0 for node in nodes), "both nodes should have served some"
    finally:
        for node in nodes:
            node.kill()


def _cluster_is_up(client: Any) -> bool:
    return client.cluster("INFO")["cluster_state"] == "ok" and len(client.cluster("SLOTS")) == 2
