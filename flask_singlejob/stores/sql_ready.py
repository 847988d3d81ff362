"""Statements that are compiled once: their text for one dialect, and where their parameters go.

SQLAlchemy writes them; building and looking them up anew for each claim would cost more than the
database takes. Executes nothing.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

__all__ = ["Answer", "Ready", "ReadyStatements"]


class Ready:
    """One statement as the driver takes it.

    :param statement: an SQLAlchemy statement whose changing values are bind parameters.
    :param dialect: of a connected engine: what a server can do decides how it is written.
    """

    __slots__ = ("_fixed", "_order", "_row", "text")

    def __init__(self, statement: Any, dialect: Any) -> None:
        compiled = statement.compile(dialect=dialect)
        self.text = str(compiled)
        self._fixed: dict[str, Any] = dict(compiled.params)
        self._order: list[str] | None = list(compiled.positiontup) if compiled.positional else None
        names = [str(name) for name, _ in statement.exported_columns.items()]
        self._row: Any = namedtuple("Row", names, rename=True) if names else None  # type: ignore[misc]

    def parameters(self, values: Mapping[str, Any]) -> Any:
        """Return the driver's parameters; values that the statement does not name are left out."""
        fixed = self._fixed
        if self._order is None:
            return {name: values.get(name, value) for name, value in fixed.items()}
        return tuple([values[name] if name in values else fixed[name] for name in self._order])

    def first(self, cursor: Any) -> Any:
        """Return the first row that a cursor has, its values by the columns' names; None without one."""
        values = None if self._row is None else cursor.fetchone()
        return None if values is None else self._row._make(values)

    def all(self, cursor: Any) -> list[Any]:
        """Return every row that a cursor has, its values by the columns' names."""
        found = self.first(cursor)
        return [] if found is None else [found, *map(self._row._make, cursor.fetchall())]


class Answer(NamedTuple):
    """What came of a statement.

    :param rows: its rows; of a statement that is run for one row, that one.
    :param changed: how many rows were changed.
    """

    rows: list[Any]
    changed: int

    @property
    def row(self) -> Any:
        """The first row, or None."""
        return self.rows[0] if self.rows else None


class ReadyStatements:
    """The statements of one store, each compiled at its first use."""

    def __init__(self, dialect: Callable[[], Any]) -> None:
        self._dialect = dialect
        self._known: dict[Hashable, Ready] = {}

    def get(self, name: Hashable, make: Callable[[], Any]) -> Ready:
        """Return a statement by a name that tells it from all others; made when it is not known yet.

        Call it with a connection at hand: the dialect knows its server by then.
        """
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = Ready(make(), self._dialect())
        return known
