"""Making and upgrading the tables: at once by many, by little rights, from and to other versions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text

from flask_singlejob.errors import StoreError
from flask_singlejob.records import ClaimKey
from flask_singlejob.stores import open_store, sql_checks
from flask_singlejob.stores.schema import SCHEMA_VERSION, Step
from flask_singlejob.stores.sql import SqlStore
from flask_singlejob.stores.sql_create import Creation, versions
from tests.services import PostgreSQLServer, shared_mariadb, shared_postgresql

KINDS = ("sqlite", "postgresql", "mysql")


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgresql":
        return f"postgresql+psycopg://{shared_postgresql()}"
    return f"mysql+pymysql://{shared_mariadb()}"


@pytest.fixture
def prefix() -> str:
    return f"t{uuid4().hex[:10]}_"


@pytest.fixture
def store(url: str, prefix: str) -> Iterator[SqlStore]:
    store = open_store(url, table_prefix=prefix)
    assert isinstance(store, SqlStore)
    yield store
    store._tables.metadata.drop_all(store._gate.engine)
    store.close()


def meta(store: SqlStore) -> dict[str, int]:
    return store._gate.call("test", lambda session: versions(session, store._tables))


def write(store: SqlStore, statement: str) -> None:
    store._gate.call("test", lambda session: session.connection.exec_driver_sql(statement))


def test_missing_tables_are_told_with_the_cure_until_they_are_there(store: SqlStore) -> None:
    for verb in (store.poll, lambda: store.ensure([ClaimKey("job", "a")]), lambda: store.put("k", "a", {})):
        with pytest.raises(StoreError, match=r"flask singlejob init-db.*--sql"):
            verb()  # type: ignore[no-untyped-call]
    assert store.checks()[0][0] == "The store's tables are missing."
    store.create()
    assert store.poll().held == ()
    assert store.checks() == []


def test_printed_statements_make_what_create_makes(store: SqlStore, url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in store.ddl().split(";\n\n"):
            if statement.strip():
                connection.execute(text(statement))
    engine.dispose()
    assert meta(store) == {"schema_version": SCHEMA_VERSION, "min_reader_version": 1}
    store.create()
    assert store.put("k", "a", {}) is not None
    assert store.checks() == []


def test_half_of_the_tables_is_completed(store: SqlStore) -> None:
    for statement in store.ddl().split(";\n\n")[:2]:
        write(store, statement)
    store.create()
    assert store.put("k", "a", {}) is not None
    assert store.runs() == []
    assert store.checks() == []


def test_ddl_needs_no_connection() -> None:
    for url in (
        "postgresql+psycopg://u@127.0.0.1:1/a",
        "mysql+pymysql://u@127.0.0.1:1/a",
        "sqlite:////nowhere/a.db",
    ):
        ddl = open_store(url, table_prefix="jobs_").ddl()
        for table in ("jobs_claims", "jobs_runs", "jobs_documents", "jobs_meta"):
            assert f"CREATE TABLE IF NOT EXISTS {table}" in ddl
        assert "UTC milliseconds" in ddl or url.startswith("sqlite")


def add_column(tables: Any, kind: str) -> list[str]:
    return [f"ALTER TABLE {tables.claims.name} ADD COLUMN invented BIGINT"]


STEP = Step(to=2, sql=add_column)


def creation(store: SqlStore, *steps: Step) -> Creation:
    return Creation(store._gate, store._tables, steps=steps, version=1 + len(steps))


def test_older_tables_are_upgraded_by_one_of_many(store: SqlStore, url: str, prefix: str) -> None:
    store.create()
    stores = [open_store(url, table_prefix=prefix) for _ in range(6)]
    errors: list[Exception] = []

    def work(one: Any) -> None:
        try:
            creation(one, STEP).create()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert meta(store)["schema_version"] == 2
    write(store, f"UPDATE {store._tables.claims.name} SET invented = 1")
    # The old code goes on beside it.
    store.create()
    assert store.ensure([ClaimKey("job", "a")])
    assert "Finish the deployment" in store.checks()[0][1]
    for one in stores:
        one.close()


def test_upgrade_that_broke_off_is_completed(store: SqlStore) -> None:
    store.create()

    def broken(tables: Any, kind: str) -> list[str]:
        return [*add_column(tables, kind), "NO SUCH STATEMENT"]

    with pytest.raises(StoreError):
        creation(store, Step(to=2, sql=broken)).create()
    assert meta(store)["schema_version"] == 1
    creation(store, STEP).create()
    assert meta(store)["schema_version"] == 2


def test_tables_that_need_newer_code_are_not_touched(store: SqlStore) -> None:
    store.create()
    creation(store, Step(to=2, sql=add_column, min_reader=2)).create()
    with pytest.raises(StoreError, match="need a newer Flask-SingleJob"):
        store.create()
    assert "may not use" in store.checks()[0][0]


@pytest.fixture(scope="module")
def private() -> Iterator[PostgreSQLServer]:
    server = PostgreSQLServer(["max_connections=60"]).start()
    yield server
    server.remove()


def test_sixteen_at_once_leave_no_error_in_the_servers_log(private: PostgreSQLServer, prefix: str) -> None:
    stores = [open_store(private.url(), table_prefix=prefix) for _ in range(16)]
    barrier = threading.Barrier(16)
    errors: list[Exception] = []

    def work(one: Any) -> None:
        barrier.wait()
        try:
            one.create()
        except Exception as error:
            errors.append(error)

    before = private.log.read_text().count("ERROR")
    threads = [threading.Thread(target=work, args=(one,)) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert private.log.read_text().count("ERROR") == before
    assert stores[0].poll().held == ()
    for one in stores:
        one.close()


def test_name_that_is_taken_by_something_else_is_told(private: PostgreSQLServer, prefix: str) -> None:
    with private.connect("test") as admin:
        admin.execute(f"CREATE TYPE {prefix}runs AS ENUM ('a')")
    with pytest.raises(StoreError, match="Choose another table prefix"):
        open_store(private.url(), table_prefix=prefix).create()


def test_missing_right_is_told_with_the_way_to_the_statements(private: PostgreSQLServer, prefix: str) -> None:
    with private.connect("test") as admin:
        admin.execute(f"CREATE ROLE {prefix}user LOGIN")
        store = open_store(private.url().replace("postgres@", f"{prefix}user@"), table_prefix=prefix)
        with pytest.raises(StoreError, match=r"permission denied.*administrator.*init-db --sql"):
            store.create()
        for statement in store.ddl().split(";\n\n"):
            if statement.strip():
                admin.execute(statement)
        for table in ("claims", "runs", "documents", "meta"):
            admin.execute(f"GRANT SELECT, INSERT, UPDATE ON {prefix}{table} TO {prefix}user")
    store.create()
    assert store.ensure([ClaimKey("job", "a")])
    with pytest.raises(StoreError, match=r"permission denied.*flask singlejob doctor"):
        store.delete("k", store.put("k", "a", {}, quiet=True).id, quiet=True)  # type: ignore[union-attr]
    assert sorted(finding for finding, _ in store.checks()) == [
        f"The store's user lacks DELETE on {prefix}{table}."
        for table in ("claims", "documents", "meta", "runs")
    ]
    store.close()


def test_tables_may_lie_in_a_schema_of_their_own(private: PostgreSQLServer, prefix: str) -> None:
    store = open_store(private.url(), table_prefix=prefix, schema="Jobs")
    with pytest.raises(StoreError):
        store.create()
    with private.connect("test") as admin:
        admin.execute('CREATE SCHEMA IF NOT EXISTS "Jobs"')
    store.create()
    assert store.put("k", "a", {}) is not None
    assert store.checks() == []
    assert open_store(private.url(), table_prefix=prefix).checks() != []
    store.close()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("schema", ["100%", "a%%b %s", 'q"q', "it's"])
def test_a_schema_may_have_any_name(driver: str, schema: str, private: PostgreSQLServer, prefix: str) -> None:
    pytest.importorskip(driver)
    quoted = '"' + schema.replace('"', '""') + '"'
    with private.connect("test") as admin:
        admin.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
    store = open_store(private.url(driver), table_prefix=prefix, schema=schema)
    assert isinstance(store, SqlStore)
    with private.connect("test") as admin:
        for statement in store.ddl().split(";\n\n")[:1]:
            admin.execute(statement)
    store.create()
    assert meta(store) == {"schema_version": SCHEMA_VERSION, "min_reader_version": 1}
    assert store.put("k", "a", {}) is not None
    store.create()
    assert store.checks() == []
    with private.connect("test") as admin:
        found = admin.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename LIKE %s",
            (schema, f"{prefix}%"),
        ).fetchone()
        assert found is not None
        assert found[0] == 4
    store.close()


def test_network_file_system_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"dev / ext4 rw 0 0\nserver:/x {tmp_path}/nfs nfs4 rw 0 0\n")
    assert sql_checks.file_system_of(tmp_path / "nfs" / "jobs.db", str(mounts)) == "nfs4"
    assert sql_checks.file_system_of(tmp_path / "jobs.db", str(mounts)) == "ext4"
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    store.create()
    monkeypatch.setattr(sql_checks, "file_system_of", lambda path: "nfs4")
    assert "network file system" in store.checks()[0][0]
    store.close()
