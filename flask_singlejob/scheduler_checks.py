"""Checks of Flask-APScheduler's own configuration values, which come with more parts than one.

Refuses what cannot work here: persistent job stores and process pools. Starts and opens nothing.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from . import checks
from .checks import WrongValue, safe_value

__all__ = [
    "JOB_OPTIONS",
    "LEASE_LEAST",
    "LEASE_MOST",
    "auth",
    "endpoint_prefix",
    "executors",
    "job_defaults",
    "job_list",
    "jobstores",
    "resembling",
]

logger = logging.getLogger(__name__)

#: The shortest lease, in seconds: a renewal at a third of it still fits a round trip to a slow store.
LEASE_LEAST = 1.0
#: The longest lease, in seconds.
LEASE_MOST = 86_400.0


def resembling(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that an unknown one resembles: by letters, or as the same words and more."""
    known = list(known)
    close = difflib.get_close_matches(name.lower(), [item.lower() for item in known], n=1, cutoff=0.7)
    for item in known:
        ours, theirs = item.lower(), name.lower()
        more, fewer = (ours, theirs) if len(ours) > len(theirs) else (theirs, ours)
        if ours in close or more.startswith(f"{fewer}_") or (more == ours and more.endswith(f"_{fewer}")):
            return item
    return None


def job_list(value: Any) -> tuple[dict[str, Any], ...]:
    """Accept a list of mappings, giving a tuple of dicts of our own."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, Mapping) for item in value):
        raise WrongValue("")
    return tuple(dict(item) for item in value)


def endpoint_prefix(value: Any) -> str:
    """Accept any text."""
    if not isinstance(value, str):
        raise WrongValue("")
    return value


def auth(value: Any) -> Any:
    """Accept what Flask-APScheduler calls to read a request's credentials."""
    for method in ("get_authorization", "get_authenticate_header"):
        if isinstance(value, type) or not callable(getattr(value, method, None)):
            raise WrongValue("give an instance, as flask_apscheduler.auth.HTTPBasicAuth()")
    return value


def _class_names(spec: Any) -> set[str]:
    """Return the names of the classes that an executor or job store is one of.

    ``spec`` is an instance, a class, or ``"module:Class"``; a text that cannot be imported is refused.
    """
    if isinstance(spec, str):
        module, _, name = spec.partition(":")
        try:
            spec = getattr(importlib.import_module(module), name)
        except Exception as error:
            raise WrongValue(f"{spec!r} cannot be imported as module:Class ({error})") from error
    cls = spec if isinstance(spec, type) else type(spec)
    return {base.__name__ for base in cls.__mro__}


def _plugin_class_name(kind: str, plugin: Any) -> str:
    for entry in importlib.metadata.entry_points(group=f"apscheduler.{kind}"):
        if entry.name == plugin:
            return entry.value.partition(":")[2]
    raise WrongValue(f"APScheduler has no {kind} plugin {plugin!r}")


def executors(value: Any) -> dict[str, Any]:
    """Accept APScheduler executors but process pools, giving copies of their mappings."""
    result: dict[str, Any] = {}
    for alias, spec in checks.options(value).items():
        if isinstance(spec, Mapping):
            # A copy: APScheduler takes entries out of the mapping, and each term of ownership needs them.
            spec = dict(spec)
            if "type" in spec:
                found = {_plugin_class_name("executors", spec["type"])}
            elif "class" in spec:
                found = _class_names(spec["class"])
            else:
                raise WrongValue(f'executor {alias!r} needs a "type" or a "class"')
        elif hasattr(spec, "submit_job"):
            found = _class_names(spec)
        else:
            raise WrongValue(f"executor {alias!r} is a {type(spec).__name__}")
        if "ProcessPoolExecutor" in found:
            raise WrongValue(
                f"executor {alias!r} is a process pool: its child processes have no application context and "
                f"no lease. Use a threadpool, and start processes from within the job where it needs them"
            )
        if isinstance(spec, Mapping):
            _pool_options(alias, spec, pool="ThreadPoolExecutor" in found)
        result[alias] = spec
    return result


