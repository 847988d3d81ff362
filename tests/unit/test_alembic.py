"""Alembic's autogenerate leaves the store's tables alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine

from flask_singlejob.alembic import include_object, include_object_for
from flask_singlejob.stores import open_store
from flask_singlejob.stores.schema import Tables


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path}/app.db"
    for prefix in ("singlejob_", "jobs_"):
        store = open_store(url, table_prefix=prefix)
        store.create()
        store.close()
    engine = create_engine(url)
    yield engine
    engine.dispose()


def changes(engine: Engine, metadata: MetaData, include: Any) -> set[tuple[str, str]]:
    """Return what autogenerate would do, and to which table."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_object": include})
        found: Any = compare_metadata(context, metadata)
    return {
        (change[0], change[1].name if change[0].endswith("table") else change[1].table.name)
        for change in found
    }


def application() -> MetaData:
    metadata = MetaData()
    Table("singlejobs", metadata, Column("id", Integer, primary_key=True))
    return metadata


def test_autogenerate_neither_drops_nor_makes_the_tables(engine: Engine) -> None:
    found = changes(engine, application(), include_object)
    assert ("add_table", "singlejobs") in found
    assert {table for _, table in found if table.startswith("singlejob_")} == set()
    assert ("remove_table", "jobs_claims") in found


def test_autogenerate_makes_no_table_that_the_application_happens_to_import(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
    metadata = Tables(prefix="singlejob_", schema=None).metadata
    assert ("add_table", "singlejob_claims") in changes(engine, metadata, lambda *_: True)
    assert changes(engine, metadata, include_object) == set()
    engine.dispose()


def test_another_prefix_is_left_alone_and_the_applications_own_rule_asked(engine: Engine) -> None:
    asked: list[str | None] = []

    def own(object: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
        asked.append(name)
        return name != "singlejobs"

    found = changes(engine, application(), include_object_for("jobs_", own))
    assert {table for _, table in found} == {
        "singlejob_claims",
        "singlejob_runs",
        "singlejob_documents",
        "singlejob_meta",
    }
    assert not [name for name in asked if str(name).startswith("jobs_")]
