"""Commands that look: status, health, jobs, locks. They change nothing and never wait long for the store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from .. import status as reports
from ..doctor import tables_missing
from ..errors import StoreError
from ..records import Health, from_ms
from .kit import command, json_option, print_json, warn
from .text import Column, ago, clean, full_moment, moment, parse, seconds, table, write

if TYPE_CHECKING:
    from ..engine import Engine

#: A probe that restarts a container waits longer than one that only tells.
LIVE_OWNER_SECONDS = 60.0

__all__ = ["health", "jobs", "locks", "status"]


# -- status --------------------------------------------------------------------------------------------


def _has_owner(found: Mapping[str, Any]) -> bool:
    return bool(found["owner"].get("held")) or any(host["owner"] for host in found["hosts"])


@command("status", short_help="Who owns what, what runs, what is wrong.")
@json_option
def status(engine: Engine, json_: bool) -> None:
    """Show who owns what, what runs, what is next and what is worth a look.

    Exit code 0: some host of the cluster has an owner. 1: none has, or the store is away.
    """
    found = reports.status(engine)
    if json_:
        print_json(found)
    else:
        for line in _status_lines(engine, found):
            write(line)
    if not _has_owner(found):
        raise SystemExit(1)


def _status_lines(engine: Engine, found: Mapping[str, Any]) -> list[str]:
    now = datetime.fromisoformat(found["now"])
    lines = [
        f"Cluster {clean(repr(found['cluster']))} at {full_moment(now)}, store: {clean(found['store']['name'])}",
        f"Host    {clean(repr(found['host']))}: {_owner_words(found, now)}",
    ]
    if found["paused"]:
        lines.append("PAUSED: the whole cluster runs no job by schedule until it is resumed.")
    if not engine.settings.enabled:
        lines.append(
            "SINGLEJOB_ENABLED is False here: processes with this configuration run no job by schedule."
        )
    lines += ["", "Hosts"]
    lines += _host_lines(found["hosts"], now) or ["  none: no owner ever told of itself in this store"]
    jobs = found["jobs"]
    counts = {
        "running": sum(job["running"] is not None for job in jobs),
        "paused": sum(bool(job["paused"]) for job in jobs),
        "broken": sum(job["broken"] is not None for job in jobs),
        "overdue": sum(job["overdue"] is not None for job in jobs),
        "failed at their last run": sum((job["last_run"] or {}).get("status") == "failed" for job in jobs),
    }
    told = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    lines += ["", f"Jobs    {len(jobs)}{f' ({told})' if told else ''}"]
    ahead = [(job["next_tick"], job["id"]) for job in jobs if job["next_tick"]]
    if ahead:
        tick, job_id = min(ahead)
        lines += table(
            [Column("Next", 1), Column("", 20, middle=True)], [[moment(tick, now=now), job_id]], indent="  "
        )[1:]
    if found["locks"]:
        lines += ["", "Held now", *_lock_lines(found["locks"], now, indent="  ")]
    undone = [task for task in found["once"] if not task["done"]]
    if undone:
        lines += ["", f"Once-only tasks not done: {', '.join(clean(repr(task['key'])) for task in undone)}"]
    if found["warnings"]:
        lines += ["", "Worth a look"]
        lines += [f"  - {clean(text)}" for text in found["warnings"]]
    return lines


def _owner_words(found: Mapping[str, Any], now: datetime) -> str:
    owner = found["owner"]
    if owner.get("trouble"):
        return f"its election is in trouble: {clean(str(owner['trouble']))}"
    if owner.get("held"):
        since = f", since {moment(owner['since'], now=now)}" if owner.get("since") else ""
        return f"owned by pid {owner.get('pid') or '?'}{since}"
    place = f" ({clean(str(owner['place']))})" if owner.get("place") else ""
    if owner.get("held") is None:
        return f"who owns it cannot be seen from here{place}"
    return f"NO OWNER, no worker of it runs the schedule{place}"


def _host_lines(hosts: list[dict[str, Any]], now: datetime) -> list[str]:
    columns = [
        Column("HOST", 12, middle=True),
        Column("OWNER"),
        Column("SINCE"),
        Column("SEEN"),
        Column("CLOCK", right=True),
        Column("ZONE", 6),
        Column("GROUPS", 6),
    ]
    rows = []
    for host in sorted(hosts, key=lambda host: (not host["living"], str(host["host"]))):
        owner = host["owner"]
        offset = host["clock_offset"]
        rows.append(
            [
                host["host"],
                f"pid {owner['pid']}" if owner else ("none" if host["living"] else "gone"),
                moment(owner["since"], now=now) if owner and owner["since"] else "",
                ago(host["seen"], now),
                "" if offset is None else f"{round(offset, 2) + 0.0:+.2f} s",
                host["zone"],
                "" if host["groups"] is None else ",".join(host["groups"]),
            ]
        )
    return table(columns, rows, indent="  ") if rows else []


# -- health --------------------------------------------------------------------------------------------


@command("health", short_help="Is something wrong? For probes: exit code 0 or 1.")
@click.option(
    "--live", "check", flag_value="live", help="Only: this host can move. Never the store, never a job."
)
@click.option("--ready", "check", flag_value="ready", help="Only: no before_requests task is pending.")
@click.option("--jobs", "check", flag_value="jobs", help="Only: owner, store, successes, hosts.")
@json_option
def health(engine: Engine, check: str | None, json_: bool) -> None:
    """Tell whether something is wrong, quickly, also while the store hangs.

    Exit code 0: nothing is. 1: something is; each reason is a line. --live fails only when this host's owner
    has not moved for a minute. Run it where the web app runs, as its user.
    """
    found = reports.health(engine, check or "all")
    if check == "live" and found.ok:
        found = _live_owner(engine)
    if json_:
        print_json({"ok": found.ok, "check": check or "all", "reasons": list(found.reasons)})
    else:
        write("ok" if found.ok else "unhealthy")
        for reason in found.reasons:
            write(f"- {clean(reason)}")
    if not found.ok:
        raise SystemExit(1)


def _live_owner(engine: Engine) -> Health:
    """Tell whether this host's owner moves, by its files alone: a command has no part of its own that could be stuck."""
    if engine.settings.election != "file" or not engine.settings.enabled:
        return Health(True)
    found = reports.election_dict(engine)
    age = found.get("age_seconds")
    if isinstance(age, (int, float)) and age > LIVE_OWNER_SECONDS:
        reason = f"the owner of this host (pid {found.get('pid')}) has not moved for {age:.0f} s: it is stopped or stuck"
        return Health(False, (reason,))
    return Health(True)


