"""An app with a few jobs, and its command line called in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result
from flask import Flask

from flask_singlejob import SingleJob, current_run
from flask_singlejob.engine import Engine
from flask_singlejob.engine_access import engine_of

__all__ = ["WIDE_ID", "Line", "lines_wider_than", "make_line"]

#: 255 characters: right to left, double width, and others that have none.
WIDE_ID = ("עברית-العربية-" + "定時ジョブ名" * 50)[:254] + "e"


class Line:
    """The command line of one app.

    :ivar jobs: its extension.
    :ivar said: what its jobs did.
    """

    def __init__(self, app: Flask, jobs: SingleJob, said: list[str]) -> None:
        self.app = app
        self.jobs = jobs
        self.said = said

    @property
    def engine(self) -> Engine:
        """The app's engine."""
        engine = engine_of(self.app)
        assert engine is not None
        return engine

    def __call__(self, *arguments: str, code: int = 0, input: str | None = None) -> Result:
        """Call ``flask singlejob …`` and check its exit code, and that no traceback is shown."""
        result = self.app.test_cli_runner().invoke(args=["singlejob", *arguments], input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, (result.exit_code, result.output)
        assert not [line for line in result.stdout.splitlines() if line.startswith("Traceback")]
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Return what a command prints with ``--json``."""
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def error(self, *arguments: str, input: str | None = None) -> str:
        """Return the one line that a command that failed wrote to stderr."""
        result = self(*arguments, code=1, input=input)
        lines = result.stderr.strip().splitlines()
        assert len(lines) == 1, lines
        return lines[0]


def make_line(
    tmp_path: Path, *, define: Callable[[SingleJob, list[str]], None] | None = None, **config: Any
) -> Line:
    """Return the command line of a new app on a SQLite store of its own."""
    app = Flask("shop", instance_path=str(tmp_path))
    app.config.update(
        SINGLEJOB_STORE=f"sqlite:///{tmp_path / 'store.db'}",
        SINGLEJOB_HOST_ID="web-1",
        SINGLEJOB_LOCK_FILE=str(tmp_path / "run" / "owner.lock"),
        **config,
    )
    jobs = SingleJob()
    said: list[str] = []
    (define or _define)(jobs, said)
    jobs.init_app(app)
    return Line(app, jobs, said)


def _define(jobs: SingleJob, said: list[str]) -> None:
    @jobs.task("cron", hour=3, id="nightly")
    def nightly() -> None:
        said.append(f"nightly {current_run.cause}")

    @jobs.task("interval", minutes=5, id="failing")
    def failing() -> None:
        raise ValueError("no luck\nat all")

    @jobs.task("interval", hours=1, id=WIDE_ID, scope="host")
    def wide() -> None: ...

    @jobs.task("interval", hours=2, id="x" * 255)
    def long() -> None: ...

    @jobs.once("seed", version="v1")
    def seed() -> None:
        said.append("seed")


def lines_wider_than(columns: int, text: str) -> list[str]:
    """Return the lines that take more columns of a terminal."""
    from flask_singlejob.cli.text import width

    return [line for line in text.splitlines() if width(line) > columns]
