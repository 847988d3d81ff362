"""The checked configuration of one app, read once and frozen.

The keys themselves are declared in ``keys.py``. A wrong value is a
:class:`~flask_singlejob.errors.ConfigError` that names key, value and cure. Opens and starts nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Literal

from .checks import safe_url, safe_value
from .errors import ConfigError
from .keys import KEYS, Key
from .scheduler_checks import resembling

if TYPE_CHECKING:
    from flask import Flask

__all__ = ["KEYS", "Key", "Settings", "load_settings", "safe_url", "safe_value"]

logger = logging.getLogger(__name__)

Guard = Callable[..., Any]

_PREFIX = "SINGLEJOB_"
_OLD_NAMES = {"SCHEDULER_API_ENABLED": "SCHEDULER_VIEWS_ENABLED", "SCHEDULER_JOBS": "JOBS"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What one app's configuration says, checked. Durations are seconds; see docs/config.md for each.

    :ivar store: as given (a URL or an object), or None when neither configuration nor constructor names one.
    :ivar store_is_default: True when ``store`` is None.
    :ivar host_id_is_default: True when ``host_id`` is the host's own name.
    :ivar groups: None for all groups.
    :ivar guard: a view decorator, ``"public"`` or None.
    """

    enabled: bool
    cluster: str
    host_id: str
    host_id_is_default: bool
    groups: frozenset[str] | None
    store: Any = field(repr=False)
    store_is_default: bool
    store_options: dict[str, Any] = field(repr=False)
    table_prefix: str
    schema: str | None
    create_tables: bool
    election: Literal["file", "socket"]
    lock_file: str | None
    election_port: int | None
    lease: float
    poll_interval: float
    shutdown_timeout: float
    history_days: float
    history_runs: int
    guard: Guard | Literal["public"] | None
    dashboard: bool
    dashboard_prefix: str
    health_prefix: str | None
    metrics_path: str | None
    scheduler_timezone: tzinfo | None
    scheduler_executors: dict[str, Any]
    scheduler_job_defaults: dict[str, Any]
    scheduler_jobs: tuple[dict[str, Any], ...]
    api_enabled: bool
    api_prefix: str
    endpoint_prefix: str
    auth: Any = field(repr=False)
    allowed_hosts: list[str]


def _refuse_unknown(config: Mapping[Any, Any]) -> None:
    known = [key.name.removeprefix(_PREFIX) for key in KEYS if key.name.startswith(_PREFIX)]
    for name in config:
        if not isinstance(name, str) or not name.startswith(_PREFIX) or name.removeprefix(_PREFIX) in known:
            continue
        guess = resembling(name.removeprefix(_PREFIX), known)
        if guess is not None:
            raise ConfigError(
                f"{name} is no configuration key; is {_PREFIX}{guess} meant? Cure: rename or remove it."
            )
        logger.warning("%s is no configuration key of Flask-SingleJob and changes nothing", name)


def _given(key: Key, config: Mapping[str, Any], attributes: Mapping[str, Any]) -> tuple[Key, Any]:
    """Return the key under the name that gives its value, for errors, and the value (None: not given)."""
    value = config.get(key.name)
    if value is None and key.name in config and not key.optional:
        key.read(value)
    old = _OLD_NAMES.get(key.name, key.name)
    if old != key.name and config.get(old) is not None and (value is None or value in ([], ())):
        key, value = replace(key, name=old), config[old]
    return key, attributes.get(key.field) if value is None else value


def load_settings(app: Flask, *, store: Any = None, attributes: Mapping[str, Any] | None = None) -> Settings:
    """Return the checked settings of an app.

    :param store: the store that the constructor was given; the configuration beats it.
    :param attributes: what code set on the extension in place of configuration, by the names of
        :class:`Settings` (``api_enabled``, ``auth`` and the like); the configuration beats it too.
    :raises ConfigError: when a value is wrong, a key unknown that resembles a known one, or two do not fit.
    """
    config = dict(app.config)
    _refuse_unknown(config)
    set_in_code = {**(attributes or {}), "store": store}
    values: dict[str, Any] = {}
    unset: set[str] = set()
    for key in KEYS:
        named, value = _given(key, config, set_in_code)
        if value is None:
            unset.add(key.field)
            value = key.default_for(app)
        values[key.field] = None if value is None else named.read(value)
    values.pop("")
    if values["lock_file"] is not None and not os.path.isabs(values["lock_file"]):
        values["lock_file"] = os.path.join(app.instance_path, values["lock_file"])
    settings = Settings(
        **values, store_is_default=values["store"] is None, host_id_is_default="host_id" in unset
    )
    _refuse_misfits(settings)
    return settings


def _refuse_misfits(settings: Settings) -> None:
    """Check what concerns more than one key."""
    if settings.store is not None or settings.store_options or settings.schema is not None:
        # Not imported where there is nothing to judge: it is a part of each boot.
        from .store_settings import check_store_settings

        check_store_settings(settings.store, settings.store_options, settings.schema)
    if settings.poll_interval > settings.lease:
        raise ConfigError(
            f"SINGLEJOB_POLL_INTERVAL is {settings.poll_interval:g} s and SINGLEJOB_LEASE is "
            f"{settings.lease:g} s; allowed: a poll interval of at most the lease."
        )
    cure = 'Cure: set SINGLEJOB_GUARD to a view decorator, to "module:name" of one, or to "public".'
    if settings.dashboard and settings.guard is None:
        raise ConfigError(
            "SINGLEJOB_DASHBOARD is True and SINGLEJOB_GUARD is not set: anybody could manage the jobs. "
            + cure
        )
    if settings.api_enabled and settings.guard is None and settings.auth is None:
        raise ConfigError(
            "SCHEDULER_API_ENABLED is True and neither SINGLEJOB_GUARD nor SCHEDULER_AUTH is set: "
            "anybody could manage the jobs. " + cure
        )
    _refuse_shared_paths(settings)
    for name, value, election in (
        ("SINGLEJOB_LOCK_FILE", settings.lock_file, "file"),
        ("SINGLEJOB_ELECTION_PORT", settings.election_port, "socket"),
    ):
        if value is not None and settings.election != election:
            logger.warning("%s changes nothing while SINGLEJOB_ELECTION is %r", name, settings.election)


def _refuse_shared_paths(settings: Settings) -> None:
    taken: dict[str, str] = {}

    def take(name: str, path: str) -> None:
        other = taken.setdefault(path, name)
        if other != name:
            raise ConfigError(f"{other} and {name} both lead to {path!r}. Cure: give one another path.")

    if settings.dashboard:
        take("SINGLEJOB_DASHBOARD_PREFIX", settings.dashboard_prefix)
        take("SINGLEJOB_DASHBOARD_PREFIX", f"{settings.dashboard_prefix}/jobs")
    if settings.api_enabled:
        take("SCHEDULER_API_PREFIX", settings.api_prefix)
        take("SCHEDULER_API_PREFIX", f"{settings.api_prefix}/jobs")
    if settings.health_prefix is not None:
        for check in ("live", "ready", "jobs"):
            take("SINGLEJOB_HEALTH_PREFIX", f"{settings.health_prefix}/{check}")
    if settings.metrics_path is not None:
        take("SINGLEJOB_METRICS_PATH", settings.metrics_path)
