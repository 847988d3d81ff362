"""The servers of the matrix: how each is started, reloaded and stopped, and where its Python comes from.

Knows nothing of what is expected. Other versions of a server live in virtual environments named as in
``REQUIREMENTS`` below the directory ``SINGLEJOB_TEST_VENVS``; those that are missing are made there.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .clock import cache_directory
from .harness import Cluster, Host, Process, _stat
from .waiting import wait_until

__all__ = ["ROWS", "Daemon", "Row", "edit", "interpreter", "start"]

APP = "tests.integration.apps.basic:create_app()"
#: A module in the server's own directory, that a reloader may see changed; under "python served.py" it serves.
SERVED = """\
import os, sys
from tests.integration.apps.basic import create_app

app = create_app()

if __name__ == "__main__":
    app.run(port=int(sys.argv[1]), debug="--debug" in sys.argv)
"""
COMMON = ("flask", "flask-apscheduler", "sqlalchemy")
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "gunicorn-20.1.0": ("gunicorn==20.1.0", "gevent", "setuptools<81"),
    "gunicorn-23.0.0": ("gunicorn==23.0.0", "gevent", "eventlet"),
    "newest": (
        "gunicorn",
        "gevent",
        "waitress",
        "pyuwsgi",
        "uvicorn",
        "a2wsgi",
        "hypercorn",
        "granian",
    ),
}


@dataclass(frozen=True)
class Row:
    """One line of the matrix.

    :param server: its name and version, as shown.
    :param kind: the worker class or mode, as shown.
    :param flags: as shown.
    :param argv: the command, ``{python}``, ``{bin}`` and ``{port}`` filled in; empty for gunicorn.
    :param reload: ``hup``, ``edit`` (of the served module, five times) or ``restart`` (it has none).
    :param workers: how many processes serve; 1: a kill of the owner is a kill of the server.
    :param needs: modules without which the row is skipped where no environment can be made.
    :param quick: part of the default run.
    """

    server: str
    kind: str
    flags: str
    argv: tuple[str, ...] = ()
    reload: str = "hup"
    workers: int = 3
    needs: tuple[str, ...] = ()
    venv: str = "newest"
    quick: bool = False

    @property
    def id(self) -> str:
        """The row's name in pytest."""
        return (
            "-".join(filter(None, (self.server, self.kind, self.flags))).replace(" ", "-").replace("/", ".")
        )

    @property
    def module(self) -> str:
        """The module whose presence says that the server is installed."""
        return self.needs[0] if self.needs else "gunicorn"


def _gunicorn_rows() -> list[Row]:
    rows = []
    for venv, version in (("gunicorn-20.1.0", "20.1.0"), ("gunicorn-23.0.0", "23.0.0"), ("newest", "newest")):
        kinds = ["sync", "gthread", "gevent", *(["eventlet"] if version == "23.0.0" else [])]
        for kind in kinds:
            for flags in ("", "--preload"):
                needs = ("gunicorn", kind) if kind in ("gevent", "eventlet") else ("gunicorn",)
                quick = (version, kind, flags) in {("newest", "sync", ""), ("newest", "gevent", "--preload")}
                rows.append(Row(f"gunicorn {version}", kind, flags, needs=needs, venv=venv, quick=quick))
        for flags in ("--max-requests 10", "--daemon"):
            rows.append(Row(f"gunicorn {version}", "sync", flags, venv=venv))
        rows.append(Row(f"gunicorn {version}", "sync", "--reload", reload="edit", venv=venv))
    rows.append(Row("gunicorn newest", "gevent", "--max-requests 10", needs=("gunicorn", "gevent")))
    rows.append(Row("gunicorn newest", "asgi", "through a2wsgi", needs=("gunicorn.asgi", "a2wsgi")))
    return rows


def _uwsgi(flags: str, *, workers: int = 3, reload: str = "hup", quick: bool = False) -> Row:
    argv: tuple[str, ...] = (
        "{bin}/uwsgi",
        "--http-socket",
        "127.0.0.1:{port}",
        "--module",
        APP,
        "--enable-threads",
    )
    argv += ("--die-on-term", *flags.split())
    kind = f"{workers} processes" if workers > 1 else "1 process"
    if workers > 1:
        argv += ("--processes", str(workers))
    return Row("uWSGI", kind, flags, argv, reload, workers, ("pyuwsgi",), quick=quick)


