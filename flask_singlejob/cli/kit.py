"""What every command shares: its engine, its one-line errors, its JSON."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from flask import current_app
from flask.cli import with_appcontext

from ..checks import safe_url
from ..engine_access import engine_of
from ..errors import SingleJobError, StoreError
from .text import clean, write

if TYPE_CHECKING:
    from ..catalog import EffectiveJob
    from ..engine import Engine

__all__ = [
    "as_json",
    "command",
    "fail",
    "json_option",
    "need_job",
    "one_line",
    "print_json",
    "suggestion",
    "warn",
]


def one_line(text: object) -> str:
    """Return a text on one line, without passwords and control characters."""
    return clean(" ".join(safe_url(str(text)).split()))


def fail(text: object) -> click.ClickException:
    """Return the error that ends a command with one line on stderr and exit code 1."""
    return click.ClickException(one_line(text))


def warn(text: object) -> None:
    """Write one line to stderr."""
    write(one_line(text), err=True)


def command(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function that is given the app's engine a command; what is wrong becomes one line and exit code 1."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            engine = engine_of(current_app)
            if engine is None:
                raise fail(
                    f"the app {current_app.name!r} has no SingleJob: call init_app(app) in its factory"
                )
            try:
                return function(engine, *args, **kwargs)
            except StoreError as error:
                raise fail(error) from error
            except JobLookupError as error:
                raise fail(error.args[0] if error.args else error) from error
            except ConflictingIdError as error:
                raise fail(f"{error}: give --replace to change it") from error
            except SingleJobError as error:
                raise fail(error) from error

        made: click.Command = click.command(name, **attributes)(with_appcontext(body))  # type: ignore[no-untyped-call]
        return made

    return decorate


json_option = click.option("--json", "json_", is_flag=True, help="Print JSON, whole ids and times in UTC.")


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """Return a value as JSON in ASCII, so that any terminal and any pipe takes it."""
    return json.dumps(value, indent=indent, default=str)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON."""
    click.echo(as_json(value, indent=indent))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "; is 'x' meant?" for a name that resembles a known one, else nothing."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if not close and name:
        close = [other for other in names if other.lower() == name.lower() or other.endswith(f".{name}")][:1]
    return f"; is {close[0]!r} meant?" if close else ""


def need_job(engine: Engine, job_id: str) -> EffectiveJob:
    """Return a job of the cluster.

    :raises click.ClickException: when there is none, with the cure.
    """
    job, _ = engine.manager.job(job_id)
    if job is None:
        raise no_such_job(engine, job_id)
    return job


def no_such_job(engine: Engine, job_id: str) -> click.ClickException:
    """Return the error that says that a job is not there, and what may be meant."""
    with engine.catalog_lock:
        known = engine.catalog.ids()
        removed = job_id in engine.catalog.defined
    if removed:
        return fail(
            f"job {job_id!r} is defined by the code but was removed: 'flask singlejob reset ID' brings it back"
        )
    return fail(
        f"no job {job_id!r} in cluster {engine.settings.cluster!r}{suggestion(job_id, known)} "
        "('flask singlejob jobs --json' lists all)"
    )