def _pool_options(alias: str, spec: Mapping[str, Any], *, pool: bool) -> None:
    """Accept what an executor is made of.

    :param pool: it is APScheduler's thread pool, whose options are known.
    """
    size = spec.get("max_workers")
    try:
        good = size is None or (not isinstance(size, bool) and int(size) == float(size) and int(size) >= 1)
    except (TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise WrongValue(
            f"executor {alias!r}: max_workers must be a whole number of at least 1, not {size!r}"
        )
    unknown = sorted(map(str, spec.keys() - {"type", "class", "max_workers", "pool_kwargs"})) if pool else []
    if unknown:
        raise WrongValue(
            f"executor {alias!r} has the unknown option {unknown[0]!r}: a thread pool takes max_workers (and pool_kwargs)"
        )


def jobstores(value: Any, *, cure: str = "Remove the key") -> None:
    """Accept memory job stores only.

    :param cure: how the job store is taken out of where it was given.
    """
    for alias, spec in checks.options(value or {}).items():
        memory = spec.get("type") == "memory" if isinstance(spec, Mapping) else None
        if not memory:
            named = spec.get("class", "") if isinstance(spec, Mapping) else spec
            last = named.rpartition(":")[2].rpartition(".")[2] if isinstance(named, str) else None
            memory = last == "MemoryJobStore" if last is not None else "MemoryJobStore" in _class_names(named)
        if not memory:
            raise WrongValue(
                f"jobs live in SINGLEJOB_STORE now, so job store {alias!r} has no part left. {cure}; "
                f"`flask singlejob import-jobs URL` reads the old job store once"
            )


#: What SCHEDULER_JOB_DEFAULTS may set, with the check of each.
JOB_OPTIONS: dict[str, tuple[checks.Check, str]] = {
    "scope": (checks.choice("cluster", "host", "worker"), "'cluster', 'host' or 'worker'"),
    "group": (checks.text(), "a name"),
    "catch_up": (checks.switch, "True or False"),
    "rerun_lost": (checks.switch, "True or False"),
    "max_attempts": (checks.whole_number(least=1, most=1000), "1 to 1000"),
    "lease": (checks.duration(least=LEASE_LEAST, most=LEASE_MOST), "1 to 86400 seconds or a timedelta"),
    "max_runtime": (checks.duration(least=0.001), "seconds above 0, or a timedelta"),
    "misfire_grace_time": (
        checks.duration(least=1, whole=True),
        "whole seconds from 1, a timedelta, or None",
    ),
    "coalesce": (checks.switch, "True or False"),
    "max_instances": (checks.whole_number(least=1, most=1000), "1 to 1000"),
    "executor": (checks.text(), "the alias of an executor"),
}


def job_defaults(value: Any) -> dict[str, Any]:
    """Accept what a job may take by default, each checked; what resembles no option is left out."""
    result: dict[str, Any] = {}
    for name, item in checks.options(value).items():
        if name not in JOB_OPTIONS:
            guess = resembling(name, JOB_OPTIONS)
            if guess is not None:
                raise WrongValue(f"{name!r} is unknown, {guess!r} is close")
            logger.warning("SCHEDULER_JOB_DEFAULTS: %r is no default of a job and is left out", name)
            continue
        check, allowed = JOB_OPTIONS[name]
        if item is None and name in ("catch_up", "lease", "max_runtime", "misfire_grace_time"):
            result[name] = None
            continue
        try:
            result[name] = check(item)
        except WrongValue as error:
            cure = f" ({error})" if str(error) else ""
            raise WrongValue(f"{name!r} is {safe_value(item)}, it may be {allowed}{cure}") from None
    if result.get("catch_up"):
        for name, means in (("misfire_grace_time", None), ("coalesce", True)):
            if result.get(name, means) is not means:
                raise WrongValue(
                    f"'catch_up' means {name}={means}, yet {name!r} is {safe_value(result[name])}"
                )
    return result
