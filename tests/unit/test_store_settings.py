"""A store that cannot serve is refused by init_app, with key, value and what is allowed; no library is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_singlejob import ConfigError, SingleJob, open_store
from flask_singlejob.testing import FrozenClock

SECRET = "s3cret"


def make_app(tmp_path: Path, **config: Any) -> Flask:
    app = Flask("app", instance_path=str(tmp_path))
    app.config.update({name: value for name, value in config.items() if value is not None})
    return app


@pytest.mark.parametrize(
    ("store", "cure"),
    [
        ("sqlite://", "memory:// for tests"),
        ("sqlite:///", "memory:// for tests"),
        ("sqlite:///:memory:", "memory:// for tests"),
        ("sqlite:///file:x?mode=memory&uri=true", "memory:// for tests"),
        ("sqlite://x.db", "write sqlite:///relative.db"),
        ("sqlite:///x.db?timeout=abc", "write a number"),
        ("sqlite:///x.db?nope=1", "allowed: autocommit"),
        (sqlalchemy.make_url("sqlite://"), "memory:// for tests"),
        (sqlalchemy.create_engine("sqlite://"), "memory:// for tests"),
        ("postgresql://127.0.0.1:5432", "end it with /NAME"),
        (f"postgresql://u:{SECRET}@h/", "end it with /NAME"),
        (sqlalchemy.make_url("postgresql://h"), "end it with /NAME"),
        ("postgresql://h/x?connect_timeout=x", "write a whole number"),
        ("postgresql://a:1,b:2/x", "cannot be read"),
        ("mysql://", "end it with /NAME"),
        ("mysql+pymysql://root@127.0.0.1:3306", "end it with /NAME"),
        ("mariadb://h/x?read_timeout=soon", "write a whole number"),
        ("mongodb://", "names no host"),
        (f"mongodb://u:{SECRET}@/x", "names no host"),
        ("redis://127.0.0.1:6379/abc", "a Redis database is a number"),
        ("redis://127.0.0.1:6379/1/2", "a Redis database is a number"),
        ("rediss://127.0.0.1:6379/-1", "a Redis database is a number"),
        (f"redis://:{SECRET}/x@h:6379/0", "cannot be read"),
        ("redis://h/0?db=abc", "write a whole number"),
        ("redis://h/0?socket_timeout=abc", "write a number"),
        ("redis://127.0.0.1:6379/9?nope=1", "redis.from_url"),
        ("redis+sentinel://h:26379", "names no service"),
        ("redis+sentinel://h:26379/main/abc", "a Redis database is a number"),
        ("redis+cluster://", "names no host"),
        ("redis+cluster://h:6379/3", "has only /0"),
        ("redis+unix://", "names no socket"),
    ],
)
def test_a_store_that_cannot_serve_is_refused_at_init_app(store: Any, cure: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^SINGLEJOB_STORE is ") as caught:
        SingleJob(make_app(tmp_path, SINGLEJOB_STORE=store))
    assert cure in str(caught.value)
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError):
        open_store(store)


@pytest.mark.parametrize(
    "store",
    [
        "postgresql:///db?host=/run/postgresql&connect_timeout=3",
        "postgresql://u:p?x@h/db",
        "sqlite:///x.db?timeout=2.5",
        "sqlite:///file:x.db?mode=ro&uri=true",
        "redis://",
        "redis://h:6379",
        "redis://h/3/",
        "redis://u:p@h/3?socket_timeout=0.5",
        "rediss://h/3?ssl_cert_reqs=none",
        "redis+unix:///run/redis.sock?db=2",
        "redis+cluster://a:6379,b:6379/0",
        "redis+sentinel://:p@a:26379,b:26379/main/2",
    ],
)
def test_a_store_that_may_serve_is_taken(store: str, tmp_path: Path) -> None:
    SingleJob(make_app(tmp_path, SINGLEJOB_STORE=store))


@pytest.mark.parametrize(
    ("store", "options", "words"),
    [
        (None, {"nope": 1}, "'nope'; allowed: keyword arguments of SQLAlchemy's create_engine"),
        (
            "sqlite:///x.db",
            {"nope": SECRET},
            "'nope'; allowed: keyword arguments of SQLAlchemy's create_engine",
        ),
        ("sqlite:///x.db", {"clock": FrozenClock()}, "'clock'; allowed: keyword arguments of SQLAlchemy's"),
        ("postgresql://h/x", {"nope": 1}, "'nope'; allowed: keyword arguments of SQLAlchemy's create_engine"),
        ("postgresql://h/x", {"connect_args": SECRET}, "allowed: a dict"),
        ("postgresql://h/x", {"pool_size": "5"}, "pool_size of type str; allowed: a number"),
        ("redis://h/0", {"nope": 1}, "'nope'; allowed: keyword arguments of redis.from_url"),
        (
            "redis://h/0",
            {"ssl_certfile": "x"},
            "'ssl_certfile'; allowed: keyword arguments of redis.from_url",
        ),
        ("redis://h/0", {"socket_timeout": "soon"}, "socket_timeout of type str; allowed: a number"),
        ("mongodb://h/x", {"nope": 1}, "'nope'; allowed: keyword arguments of pymongo's MongoClient"),
        ("mongodb://h/x", {"socketTimeoutMS": "soon"}, "socketTimeoutMS of type str; allowed: a number"),
        ("memory://", {"pool_size": 3}, "'pool_size' and SINGLEJOB_STORE is memory://; allowed: clock"),
        ("memory://", {"clock": 3}, "a clock of type int"),
        (None, {"clock": 3}, "a clock of type int"),
    ],
)
def test_options_that_the_store_does_not_take_are_refused_at_init_app(
    store: str | None, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"^SINGLEJOB_STORE_OPTIONS has ") as caught:
        SingleJob(make_app(tmp_path, SINGLEJOB_STORE=store, SINGLEJOB_STORE_OPTIONS=options))
    message = str(caught.value)
    assert words in message
    assert message.count("(") == message.count(")")
    assert ". " not in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("store", "options"),
    [
        (None, {"pool_size": 3}),
        (None, {"clock": FrozenClock()}),
        ("sqlite:///x.db", {"connect_args": {"timeout": 3}}),
        ("postgresql://h", {"creator": print}),
        ("postgresql://h", {"connect_args": {"dbname": "x"}}),
        ("postgresql://h/x", {"poolclass": sqlalchemy.pool.NullPool, "max_identifier_length": 63}),
        ("rediss://h/0", {"ssl_certfile": "x"}),
        ("redis://h/0", {"credential_provider": None}),
        ("mongodb://h/x", {"maxPoolSize": 3, "zlibCompressionLevel": 2}),
        ("memory://", {"clock": FrozenClock()}),
    ],
)
def test_options_that_the_store_takes_are_taken(
    store: str | None, options: dict[str, Any], tmp_path: Path
) -> None:
    SingleJob(make_app(tmp_path, SINGLEJOB_STORE=store, SINGLEJOB_STORE_OPTIONS=options))


@pytest.mark.parametrize("store", ["redis://h/0", "mongodb://h/x", "sqlite:///x.db", "memory://", None])
def test_a_schema_is_refused_at_init_app_where_there_is_none(store: str | None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^SINGLEJOB_SCHEMA is 'jobs'.*Cure: remove the key"):
        SingleJob(make_app(tmp_path, SINGLEJOB_STORE=store, SINGLEJOB_SCHEMA="jobs"))


def test_a_schema_is_taken_where_there_are_some(tmp_path: Path) -> None:
    for store in ("postgresql://h/x", "mysql://h/x", "mariadb+pymysql://h/x"):
        SingleJob(make_app(tmp_path, SINGLEJOB_STORE=store, SINGLEJOB_SCHEMA="jobs"))
    app = make_app(tmp_path, SQLALCHEMY_DATABASE_URI="sqlite://")
    SingleJob(app, store=SQLAlchemy(app))


def test_neither_sqlalchemy_nor_a_driver_is_imported_by_the_checks(tmp_path: Path) -> None:
    code = f"""
import sys
from flask import Flask
from flask_singlejob import SingleJob
for number, (store, options, schema) in enumerate((
    ("postgresql+psycopg://u:p@h/db?connect_timeout=3", {{"pool_size": 3, "pool_recycle": 300}}, "jobs"),
    ("redis://h/3?socket_timeout=1", {{"health_check_interval": 5}}, None),
    ("mongodb://h/x", {{"maxPoolSize": 5}}, None),
    ("sqlite:///x.db?timeout=3", {{"connect_args": {{}}}}, None),
)):
    app = Flask(f"app{{number}}", instance_path={str(tmp_path)!r})
    app.config.update(SINGLEJOB_STORE=store, SINGLEJOB_STORE_OPTIONS=options, SINGLEJOB_SCHEMA=schema)
    SingleJob(app)
print(sorted({{"sqlalchemy", "psycopg", "redis", "pymongo", "sqlite3"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
