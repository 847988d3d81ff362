"""The JSON of the REST API: what a request may say, and the shape of a job, as in Flask-APScheduler.

Names a function by comparing text with what is registered: no text of a request is ever imported.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flask import Request

from .. import codec
from ..definitions import JOB_OPTIONS
from ..errors import JobDefinitionError
from ..ticks import TRIGGER_OPTIONS

if TYPE_CHECKING:
    from ..catalog import Catalog

__all__ = [
    "ADD_FIELDS",
    "CHANGE_FIELDS",
    "BadRequestBody",
    "description",
    "function_named",
    "in_given_offset",
    "job_json",
    "json_text",
    "read_object",
]

#: The prefix in the description that is shipped.
DEFAULT_PREFIX = "/scheduler"
_COMMON = frozenset({"func", "trigger"}) | TRIGGER_OPTIONS | JOB_OPTIONS
#: What a new job may say; a job store's name is taken and changes nothing.
ADD_FIELDS = _COMMON | {"id", "replace_existing", "jobstore"}
#: What a change of a job may say.
CHANGE_FIELDS = _COMMON | {"id", "jobstore"}


class BadRequestBody(Exception):
    """The body of a request is not what it has to be; its text says what it has to be."""


# -- reading ----------------------------------------------------------------------------------------------


def _no_constant(text: str) -> Any:
    raise BadRequestBody(f"the body holds {text}, which JSON does not have")


def read_object(request: Request, allowed: Iterable[str], *, may_be_empty: bool = False) -> dict[str, Any]:
    """Return a request's body, which has to be a JSON object of known names; its content type is not looked at.

    :param allowed: the names it may have.
    :param may_be_empty: no body is an empty object.
    :raises BadRequestBody: when it is anything else.
    """
    raw = request.get_data()
    if may_be_empty and not raw.strip():
        return {}
    try:
        found = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadRequestBody('the body is no JSON: send an object, such as {"id": "report"}') from None
    if not isinstance(found, dict):
        raise BadRequestBody('the body has to be a JSON object, such as {"id": "report"}')
    allowed = set(allowed)
    unknown = sorted(set(found) - allowed)
    if unknown:
        raise BadRequestBody(
            f"the field {_short(unknown[0])} is not known here: the fields are {', '.join(sorted(allowed))}"
        )
    _refuse_surrogates(found)
    return found


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"


def _refuse_surrogates(found: Any) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRequestBody("the body holds half a surrogate pair, which is no text") from None
    except RecursionError:
        raise BadRequestBody("the body is nested too deep") from None


def moment_of(name: str, value: Any) -> datetime | None:
    """Return the moment that a field names.

    :raises BadRequestBody: when it names none.
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            pass
    raise BadRequestBody(f"{name} has to be a moment such as '2026-01-31T03:00:00+01:00', or null (paused)")


def function_named(text: Any, catalog: Catalog) -> str:
    """Return the reference by which a registered function is stored, from the name that a request gives.

    :param text: a name given with ``task`` or ``register``, or ``module:name`` of such a function.
    :raises BadRequestBody: when no registered function has that name.
    """
    if not isinstance(text, str):
        raise BadRequestBody("func has to be a text: the name of a registered function, or its module:name")
    if text in catalog.registry:
        return text
    for name, function in list(catalog.registry.items()):
        plain = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
        if text not in (plain, _ref_of(function)):
            continue
        # A nested function has no text that leads back to it but the name that it was registered by.
        return _ref_of(function) or name
    raise BadRequestBody(
        f"no function is registered as {_short(text)}: only registered functions can be scheduled over HTTP. "
        "Register it in the app's code with jobs.register(function), or make it a job with jobs.task"
    )


def _ref_of(function: Callable[..., Any]) -> str | None:
    try:
        return codec.func_ref(function, registry={})
    except JobDefinitionError:
        return None


# -- writing ----------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    # What only the code can make is named by its type: its repr may hold anything.
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def json_text(value: Any) -> str:
    """Return a value as JSON that every reader takes, whatever a job's arguments hold."""
    return json.dumps(_finite(value), default=_plain)


def job_json(job: Any) -> dict[str, Any]:
    """Return a job in Flask-APScheduler's shape, with ``scope`` and ``paused``, and ``broken`` when it is.

    :param job: what ``get_job`` gives.
    """
    found: dict[str, Any] = {
        "id": job.id,
        "name": job.name,
        "func": job.func_ref,
        "args": list(job.args),
        "kwargs": dict(job.kwargs),
        **_trigger_json(job.trigger),
        "misfire_grace_time": job.misfire_grace_time,
        "max_instances": job.max_instances,
        "next_run_time": job.next_run_time,
        "scope": job.scope,
        "paused": job.paused,
    }
    if job.broken is not None:
        found["broken"] = job.broken
    return found


def in_given_offset(shown: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's JSON with the trigger's moments in the offsets in which the request gave them."""
    for name in ("run_date", "start_date", "end_date"):
        text, moment = given.get(name), shown.get(name)
        if isinstance(text, str) and isinstance(moment, datetime):
            try:
                zone = datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo
            except ValueError:
                continue
            shown[name] = moment if zone is None else moment.astimezone(zone)
    return shown


def _trigger_json(trigger: Any) -> dict[str, Any]:
    # By the class's name, as only its own modules know APScheduler.
    write = _TRIGGERS.get(type(trigger).__name__)
    if write is None:
        return {"trigger": None if trigger is None else str(trigger)}
    return {name: value for name, value in write(trigger).items() if value is not None}


def _date(trigger: Any) -> dict[str, Any]:
    return {"trigger": "date", "run_date": trigger.run_date}


def _interval(trigger: Any) -> dict[str, Any]:
    rest, seconds = divmod(trigger.interval.seconds, 60)
    hours, minutes = divmod(rest, 60)
    weeks, days = divmod(trigger.interval.days, 7)
    amounts = {"weeks": weeks, "days": days, "hours": hours, "minutes": minutes}
    return {
        "trigger": "interval",
        "start_date": trigger.start_date,
        "end_date": trigger.end_date,
        **{unit: amount for unit, amount in amounts.items() if amount},
        "seconds": seconds + trigger.interval.microseconds / 1_000_000
        if trigger.interval.microseconds
        else (seconds or None),
    }


def _cron(trigger: Any) -> dict[str, Any]:
    return {
        "trigger": "cron",
        "start_date": trigger.start_date,
        "end_date": trigger.end_date,
        **{field.name: str(field) for field in trigger.fields if not field.is_default},
    }


_TRIGGERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "DateTrigger": _date,
    "IntervalTrigger": _interval,
    "CronTrigger": _cron,
}


@functools.cache
def _shipped() -> str:
    return files(__package__).joinpath("openapi.json").read_text(encoding="utf-8")


def description(prefix: str, root: str, functions: Iterable[str] = ()) -> dict[str, Any]:
    """Return the OpenAPI description of the API as it is served here.

    :param prefix: the API's prefix (``SCHEDULER_API_PREFIX``).
    :param root: what the app is mounted under.
    :param functions: the names of the registered functions.
    """
    found: dict[str, Any] = json.loads(_shipped())
    names = sorted(functions)
    for schema in ("NewJob", "JobChange") if names else ():
        found["components"]["schemas"][schema]["properties"]["func"]["examples"] = names
    found["paths"] = {
        prefix + path.removeprefix(DEFAULT_PREFIX): item for path, item in found["paths"].items()
    }
    found["servers"] = [{"url": root or "/"}]
    return found
