"""Every configuration key once: its default, its check, its help and its line in docs/config.md.

Reads nothing: that is done in ``config.py``. Each key's field is an attribute of its ``Settings``.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import checks, scheduler_checks
from .checks import WrongValue, safe_value
from .errors import ConfigError
from .scheduler_checks import JOB_OPTIONS, LEASE_LEAST, LEASE_MOST

if TYPE_CHECKING:
    from flask import Flask

__all__ = ["KEYS", "Key"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """The declaration of one configuration key.

    :param name: the key in ``app.config``.
    :param field: the attribute of :class:`Settings`.
    :param check: gives the value as :class:`Settings` holds it, or raises :class:`~.checks.WrongValue`.
    :param allowed: what is allowed, the end of "allowed: ..." in errors and docs.
    :param help: what it means, one or two sentences for the docs.
    :param default: the value when the key is unset; a function is called with the app.
    :param shown: the default in the docs where ``repr`` would not say it.
    """

    name: str
    field: str
    check: checks.Check
    allowed: str
    help: str
    default: Any = None
    shown: str | None = None

    def read(self, value: Any) -> Any:
        """Return the checked value.

        :raises ConfigError: when it is wrong.
        """
        try:
            return self.check(value)
        except WrongValue as error:
            shown = "a value of type " + type(value).__name__ if self.secret else safe_value(value)
            cure = f" Cure: {error}." if str(error) else ""
            raise ConfigError(f"{self.name} is {shown}; allowed: {self.allowed}.{cure}") from error.__cause__

    @property
    def secret(self) -> bool:
        """Whether its value is never shown: options may hold passwords under any name."""
        return self.field == "store_options"

    @property
    def optional(self) -> bool:
        """Whether None means "not set": not for switches, numbers and texts that have a default."""
        return not isinstance(self.default, (bool, int, float, str))

    def default_for(self, app: Flask) -> Any:
        """Return the default for an app, a fresh copy where it is a container."""
        default = self.default(app) if callable(self.default) else self.default
        return default.copy() if isinstance(default, (dict, list)) else default


_BOOL = "True or False"
_PATH = 'a path such as "/x", of letters, digits and ._~-/, no variables'
_NAME = "1 to 255 printable characters, no white space at the ends"


def _seconds(least: str, most: str) -> str:
    return f"{least} to {most} seconds (a number), or a timedelta"


KEYS: tuple[Key, ...] = (
    Key(
        name="SINGLEJOB_ENABLED",
        field="enabled",
        default=True,
        check=checks.switch,
        allowed=_BOOL,
        help="False: this process never campaigns and runs no job by schedule. "
        "The API still reads and writes the store.",
    ),
    Key(
        name="SINGLEJOB_CLUSTER",
        field="cluster",
        default=lambda app: app.name,
        shown="`app.name`",
        check=checks.text(),
        allowed=_NAME,
        help="The first part of every key: two apps in one database do not meet.",
    ),
    Key(
        name="SINGLEJOB_HOST_ID",
        field="host_id",
        default=lambda app: socket.gethostname().lower(),
        shown="the host's name",
        check=checks.text(),
        allowed=_NAME,
        help="What names this host, container or pod. Unique per host in the cluster.",
    ),
    Key(
        name="SINGLEJOB_GROUPS",
        field="groups",
        shown="`None` (all)",
        check=checks.names(),
        allowed="a list of job groups, or None for all",
        help="The job groups that this process runs.",
    ),
    Key(
        name="SINGLEJOB_STORE",
        field="store",
        shown="an SQLite file in `app.instance_path`; `memory://` under `app.testing`",
        check=checks.store,
        allowed="a URL (SQLAlchemy's, redis://, mongodb://, memory://), SQLAlchemy's URL or Engine, "
        "or a Flask-SQLAlchemy db",
        help="Where claims, stored jobs and history are. Several hosts must share one; unset in a production "
        'server, one warning per host says that "cluster" means this host.',
    ),
    Key(
        name="SINGLEJOB_STORE_OPTIONS",
        field="store_options",
        default={},
        check=checks.options,
        allowed="a dict with names as keys",
        help="Keyword arguments for `create_engine`, `redis.from_url` or `MongoClient` (`memory://`: only `clock`). "
        "From the environment one by one: `FLASK_SINGLEJOB_STORE_OPTIONS__pool_recycle=300`.",
    ),
    Key(
        name="SINGLEJOB_TABLE_PREFIX",
        field="table_prefix",
        default="singlejob_",
        check=checks.identifier(longest=32),
        allowed="1 to 32 letters, digits and underscores, the first no digit",
        help="What the names of tables, keys and collections begin with.",
    ),
    Key(
        name="SINGLEJOB_SCHEMA",
        field="schema",
        check=checks.text(longest=63),
        allowed="the name of a schema (up to 63 characters), or None",
        help="The database schema (MySQL, MariaDB: the database) that holds the tables; None is the connection's own. "
        "Not for SQLite, Redis, MongoDB and memory://.",
    ),
    Key(
        name="SINGLEJOB_CREATE_TABLES",
        field="create_tables",
        default=True,
        check=checks.switch,
        allowed=_BOOL,
        help="False: `flask singlejob init-db` or a migration makes the tables. A missing one is a "
        "`StoreError` that says where its DDL is.",
    ),
    Key(
        name="SINGLEJOB_ELECTION",
        field="election",
        default=lambda app: "socket" if sys.platform == "win32" else "file",
        shown='`"file"` (`"socket"` on Windows)',
        check=checks.choice("file", "socket"),
        allowed='"file" or "socket"',
        help="How the workers of a host settle which of them is the owner.",
    ),
    Key(
        name="SINGLEJOB_LOCK_FILE",
        field="lock_file",
        shown="in a private directory of the user, named by the election's identity",
        check=checks.file_path,
        allowed="the path of a file, not of a directory",
        help="The file of a file election. The directory is `$XDG_RUNTIME_DIR`, the temp directory or "
        "`/dev/shm`; the identity is user, cluster, host id, store without password, and prefix. "
        "A relative path is relative to `app.instance_path`.",
    ),
    Key(
        name="SINGLEJOB_ELECTION_PORT",
        field="election_port",
        shown="from the same identity, 47200-48199",
        check=checks.whole_number(least=1, most=65535),
        allowed="a port, 1 to 65535",
        help="The port of a socket election, on 127.0.0.1.",
    ),
    Key(
        name="SINGLEJOB_LEASE",
        field="lease",
        default=30.0,
        check=checks.duration(least=LEASE_LEAST, most=LEASE_MOST),
        allowed=_seconds("1", "86400"),
        help="How long a claim holds without renewal; it is renewed at a third of it. It bounds how long a "
        "killed process blocks its job on another host, not how long a job may take.",
    ),
    Key(
        name="SINGLEJOB_POLL_INTERVAL",
        field="poll_interval",
        default=1.0,
        check=checks.duration(least=0.01, most=3600),
        allowed=_seconds("0.01", "3600") + ", at most the lease",
        help="Until a change made in another process is seen.",
    ),
    Key(
        name="SINGLEJOB_SHUTDOWN_TIMEOUT",
        field="shutdown_timeout",
        default=25.0,
        check=checks.duration(most=86_400),
        allowed=_seconds("0", "86400"),
        help="How long a stopping owner waits for its running jobs. Keep it below the server's own graceful "
        "timeout (gunicorn: 30).",
    ),
    Key(
        name="SINGLEJOB_HISTORY_DAYS",
        field="history_days",
        default=30.0,
        check=checks.days(least=0.001, most=36_500),
        allowed="0.001 to 36500 days (a number), or a timedelta",
        help="Older runs are deleted.",
    ),
    Key(
        name="SINGLEJOB_HISTORY_RUNS",
        field="history_runs",
        default=10_000,
        check=checks.whole_number(least=1, most=1_000_000_000),
        allowed="a whole number, 1 to 1000000000",
        help="Of one job at most so many runs are kept.",
    ),
    Key(
        name="SINGLEJOB_GUARD",
        field="guard",
        check=checks.guard,
        allowed='a view decorator, "module:name" of one, or "public"',
        help="Around every page and action of the dashboard and around the REST API, which cannot be "
        'enabled without it. `"public"` lets anybody in. For the REST API `SCHEDULER_AUTH` serves too.',
    ),
    Key(
        name="SINGLEJOB_DASHBOARD",
        field="dashboard",
        default=False,
        check=checks.switch,
        allowed=_BOOL,
        help="The web page.",
    ),
    Key(
        name="SINGLEJOB_DASHBOARD_PREFIX",
        field="dashboard_prefix",
        default="/singlejob",
        check=checks.url_path,
        allowed=_PATH,
        help="Where the web page is.",
    ),
    Key(
        name="SINGLEJOB_HEALTH_PREFIX",
        field="health_prefix",
        check=checks.url_path,
        allowed=_PATH + ", or None",
        help="Health checks are at `/live`, `/ready` and `/jobs` under it. They need no guard.",
    ),
    Key(
        name="SINGLEJOB_METRICS_PATH",
        field="metrics_path",
        check=checks.url_path,
        allowed=_PATH + ", or None",
        help="Prometheus metrics are at it. They need no guard.",
    ),
    Key(
        name="SCHEDULER_TIMEZONE",
        field="scheduler_timezone",
        shown="the host's zone, pinned for the cluster by its first owner",
        check=checks.zone,
        allowed="the name of a time zone, or a tzinfo",
        help="The time zone of triggers that name none.",
    ),
    Key(
        name="SCHEDULER_EXECUTORS",
        field="scheduler_executors",
        default={},
        check=scheduler_checks.executors,
        allowed="a dict of APScheduler executors (alias to instance or dict), no process pool",
        help="The thread pools that run jobs.",
    ),
    Key(
        name="SCHEDULER_JOB_DEFAULTS",
        field="scheduler_job_defaults",
        default={},
        check=scheduler_checks.job_defaults,
        allowed="a dict with " + ", ".join(JOB_OPTIONS),
        help="What a job takes that does not say otherwise.",
    ),
    Key(
        name="SCHEDULER_JOBSTORES",
        field="",
        shown="none",
        check=scheduler_checks.jobstores,
        allowed="nothing (or memory job stores, which change nothing)",
        help="Has no part left. `flask singlejob import-jobs URL` reads an old job store once.",
    ),
    Key(
        name="SCHEDULER_JOBS",
        field="scheduler_jobs",
        default=(),
        shown="`JOBS`, else none",
        check=scheduler_checks.job_list,
        allowed="a list of dicts, each with the arguments of add_job",
        help="Jobs defined by the configuration.",
    ),
    Key(
        name="SCHEDULER_API_ENABLED",
        field="api_enabled",
        default=False,
        check=checks.switch,
        allowed=_BOOL,
        help="The REST API. `SCHEDULER_VIEWS_ENABLED` is its old name.",
    ),
    Key(
        name="SCHEDULER_API_PREFIX",
        field="api_prefix",
        default="/scheduler",
        check=checks.url_path,
        allowed=_PATH,
        help="Where the REST API is.",
    ),
    Key(
        name="SCHEDULER_ENDPOINT_PREFIX",
        field="endpoint_prefix",
        default="scheduler.",
        check=scheduler_checks.endpoint_prefix,
        allowed="a text",
        help="What the names of the REST API's endpoints begin with.",
    ),
    Key(
        name="SCHEDULER_AUTH",
        field="auth",
        check=scheduler_checks.auth,
        allowed="an instance of a Flask-APScheduler auth class, or None",
        help="Reads the credentials of REST API requests for the function given to `authenticate`.",
    ),
    Key(
        name="SCHEDULER_ALLOWED_HOSTS",
        field="allowed_hosts",
        default=["*"],
        check=checks.names(star=True),
        allowed='a list of host names, or ["*"] for all',
        help="On a host that it leaves out this is as `SINGLEJOB_ENABLED = False`.",
    ),
)
