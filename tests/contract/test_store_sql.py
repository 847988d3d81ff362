"""The SQL store: the contract on every database by every driver."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from flask_singlejob.stores import open_store
from flask_singlejob.stores.base import Store
from flask_singlejob.stores.sql import SqlStore
from flask_singlejob.testing import StoreContract
from tests.services import missing, shared_mariadb, shared_postgresql


def drop_tables(url: str, prefix: str) -> None:
    """Drop the tables under a prefix."""
    store = open_store(url, table_prefix=prefix)
    assert isinstance(store, SqlStore)
    store._tables.metadata.drop_all(store._gate.engine)
    store.close()


class _SqlContract(StoreContract):
    @pytest.fixture(autouse=True)
    def _tables(self, tmp_path: Path) -> Iterator[None]:
        self.prefix = f"t{uuid4().hex[:10]}_"
        self.url = self.url_for(tmp_path)
        yield
        for store in self._made:
            store.close()
        drop_tables(self.url, self.prefix)

    def url_for(self, directory: Path) -> str:
        raise NotImplementedError

    def make_store(self, cluster: str) -> Store:
        return open_store(self.url, cluster=cluster, table_prefix=self.prefix)


class TestSQLite(_SqlContract):
    def url_for(self, directory: Path) -> str:
        return f"sqlite:///{directory}/new/store.db"


class TestSQLiteWithoutReturning(TestSQLite):
    """As an SQLite before 3.35."""

    def make_store(self, cluster: str) -> Store:
        store = super().make_store(cluster)
        assert isinstance(store, SqlStore)
        assert store._sql.returning
        store._sql.returning = False
        return store


class TestPostgreSQLByPsycopg(_SqlContract):
    def url_for(self, directory: Path) -> str:
        return f"postgresql+psycopg://{shared_postgresql()}"


class TestPostgreSQLByPsycopg2(_SqlContract):
    def url_for(self, directory: Path) -> str:
        pytest.importorskip("psycopg2")
        return f"postgresql+psycopg2://{shared_postgresql()}"


class TestMariaDBByPyMySQL(_SqlContract):
    def url_for(self, directory: Path) -> str:
        return f"mysql+pymysql://{shared_mariadb()}"


class TestMariaDBByMysqlclient(_SqlContract):
    def url_for(self, directory: Path) -> str:
        if importlib.util.find_spec("MySQLdb") is None:
            missing("mysqlclient is not installed")
        return f"mariadb+mysqldb://{shared_mariadb()}"
