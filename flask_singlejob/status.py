"""What an operator asks: status, runs and health of one app's cluster, from any process.

Reads the store and probes the election; decides nothing. Health never waits for long: what needs the store
is asked on a thread of its own that is left behind when the store hangs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from . import process
from .catalog import EffectiveJob
from .checks import safe_url, safe_value
from .claims import held_run
from .errors import SingleJobError, StoreError
from .hosts import host_dict, living_hosts
from .records import ClaimRow, Doc, Health, Run, RunStatus, from_ms, to_ms
from .surroundings import container_platform, memory_trouble
from .ticks import grace_ms

if TYPE_CHECKING:
    from .engine import Engine

__all__ = [
    "HEALTH_CHECKS",
    "health",
    "job_dict",
    "overdue",
    "runs",
    "status",
    "store_trouble",
]

logger = logging.getLogger(__name__)

HEALTH_CHECKS = ("all", "live", "ready", "jobs")
#: How long a health check waits for the store, seconds: container probes give one second by default.
HEALTH_STORE_SECONDS = 0.8
#: An owner tells the store of itself within a few seconds of its election; one that has not is in trouble.
SILENT_OWNER_SECONDS = 15.0
#: A lock file's owner touches it every half second; silent for so long, it is stuck.
STUCK_OWNER_SECONDS = 10.0
#: The most runs that are asked for at once.
MOST_RUNS = 1_000_000_000

T = TypeVar("T")


class WrongArgument(SingleJobError, ValueError):
    """An argument cannot be used: the message names it, its value and what is allowed."""


def within(seconds: float, ask: Callable[[], T]) -> T:
    """Return what a call gives, if it gives it in time.

    :raises StoreError: when it does not.
    """
    box: list[Any] = []
    done = threading.Event()

    def body() -> None:
        try:
            box.append((True, ask()))
        except BaseException as error:
            box.append((False, error))
        done.set()

    threading.Thread(target=body, name="singlejob-ask", daemon=True).start()
    if not done.wait(seconds):
        raise StoreError(f"the store did not answer within {seconds:g} s")
    good, value = box[0]
    if not good:
        raise value
    result: T = value
    return result


def unusable(error: Exception) -> StoreError:
    """Return what says that a store cannot be opened or asked at all, whatever a library raised."""
    kind = "" if isinstance(error, SingleJobError) else f"{type(error).__name__}: "
    text = " ".join(safe_url(str(error)).split())[:400]
    found = StoreError(
        f"the store cannot be used, correct SINGLEJOB_STORE or SINGLEJOB_STORE_OPTIONS: {kind}{text}"
    )
    found.__cause__ = error
    return found


def store_trouble(engine: Engine) -> StoreError | None:
    """Return why the store cannot be opened or does not answer, or None when it does."""
    try:
        engine.ready_store().poll()
    except StoreError as error:
        return error
    except Exception as error:
        return unusable(error)
    return None


# -- runs ---------------------------------------------------------------------------------------------


def _statuses(status: Any) -> list[RunStatus] | None:
    if status is None:
        return None
    try:
        given = [status] if isinstance(status, (str, RunStatus)) else list(status)
        return [RunStatus(entry) for entry in given]
    except (TypeError, ValueError):
        raise WrongArgument(
            f"status={safe_value(status)} is no status of a run: use {', '.join(entry.value for entry in RunStatus)}, or "
            "a list of some"
        ) from None


def _since(since: Any) -> int | None:
    if since is None:
        return None
    if isinstance(since, timedelta):
        try:
            return to_ms(datetime.now(timezone.utc) - since)
        except OverflowError:
            raise WrongArgument(
                f"since={since!r} reaches beyond the years 1 to 9999: give a shorter timedelta, or leave it out"
            ) from None
    if isinstance(since, datetime) and since.tzinfo is not None:
        return to_ms(since)
    if isinstance(since, datetime):
        raise WrongArgument(
            f"since={since!r} has no time zone: give one, as datetime.now(timezone.utc), or a timedelta"
        )
    raise WrongArgument(f"since={safe_value(since)} must be a datetime with a time zone, or a timedelta")


def runs(
    engine: Engine,
    job_id: str | None = None,
    *,
    status: Any = None,
    since: Any = None,
    limit: int = 100,
    before: tuple[int, str] | None = None,
) -> list[Run]:
    """Return runs of the cluster, newest first, the running ones among them.

    :raises WrongArgument: for a value that cannot be used.
    :raises StoreError: when the store does not answer.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_RUNS:
        raise WrongArgument(f"limit={safe_value(limit)} must be a whole number, 1 to {MOST_RUNS}")
    wanted = _statuses(status)
    after = _since(since)
    store = engine.ready_store()
    going: list[Run] = []
    if before is None and (wanted is None or RunStatus.RUNNING in wanted):
        going = [
            held_run(row)
            for row in store.poll().held
            if row.key.kind == "job" and (job_id is None or row.key.name == job_id)
        ]
        going = [run for run in going if after is None or run.at_ms >= after]
    ended_wanted = None if wanted is None else [entry for entry in wanted if entry is not RunStatus.RUNNING]
    ended: list[Run] = []
    if ended_wanted is None or ended_wanted:
        ended = store.runs(job_id, status=ended_wanted, since=after, limit=limit, before=before)
    known = {run.id for run in ended}
    found = [*(run for run in going if run.id not in known), *ended]
    return sorted(found, key=lambda run: (run.at_ms, run.id), reverse=True)[:limit]