ROWS: list[Row] = [
    *_gunicorn_rows(),
    _uwsgi("--master", quick=True),
    _uwsgi("--master --lazy-apps"),
    _uwsgi("", workers=1, reload="restart"),
    Row(
        "waitress",
        "1 process",
        "",
        (
            "{python}",
            "-m",
            "waitress",
            "--listen",
            "127.0.0.1:{port}",
            "--call",
            "tests.integration.apps.basic:create_app",
        ),
        "restart",
        1,
        ("waitress",),
        quick=True,
    ),
    Row(
        "flask run",
        "1 process",
        "",
        ("{python}", "-m", "flask", "--app", "served", "run", "-p", "{port}"),
        "restart",
        1,
        ("flask",),
    ),
    Row(
        "flask run",
        "reloader",
        "--debug",
        ("{python}", "-m", "flask", "--app", "served", "run", "-p", "{port}", "--debug"),
        "edit",
        1,
        ("flask",),
        quick=True,
    ),
    Row(
        "flask run",
        "1 process",
        "--debug --no-reload",
        ("{python}", "-m", "flask", "--app", "served", "run", "-p", "{port}", "--debug", "--no-reload"),
        "restart",
        1,
        ("flask",),
    ),
    Row("python app.py", "app.run()", "", ("{python}", "served.py", "{port}"), "restart", 1, ("flask",)),
    Row(
        "python app.py",
        "app.run()",
        "debug=True",
        ("{python}", "served.py", "{port}", "--debug"),
        "edit",
        1,
        ("flask",),
    ),
    Row(
        "uvicorn",
        "1 process",
        "--interface wsgi",
        (
            *("{python}", "-m", "uvicorn", "served:app", "--interface", "wsgi"),
            *("--host", "127.0.0.1", "--port", "{port}"),
        ),
        "restart",
        1,
        ("uvicorn",),
    ),
    Row(
        "uvicorn",
        "3 processes",
        "--interface wsgi --workers 3",
        (
            *("{python}", "-m", "uvicorn", "served:app", "--interface", "wsgi", "--workers", "3"),
            *("--host", "127.0.0.1", "--port", "{port}"),
        ),
        "hup",
        3,
        ("uvicorn",),
    ),
    Row(
        "hypercorn",
        "1 process",
        "wsgi:",
        ("{bin}/hypercorn", "wsgi:served:app", "--bind", "127.0.0.1:{port}"),
        "restart",
        1,
        ("hypercorn",),
    ),
    Row(
        "granian",
        "2 processes",
        "--interface wsgi --workers 2",
        (
            *("{bin}/granian", "--interface", "wsgi", "--workers", "2", "--respawn-failed-workers"),
            *("--host", "127.0.0.1", "--port", "{port}", "served:app"),
        ),
        "hup",
        2,
        ("granian",),
    ),
]


def interpreter(name: str) -> str:
    """Return the Python of an environment for the matrix, which is made when it is missing."""
    root = Path(os.environ.get("SINGLEJOB_TEST_VENVS") or cache_directory() / "venvs")
    python = root / name / "bin" / "python"
    root.mkdir(parents=True, exist_ok=True)
    with open(root / f"{name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(root / name)], check=True)
            packages = [*COMMON, *REQUIREMENTS[name]]
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)


class Daemon(Host):
    """A gunicorn that left its parent, session and group: its processes are found by its pid file."""

    def __init__(self, name: str, **options: Any) -> None:
        self._pid_file = options["directory"] / "gunicorn.pid"
        log = options["directory"] / "log"
        flags = [
            *options.pop("flags", ()),
            "--daemon",
            "--pid",
            str(self._pid_file),
            "--error-logfile",
            str(log),
        ]
        super().__init__(name, flags=flags, **options)
        self._master = self._group = 0

    def start(self, *, ready: bool = True) -> Daemon:
        self._master = 0
        self._pid_file.unlink(missing_ok=True)
        super().start(ready=False)
        launcher = super().pid
        self._master = wait_until(lambda: int(self._pid_file.read_text()), 60, "the daemon's pid file")
        assert self._master != launcher
        self._group = os.getpgid(self._master)
        if ready:
            self.wait_ready()
        return self

    @property
    def pid(self) -> int:
        return self._master or super().pid

    @property
    def returncode(self) -> int | None:
        # The launcher's end says nothing.
        return None if self._master and _alive(self._master) else 0

    def processes(self) -> list[int]:
        if not self._group:
            return []
        found = []
        for entry in os.listdir("/proc"):
            stat = _stat(int(entry)) if entry.isdigit() else None
            if stat is not None and stat[0] not in "ZX" and int(stat[2]) == self._group:
                found.append((int(stat[19]), int(entry)))
        return [pid for _, pid in sorted(found)]

    def stop(self, deadline: float = 60.0, *, sig: int = 15) -> int:
        for master in self.masters():
            os.kill(master, sig)
        wait_until(lambda: not self.processes(), deadline, "the daemon ends")
        self._master = 0
        return 0

    def kill_all(self) -> None:
        for pid in self.processes():
            self.signal(pid, 9)
        self._master = 0


def _alive(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def start(cluster: Cluster, row: Row, python: str, **options: Any) -> Process:
    """Start the server of a row as the cluster's host ``a``.

    :param python: the interpreter that has the server.
    """
    directory = cluster.directory / "a"
    directory.mkdir(parents=True, exist_ok=True)
    served = directory / "served.py"
    if not served.exists():
        served.write_text(SERVED)
    paths = [directory, Path(__file__).parents[2]]
    if row.server == "uWSGI":
        # uWSGI as a wheel starts itself anew, at a reload, with the bare interpreter.
        paths += Path(python).parents[1].glob("lib/python*/site-packages")
    options.setdefault("env", {})["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    options["env"]["PATH"] = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    if row.argv:
        argv = [
            part.replace("{python}", python).replace("{bin}", str(Path(python).parent)) for part in row.argv
        ]
        return cluster.process("a", argv, **options)
    flags = [] if row.kind == "asgi" else row.flags.split()
    app = {"--reload": "served:app", "through a2wsgi": "tests.integration.apps.asgi:app"}.get(row.flags, APP)
    kind: Callable[..., Host] = Host
    if "--daemon" in flags:
        flags.remove("--daemon")
        kind = Daemon
    if "--reload" in flags:
        flags += ["--reload-engine", "poll"]
    if row.flags == "--max-requests 10":
        flags += ["--max-requests-jitter", "5"]
    host = kind(
        "a",
        app=app,
        workers=row.workers,
        worker_class=row.kind,
        flags=flags,
        python=python,
        **cluster._options("a", options),
    )
    cluster.hosts.append(host)
    return host.start()


def edit(served: Path) -> None:
    """Change the served module's text and its time, which rises whatever the file system's grain."""
    ahead = max(time.time(), served.stat().st_mtime) + 2
    served.write_text(SERVED + f"\n# edited at {time.time()}\n")
    os.utime(served, (ahead, ahead))
