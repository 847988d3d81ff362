"""What a job is: the shape of a definition, how it is made from options, and its stored form.

Reads no store. What the store changed of it, and which wins, is in ``catalog.py``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any, Literal

from apscheduler.triggers.base import BaseTrigger

from . import codec
from .errors import JobDefinitionError
from .records import to_ms
from .scheduler_checks import LEASE_LEAST, LEASE_MOST
from .ticks import Fields, fingerprint, parse_trigger

__all__ = ["Definition", "define", "definition_body", "equal_definitions", "restore"]

#: The newest form of a stored job that this version writes and reads.
STORED_VERSION = 1
SCOPES = ("cluster", "host", "worker")
JOB_OPTIONS = frozenset(
    [
        "args",
        "kwargs",
        "name",
        "misfire_grace_time",
        "coalesce",
        "max_instances",
        "next_run_time",
        "executor",
        "scope",
        "group",
        "catch_up",
        "rerun_lost",
        "max_attempts",
        "lease",
        "max_runtime",
    ]
)
Grace = int | None | Literal["default"]
#: Keys of a stored job that ``modify_job`` may change one by one.
CHANGEABLE = frozenset(
    [
        "func",
        "args",
        "kwargs",
        "name",
        "grace",
        "coalesce",
        "max_instances",
        "executor",
        "scope",
        "group",
        "rerun_lost",
        "max_attempts",
        "lease",
        "max_runtime",
        "trigger",
        "jitter",
        "first",
    ]
)
_UNSET: Any = object()
#: No duration of a job is longer: ten years.
MOST_SECONDS = 315_360_000.0


@dataclass(frozen=True)
class Definition:
    """A job as the code, or a stored document, defines it. Durations are seconds.

    :param ref: the text reference of its function, when it has one.
    :param fields: its trigger, canonical and unpinned for code, pinned for a stored job.
    :param custom: the trigger object, when it is of a kind that has no fields of its own.
    :param grace: ``misfire_grace_time``.
    :param first: an extra first tick (``next_run_time``), UTC milliseconds or ``now``.
    :param host_zone: the zone that its trigger object took from the host, so that it is read in the cluster's.
    :param broken: why it cannot run in this process, else None.
    """

    id: str
    func: Callable[..., Any] | None
    fields: Fields
    ref: str | None = None
    name: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    jitter: float | None = None
    custom: BaseTrigger | None = None
    scope: str = "cluster"
    group: str = "default"
    executor: str = "default"
    grace: Grace = "default"
    coalesce: bool = True
    max_instances: int = 1
    rerun_lost: bool = False
    max_attempts: int = 3
    lease: float | None = None
    max_runtime: float | None = None
    first: int | Literal["now"] | None = None
    starts_paused: bool = False
    stored: bool = False
    host_zone: str | None = None
    broken: str | None = None

    @cached_property
    def fingerprint(self) -> str:
        """What tells this definition's schedule from another's of the same id."""
        extra = {} if self.first is None else {"first": self.first}
        return fingerprint(self.id, {**self.fields, **extra} if extra else self.fields, self.jitter)


def _fail(id: str, what: str) -> JobDefinitionError:
    return JobDefinitionError(f"job {id!r}: {what}")


def _whole(id: str, name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _fail(id, f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def _flag(id: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fail(id, f"{name} must be True or False, not {value!r}")
    return value


def _duration(id: str, name: str, value: Any, least: float, most: float = MOST_SECONDS) -> float | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise _fail(id, f"{name} must be seconds (a number) or a timedelta, not {value!r}")
    if not least <= value <= most:
        raise _fail(id, f"{name} must be at least {least:g} s and at most {most:.0f} s, not {value!r}")
    return float(value)


def check_id(id: Any) -> str:
    """Return a usable job id.

    :raises JobDefinitionError: for anything but text of 1 to 255 characters without control characters.
    """
    if not isinstance(id, str) or not id:
        raise JobDefinitionError(f"a job id must be a nonempty string, not {id!r}")
    if len(id) > 255:
        raise JobDefinitionError(
            f"a job id may have 255 characters, {id[:40]!r}… has {len(id)}: give a shorter id="
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in id):
        raise JobDefinitionError(f"job id {id!r} has control characters: give one without")
    try:
        id.encode()
    except UnicodeEncodeError:
        raise JobDefinitionError(f"job id {id!r} is no valid Unicode text") from None
    return id


def grace_from(
    id: str, options: Mapping[str, Any], *, is_date: bool, own: frozenset[str] | None = None
) -> tuple[Grace, bool]:
    """Return (grace, coalesce) from ``misfire_grace_time``, ``coalesce`` and ``catch_up``.

    :param own: the options given for the job itself: only among these can there be a contradiction.
    """
    own = frozenset(options) if own is None else own
    catch_up = options.get("catch_up")
    coalesce = _flag(id, "coalesce", options.get("coalesce", True))
    grace: Grace = "default"
    if "misfire_grace_time" in options:
        value = options["misfire_grace_time"]
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        grace = None if value is None else _whole(id, "misfire_grace_time (seconds)", value, 1)
    if catch_up is not None:
        _flag(id, "catch_up", catch_up)
    if catch_up and "catch_up" not in own and own & {"misfire_grace_time", "coalesce"}:
        # What the job says itself beats a catch_up of the defaults.
        catch_up = None
        grace = grace if "misfire_grace_time" in own else None
        coalesce = coalesce if "coalesce" in own else True
    if catch_up:
        if "misfire_grace_time" in own and grace is not None:
            raise _fail(
                id,
                f"catch_up=True means misfire_grace_time=None, yet misfire_grace_time={grace!r} is given: leave one out",
            )
        if "coalesce" in own and not coalesce:
            raise _fail(id, "catch_up=True means coalesce=True, yet coalesce=False is given: leave one out")
        return None, True
    if catch_up is False and "misfire_grace_time" in own and grace is None:
        raise _fail(id, "catch_up=False contradicts misfire_grace_time=None: leave one out")
    if catch_up is False and grace is None:
        return "default", coalesce
    if catch_up is None and is_date and "misfire_grace_time" not in own:
        return None, coalesce
    return grace, coalesce


def define(
    id: str,
    func: Callable[..., Any],
    trigger: Any,
    options: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    ref: str | None = None,
    made_at: datetime | None = None,
    stored: bool = False,
) -> Definition:
    """Return the definition of a job from what ``task`` or ``add_job`` were given.

    :param trigger: a trigger's name, an APScheduler trigger, a mapping with ``type``, or None (once, now).
    :param options: job options and the trigger's own.
    :param defaults: job options used where ``options`` has none (``SCHEDULER_JOB_DEFAULTS``).
    :param made_at: when the caller's trigger object was made, at the latest (aware).
    :raises JobDefinitionError: naming the option, the value and what is allowed.
    """
    check_id(id)
    given = dict(options)
    given.pop("jobstore", None)
    now = made_at or datetime.now(timezone.utc)
    try:
        parsed = parse_trigger("date" if trigger is None else trigger, given, made_at=now)
    except JobDefinitionError as error:
        raise _fail(id, str(error)) from error
    own = dict(parsed.rest)
    unknown = sorted(set(own) - JOB_OPTIONS)
    if unknown:
        raise _fail(
            id,
            f"unknown option {unknown[0]!r}={own[unknown[0]]!r}; job options are {', '.join(sorted(JOB_OPTIONS))}, "
            f"and those of its trigger",
        )
    merged = {**(defaults or {}), **own}
    grace, coalesce = grace_from(id, merged, is_date=parsed.fields.get("type") == "date", own=frozenset(own))
    scope = merged.get("scope", "cluster")
    if scope not in SCOPES:
        raise _fail(id, f"scope must be one of {', '.join(SCOPES)}, not {scope!r}")
    group = merged.get("group", "default")
    if not isinstance(group, str) or not group or len(group) > 255:
        raise _fail(id, f"group must be a nonempty string, not {group!r}")
    executor = merged.get("executor", "default")
    if not isinstance(executor, str) or not executor:
        raise _fail(id, f"executor must be the alias of an executor, not {executor!r}")
    name = merged.get("name")
    if name is not None and (not isinstance(name, str) or not name):
        raise _fail(id, f"name must be a nonempty string, not {name!r}")
    args = own.get("args")
    kwargs = own.get("kwargs")
    if args is None:
        args = ()
    if kwargs is None:
        kwargs = {}
    if isinstance(args, str) or not hasattr(args, "__iter__") or isinstance(args, Mapping):
        raise _fail(id, f"args must be a list or tuple, not {args!r}")
    if not isinstance(kwargs, Mapping) or any(not isinstance(key, str) for key in kwargs):
        raise _fail(id, f"kwargs must be a mapping with string keys, not {kwargs!r}")
    args = tuple(args)
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise _fail(id, f"{func!r} is a generator function: calling it runs nothing of its body")
    try:
        codec.check_call(func, args, kwargs)
    except JobDefinitionError as error:
        raise _fail(id, str(error)) from error
    max_instances = _whole(id, "max_instances", merged.get("max_instances", 1), 1)
    rerun_lost = _flag(id, "rerun_lost", merged.get("rerun_lost", False))
    lease = _duration(id, "lease", merged.get("lease"), LEASE_LEAST, LEASE_MOST)
    max_runtime = _duration(id, "max_runtime", merged.get("max_runtime"), 0.001)
    if scope == "worker":
        without_claim = {
            "rerun_lost": rerun_lost,
            "lease": lease is not None,
            "max_runtime": max_runtime is not None,
        }
        for option, on in without_claim.items():
            if on and option in own:
                raise _fail(
                    id, f"{option} has no meaning with scope='worker', which has no claim: leave it out"
                )
    first, starts_paused = _first(id, own, now)
    return Definition(
        id=id,
        func=func,
        ref=ref,
        fields=parsed.fields,
        custom=trigger if parsed.fields.get("type") == "custom" else None,
        jitter=parsed.jitter_seconds,
        host_zone=parsed.host_zone,
        name=name or id,
        args=args,
        kwargs=dict(kwargs),
        scope=scope,
        group=group,
        executor=executor,
        grace=grace,
        coalesce=coalesce,
        max_instances=max_instances,
        rerun_lost=rerun_lost,
        max_attempts=_whole(id, "max_attempts", merged.get("max_attempts", 3), 1),
        lease=lease,
        max_runtime=max_runtime,
        first=first,
        starts_paused=starts_paused,
        stored=stored,
    )


#: What two definitions of one schedule may differ in and be two jobs.
_COMPARED = (
    *("func", "args", "kwargs", "name", "scope", "group", "executor", "grace", "coalesce", "max_instances"),
    *("rerun_lost", "max_attempts", "lease", "max_runtime", "starts_paused"),
)


def equal_definitions(one: Definition, other: Definition) -> bool:
    """Tell whether two definitions are the same job: one schedule, one function, equal options and arguments."""
    return one.fingerprint == other.fingerprint and all(
        getattr(one, name) == getattr(other, name) for name in _COMPARED
    )


def _first(id: str, own: Mapping[str, Any], now: datetime) -> tuple[int | Literal["now"] | None, bool]:
    value = own.get("next_run_time", _UNSET)
    if value is _UNSET:
        return None, False
    if value is None:
        return None, True
    if not isinstance(value, datetime):
        raise _fail(id, f"next_run_time must be a datetime or None (paused), not {value!r}")
    moment = value if value.tzinfo is not None else value.astimezone()
    # "next_run_time=datetime.now()" is how people ask for a run at once: it differs in every process.
    if abs((moment - now).total_seconds()) < 5 and (moment.microsecond or moment <= now):
        return "now", False
    return to_ms(moment), False


def definition_body(definition: Definition, *, registry: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Return the stored form of a definition: text references and JSON.

    :raises JobDefinitionError: when the function or an argument cannot be stored.
    """
    if definition.custom is not None:
        raise _fail(
            definition.id,
            f"a trigger of the kind {type(definition.custom).__name__} cannot be stored: "
            "define the job in code with task(), or use one of APScheduler's own triggers",
        )
    assert definition.func is not None or definition.ref is not None
    try:
        ref = definition.ref or codec.func_ref(definition.func, registry=registry)  # type: ignore[arg-type]
        call = codec.encode_args(definition.args, definition.kwargs)
    except JobDefinitionError as error:
        raise _fail(definition.id, str(error)) from error
    return {
        "v": STORED_VERSION,
        "stored": True,
        "func": ref,
        "name": definition.name,
        "call": call,
        "trigger": definition.fields,
        "jitter": definition.jitter,
        "scope": definition.scope,
        "group": definition.group,
        "executor": definition.executor,
        "grace": definition.grace,
        "coalesce": definition.coalesce,
        "max_instances": definition.max_instances,
        "rerun_lost": definition.rerun_lost,
        "max_attempts": definition.max_attempts,
        "lease": definition.lease,
        "max_runtime": definition.max_runtime,
        "first": definition.first,
    }