def find_run(engine: Engine, run_id: str) -> Run | None:
    """Return one run by its id, running or ended."""
    store = engine.ready_store()
    ended = store.run(run_id)
    if ended is not None:
        return ended
    return next(
        (held_run(row) for row in store.poll().held if row.holder == run_id and row.key.kind == "job"), None
    )


# -- jobs -----------------------------------------------------------------------------------------------


def overdue(job: EffectiveJob, row: ClaimRow | None, now: int, lease_seconds: float) -> float | None:
    """Return for how many seconds a job's last success has been older than it should be, or None."""
    if job.schedule is None or job.paused or job.broken or row is None or job.definition.scope == "worker":
        return None
    since = max(row.last_success or 0, job.floor, job.since, job.resumed_at)
    first = job.schedule.next_after(since)
    if first is None:
        return None
    lease_ms = int((job.definition.lease or lease_seconds) * 1000)
    grace = grace_ms(job.definition.grace, job.schedule, first, lease_ms)
    # Two ticks in a row without success, each with its grace time: one alone may be a deploy.
    second = job.schedule.next_after(first) or first
    limit = second + (grace if grace is not None else 3_600_000)
    if row.holder is not None and row.since is not None and row.since <= limit:
        return None
    return None if now <= limit else (now - first) / 1000


def job_dict(engine: Engine, job: EffectiveJob, row: ClaimRow | None, now: int) -> dict[str, Any]:
    """Return one job as ``status`` shows it."""
    definition = job.definition
    moment = engine.manager.next_run_time(job, row, now)
    success = None if row is None else row.last_success
    last = None if row is None or row.last_run is None else Run.from_record(row.last_run).to_dict()
    running = held_run(row).to_dict() if row is not None and row.holder is not None else None
    return {
        "id": job.id,
        "name": definition.name,
        "scope": definition.scope,
        "group": definition.group,
        "trigger": job.schedule.describe() if job.schedule is not None else None,
        "trigger_syntax": str(job.schedule) if job.schedule is not None else None,
        "origin": job.origin,
        "paused": job.paused,
        "changed": job.changed,
        "broken": job.broken,
        "next_tick": None if moment is None else moment.isoformat(),
        "running": running,
        "last_run": last,
        "last_success": None if success is None else from_ms(success).isoformat(),
        "last_success_age": None if success is None else round((now - success) / 1000, 3),
        "overdue": overdue(job, row, now, engine.settings.lease),
    }


# -- status ----------------------------------------------------------------------------------------------


def election_dict(engine: Engine) -> dict[str, Any]:
    """Return what the election of this host says: by asking the kernel, never by a file's existence."""
    from .election import FileElector, SocketElector, probe

    campaign = engine.campaign
    elector = engine.elector
    found: dict[str, Any] = {"kind": engine.settings.election, "held": None, "pid": None, "since": None}
    try:
        if elector is None:
            elector = engine.make_elector(engine.store)
        found["place"] = elector.describe()
        if isinstance(elector, FileElector):
            seen = probe(elector.path)
            found.update({key: seen.get(key) for key in ("held", "pid", "since")})
            if seen.get("held"):
                found["age_seconds"] = _silent_seconds(engine, seen)
        elif isinstance(elector, SocketElector):
            port = elector.look()
            found.update({key: port.get(key) for key in ("held", "pid", "since")})
            if port.get("stranger"):
                found["trouble"] = (
                    f"port {elector.port} is taken by {port['stranger']}; set SINGLEJOB_ELECTION_PORT to a free one"
                )
        elif campaign is not None:
            found["held"] = campaign.state in ("owner", "waiting")
    except (OSError, SingleJobError) as error:
        found["trouble"] = str(error)
    except Exception as error:
        found["trouble"] = str(unusable(error))
    if engine.is_owner:
        found.update(held=True, pid=engine.pid)
        if engine.owner_since is not None:
            found["since"] = engine.owner_since.isoformat()
    return found


