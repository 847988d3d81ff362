"""The command that shows what ran, what did not and why, and follows it as it happens."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import click

from .. import status as reports
from ..errors import StoreError
from ..records import Run, RunStatus, to_ms
from ..wording import error_line
from .kit import command, json_option, print_json, suggestion, warn
from .text import Column, moment, seconds, table, write

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["history", "run_lines", "since_option"]

#: What is recorded late, seconds, is still found by a follower.
OVERLAP_SECONDS = 60.0
PAGE = 500
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_COLUMNS = (
    Column("WHEN"),
    Column("JOB", 16, middle=True),
    Column("STATUS"),
    Column("TOOK", right=True),
    Column("HOST", 8, middle=True),
    Column("DETAILS", 12),
)
#: The widths of a followed table, which cannot know what comes.
_FOLLOW_WIDTHS = [15, 26, 9, 8, 12, 20]
_FOLLOW_WIDTHS_TWO_TIMES = [26, 22, 9, 8, 10, 15]


class Since(click.ParamType):  # type: ignore[type-arg]
    """How far back: ``90s``, ``15m``, ``2h``, ``3d``, ``1w``, or a moment in ISO 8601."""

    name = "AGE|MOMENT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the moment, aware; one without a zone is in this machine's time."""
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        age = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text)
        try:
            if age:
                length = timedelta(seconds=float(age[1]) * _UNITS[age[2]])
                return datetime.now(timezone.utc) - length
            # Python 3.10 does not know the Z.
            at = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
            return at if at.tzinfo is not None else at.astimezone()
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is neither an age (90s, 15m, 2h, 3d, 1w) nor a moment (2026-05-01T03:00)",
                param,
                ctx,
            )


since_option = click.option(
    "--since", type=Since(), help="Only runs since then: 90s, 15m, 2h, 3d, or 2026-05-01T03:00."
)


@command("history", short_help="What ran, what did not, and why; newest first.")
@click.option("--job", "job_id", metavar="ID", help="Only runs of this job.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([entry.value for entry in RunStatus]),
    help="Only runs of this status; may be given several times.",
)
@since_option
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="At most so many."
)
@click.option("--follow", "-f", is_flag=True, help="Go on and print new runs until Ctrl-C, oldest first.")
@json_option
def history(
    engine: Engine,
    job_id: str | None,
    statuses: tuple[str, ...],
    since: datetime | None,
    limit: int,
    follow: bool,
    json_: bool,
) -> None:
    """Show what ran, what did not and why, newest first.

    WHEN is the end of a run, or its start while it runs, or the tick of what did not run. With --follow
    (and with --json one object a line) it goes on until Ctrl-C, which is exit code 0.
    """
    if job_id is not None:
        _check_job(engine, job_id)
    if follow:
        try:
            _follow(engine, job_id, statuses, since, limit, json_)
        except KeyboardInterrupt:
            return
    found = reports.runs(engine, job_id, status=list(statuses) or None, since=since, limit=limit)
    if json_:
        print_json([run.to_dict() for run in found])
    elif not found:
        write(
            "no runs"
            + (f" of job {job_id!r}" if job_id else "")
            + (" match" if statuses or since else " yet")
        )
    else:
        for line in run_lines(found):
            write(line)


def _check_job(engine: Engine, job_id: str) -> None:
    """Warn of a job that neither is nor was; runs of a job that is gone stay in history."""
    job, _ = engine.manager.job(job_id)
    if job is None and not engine.store.runs(job_id, limit=1):
        with engine.catalog_lock:
            known = engine.catalog.ids()
        raise click.ClickException(
            f"no job {job_id!r}, and none of its runs in history{suggestion(job_id, known)}"
        )


def _cells(run: Run, now: datetime) -> list[Any]:
    at = run.finished_at or run.started_at or run.last_scheduled_at or run.scheduled_at
    took = run.duration
    if took is None and run.started_at is not None and run.status is RunStatus.RUNNING:
        took = max(0.0, (now - run.started_at).total_seconds())
    host = "" if run.host is None else run.host if run.pid is None else f"{run.host}/{run.pid}"
    return [moment(at, now=now), run.job_id, run.status.value, seconds(took), host, _details(run)]


