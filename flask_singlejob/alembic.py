"""Keeps Alembic's autogenerate from dropping or making the tables of Flask-SingleJob.

In ``env.py``: ``context.configure(..., include_object=include_object)``. The tables upgrade themselves
(or by ``flask singlejob init-db``); a migration of the application has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["include_object", "include_object_for"]

IncludeObject = Callable[[Any, "str | None", str, bool, Any], bool]


def include_object_for(table_prefix: str, also: IncludeObject | None = None) -> IncludeObject:
    """Return an ``include_object`` for tables under another prefix than ``singlejob_``.

    :param table_prefix: as in ``SINGLEJOB_TABLE_PREFIX``.
    :param also: the application's own ``include_object``, asked for everything else.
    """

    def include(object: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
        table = name if type_ == "table" else getattr(getattr(object, "table", None), "name", None)
        if table is not None and str(table).startswith(table_prefix):
            return False
        return True if also is None else also(object, name, type_, reflected, compare_to)

    return include


_default = include_object_for("singlejob_")


def include_object(object: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
    """Tell Alembic whether to look at an object: not at tables, columns and indexes under ``singlejob_``."""
    return _default(object, name, type_, reflected, compare_to)