def _silent_seconds(engine: Engine, seen: Mapping[str, Any]) -> float | None:
    """Return for how long the owner has not touched the file that proves it alive, seconds, or None."""
    from .election import AliveFile, alive_directory, instance_tag

    instance = seen.get("instance")
    if not isinstance(instance, str) or seen.get("kernel") != instance_tag():
        return None
    try:
        touched = os.stat(AliveFile(alive_directory(engine.settings.lock_file), instance).path).st_mtime
    except OSError:
        return None
    return max(0.0, time.time() - touched)


def warnings_of(engine: Engine, docs: list[Doc], now: int) -> list[str]:
    """Return what is worth a look in the cluster, one sentence each."""
    found: list[str] = []
    for doc in living_hosts(docs, now):
        found += [str(text) for text in doc.body.get("warnings") or []]
    names = {str(doc.body.get("host")) for doc in living_hosts(docs, now)}
    if engine.store.local and len(names) > 1:
        found.append(
            f"several hosts ({', '.join(sorted(names))}) use {engine.describe_store()}, which only processes of one host "
            "can share: set SINGLEJOB_STORE to a shared database"
        )
    platform = container_platform()
    if engine.store.local and platform is not None and not engine.app.testing:
        found.append(
            f"this process runs on {platform} and its store is local to one host: with a second replica each job runs "
            "twice; set SINGLEJOB_STORE to a shared database"
        )
    in_memory = memory_trouble(engine.store)
    if in_memory:
        found.append(in_memory)
    own = (
        engine.trouble
        or (engine.campaign.trouble if engine.campaign is not None else None)
        or process.trouble()
    )
    if own:
        found.append(own)
    return list(dict.fromkeys(found))


def status(engine: Engine) -> dict[str, Any]:
    """Return a JSON-ready picture of this host and the cluster.

    :raises StoreError: when the store does not answer.
    """
    jobs, now = engine.manager.jobs()
    rows = engine.manager.rows(jobs)
    docs = engine.store.docs("host")
    living = living_hosts(docs, now)
    campaign = engine.campaign
    state = (
        "disabled" if not engine.settings.enabled else (campaign.state if campaign is not None else "idle")
    )
    term = engine.term
    return {
        "cluster": engine.settings.cluster,
        "host": engine.settings.host_id,
        "pid": engine.pid,
        "role": process.current_role().reason,
        "state": {"waiting": "standby"}.get(state, state),
        "is_owner": engine.is_owner,
        "owner": election_dict(engine),
        "now": from_ms(now).isoformat(),
        "zone": engine.catalog.zone_name or engine.own_zone_name(),
        "clock_offset": engine.clock.offset_seconds,
        "store": {
            "name": engine.store.describe(),
            "local": engine.store.local,
            "away": engine.outages.reason,
        },
        "scheduling": term is not None and term.loaded,
        "paused": engine.catalog.cluster_paused,
        "hosts": [host_dict(doc, living=doc in living) for doc in docs],
        "jobs": [job_dict(engine, job, rows.get(job.id), now) for job in jobs],
        "once": [once_dict(row) for row in engine.store.rows(kind="once")],
        "locks": [lock_dict(row) for row in engine.store.poll().held],
        "warnings": warnings_of(engine, docs, now),
    }


def once_dict(row: ClaimRow) -> dict[str, Any]:
    """Return a once-only task as ``status`` shows it."""
    key, _, version = row.key.name.partition("@")
    return {
        "key": key,
        "version": version or None,
        "done": row.resolved > 0,
        "done_at": from_ms(row.resolved).isoformat() if row.resolved > 0 else None,
        "running": row.holder is not None,
    }


def lock_dict(row: ClaimRow) -> dict[str, Any]:
    """Return a held row as ``locks`` shows it."""
    info: Mapping[str, Any] = row.info
    return {
        "kind": row.key.kind,
        "name": row.key.name,
        "host_scope": row.key.host or None,
        "slot": row.key.slot or None,
        "host": info.get("host"),
        "pid": info.get("pid"),
        "since": from_ms(row.since).isoformat() if row.since else None,
        "expires": from_ms(row.expires).isoformat() if row.expires else None,
        "token": row.token,
        "run": row.holder,
        "tick": from_ms(row.held_tick).isoformat() if row.held_tick and row.key.kind == "job" else None,
    }


# -- health ----------------------------------------------------------------------------------------------


