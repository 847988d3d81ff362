"""The shop's data, in an SQLite file of its own. Knows nothing of jobs, pages and workers."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from flask import Flask, current_app, g

__all__ = [
    "add_order",
    "clean_temp",
    "init_app",
    "orders",
    "prices",
    "reports",
    "seed",
    "write_receipt",
    "write_report",
]

_SCHEMA = """
create table if not exists products (name text primary key, cents integer not null);
create table if not exists orders (
    id integer primary key, at real not null, product text not null, pieces integer not null,
    cents integer not null
);
create table if not exists reports (
    tick text not null, at real not null, orders integer not null, cents integer not null,
    host text, pid integer
);
"""

_PRODUCTS = {"Kettle": 2490, "Teapot": 3250, "Cup": 690, "Green tea, 100 g": 1190}


def init_app(app: Flask) -> None:
    """Make the directories and close the request's or the job's connection at its end."""
    Path(app.config["SHOP_DATABASE"]).parent.mkdir(parents=True, exist_ok=True)
    Path(app.config["SHOP_TEMP"]).mkdir(parents=True, exist_ok=True)
    app.teardown_appcontext(_close)


def _close(error: BaseException | None) -> None:
    connection = g.pop("shop", None)
    if connection is not None:
        connection.close()


def _connection() -> sqlite3.Connection:
    if "shop" not in g:
        g.shop = sqlite3.connect(current_app.config["SHOP_DATABASE"], timeout=10, isolation_level=None)
        g.shop.row_factory = sqlite3.Row
        g.shop.executescript(_SCHEMA)
    connection: sqlite3.Connection = g.shop
    return connection


@contextmanager
def _writing() -> Iterator[sqlite3.Connection]:
    connection = _connection()
    connection.execute("begin immediate")
    try:
        yield connection
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")


def seed() -> int:
    """Fill the shelves; return how many products there are now. Safe to repeat: another store remembers nothing."""
    with _writing() as connection:
        connection.executemany("insert or ignore into products values (?, ?)", list(_PRODUCTS.items()))
    return len(_PRODUCTS)


def prices() -> dict[str, int]:
    """Return the price of each product in cents."""
    rows = _connection().execute("select name, cents from products order by name")
    return {row["name"]: row["cents"] for row in rows}


def add_order(product: str, pieces: int) -> int:
    """Take an order at today's price and return its number.

    :raises KeyError: when there is no such product.
    """
    with _writing() as connection:
        row = connection.execute("select cents from products where name = ?", (product,)).fetchone()
        if row is None:
            raise KeyError(product)
        done = connection.execute(
            "insert into orders (at, product, pieces, cents) values (?, ?, ?, ?)",
            (time.time(), product, pieces, pieces * row["cents"]),
        )
    assert done.lastrowid is not None
    return done.lastrowid


def orders(limit: int = 10) -> list[sqlite3.Row]:
    """Return the last orders, newest first."""
    return _connection().execute("select * from orders order by id desc limit ?", (limit,)).fetchall()


def write_report(tick: datetime, host: str | None, pid: int) -> tuple[int, int]:
    """Sum up all orders, keep the sums under the tick, and return their number and worth in cents."""
    with _writing() as connection:
        count, cents = connection.execute("select count(*), coalesce(sum(cents), 0) from orders").fetchone()
        connection.execute(
            "insert into reports values (?, ?, ?, ?, ?, ?)",
            (tick.isoformat(), time.time(), count, cents, host, pid),
        )
    return count, cents


def reports(limit: int = 8) -> list[sqlite3.Row]:
    """Return the last reports, newest first, each with the number of reports of its tick: always 1."""
    query = """
        select *, (select count(*) from reports same where same.tick = reports.tick) as times
        from reports order by at desc limit ?
    """
    return _connection().execute(query, (limit,)).fetchall()


def write_receipt(order: int) -> Path:
    """Leave a receipt among this host's temporary files."""
    path = Path(current_app.config["SHOP_TEMP"]) / f"receipt-{order}.txt"
    path.write_text(f"Order {order}, {time.ctime()}\n")
    return path


def clean_temp(older_than_seconds: float) -> int:
    """Delete this host's old temporary files and return how many there were."""
    count = 0
    for path in Path(current_app.config["SHOP_TEMP"]).iterdir():
        if time.time() - path.stat().st_mtime > older_than_seconds:
            path.unlink(missing_ok=True)
            count += 1
    return count
