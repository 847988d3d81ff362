"""Commands that change something in the cluster: run, pause, resume, remove, reset, unlock, once."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from .. import status as reports
from ..clock import steady_seconds
from ..hosts import living_hosts
from ..records import ClaimRow, Run, RunStatus, from_ms
from ..wording import error_line
from .kit import command, fail, json_option, need_job, no_such_job, one_line, print_json, suggestion, warn
from .text import Column, full_moment, moment, seconds, table, write

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["once", "pause", "remove", "reset", "resume", "run", "unlock"]


def _shown(name: str) -> str:
    return one_line(repr(name))


# -- run -----------------------------------------------------------------------------------------------


@command("run", short_help="Run a job now, here, and show how it ended.")
@click.argument("job_id", metavar="ID")
@click.option("--no-wait", is_flag=True, help="Hand it to an owner instead of running it here.")
@json_option
def run(engine: Engine, job_id: str, no_wait: bool, json_: bool) -> None:
    """Run a job now, in this process, under the job's claim, and show how it ended.

    Exit code 0: it succeeded (or, with --no-wait, was handed over). 1: it failed, or is held by a run that is
    going on, or cannot run here. Its regular ticks stay as they are.
    """
    job = need_job(engine, job_id)
    if no_wait:
        _hand_over(engine, job_id, json_)
        return
    if job.paused and not json_:
        warn(f"Job {job_id!r} is paused by schedule; running it by hand all the same.")
    began = steady_seconds()
    try:
        ended = engine.api.run_job(job_id, wait=True)
    except SystemExit as error:
        raise fail(
            f"job {job_id!r} called sys.exit({error.code!r}): its run is recorded ('flask singlejob history "
            f"--limit 1' shows it), and a job should return or raise instead"
        ) from error
    assert ended is not None
    if json_:
        print_json(ended.to_dict())
    else:
        _tell_end(ended, steady_seconds() - began)
    if ended.status is not RunStatus.SUCCEEDED:
        raise SystemExit(1)


def _tell_end(ended: Run, waited: float) -> None:
    took = seconds(waited if ended.duration is None else ended.duration)
    if ended.status is RunStatus.SUCCEEDED:
        write(f"Job {_shown(ended.job_id)} succeeded in {took} (run {ended.id}, token {ended.token}).")
        return
    reason = ""
    if ended.error:
        reason = f": {error_line(ended.error)}"
    elif ended.detail or ended.reason:
        reason = f": {ended.detail or ended.reason}"
    warn(f"Job {ended.job_id!r} {ended.status.value} after {took} (run {ended.id}){reason}")


def _hand_over(engine: Engine, job_id: str, json_: bool) -> None:
    store = engine.ready_store()
    living = living_hosts(store.docs("host"), store.poll().now)
    engine.api.run_job(job_id, wait=False)
    if json_:
        print_json({"job_id": job_id, "handed_over": True, "living_owners": len(living)})
    else:
        write(
            f"Handed to an owner: job {_shown(job_id)} runs within {engine.settings.poll_interval:g} s or so; "
            "'flask singlejob history' shows it."
        )
    if not living:
        warn("No host of the cluster has an owner now: the job runs when one comes.")


# -- pause and its like ------------------------------------------------------------------------------------


def _next_words(engine: Engine, job_id: str) -> str:
    job, now = engine.manager.job(job_id)
    if job is None:
        return "it has no tick any more"
    tick = engine.manager.next_run_time(job, engine.manager.rows([job]).get(job_id), now)
    if tick is not None:
        return f"next tick {full_moment(tick)}"
    return "the whole cluster is paused" if engine.catalog.cluster_paused else "it has no next tick"


@command("pause", short_help="Pause a job in the whole cluster.")
@click.argument("job_id", metavar="ID")
def pause(engine: Engine, job_id: str) -> None:
    """Pause a job in the whole cluster until it is resumed, over restarts and releases.

    A run that is going on is not stopped.
    """
    job = need_job(engine, job_id)
    engine.manager.pause(job_id)
    write(f"Job {_shown(job_id)} {'was paused already' if job.paused else 'is paused'}.")


@command("resume", short_help="Resume a paused job.")
@click.argument("job_id", metavar="ID")
def resume(engine: Engine, job_id: str) -> None:
    """Resume a paused job; what fell due meanwhile is skipped."""
    job = need_job(engine, job_id)
    engine.manager.resume(job_id)
    word = "is resumed" if job.paused else "was not paused"
    write(f"Job {_shown(job_id)} {word}: {_next_words(engine, job_id)}.")


@command("remove", short_help="Remove a job from the whole cluster.")
@click.argument("job_id", metavar="ID")
def remove(engine: Engine, job_id: str) -> None:
    """Remove a job from the whole cluster.

    A stored job is gone for good. One that the code defines stays away until its definition changes, or
    'flask singlejob reset ID'.
    """
    job = need_job(engine, job_id)
    engine.manager.remove(job_id)
    if job.origin == "store":
        write(f"Job {_shown(job_id)} is removed.")
    else:
        write(
            f"Job {_shown(job_id)} is removed until the code defines it differently; "
            "'flask singlejob reset ID' brings it back."
        )


@command("reset", short_help="Drop every stored change of a job that the code defines.")
@click.argument("job_id", metavar="ID")
def reset(engine: Engine, job_id: str) -> None:
    """Drop every stored change (pause and removal too) of a job that the code defines."""
    job, _ = engine.manager.job(job_id)
    if job_id not in engine.catalog.defined:
        if job is not None:
            raise fail(
                f"job {job_id!r} is a stored job, which the code does not define: there is nothing to reset it "
                "to; 'flask singlejob remove ID' removes it"
            )
        raise no_such_job(engine, job_id)
    if engine.manager.reset(job_id):
        write(f"Job {_shown(job_id)} is as the code defines it again: {_next_words(engine, job_id)}.")
    else:
        write(f"Job {_shown(job_id)} had no stored changes.")


# -- unlock --------------------------------------------------------------------------------------------


@command("unlock", short_help="End by force what is held under a name.")
@click.argument("name")
@click.option("--kind", type=click.Choice(["job", "lock", "once"]), help="Only what is held of this kind.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def unlock(engine: Engine, name: str, kind: str | None, yes: bool) -> None:
    """End by force what is held under NAME: a job's run, a lock or a once-only task.

    The token grows, so the former holder can write nothing back; but nothing stops its code, which goes
    on if it still lives: look at it first. Exit code 1: nothing is held under that name.
    """
    held = engine.manager.held()
    rows = [row for row in held if row.key.name == name and kind in (None, row.key.kind)]
    if not rows:
        what = f"{kind} {name!r}" if kind else f"{name!r}"
        raise fail(
            f"nothing is held under the name {what}{suggestion(name, [row.key.name for row in held])} "
            "('flask singlejob locks' lists what is)"
        )
    for row in rows:
        write(_holder_words(row))
    if not yes:
        click.confirm("End it by force? Its code is not stopped", abort=True, err=True)
    freed = engine.manager.unlock(name, kind=kind)
    if not freed:
        raise fail(f"{name!r} was released by its holder meanwhile: nothing was ended")
    for row in freed:
        write(
            f"Ended: the {_kind_words(row)} {_shown(name)} is free, token {row.token} can write nothing back."
        )


def _kind_words(row: ClaimRow) -> str:
    return {"job": "run of job", "lock": "lock", "once": "once-only task"}[row.key.kind]


def _holder_words(row: ClaimRow) -> str:
    since = "" if row.since is None else f" since {full_moment(from_ms(row.since))}"
    host = one_line(repr(row.info.get("host")))
    return f"The {_kind_words(row)} {_shown(row.key.name)} is held by host {host}, pid {row.info.get('pid')},{since}."


# -- once ----------------------------------------------------------------------------------------------


@command("once", short_help="The once-only tasks: done or not; --forget KEY runs one again.")
@click.option("--forget", "key", metavar="KEY", help="Let this task run again, whatever its version.")
@json_option
def once(engine: Engine, key: str | None, json_: bool) -> None:
    """List the once-only tasks that the code defines or that were ever tried.

    With --forget KEY: let one run again, by a living owner within a poll. Exit code 1: there is no
    such task, or it is running.
    """
    if key is not None:
        _forget(engine, key, json_)
        return
    found = _tasks(engine)
    if json_:
        print_json(found)
        return
    if not found:
        write("no once-only tasks")
        return
    now = datetime.now(timezone.utc)
    columns = [
        Column("KEY", 16, middle=True),
        Column("VERSION", 8, middle=True),
        Column("STATE"),
        Column("DONE"),
        Column("", 8),
    ]
    rows = [
        [
            task["key"],
            task["version"],
            "done" if task["done"] else "running" if task["running"] else "not done",
            moment(task["done_at"], now=now),
            ", ".join(
                [
                    *(["requests wait for it"] if task["before_requests"] and not task["done"] else []),
                    *([] if task["defined"] else ["not of this code"]),
                ]
            ),
        ]
        for task in found
    ]
    for line in table(columns, rows):
        write(line)


def _tasks(engine: Engine) -> list[dict[str, Any]]:
    rows = {row.key.name: row for row in engine.once.rows()}
    found: list[dict[str, Any]] = []
    for task in engine.once.tasks.values():
        name = task.claim_key(engine.app).name
        row = rows.pop(name, None)
        version = name[len(task.key) + 1 :] or None
        shown: dict[str, Any] = {
            "key": task.key,
            "version": version,
            "done": False,
            "done_at": None,
            "running": False,
        }
        if row is not None:
            known = reports.once_dict(row)
            shown.update(done=known["done"], done_at=known["done_at"], running=known["running"])
        found.append({**shown, "defined": True, "before_requests": task.before_requests})
    keys = sorted(engine.once.tasks, key=len, reverse=True)
    for name, row in sorted(rows.items()):
        own = next((key for key in keys if name == key or name.startswith(f"{key}@")), None)
        known = reports.once_dict(row)
        if own is not None:
            known.update(key=own, version=name[len(own) + 1 :] or None)
        found.append({**known, "defined": False, "before_requests": False})
    return found


def _forget(engine: Engine, key: str, json_: bool) -> None:
    rows = [row for row in engine.once.rows() if row.key.name == key or row.key.name.startswith(f"{key}@")]
    if not rows and key not in engine.once.tasks:
        names = [*engine.once.tasks, *(row.key.name for row in engine.once.rows())]
        raise fail(f"no once-only task {key!r}{suggestion(key, names)} ('flask singlejob once' lists them)")
    forgotten = engine.once.forget(key)
    if json_:
        print_json({"key": key, "forgotten": forgotten})
    running = [
        row for row in engine.once.rows() if row.key.name in {one.key.name for one in rows} and row.holder
    ]
    if running:
        row = running[0]
        raise fail(
            f"once-only task {row.key.name!r} is running (host {row.info.get('host')!r}, pid "
            f"{row.info.get('pid')}): wait for it, or 'flask singlejob unlock' it first"
        )
    if not json_:
        if any(row.resolved > 0 for row in rows):
            write(
                f"Forgotten: once-only task {_shown(key)} runs again when a host elects its owner or it is called."
            )
        else:
            write(f"Once-only task {_shown(key)} was not done yet.")