def health(engine: Engine, check: str = "all") -> Health:
    """Tell whether something is wrong.

    :param check: ``live`` (this worker can move; never the store, never a job's result), ``ready`` (no
        ``before_requests`` task is pending), ``jobs`` (owner, store, successes, hosts), or ``all``.
    :raises SingleJobError: for any other check.
    """
    if check not in HEALTH_CHECKS:
        raise SingleJobError(f"check={check!r} must be one of {', '.join(HEALTH_CHECKS)}")
    reasons: list[str] = []
    if check in ("all", "live"):
        reasons += _live(engine)
    if check in ("all", "ready"):
        reasons += _ready(engine)
    if check in ("all", "jobs"):
        reasons += _jobs(engine)
    unique = tuple(dict.fromkeys(reasons))
    return Health(not unique, unique)


def _live(engine: Engine) -> list[str]:
    """Tell what keeps this worker from moving by itself."""
    if not engine.settings.enabled or not engine.wanted or engine.serving is None or engine.leaving:
        return []
    campaign = engine.campaign
    if campaign is not None and campaign.state in ("waiting", "owner"):
        thread = campaign.thread
        if thread is None or not thread.is_alive():
            return ["the thread that campaigns for this host's ownership is dead: restart this worker"]
    scheduler, term = engine.scheduler, engine.term
    if scheduler is not None and term is not None and not scheduler.thread_alive and engine.is_owner:
        return ["the owner's scheduler thread is dead; ownership is about to pass on"]
    return []


def _ready(engine: Engine) -> list[str]:
    try:
        pending = within(HEALTH_STORE_SECONDS, engine.once.pending)
    except Exception as error:
        logger.debug("whether start-up tasks are done cannot be told: %s", error)
        return [f"once-only task(s) {', '.join(_pending_keys(engine))} not known to be done"]
    return [f"once-only task {key!r} is not done yet" for key in pending]


def _pending_keys(engine: Engine) -> list[str]:
    return [repr(task.key) for task in engine.once.tasks.values() if task.before_requests]


def _jobs(engine: Engine) -> list[str]:
    if not engine.settings.enabled:
        return []
    reasons = []
    trouble = engine.trouble or (engine.campaign.trouble if engine.campaign is not None else None)
    trouble = trouble or process.trouble()
    if trouble:
        reasons.append(trouble)
    try:
        _ = engine.store
    except Exception as error:
        return [*reasons, str(unusable(error))]
    election = election_dict(engine)
    if election.get("trouble") and not trouble:
        reasons.append(f"the election of this host is in trouble: {election['trouble']}")
    age = election.get("age_seconds")
    if election.get("held") and isinstance(age, (int, float)) and age > STUCK_OWNER_SECONDS:
        reasons.append(
            f"the owner of this host (pid {election.get('pid')}) has not moved for {age:.0f} s: it is stopped or stuck"
        )
    if engine.outages.reason is not None and (engine.outages.away_seconds or 0) > 1.0:
        reasons.append(f"the store is away: {engine.outages.reason}")
    try:
        reasons += within(HEALTH_STORE_SECONDS, lambda: _cluster_reasons(engine, election))
    except StoreError as error:
        reasons.append(f"the store is away: {error}")
    except Exception as error:
        logger.debug("the cluster's health cannot be told", exc_info=error)
        reasons.append(str(unusable(error)))
    return reasons


def _cluster_reasons(engine: Engine, election: Mapping[str, Any]) -> list[str]:
    jobs, now = engine.manager.jobs()
    docs = engine.store.docs("host")
    living = living_hosts(docs, now)
    found: list[str] = []
    if election.get("held") is False or (election.get("held") is None and not living):
        found.append(f"host {engine.settings.host_id!r} has no owner: no worker of it runs the schedule")
    elif election.get("held") and _held_seconds(election) > SILENT_OWNER_SECONDS:
        host = engine.settings.host_id
        if not any(doc.body.get("host") == host for doc in living):
            found.append(
                f"the owner of this host (pid {election.get('pid')}) has told the store nothing of itself for long: it does "
                "not reach the store or may not write to it; see its log, and 'flask singlejob doctor'"
            )
    rows = engine.manager.rows(jobs)
    for job in jobs:
        late = overdue(job, rows.get(job.id), now, engine.settings.lease)
        if late is not None:
            found.append(f"job {job.id!r} has not succeeded since it was due {_span(late)} ago")
    return found + [text for text in warnings_of(engine, docs, now) if _is_fault(text)]


def _held_seconds(election: Mapping[str, Any]) -> float:
    """Return for how long the owner has held the lock by this host's clock, seconds; 0.0 when that is not known."""
    try:
        return time.time() - datetime.fromisoformat(str(election.get("since"))).timestamp()
    except ValueError:
        return 0.0


def _is_fault(text: str) -> bool:
    return "SINGLEJOB_HOST_ID" in text or "SINGLEJOB_STORE" in text


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
