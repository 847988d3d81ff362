"""What may name a store, and what is refused with which cure; no server is reached."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import URL, create_engine, event
from sqlalchemy.pool import NullPool

from flask_singlejob import SingleJob
from flask_singlejob.errors import ConfigError, StoreError
from flask_singlejob.records import ClaimKey
from flask_singlejob.stores import SCHEMES, open_store, sql_target
from flask_singlejob.stores.sql import SqlStore

SECRET = "s3cret"


def opened(value: Any, **more: Any) -> SqlStore:
    store = open_store(value, **more)
    assert isinstance(store, SqlStore)
    return store


@pytest.mark.parametrize(
    ("value", "cure"),
    [
        (None, "give a URL"),
        (42, "give a URL"),
        ("", "no URL"),
        ("localhost", "no URL"),
        (f"host=db password={SECRET}", "no URL"),
        (f"postgres://u:{SECRET}@db/app", "write postgresql://"),
        (f"oracle://u:{SECRET}@db/app", "known are memory://, sqlite://"),
        (f"postgresql+asyncpg://u:{SECRET}@db/app", "write postgresql+psycopg://"),
        (f"postgresql+psycopg_async://u:{SECRET}@db/app", "write postgresql+psycopg://"),
        ("sqlite+aiosqlite:///x.db", "write sqlite://"),
        (f"mysql+aiomysql://u:{SECRET}@db/app", "write mysql+pymysql://"),
        (f"mysql+mysqlconnector://u:{SECRET}@db/app", "write mysql+mysqldb:// or mysql+pymysql://"),
        (f"postgresql://u:{SECRET}@db:port/app", "cannot be read"),
        (f"postgresql://u:{SECRET}@db", "names no database"),
        (f" postgresql://u:{SECRET}@db/app", "spaces"),
        (f"postgresql://u:{SECRET}@db/app\n", "spaces"),
        (f"postgresql://u:{SECRET}@d b/app", "%20"),
        ("sqlite://", "memory:// for tests"),
        ("sqlite:///:memory:", "memory:// for tests"),
        ("sqlite:///file:x?mode=memory&uri=true", "memory:// for tests"),
        ("redis+carrier://x", "write redis://"),
        (SimpleNamespace(sync_engine=1), "asynchronous"),
    ],
)
def test_value_that_cannot_be_used_is_refused_with_its_cure(value: Any, cure: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(value)
    message = str(caught.value)
    assert cure in message
    assert "\n" not in message
    assert SECRET not in message
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__


@pytest.mark.parametrize(
    ("more", "cure"),
    [
        ({"table_prefix": "a-b"}, "letters"),
        ({"table_prefix": ""}, "letters"),
        ({"table_prefix": "x" * 33}, "letters"),
        ({"cluster": ""}, "not empty"),
        ({"schema": "jobs"}, "no schemas"),
        ({"options": {"pool_sise": 3}}, "create_engine"),
        ({"options": {"connect_args": 3}}, "give a dict"),
    ],
)
def test_setting_that_cannot_be_used_is_refused_with_its_cure(more: dict[str, Any], cure: str) -> None:
    with pytest.raises(ConfigError, match=cure):
        open_store("sqlite:///x.db", **more)


def test_memory_store_takes_neither_options_nor_schema() -> None:
    with pytest.raises(ConfigError, match="no store options"):
        open_store("memory://", options={"echo": True})
    with pytest.raises(ConfigError, match="only for PostgreSQL"):
        open_store("memory://", schema="jobs")


def test_missing_driver_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for url, extra in (("postgresql://u@db/app", "postgresql"), ("mariadb+pymysql://u@db/app", "mysql")):
        with pytest.raises(ConfigError) as caught:
            open_store(url)
        assert f'pip install "flask-singlejob[{extra}]"' in str(caught.value)


def test_bare_url_takes_whichever_driver_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    for url, hidden, driver in (
        ("postgresql://u@db/app", "", "psycopg"),
        ("postgresql://u@db/app", "psycopg", "psycopg2"),
        ("mysql://u@db/app", "MySQLdb", "pymysql"),
        ("mariadb://u@db/app", "MySQLdb", "pymysql"),
    ):
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, hidden=hidden: None if name == hidden else real(name),
        )
        assert opened(url)._gate.engine.dialect.driver == driver


def test_opening_a_store_imports_only_what_it_needs() -> None:
    code = (
        "import sys, types\n"
        # The package itself without what its __init__ imports.
        "package = types.ModuleType('flask_singlejob'); package.__path__ = ['flask_singlejob']\n"
        "sys.modules['flask_singlejob'] = package\n"
        "from flask_singlejob.stores import open_store\n"
        "open_store('memory://')\n"
        "print([name for name in ('sqlalchemy', 'redis', 'pymongo') if name in sys.modules])\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_scheme_has_its_class_named() -> None:
    assert all(":" in path and path.startswith("flask_singlejob.stores.") for path in SCHEMES.values())


def test_open_store_is_returned_as_it_is() -> None:
    store = open_store("memory://")
    assert open_store(store) is store


def test_identity_and_description_hold_no_secret() -> None:
    urls = [
        f"postgresql://u:{SECRET}@db/app?password={SECRET}&sslmode=require",
        f"postgresql+psycopg2://other:{SECRET}x@db:5432/app",
        URL.create("postgresql+psycopg", "u", SECRET, "db", 5432, "app"),
    ]
    stores = [opened(url) for url in urls]
    assert len({store.identity for store in stores}) == 1
    assert all(SECRET not in store.identity + store.describe() for store in stores)
    assert opened("postgresql://u@db/other").identity != stores[0].identity
    assert opened("postgresql://u@db:5433/app").identity != stores[0].identity
    assert opened("postgresql://u@db/app", schema="jobs").identity != stores[0].identity
    assert opened("mysql://u@db/app").identity == opened("mariadb+pymysql://db/app").identity


def test_relative_sqlite_path_lies_in_the_base_directory_made_at_first_use(tmp_path: Path) -> None:
    base = tmp_path / "instance"
    store = opened("sqlite:///sub/jobs.db", base_dir=base)
    assert not base.exists()
    assert store.local
    store.create()
    assert (base / "sub" / "jobs.db").exists()
    same = opened(f"sqlite:///{base}/sub/jobs.db", base_dir="/elsewhere")
    assert same.identity == store.identity
    store.close()


def test_sqlite_path_may_hold_spaces_and_letters_of_any_kind(tmp_path: Path) -> None:
    store = opened(f"sqlite:///{tmp_path}/mein Ordner/jöbs.db")
    store.create()
    assert (tmp_path / "mein Ordner" / "jöbs.db").exists()
    store.close()


def test_directory_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        opened(f"sqlite:///{tmp_path}/file/jobs.db").create()


def test_engine_lends_url_password_arguments_and_listeners() -> None:
    engine = create_engine(
        f"postgresql+psycopg://u:{SECRET}@db/app", connect_args={"application_name": "web"}, pool_recycle=77
    )
    seen: list[dict[str, Any]] = []

    @event.listens_for(engine, "do_connect")
    def give_token(dialect: Any, record: Any, cargs: Any, cparams: dict[str, Any]) -> None:
        seen.append(dict(cparams))
        raise RuntimeError("no server here")

    store = opened(engine)
    assert store._gate.engine is not engine
    assert store._gate.engine.pool._recycle == 77
    with pytest.raises(StoreError, match="no server here"):
        store.poll()
    assert seen[0]["password"] == SECRET
    assert seen[0]["application_name"] == "web"
    assert seen[0]["connect_timeout"] == sql_target.CONNECT_SECONDS
    assert seen[0]["prepare_threshold"] is None


def test_engine_lends_its_creator() -> None:
    def creator() -> Any:
        raise RuntimeError("asked the creator")

    with pytest.raises(StoreError, match="asked the creator"):
        opened(create_engine("postgresql+psycopg://", creator=creator)).poll()


def test_users_connect_arguments_and_engine_options_win() -> None:
    store = opened(
        "postgresql+psycopg://u@db/app?connect_timeout=9",
        options={
            "connect_args": {"prepare_threshold": 5},
            "pool_recycle": 5,
            "isolation_level": "SERIALIZABLE",
        },
    )
    assert store._target.connect_args["prepare_threshold"] == 5
    assert "connect_timeout" not in store._target.connect_args
    assert store._gate.engine.pool._recycle == 5
    assert store._gate.engine.dialect._on_connect_isolation_level == "AUTOCOMMIT"
    assert isinstance(opened("sqlite:///x.db", options={"poolclass": NullPool})._gate.engine.pool, NullPool)


def test_flask_sqlalchemy_lends_its_engine_in_an_application_context(tmp_path: Path) -> None:
    app, db = Flask(__name__, instance_path=str(tmp_path)), SQLAlchemy()
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///app.db"
    db.init_app(app)
    with pytest.raises(ConfigError, match="application context"):
        open_store(db)
    with app.app_context():
        store = opened(db)
        db.engine.dispose()
    store.create()
    store.ensure([ClaimKey("lock", "a")])
    assert (tmp_path / "app.db").exists()
    store.close()


@pytest.mark.parametrize("name", ["feature%2Fx", "pct%41", "a?b", "a#b", "ü ñ", "100%"])
def test_the_default_store_lies_in_the_instance_folder_whatever_its_name(tmp_path: Path, name: str) -> None:
    instance = tmp_path / name / "instance"
    app = Flask("odd", instance_path=str(instance))
    jobs = SingleJob(app)
    jobs.add_job("one", print, trigger="interval", hours=1)
    with app.app_context():
        assert [job.id for job in jobs.get_jobs()] == ["one"]
    assert (instance / "singlejob.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]
