"""What ``flask singlejob doctor`` looks for in what hosts tell of themselves and in the jobs.

Each look yields (severity, check, finding, cure). Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .catalog import EffectiveJob
from .hosts import OFFSET_WARNING_SECONDS, living_hosts
from .records import ClaimRow, Doc, Run
from .status import overdue
from .wording import error_line

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["LOOKS"]

Told = tuple[Any, str, str, str]

#: Drivers in C, which stop every greenlet of a worker while they wait for the store.
_BLOCKING_DRIVERS = {"psycopg2": "psycopg", "mysqldb": "pymysql"}


def clocks(engine: Engine, docs: list[Doc], now: int) -> Iterator[Told]:
    """Look at each living host's clock, and this machine's."""
    offsets = {str(doc.body.get("host")): doc.body.get("offset_ms") for doc in living_hosts(docs, now)}
    engine.sync_clock()
    own = engine.clock.offset_seconds
    if own is not None:
        offsets[engine.settings.host_id] = round(own * 1000)
    for host, offset in sorted(offsets.items()):
        if isinstance(offset, (int, float)) and abs(offset) >= OFFSET_WARNING_SECONDS * 1000:
            side = "ahead of" if offset > 0 else "behind"
            yield (
                "warning",
                "clock",
                f"The clock of host {host!r} is {abs(offset) / 1000:.1f} s {side} the store's. Ticks go by the "
                "store's clock, so they stay single and on time; what the jobs themselves read is off.",
                "Set the host's clock by NTP (or the store's, when every host is off alike).",
            )


def zones(engine: Engine, docs: list[Doc], now: int) -> Iterator[Told]:
    """Look for living hosts in different zones."""
    by_zone: dict[str, list[str]] = {}
    for doc in living_hosts(docs, now):
        by_zone.setdefault(str(doc.body.get("zone")), []).append(str(doc.body.get("host")))
    pinned = engine.catalog.zone_name
    own = engine.own_zone_name()
    if own is not None and engine.settings.host_id not in {
        host for hosts in by_zone.values() for host in hosts
    }:
        by_zone.setdefault(own, []).append(f"{engine.settings.host_id} (here)")
    if len(by_zone) > 1 or (pinned is not None and set(by_zone) - {pinned}):
        told = "; ".join(f"{zone}: {', '.join(sorted(hosts))}" for zone, hosts in sorted(by_zone.items()))
        used = f" The cluster uses {pinned}." if pinned else ""
        yield (
            "warning",
            "zone",
            f"Hosts are in other time zones than the cluster or each other ({told}).{used}",
            "Set SCHEDULER_TIMEZONE to the zone that the jobs' times are meant in, the same on every host.",
        )


def twins(engine: Engine, docs: list[Doc], now: int) -> Iterator[Told]:
    """Look for hosts with one id, and several hosts on a store that is local to one."""
    living = living_hosts(docs, now)
    machines: dict[str, list[Doc]] = {}
    for doc in living:
        machines.setdefault(str(doc.body.get("host")), []).append(doc)
    for host, same in sorted(machines.items()):
        warned = any(
            "two hosts have the id" in str(text) for doc in same for text in doc.body.get("warnings") or []
        )
        if len(same) > 1 or warned:
            pids = ", ".join(f"pid {doc.body.get('pid')}" for doc in same)
            yield (
                "error",
                "hosts",
                f"Two hosts have the id {host!r} (owners: {pids}): host-scope jobs run on one of them only.",
                "Give each its own SINGLEJOB_HOST_ID, or host name.",
            )
    if engine.store.local and len(machines) > 1:
        yield (
            "error",
            "store",
            f"Several hosts ({', '.join(sorted(machines))}) use {engine.describe_store()}, which only processes of one host "
            "can share: claims may be granted twice.",
            "Set SINGLEJOB_STORE to a shared database.",
        )
    versions = {str(doc.body.get("version")) for doc in living}
    if len(versions) > 1:
        yield (
            "note",
            "hosts",
            f"Hosts run different versions of Flask-SingleJob: {', '.join(sorted(versions))}.",
            "Nothing during a deployment; finish it.",
        )


def servers(engine: Engine, docs: list[Doc], now: int) -> Iterator[Told]:
    """Look at what the owners told of their servers."""
    for doc in living_hosts(docs, now):
        server = doc.body.get("server")
        if not isinstance(server, dict):
            continue
        host = str(doc.body.get("host"))
        driver = server.get("driver")
        if server.get("patched") and driver in _BLOCKING_DRIVERS:
            yield (
                "warning",
                "server",
                f"Host {host!r} serves with {server['patched']}, and its store's driver {driver} is written in C: each "
                "question to the store stops every request of that worker while it waits.",
                f"Use the driver {_BLOCKING_DRIVERS[driver]} for the store, or the worker class gthread.",
            )
        if server.get("preload"):
            yield (
                "note",
                "server",
                f"Host {host!r} preloads the app in gunicorn's master: HUP does not reload its code.",
                "Leave --preload out (nothing here needs it), or deploy by a restart or USR2.",
            )


def jobs(engine: Engine, docs: list[Doc], now: int) -> Iterator[Told]:
    """Look for jobs that cannot run, never succeeded or are overdue."""
    found, now = engine.manager.jobs()
    rows = engine.manager.rows(found)
    living = living_hosts(docs, now)
    if engine.catalog.cluster_paused:
        yield (
            "warning",
            "jobs",
            "The whole cluster is paused: no job runs by schedule.",
            "Resume it: jobs.resume().",
        )
    for job in found:
        yield from _job(engine, job, rows.get(job.id), now)
        yield from _group(job, living)
    if not found:
        yield (
            "warning",
            "jobs",
            "There are no jobs: the code defines none and none is stored.",
            "Import the modules that define them in the app's factory.",
        )


def _job(engine: Engine, job: EffectiveJob, row: ClaimRow | None, now: int) -> Iterator[Told]:
    if job.broken is not None:
        yield (
            "error",
            "jobs",
            f"Job {job.id!r} is broken here, so this code never runs it: {job.broken}.",
            "Bring its function back, or remove the job: 'flask singlejob remove ID'.",
        )
        return
    if job.definition.executor not in engine.lanes:
        yield (
            "error",
            "jobs",
            f"Job {job.id!r} names the executor {job.definition.executor!r}; known are {', '.join(sorted(engine.lanes))}.",
            "Add it to SCHEDULER_EXECUTORS, or change the job's executor.",
        )
    if row is not None and row.last_success is None and row.last_run is not None:
        last = Run.from_record(row.last_run)
        reason = f": {error_line(last.error)}" if last.error else ""
        yield (
            "warning",
            "jobs",
            f"Job {job.id!r} has never succeeded; its last run {last.status.value} at "
            f"{(last.finished_at or last.scheduled_at).isoformat(timespec='seconds')}{reason}.",
            "Look at 'flask singlejob history --job ID'; try it with 'flask singlejob run ID'.",
        )
    late = overdue(job, row, now, engine.settings.lease)
    if late is not None:
        yield (
            "error",
            "jobs",
            f"Job {job.id!r} has not succeeded since it was due {timedelta(seconds=round(late))} ago.",
            "Look at 'flask singlejob history --job ID' and at who owns the hosts: 'flask singlejob status'.",
        )


def _group(job: EffectiveJob, living: list[Doc]) -> Iterator[Told]:
    if not living or job.paused:
        return
    groups = [doc.body.get("groups") for doc in living]
    if not any(known is None or job.definition.group in known for known in groups):
        names = sorted({str(group) for known in groups for group in known or ()})
        yield (
            "error",
            "jobs",
            f"Job {job.id!r} is of the group {job.definition.group!r}, which no living host runs (they run "
            f"{', '.join(names) or 'none'}).",
            "Add the group to SINGLEJOB_GROUPS of some host, or start a 'flask singlejob scheduler' that has it.",
        )


LOOKS: dict[str, Callable[[Engine, list[Doc], int], Iterator[Told]]] = {
    "clock": clocks,
    "zone": zones,
    "hosts": twins,
    "server": servers,
    "jobs": jobs,
}
