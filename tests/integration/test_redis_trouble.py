"""What the Redis store does when its server restarts, forgets, cuts, hangs, fills up or changes its role."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob.errors import StoreError
from flask_singlejob.records import ClaimKey, ClaimOutcome, ClaimRequest, Run, RunStatus, from_ms, new_id
from flask_singlejob.stores.base import ANSWER_SECONDS
from flask_singlejob.stores.redis import RedisStore
from flask_singlejob.stores.redis_scripts import SCRIPTS
from tests.integration.waiting import wait_until
from tests.redis_server import CuttingProxy, RedisServer

KEY = ClaimKey("job", "nightly")
LOCK = ClaimKey("lock", "import")
#: What a busy machine may add to the promised time.
SLACK_SECONDS = 2.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    # Known to it already: else what a test cuts off would be the answer that it has no such script.
    for script in SCRIPTS.values():
        server.client().script_load(script.text)
    yield server
    server.thaw()
    server.kill()


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(server.url, cluster="trouble", table_prefix="sj_")
    store.create()
    yield store
    store.close()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(server.port)
    yield proxy
    proxy.close()


def take(store: RedisStore, key: ClaimKey = LOCK, **values: Any) -> ClaimOutcome:
    return store.claim(key, ClaimRequest(holder=new_id(), lease_ms=60_000, **values))


def free(store: RedisStore, outcome: ClaimOutcome, **values: Any) -> bool:
    assert outcome.row.holder is not None
    return store.release(outcome.row.key, outcome.row.holder, outcome.row.token, **values)


def a_run(id: str, job: str = "nightly", **values: Any) -> Run:
    moment = from_ms(1_700_000_000_000)
    return Run(id=id, job_id=job, cause="schedule", scheduled_at=moment, status=RunStatus.SUCCEEDED, **values)


def seconds_to_fail(verb: Callable[[], object]) -> tuple[float, str]:
    started = time.monotonic()
    with pytest.raises(StoreError) as caught:
        verb()
    return time.monotonic() - started, str(caught.value)


def test_claims_and_documents_outlive_a_restart_with_data(server: RedisServer, store: RedisStore) -> None:
    held = take(store)
    store.put("job", "x", {"a": 1})
    server.restart(keep_data=True)
    assert [row.holder for row in store.poll().held] == [held.row.holder]
    assert store.doc("job", "x") is not None
    assert not take(store).won
    assert free(store, held)


def test_tokens_and_revisions_grow_over_a_restart_without_data(
    server: RedisServer, store: RedisStore
) -> None:
    held = take(store)
    revision = store.put("job", "x", {})
    assert revision is not None
    server.restart(keep_data=False)
    assert store.poll().revision < revision.revision, "an owner must see that the store changed"
    assert not free(store, held), "the server forgot that claim"
    again = take(store)
    assert again.won
    assert again.row.token > held.row.token
    fresh = store.put("job", "x", {})
    assert fresh is not None
    assert fresh.revision > revision.revision


def test_a_tick_that_ran_is_not_run_again_after_the_server_forgot_it(
    server: RedisServer, store: RedisStore
) -> None:
    before = store.ensure([KEY])[KEY]
    tick = before.resolved + 1
    wait_until(lambda: store.poll().now > tick)
    won = take(store, KEY, tick=tick, seen_resolved=before.resolved)
    assert won.won
    assert free(store, won)
    server.restart(keep_data=False)
    again = take(store, KEY, tick=tick, seen_resolved=before.resolved)
    assert not again.won
    assert not take(store, KEY, tick=tick, seen_resolved=again.row.resolved).won


def test_scripts_are_loaded_again_after_script_flush(server: RedisServer, store: RedisStore) -> None:
    held = take(store)
    server.client().script_flush()
    assert not take(store).won
    server.client().script_flush()
    assert free(store, held)


def test_each_verb_is_carried_out_once_when_its_answer_is_cut_off(
    server: RedisServer, proxy: CuttingProxy
) -> None:
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}/0", cluster="trouble", table_prefix="sj_")
    store.create()

    def cut(verb: Callable[[], Any]) -> Any:
        proxy.answers_to_cut = 1
        cuts = proxy.cuts
        answer = verb()
        assert proxy.cuts == cuts + 1, "nothing was cut"
        return answer

    store.ensure([LOCK, KEY])
    held = cut(lambda: take(store))
    assert held.won
    assert len(store.poll().held) == 1
    assert cut(lambda: store.renew(LOCK, held.row.holder, held.row.token, 60_000)) is not None
    assert cut(lambda: free(store, held, run=a_run("r1"))) is True
    assert store.poll().held == ()

    resolved = store.rows([KEY])[0].resolved
    assert cut(lambda: store.settle(KEY, resolved, resolved + 5, a_run("r2"))) is True
    assert store.rows([KEY])[0].streak == "r2"
    other = take(store)
    assert cut(lambda: store.expire(LOCK, other.row.holder or "", other.row.token, forced=True)) is True

    first = cut(lambda: store.put("job", "x", {"a": 1}, expect=0))
    assert first is not None
    assert store.poll().revision == first.revision, "written twice"
    assert cut(lambda: store.delete("job", "x", expect=first.revision)) is True
    assert len(store.runs()) == 2
    store.close()


def test_a_claim_is_won_by_one_of_two_even_when_the_request_is_cut_off(
    server: RedisServer, store: RedisStore, proxy: CuttingProxy
) -> None:
    other = RedisStore(f"redis://127.0.0.1:{proxy.port}/0", cluster="trouble", table_prefix="sj_")
    other.poll()
    proxy.requests_to_cut = 1
    assert take(other).won
    assert not take(store).won
    other.close()


def test_a_connection_cut_again_and_again_is_a_store_error(proxy: CuttingProxy) -> None:
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}/0", cluster="trouble", table_prefix="sj_")
    store.poll()
    proxy.answers_to_cut = 1000
    _, message = seconds_to_fail(lambda: take(store))
    assert "cannot be reached" in message
    proxy.answers_to_cut = 0
    assert take(store, ClaimKey("lock", "other")).won
    store.close()


def test_silent_server_is_an_error_within_the_limit_and_recovers(
    server: RedisServer, store: RedisStore
) -> None:
    server.freeze()
    taken, message = seconds_to_fail(store.poll)
    assert taken < ANSWER_SECONDS + SLACK_SECONDS
    assert "did not answer in time" in message
    taken, _ = seconds_to_fail(RedisStore(server.url, cluster="c", table_prefix="sj_").poll)
    assert taken < ANSWER_SECONDS + SLACK_SECONDS
    server.thaw()
    assert store.poll().now > 0


def test_a_claim_that_lay_in_a_silent_server_is_not_made_when_nobody_waits_any_more(
    server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server must not carry the request out later than a process waits: shortened here to be seen.
    monkeypatch.setattr("flask_singlejob.stores.redis._LATE_MS", 500)
    store.poll()
    server.freeze()
    seconds_to_fail(lambda: take(store))
    server.thaw()
    assert store.poll().held == ()
    assert take(store).won


def test_a_clock_set_forward_on_the_server_refuses_no_claim(store: RedisStore) -> None:
    store.poll()
    assert store._clock_ahead is not None
    store._clock_ahead -= 3_600_000
    assert take(store).won


def test_read_only_replica_is_an_error_until_it_is_the_primary(
    server: RedisServer, store: RedisStore, tmp_path: Path
) -> None:
    held = take(store)
    primary = RedisServer(tmp_path / "primary").start()
    try:
        server.client().replicaof("127.0.0.1", primary.port)
        for verb in (store.poll, lambda: take(store, ClaimKey("lock", "other"))):
            _, message = seconds_to_fail(verb)
            assert "READONLY" in message or "LOADING" in message
        wait_until(lambda: server.client().info("replication")["master_link_status"] == "up")
        assert "READONLY" in seconds_to_fail(store.poll)[1]
        assert any("read-only replica" in finding for finding, _ in store.checks())
        server.client().replicaof("NO", "ONE")
        again = take(store)
        assert again.won, "the new primary had none of the old one's writes"
        assert again.row.token > held.row.token
    finally:
        primary.kill()


def test_an_address_that_leads_to_a_new_primary_is_followed_after_one_error(
    server: RedisServer, proxy: CuttingProxy, tmp_path: Path
) -> None:
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}/0", cluster="trouble", table_prefix="sj_")
    store.poll()
    primary = RedisServer(tmp_path / "primary").start()
    try:
        server.client().replicaof("127.0.0.1", primary.port)
        proxy.target = primary.port  # new connections go there; the open one still leads to the replica
        seconds_to_fail(store.poll)
        assert take(store).won
    finally:
        store.close()
        primary.kill()


def test_fewer_replicas_than_asked_for_is_an_error(server: RedisServer, store: RedisStore) -> None:
    server.client().config_set("min-replicas-to-write", 1)
    assert "NOREPLICAS" in seconds_to_fail(store.poll)[1]
    server.client().config_set("min-replicas-to-write", 0)
    assert take(store).won


def test_full_memory_refuses_whole_verbs_and_a_release_comes_through_once_there_is_room(
    server: RedisServer, store: RedisStore
) -> None:
    held = take(store)
    resolved = store.ensure([KEY])[KEY].resolved
    server.client().config_set("maxmemory", "1mb")
    assert "OOM" in seconds_to_fail(lambda: take(store, ClaimKey("lock", "other")))[1]
    assert "OOM" in seconds_to_fail(lambda: store.settle(KEY, resolved, resolved + 1, a_run("r")))[1]
    server.client().config_set("maxmemory", "0")
    assert store.rows([KEY])[0].resolved == resolved
    assert store.run("r") is None
    assert free(store, held)


def test_busy_server_is_an_error_and_a_killed_script_frees_it(server: RedisServer, store: RedisStore) -> None:
    server.client().config_set("lua-time-limit", 50)
    endless = threading.Thread(target=_swallow, args=(lambda: server.client().eval("while true do end", 0),))
    endless.start()
    wait_until(lambda: "BUSY" in _error_of(store.poll))
    assert "SCRIPT KILL" in seconds_to_fail(lambda: take(store))[1]
    wait_until(lambda: _swallow(server.client().script_kill) is None)
    endless.join(timeout=30)
    assert take(store).won


def test_stopped_server_is_an_error_at_once(server: RedisServer, store: RedisStore) -> None:
    server.kill()
    taken, message = seconds_to_fail(store.poll)
    assert taken < ANSWER_SECONDS
    assert "cannot be reached" in message
    server.start()
    assert store.poll().now > 0


def test_no_error_shows_the_password(server: RedisServer) -> None:
    server.client().config_set("requirepass", "hunter2")
    for login, word in (("", "wants a password"), (":hunter3@", "refused"), ("me:hunter3@", "refused")):
        store = RedisStore(f"redis://{login}127.0.0.1:{server.port}/0", cluster="c", table_prefix="sj_")
        _, message = seconds_to_fail(store.poll)
        assert word in message
        assert "hunter" not in message + store.identity + store.describe()


def _swallow(verb: Callable[[], object]) -> str | None:
    try:
        verb()
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def _error_of(verb: Callable[[], object]) -> str:
    return _swallow(verb) or ""
