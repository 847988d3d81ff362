"""Empty databases for scenarios and benchmarks, made on the tests' servers and dropped again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, text

from tests.services import shared_mariadb, shared_postgresql

__all__ = ["fresh_database"]


@contextmanager
def fresh_database(engine: str) -> Iterator[str]:
    """Give the URL of an empty database on ``postgresql`` or ``mariadb``; skips without a server."""
    if engine == "postgresql":
        server, _, database = f"postgresql+psycopg://{shared_postgresql()}".rpartition("/")
        drop = "DROP DATABASE {} WITH (FORCE)"
    else:
        server, _, database = f"mysql+pymysql://{shared_mariadb()}".rpartition("/")
        drop = "DROP DATABASE {}"
    name = f"singlejob_{uuid.uuid4().hex[:12]}"
    administrator = create_engine(f"{server}/{database}", isolation_level="AUTOCOMMIT", pool_pre_ping=True)
    with administrator.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    administrator.dispose()
    try:
        yield f"{server}/{name}"
    finally:
        with administrator.connect() as connection:
            connection.execute(text(drop.format(name)))
        administrator.dispose()
