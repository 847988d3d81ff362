"""The shop's scheduled work: one job of each scope, and a seed that succeeds once."""

from __future__ import annotations

import os

from flask import current_app

from flask_singlejob import SingleJob, current_run

from . import shop

__all__ = ["cached_prices", "jobs"]

jobs = SingleJob()

_cache: dict[str, int] = {}


@jobs.task("cron", second="*/10", id="sales-report")
def sales_report() -> None:
    """Sum up the orders: once per tick in the whole cluster, here every ten seconds."""
    count, cents = shop.write_report(current_run.scheduled_at, current_run.host, os.getpid())
    _say(f"{count} orders, {cents / 100:.2f} in all")


@jobs.task("interval", seconds=15, id="clean-temp", scope="host")
def clean_temp() -> None:
    """Delete receipts older than a minute: once per tick on each host, since each has its own."""
    _say(f"{shop.clean_temp(older_than_seconds=60)} old receipts deleted")


@jobs.task("interval", seconds=20, id="refresh-cache", scope="worker")
def refresh_cache() -> None:
    """Read the prices into this process's memory: in every worker."""
    prices = shop.prices()
    _cache.clear()
    _cache.update(prices)
    _say(f"{len(prices)} prices cached")


@jobs.once("seed-products")
def seed_products() -> None:
    """Fill the shelves of a new shop: succeeds one time ever, whoever comes first."""
    current_app.logger.info("seed-products: %s products put on the shelves", shop.seed())


def cached_prices() -> dict[str, int]:
    """Return the prices as this worker last read them."""
    return _cache or shop.prices()


def _say(what: str) -> None:
    current_app.logger.info(
        "%s (%s scope, tick %s): %s",
        current_run.job_id,
        current_run.scope,
        current_run.scheduled_at.strftime("%H:%M:%S"),
        what,
    )
