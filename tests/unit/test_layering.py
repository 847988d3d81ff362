"""Imports point one way, and each foreign library is known only where it belongs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "flask_singlejob"
NAME = PACKAGE.name

#: From the ground up; a module may import those of its own line and of lines above it. A module that is
#: not named belongs to the folder that is, or must only be part of no circle.
LAYERS = (
    ("errors", "records", "clock", "forks", "lanes", "programs", "preload", "green"),
    ("checks", "config", "keys", "scheduler_checks", "signals", "servers", "process"),
    ("references", "codec", "zones", "moments"),
    ("triggers",),
    ("schedules", "ticks"),
    ("election", "stores"),
    ("claims",),
    ("lease",),
    ("runner",),
    ("definitions", "planner", "events", "hosts", "engine_access", "locks"),
    ("term", "scheduler", "worker", "once"),
    ("engine", "manage", "api", "logs"),
    ("status",),
    ("extension",),
    ("cli", "web", "gunicorn", "testing", "testing_runs", "alembic", "doctor", "import_jobs", "contract"),
)

#: The extension hangs the outermost parts in, from within its functions; nothing else looks upwards.
WIRING = {("extension", "cli"), ("extension", "web")}

#: Who may import a library, by the first parts of the module's name.
ALLOWED = {
    "flask": ("extension", "api", "engine", "logs", "process_context", "cli", "web", "config", "testing"),
    "werkzeug": ("extension", "engine", "cli", "web", "config", "testing", "servers"),
    "click": ("cli", "process_context"),
    "apscheduler": (
        *("ticks", "triggers", "trigger_objects", "cron", "combined", "custom", "schedules"),
        *(
            "definitions",
            "scheduler",
            "worker",
            "events",
            "manage",
            "api",
            "extension",
            "web.rest",
            "cli",
            "import_jobs",
        ),
        "",  # the package itself, which names Flask-APScheduler's STATE_*
    ),
    "flask_apscheduler": ("extension",),
    "sqlalchemy": ("stores.sql", "stores.schema", "alembic", "import_sources"),
    "alembic": ("alembic",),
    "psycopg": ("stores.sql",),
    "psycopg2": ("stores.sql",),
    "pymysql": ("stores.sql",),
    "MySQLdb": ("stores.sql",),
    "sqlite3": ("stores.sql",),
    "redis": ("stores.redis", "import_sources"),
    "pymongo": ("stores.mongodb", "import_sources"),
    "bson": ("stores.mongodb",),
    "prometheus_client": ("web",),
}


@cache
def modules() -> dict[str, Path]:
    """Return the package's modules by their name below it; a folder is named for its ``__init__``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


@cache
def imports_of(name: str, path: Path) -> tuple[str, ...]:
    """Return the full names that a module imports at run time, also inside its functions."""
    return tuple(_imports_of(name, path))


def _imports_of(name: str, path: Path) -> Iterator[str]:
    parts = [NAME, *filter(None, name.split("."))]
    package = parts if path.name == "__init__.py" else parts[:-1]
    for node in _run_time_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{start}.{alias.name}" for alias in node.names)


def _run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _run_time_nodes(child)


def edges() -> dict[str, set[str]]:
    """Return which modules of the package each module imports."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = set()
        for imported in imports_of(name, path):
            if imported.split(".")[0] != NAME:
                continue
            target = imported.partition(".")[2]
            while target and target not in known:
                target = target.rpartition(".")[0]
            version = imported == f"{NAME}.__version__"
            if target != name and not version and (name, target) not in WIRING:
                graph[name].add(target)
    return graph


def layer(name: str) -> int | None:
    """Return the number of a module's layer, None for one that is in no layer."""
    first = name.split(".")[0]
    return next((number for number, names in enumerate(LAYERS) if first in names), None)


def test_modules_import_only_what_is_below_them() -> None:
    wrong = []
    for name, imported in edges().items():
        if not name:
            continue
        here = layer(name)
        for target in imported:
            there = layer(target)
            if here is not None and there is not None and there > here:
                wrong.append(f"{name} imports {target}")
    assert not wrong, wrong


def test_no_module_but_the_outermost_imports_the_package_itself() -> None:
    outermost = LAYERS[-1]
    wrong = [
        name for name, imported in edges().items() if "" in imported and name.split(".")[0] not in outermost
    ]
    assert not wrong, wrong


def test_imports_make_no_circle() -> None:
    graph = {name: {target for target in imported if target} for name, imported in edges().items() if name}
    while leaves := {name for name, imported in graph.items() if not imported & set(graph)}:
        graph = {name: imported for name, imported in graph.items() if name not in leaves}
    assert not graph, f"in a circle or above one: {sorted(graph)}"


@pytest.mark.parametrize("library", ALLOWED)
def test_library_is_known_only_where_it_belongs(library: str) -> None:
    wrong = [
        name
        for name, path in modules().items()
        if any(imported.split(".")[0] == library for imported in imports_of(name, path))
        and not _is_one_of(name, ALLOWED[library])
    ]
    assert not wrong, f"{library} is imported by {wrong}"


def _is_one_of(name: str, allowed: tuple[str, ...]) -> bool:
    """Tell whether a module is named, lies in a named folder, or is a part of a named one (``sql_…``)."""
    return any(name == one or name.startswith((f"{one}.", f"{one}_")) for one in allowed)
