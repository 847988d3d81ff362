"""Copies jobs of an APScheduler job store into this cluster's store, as text references and JSON.

Owns what of a job comes and why one cannot. What is copied keeps its ticks: anchors, zones, grace time,
pause. The old job store is only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from apscheduler.jobstores.base import ConflictingIdError
from apscheduler.triggers.base import BaseTrigger

from . import codec
from .definitions import Definition, define, definition_body
from .doctor import tables_missing
from .errors import JobDefinitionError, StoreError
from .import_sources import Source, Unreadable, unpickled
from .records import from_ms, to_ms
from .ticks import Schedule, build, check_storable, pin, zone_name

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Imported", "Source", "import_jobs"]

#: Before any trigger was made: what it took from "now" is part of it by now.
_LONG_AGO = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Imported:
    """What came of one job.

    :param outcome: ``imported``, ``replaced``, ``exists`` (left alone) or ``refused``; of a dry run: what would be.
    :param reason: why it was left alone or refused.
    :param trigger: in words.
    :param next_tick: ISO 8601, UTC.
    """

    id: str
    outcome: str
    reason: str | None = None
    func: str | None = None
    trigger: str | None = None
    next_tick: str | None = None
    paused: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it JSON-ready."""
        return asdict(self)


def import_jobs(
    engine: Engine, source: Source, *, dry_run: bool = False, replace: bool = False
) -> list[Imported]:
    """Copy every job that can be copied.

    :param dry_run: write nothing.
    :param replace: replace jobs whose id exists already.
    :raises ConfigError: when the source cannot be used.
    :raises StoreError: when either store does not answer.
    """
    states = source.read()
    known, now = _known(engine, dry_run)
    return [_import(engine, id, state, known, now, dry_run, replace) for id, state in states]


def _known(engine: Engine, dry_run: bool) -> tuple[dict[str, str], int]:
    """Return the ids that exist, with where they come from, and the store's clock, UTC milliseconds."""
    stored: dict[str, str] = {}
    now = to_ms(datetime.now(timezone.utc))
    try:
        if dry_run:
            # Making tables would be writing.
            now = engine.store.poll().now
            stored = {doc.id: "store" for doc in engine.store.docs("job") if doc.body.get("stored")}
        else:
            jobs, now = engine.manager.jobs()
            stored = {job.id: "store" for job in jobs if job.origin == "store"}
    except StoreError as error:
        if not (dry_run and engine.settings.create_tables and tables_missing(error)):
            raise
    return {**stored, **dict.fromkeys(engine.catalog.defined, "code")}, now


def _import(
    engine: Engine,
    id: str,
    pickled: bytes,
    known: Mapping[str, str],
    now: int,
    dry_run: bool,
    replacing: bool,
) -> Imported:
    func: str | None = None
    try:
        state = unpickled(pickled)
        func = str(state.get("func"))
        definition, schedule = _definition(engine, id, state, now)
        definition_body(definition, registry=engine.catalog.registry)
        check_storable(definition.fields)
    except (Unreadable, JobDefinitionError) as error:
        return Imported(id, "refused", str(error).removeprefix(f"job {id!r}: "), func)
    tick = schedule.next_after(now)
    if isinstance(definition.first, int):
        tick = definition.first
    shown: dict[str, Any] = {
        "func": func,
        "trigger": schedule.describe(),
        "next_tick": None if tick is None or definition.starts_paused else from_ms(tick).isoformat(),
        "paused": definition.starts_paused,
    }
    if id in known and not replacing:
        where = "the code defines a job of this id" if known[id] == "code" else "a job of this id is stored"
        return Imported(id, "exists", f"{where} already; --replace changes it", **shown)
    if not dry_run:
        try:
            engine.manager.add(definition, replace_existing=replacing)
            if id in known:
                # An old pause or none is part of what replaces.
                (engine.manager.pause if definition.starts_paused else engine.manager.resume)(id)
        except ConflictingIdError:
            return Imported(id, "exists", "somebody added a job of this id this moment", **shown)
        except JobDefinitionError as error:
            return Imported(id, "refused", str(error), func)
    return Imported(id, "replaced" if id in known else "imported", None, **shown)


def _definition(engine: Engine, id: str, state: Mapping[str, Any], now: int) -> tuple[Definition, Schedule]:
    """Return a job's definition and pinned schedule.

    :raises JobDefinitionError: when it cannot come, saying why.
    """
    ref, trigger = state.get("func"), state.get("trigger")
    if not isinstance(ref, str):
        raise JobDefinitionError(f"its function is {ref!r}, not a text reference 'module:name'")
    if not isinstance(trigger, BaseTrigger):
        raise JobDefinitionError(
            f"its trigger is of type {type(trigger).__qualname__}, which is none of APScheduler's"
        )
    func = codec.resolve_ref(ref, registry=engine.catalog.registry)
    executor = state.get("executor", "default")
    if executor not in engine.lanes:
        raise JobDefinitionError(
            f"its executor {executor!r} is not configured (known: {', '.join(sorted(engine.lanes))}): add it to "
            "SCHEDULER_EXECUTORS"
        )
    options: dict[str, Any] = {
        "args": list(state.get("args") or ()),
        "kwargs": dict(state.get("kwargs") or {}),
        "name": state.get("name") or None,
        "executor": executor,
    }
    for name in ("misfire_grace_time", "coalesce", "max_instances"):
        if name in state:
            options[name] = state[name]
    if isinstance(options.get("coalesce"), int):
        options["coalesce"] = bool(options["coalesce"])
    next_run_time = state.get("next_run_time")
    if next_run_time is None:
        options["next_run_time"] = None
    made = define(id, func, trigger, options, ref=ref, made_at=_LONG_AGO, stored=True)
    if made.custom is not None:
        raise JobDefinitionError(
            f"its trigger {type(trigger).__qualname__} is of a kind that cannot be stored: define the job in code"
        )
    # The zone that a trigger has by now is its own, whatever this host's or the cluster's may be.
    made = replace(made, fields=_zoned(made.fields, trigger))
    schedule = build(pin(made.fields, now_ms=now, zone=engine.catalog.zone), zone=engine.catalog.zone)
    upcoming = schedule.next_after(now)
    if upcoming is None:
        raise JobDefinitionError("its trigger has ended: it has no run time from now on")
    if isinstance(next_run_time, datetime) and made.jitter is None:
        at = to_ms(next_run_time)
        # Set by hand, off the trigger's own times or past some of them: it comes first here too.
        if at > now and abs(at - upcoming) > 1:
            made = replace(made, first=at)
    return made, schedule


def _zoned(fields: Mapping[str, Any], trigger: Any) -> dict[str, Any]:
    kind = fields.get("type")
    if kind in ("and", "or"):
        parts = zip(fields["triggers"], trigger.triggers, strict=True)
        return {**fields, "triggers": [_zoned(part, one) for part, one in parts]}
    if kind in ("cron", "calendarinterval") and fields.get("zone") is None:
        return {**fields, "zone": zone_name(trigger.timezone)}
    return dict(fields)