def restore(
    id: str,
    body: Mapping[str, Any],
    *,
    registry: Mapping[str, Callable[..., Any]],
    base: Definition | None = None,
) -> Definition:
    """Return the definition of a stored document, or of ``base`` with the document's changes.

    What cannot be restored here makes a definition that is ``broken``, never an error and never a loss.
    """
    broken: str | None = None
    values: dict[str, Any] = {}
    try:
        if int(body.get("v", 1)) > STORED_VERSION:
            raise JobDefinitionError(
                f"it was written by a newer version of Flask-SingleJob (form {body.get('v')}, this one reads up to "
                f"{STORED_VERSION}): upgrade this process"
            )
        if "call" in body:
            values["args"], values["kwargs"] = codec.decode_args(body["call"])
        if "trigger" in body:
            values["fields"] = dict(body["trigger"])
            values["custom"] = None
        for name in CHANGEABLE - {"func", "args", "kwargs", "trigger"}:
            if name in body:
                values[name] = body[name]
        # Last: what cannot be called here still shows its trigger and its arguments.
        if "func" in body:
            values["ref"] = body["func"]
            values["func"] = None
            values["func"] = codec.resolve_ref(body["func"], registry=registry)
    except JobDefinitionError as error:
        broken = str(error)
    except (KeyError, TypeError, ValueError) as error:
        broken = f"its stored form cannot be read ({type(error).__name__}: {error})"
    if base is not None:
        return replace(base, **values, broken=broken)
    values.setdefault("fields", {})
    values.setdefault("func", None)
    values.setdefault("name", id)
    return Definition(id=id, **values, stored=True, broken=broken)