def _details(run: Run) -> str:
    words = []
    if run.count > 1:
        words.append(f"{run.count} times")
    if run.stood_for > 1:
        words.append(f"stood for {run.stood_for} ticks")
    if run.cause != "schedule" and run.status not in (RunStatus.SKIPPED, RunStatus.MISSED):
        words.append(
            {"manual": "by hand", "rerun": f"rerun, attempt {run.attempt}"}.get(run.cause, run.cause)
        )
    if run.reason and not run.error:
        words.append(run.reason)
    if run.progress:
        words.append(_progress(run.progress))
    if run.error:
        words.append(error_line(run.error))
    elif run.detail:
        words.append(run.detail)
    return "; ".join(words)


def _progress(progress: Mapping[str, Any]) -> str:
    done, total, note = progress.get("done"), progress.get("total"), progress.get("note")
    share = f"{done:g}" if isinstance(done, (int, float)) else str(done)
    if isinstance(total, (int, float)):
        share += f" of {total:g}"
    return f"{share} ({note})" if note else share


def run_lines(runs: list[Run]) -> list[str]:
    """Return runs as a table."""
    now = datetime.now(timezone.utc)
    return table(_COLUMNS, [_cells(run, now) for run in runs])


# -- following -----------------------------------------------------------------------------------------


def _follow(
    engine: Engine,
    job_id: str | None,
    statuses: tuple[str, ...],
    since: datetime | None,
    limit: int,
    as_json: bool,
) -> None:
    wanted = list(statuses) or None
    local = datetime.now().astimezone().utcoffset()
    widths = _FOLLOW_WIDTHS_TWO_TIMES if local else _FOLLOW_WIDTHS
    if not as_json:
        write(table(_COLUMNS, [], widths=widths)[0])
    seen: dict[tuple[str, str, int], int] = {}
    first = reports.runs(engine, job_id, status=wanted, since=since, limit=max(limit, PAGE))
    for run in first[limit:]:
        seen[_key(run)] = run.at_ms
    for run in reversed(first[:limit]):
        _show(run, seen, widths, as_json)
    now = engine.clock.now_ms() if engine.clock.known else to_ms(datetime.now(timezone.utc))
    newest = max([now, *(run.at_ms for run in first)])
    away = False
    pause = threading.Event()
    while True:
        pause.wait(max(0.5, engine.settings.poll_interval))
        try:
            found = list(_pages(engine, job_id, wanted, newest))
        except StoreError as error:
            if not away:
                warn(f"The store is away, waiting for it: {error}")
            away = True
            continue
        if away:
            warn("The store is back.")
            away = False
        for run in reversed(found):
            _show(run, seen, widths, as_json)
        newest = max([newest, *(run.at_ms for run in found)])
        horizon = newest - int(OVERLAP_SECONDS * 2000)
        seen = {key: at for key, at in seen.items() if at >= horizon or key[1] == RunStatus.RUNNING.value}


def _pages(engine: Engine, job_id: str | None, wanted: list[str] | None, newest: int) -> Iterator[Run]:
    since = datetime.fromtimestamp(newest / 1000 - OVERLAP_SECONDS, timezone.utc)
    before: tuple[int, str] | None = None
    while True:
        page = reports.runs(engine, job_id, status=wanted, since=since, limit=PAGE, before=before)
        yield from page
        if len(page) < PAGE:
            return
        before = (page[-1].at_ms, page[-1].id)


def _key(run: Run) -> tuple[str, str, int]:
    return (run.id, run.status.value, run.count)


def _show(run: Run, seen: dict[tuple[str, str, int], int], widths: list[int], as_json: bool) -> None:
    if _key(run) in seen:
        return
    seen[_key(run)] = run.at_ms
    if as_json:
        print_json(run.to_dict(), indent=None)
    else:
        write(table(_COLUMNS, [_cells(run, datetime.now(timezone.utc))], widths=widths, head=False)[0])
