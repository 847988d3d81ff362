"""Claim and release per second, beside the bare driver that sends the very same statements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from flask_singlejob.records import ClaimKey

from .bare import BareClaims, claim_and_release, open_bench_store
from .report import Row


def measure(name: str, url: str, blocks: int = 6, size: int = 200) -> Row:
    """Measure in turns, block by block."""
    store = open_bench_store(url)
    key, other = ClaimKey("job", "store"), ClaimKey("job", "driver")
    rows = store.ensure([key, other])
    first = max(row.resolved for row in rows.values())
    while store.poll().now < first + blocks * size + 10:
        time.sleep(0.05)  # so many ticks, a millisecond apart, have to be due
    tick = rows[key].resolved
    bare = BareClaims(store, other, url, rows[other].resolved)

    def by_store() -> None:
        nonlocal tick
        tick += 1
        claim_and_release(store, key, tick, tick - 1)

    def by_driver() -> None:
        bare.claim(bare.tick + 1)
        bare.release()

    ratios = []
    mine = others = 0.0
    for _ in range(blocks):
        ours, theirs = _timed(by_store, size), _timed(by_driver, size)
        ratios.append(theirs / ours)
        mine, others = max(mine, size / ours), max(others, size / theirs)
    bare.close()
    store.close()
    ratio = statistics.median(ratios)
    return Row(
        f"(c) claim + release, {name}",
        f"{ratio:.2f} of the bare driver's",
        ">= 0.7",
        ratio >= 0.7,
        f"{mine:.0f} per second against {others:.0f}; {bare.statements} statements",
    )


def _timed(call: Callable[[], None], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - begun