# -- jobs ----------------------------------------------------------------------------------------------


def _job_state(job: Mapping[str, Any]) -> str:
    words = [word for word in ("paused", "changed", "broken", "overdue") if job[word]]
    if job["scope"] != "cluster":
        words.insert(0, job["scope"])
    if job["origin"] == "store":
        words.insert(0, "stored")
    if job["running"]:
        words.insert(0, "RUNNING")
    return ", ".join(words)


def _last(job: Mapping[str, Any], now: datetime) -> str:
    run = job["last_run"]
    if run is None:
        return ""
    return f"{run['status']} {ago(run['finished_at'] or run['started_at'] or run['scheduled_at'], now)}"


@command("jobs", short_help="The cluster's jobs: trigger, next tick, last run, state.")
@json_option
def jobs(engine: Engine, json_: bool) -> None:
    """List the cluster's jobs, those that run soonest first.

    Before any worker ever ran they are those that the code defines. Where the store's tables are missing
    the code's jobs are listed, with exit code 1.
    """
    trouble: StoreError | None = None
    try:
        all_jobs, now_ms = engine.manager.jobs()
        rows = engine.manager.rows(all_jobs)
    except StoreError as error:
        if not tables_missing(error):
            raise
        trouble = error
        now_ms = int(datetime.now(timezone.utc).timestamp() * 1000)
        with engine.catalog_lock:
            all_jobs, rows = engine.catalog.all(now=now_ms), {}
    now = from_ms(now_ms)
    found = [reports.job_dict(engine, job, rows.get(job.id), now_ms) for job in all_jobs]
    found.sort(key=lambda job: (job["next_tick"] is None, job["next_tick"] or "", job["id"]))
    if json_:
        print_json(found)
    elif not found:
        write("no jobs: the code defines none (import the modules that do) and none is stored")
    else:
        _print_jobs(engine, found, now)
    if trouble is not None:
        warn(f"Only what the code defines is listed: {trouble}")
        raise SystemExit(1)


def _print_jobs(engine: Engine, found: list[dict[str, Any]], now: datetime) -> None:
    columns = [
        Column("JOB", 16, middle=True),
        Column("TRIGGER", 10),
        Column("NEXT TICK"),
        Column("LAST RUN", 10),
        Column("STATE", 8),
    ]
    cells = [
        [job["id"], job["trigger"], moment(job["next_tick"], now=now), _last(job, now), _job_state(job)]
        for job in found
    ]
    for line in table(columns, cells):
        write(line)
    for job in found:
        if job["broken"]:
            write(f"broken: {clean(repr(job['id']))}: {clean(job['broken'])}")
    if engine.catalog.cluster_paused:
        write("PAUSED: the whole cluster runs no job by schedule until it is resumed.")


# -- locks ---------------------------------------------------------------------------------------------


def _lock_lines(held: list[dict[str, Any]], now: datetime, *, indent: str = "") -> list[str]:
    columns = [
        Column("KIND"),
        Column("NAME", 16, middle=True),
        Column("HOST", 8, middle=True),
        Column("PID", right=True),
        Column("SINCE"),
        Column("LEASE", right=True),
        Column("TOKEN", right=True),
    ]
    rows = []
    for lock in sorted(held, key=lambda lock: (lock["kind"], lock["name"], lock["slot"] or 0)):
        expires = parse(lock["expires"])
        left = None if expires is None else (expires - now).total_seconds()
        name = lock["name"] if not lock["slot"] else f"{lock['name']} #{lock['slot']}"
        lease = "" if left is None else (seconds(left) if left > 0 else "ended")
        rows.append(
            [
                lock["kind"],
                name,
                lock["host"],
                lock["pid"],
                moment(lock["since"], now=now),
                lease,
                lock["token"],
            ]
        )
    return table(columns, rows, indent=indent)


@command("locks", short_help="What is held now: running jobs, locks, once-only tasks.")
@json_option
def locks(engine: Engine, json_: bool) -> None:
    """List what is held in the cluster now: running jobs, locks and once-only tasks.

    LEASE is how long the claim holds without renewal. 'flask singlejob unlock NAME' ends one by force.
    """
    poll = engine.ready_store().poll()
    held = [reports.lock_dict(row) for row in poll.held]
    if json_:
        print_json(held)
    elif not held:
        write("nothing is held")
    else:
        for line in _lock_lines(held, from_ms(poll.now)):
            write(line)
