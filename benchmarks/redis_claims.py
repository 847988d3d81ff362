"""Claim and release per second through the Redis store, beside the same two script calls sent bare.

    python -m benchmarks.redis_claims [--url redis://127.0.0.1:6379/0] [--seconds 2] [--rounds 5]

Without ``--url`` it starts a private server. The two take turns, so that what else the machine does
meets both; the median round counts. The store should keep at least 0.7 of the bare rate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis

from flask_singlejob.records import ClaimKey, ClaimRequest, Run, RunStatus, from_ms, new_id
from flask_singlejob.stores.redis import RedisStore
from flask_singlejob.stores.redis_scripts import SCRIPTS

from .report import Row, table

__all__ = ["main", "measure", "private_server"]

KEY = ClaimKey("lock", "bench")
ENOUGH = 0.7
INFO = {"host": "web-1", "pid": 1, "instance": "x", "cause": "schedule", "scope": "cluster", "attempt": 1}


@contextlib.contextmanager
def private_server() -> Iterator[str]:
    """Run a server without persistence for the length of the measurement; give its URL."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis-server is not installed: install it, or name a server with --url")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = [program, "--port", str(port), "--save", "", "--dir", directory]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    redis.Redis(port=port).ping()
                    break
                except redis.exceptions.ConnectionError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()
            server.wait()


def a_run(id: str, now: int) -> Run:
    """Return a finished run as a job leaves it."""
    moment = from_ms(now)
    return Run(
        id=id,
        job_id=KEY.name,
        cause="manual",
        scheduled_at=moment,
        status=RunStatus.SUCCEEDED,
        started_at=moment,
        finished_at=moment,
    )


def through_the_store(store: RedisStore) -> Callable[[], None]:
    """Return one claim and release with a finished run, as a job does it."""

    def once() -> None:
        outcome = store.claim(KEY, ClaimRequest(holder=new_id(), lease_ms=30_000, info=INFO))
        assert outcome.won
        assert outcome.row.holder is not None
        run = a_run(outcome.row.holder, outcome.now)
        assert store.release(KEY, outcome.row.holder, outcome.row.token, run=run)

    return once


def bare(client: Any, root: str) -> Callable[[], None]:
    """Return the same two scripts with arguments that are ready, their answers hardly read."""
    name = "lock::0:bare"
    info, record = (
        json.dumps(INFO),
        json.dumps({"id": "x" * 32, "job_id": "bare", "status": "succeeded"} | INFO),
    )
    claim, release = SCRIPTS["claim"], SCRIPTS["release"]
    for script in (claim, release):
        assert client.script_load(script.text) == script.sha

    def once() -> None:
        holder = new_id()
        request = ("", name, "", holder, 30_000, "", "", "0", 0, 1, info)
        answer = client.evalsha(claim.sha, 1, root, *request)
        assert answer[1] == 1
        flat = answer[2][1]
        token = flat[flat.index(b"token") + 1]
        run = (holder, "bare", "succeeded", answer[0], record)
        rest = ("", name, name, new_id(), holder, token, "", "", "0", *run, "", "", "", "", "")
        assert client.evalsha(release.sha, 1, root, *rest)[1] == 1

    return once


def rate(once: Callable[[], None], seconds: float) -> float:
    """Return how often per second it can be done."""
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        once()
        count += 1
    return count / passed


def rates(url: str, *, seconds: float = 1.0, rounds: int = 5) -> tuple[float, float]:
    """Return the median rates: through the store, and bare."""
    store = RedisStore(url, cluster=f"bench-{new_id()}", table_prefix="singlejob_")
    store.create()
    client = redis.Redis.from_url(url)
    ours, theirs = through_the_store(store), bare(client, store.root)
    pairs = [(rate(ours, seconds), rate(theirs, seconds)) for _ in range(rounds)]
    for key in client.scan_iter(match=f"{store.root.replace('{', '?').replace('}', '?')}*", count=1000):
        client.delete(key)
    store.close()
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def measure(url: str, *, seconds: float = 1.0, rounds: int = 5) -> Row:
    """Return the row of the common table."""
    store, plain = rates(url, seconds=seconds, rounds=rounds)
    ratio = store / plain
    detail = f"{store:.0f} per second, the two scripts alone {plain:.0f}"
    return Row(
        "(c) claim + release, Redis",
        f"{ratio:.2f} of the two scripts' own",
        f">= {ENOUGH}",
        ratio >= ENOUGH,
        detail,
    )


def main() -> int:
    """Measure, print the table, and return 1 when the store keeps too little of the bare rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", help="a server to measure on; default: a private one")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    server = contextlib.nullcontext(args.url) if args.url else private_server()
    with server as url:
        row = measure(url, seconds=args.seconds, rounds=args.rounds)
    print(table([row]))
    return 0 if row.met else 1


if __name__ == "__main__":
    raise SystemExit(main())
