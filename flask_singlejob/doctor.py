"""What goes wrong in the field, looked for on purpose: each finding with its severity and its cure.

Reads the election's files, the store and what hosts tell of themselves; one trial document apart it changes
nothing. What it cannot see (another user's lock, a host that is away) it says or leaves out, never guesses.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from . import doctor_cluster
from .election import FileElector, SocketElector, private_directory
from .errors import SingleJobError, StoreError
from .records import Doc
from .status import unusable
from .surroundings import container_platform

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Finding", "examine", "tables_missing"]

Severity = Literal["error", "warning", "note"]
_ORDER = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    :param severity: ``error`` (jobs do not run, or not once), ``warning`` (they may not), ``note``.
    :param check: what was looked at: ``lock``, ``port``, ``store``, ``tables``, ``clock``, ``zone``, ``hosts``,
        ``server``, ``jobs``.
    :param finding: one sentence.
    :param cure: what to do about it.
    """

    severity: Severity
    check: str
    finding: str
    cure: str

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON-ready text."""
        return asdict(self)


def tables_missing(error: StoreError) -> bool:
    """Tell whether the store answers but its tables are not there."""
    return "tables" in str(error) and "are missing" in str(error)


def examine(engine: Engine) -> list[Finding]:
    """Return everything that was found, errors first; a store that is away is one of the findings."""
    found = list(_configuration(engine))
    found += _election(engine)
    docs, now = None, 0
    try:
        poll = engine.store.poll()
        docs, now = engine.store.docs("host"), poll.now
    except StoreError as error:
        found.append(_store_trouble(engine, error))
    except SingleJobError as error:
        found.append(Finding("error", "store", str(error), "Correct SINGLEJOB_STORE, or install its driver."))
    except Exception as error:
        cure = "Correct SINGLEJOB_STORE or SINGLEJOB_STORE_OPTIONS."
        found.append(Finding("error", "store", str(unusable(error)), cure))
    if docs is not None:
        for part in (_store, lambda engine: _lock_of_other_user(engine, docs, now)):
            found += _guarded(part, engine)
        for name, look in doctor_cluster.LOOKS.items():
            told = look(engine, docs, now)
            found += _guarded(lambda _, told=told: (Finding(*one) for one in told), engine, name)  # type: ignore[misc]
    return sorted(dict.fromkeys(found), key=lambda finding: _ORDER[finding.severity])


def _guarded(
    part: Callable[[Engine], Iterator[Finding]], engine: Engine, name: str = "store"
) -> list[Finding]:
    """Return a part's findings; the store may go away in the midst of it."""
    try:
        return list(part(engine))
    except SingleJobError as error:
        return [Finding("error", name, str(error), "Make it answer and look again.")]


# -- configuration and store -----------------------------------------------------------------------------


def _configuration(engine: Engine) -> Iterator[Finding]:
    settings = engine.settings
    if not settings.enabled:
        yield Finding(
            "warning",
            "hosts",
            "SINGLEJOB_ENABLED is False: processes with this configuration run no job by schedule.",
            "Set it to true where jobs shall run.",
        )
    if "*" not in settings.allowed_hosts and settings.host_id not in settings.allowed_hosts:
        yield Finding(
            "warning",
            "hosts",
            f"Host {settings.host_id!r} is not among SCHEDULER_ALLOWED_HOSTS ({', '.join(settings.allowed_hosts)}): "
            "it runs no job by schedule.",
            "Add it there, or remove the key: one owner per host is kept without it.",
        )
    platform = container_platform()
    with contextlib.suppress(Exception):
        if engine.store.identity.startswith("memory://") and not engine.app.testing:
            yield Finding(
                "error",
                "store",
                "The store is memory://, which each process has for itself: under a server with several workers every job "
                "runs once per worker, and no command sees what a worker does.",
                "Set SINGLEJOB_STORE to a database, or leave it out for an SQLite file.",
            )
        elif engine.store.local and platform is not None:
            yield Finding(
                "error",
                "store",
                f"This process runs on {platform} and its store, {engine.describe_store()}, is local to one host: with a "
                "second replica each job runs twice, and the history goes with the container.",
                "Set SINGLEJOB_STORE to a database that all replicas share.",
            )
        elif settings.store_is_default:
            yield Finding(
                "note",
                "store",
                f"SINGLEJOB_STORE is not set: jobs run once on this host only ({engine.describe_store()}).",
                "Set it to a shared database when there is a second host.",
            )


def _store_trouble(engine: Engine, error: StoreError) -> Finding:
    if not tables_missing(error):
        return Finding(
            "error",
            "store",
            f"The store does not answer: {error}",
            "Start it, or correct SINGLEJOB_STORE and the network.",
        )
    if engine.settings.create_tables:
        return Finding(
            "warning",
            "tables",
            f"The store's tables are missing: {error}",
            "The first worker makes them; or run 'flask singlejob init-db'.",
        )
    return Finding(
        "error",
        "tables",
        f"The store's tables are missing, and SINGLEJOB_CREATE_TABLES is False: {error}",
        "Run 'flask singlejob init-db', or the statements of 'flask singlejob init-db --sql'.",
    )


def _store(engine: Engine) -> Iterator[Finding]:
    store = engine.store
    trial = uuid.uuid4().hex
    try:
        store.put("doctor", trial, {"by": engine.settings.host_id}, quiet=True)
        store.delete("doctor", trial, quiet=True)
    except StoreError as error:
        yield Finding(
            "error",
            "store",
            f"The store can be read but not written: {error}",
            "Give its user SELECT, INSERT, UPDATE and DELETE, and point the store at a server that takes writes.",
        )
    for finding, cure in store.checks():
        yield Finding("warning", "store", finding, cure)


# -- election ----------------------------------------------------------------------------------------------


def _election(engine: Engine) -> Iterator[Finding]:
    try:
        elector = engine.elector or engine.make_elector(engine.store)
    except Exception:
        return  # the store's finding tells
    if isinstance(elector, FileElector):
        yield from _lock_file(engine, elector)
    elif isinstance(elector, SocketElector):
        yield from _port(elector)


def _lock_file(engine: Engine, elector: FileElector) -> Iterator[Finding]:
    try:
        path = elector.path
    except OSError as error:
        yield Finding("error", "lock", f"{error}.", "Set SINGLEJOB_LOCK_FILE to a file in such a directory.")
        return
    directory = os.path.dirname(path)
    default = engine.settings.lock_file is None
    yield from _directory(directory, default)
    yield from _file(path)
    kind = _file_system(directory)
    if kind is None:
        return
    from .stores.sql_checks import NETWORK_FILE_SYSTEMS

    if kind in NETWORK_FILE_SYSTEMS:
        yield Finding(
            "error",
            "lock",
            f"The lock file {path} is on a network file system ({kind}), where hosts share one lock or none.",
            "Set SINGLEJOB_LOCK_FILE to a file on a local disk or in /dev/shm.",
        )
    elif kind in ("overlay", "aufs", "fuse-overlayfs") and engine.settings.host_id_is_default:
        yield Finding(
            "note",
            "lock",
            f"The lock file is in a container's own file system ({kind}): each container counts as a host, named by its "
            "host name.",
            "Nothing, while each container has a host name of its own; else set SINGLEJOB_HOST_ID.",
        )


def _directory(directory: str, default: bool) -> Iterator[Finding]:
    try:
        status = os.stat(directory)
    except FileNotFoundError:
        parent = os.path.dirname(directory)
        while parent and not os.path.exists(parent) and parent != os.path.dirname(parent):
            parent = os.path.dirname(parent)
        if not os.access(parent, os.W_OK | os.X_OK):
            yield Finding(
                "error",
                "lock",
                f"The lock's directory {directory} is not there and this user may not make it in {parent}.",
                "Make it, of mode 0700, for the user of the web app; or set SINGLEJOB_LOCK_FILE.",
            )
        return
    except OSError as error:
        yield Finding(
            "error", "lock", f"The lock's directory cannot be looked at: {error}.", "Set SINGLEJOB_LOCK_FILE."
        )
        return
    mode = stat.S_IMODE(status.st_mode)
    user = os.geteuid() if hasattr(os, "geteuid") else status.st_uid
    if not os.access(directory, os.W_OK | os.X_OK):
        yield Finding(
            "error",
            "lock",
            f"The lock's directory {directory} (owner {status.st_uid}, mode {mode:04o}) cannot be written by this user "
            f"({user}).",
            "Give it to the user of the web app, or set SINGLEJOB_LOCK_FILE.",
        )
    elif mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield Finding(
            "error",
            "lock",
            f"Every user can replace files in the lock's directory {directory} (mode {mode:04o}).",
            f"chmod o-w {directory}, or set SINGLEJOB_LOCK_FILE to a file in a private directory.",
        )
    elif default and (mode & 0o022 or status.st_uid not in (user, 0)):
        yield Finding(
            "warning",
            "lock",
            f"The lock's directory {directory} is not this user's alone (owner {status.st_uid}, mode {mode:04o}).",
            f"chmod 0700 {directory}, or set SINGLEJOB_LOCK_FILE.",
        )


def _file(path: str) -> Iterator[Finding]:
    try:
        status = os.lstat(path)
    except OSError:
        return
    user = os.geteuid() if hasattr(os, "geteuid") else status.st_uid
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "is no regular file" + (" but a symbolic link" if stat.S_ISLNK(status.st_mode) else "")
    elif status.st_uid != user:
        problem = f"belongs to user {status.st_uid}; this process's user is {user}"
    elif status.st_nlink > 1:
        problem = f"has {status.st_nlink} names (hard links)"
    elif status.st_mode & 0o077:
        problem = f"is open to other users (mode {stat.S_IMODE(status.st_mode):04o})"
    if problem is not None:
        yield Finding(
            "error",
            "lock",
            f"The lock file {path} {problem}.",
            "Run this as the user of the web app; if the file is not its own, remove it.",
        )


def _file_system(directory: str) -> str | None:
    from pathlib import Path

    from .stores.sql_checks import file_system_of

    return file_system_of(Path(directory))


def _port(elector: SocketElector) -> Iterator[Finding]:
    try:
        seen = elector.look()
    except OSError as error:
        yield Finding(
            "error", "port", f"{error}.", "Set SINGLEJOB_ELECTION_PORT to a port that this user may use."
        )
        return
    if seen.get("stranger"):
        yield Finding(
            "error",
            "port",
            f"Port {elector.port}, by which this host elects its owner, is taken by {seen['stranger']}.",
            "Set SINGLEJOB_ELECTION_PORT to a free port, the same for every worker of this app on this host.",
        )


def _lock_of_other_user(engine: Engine, docs: list[Doc], now: int) -> Iterator[Finding]:
    """Tell when the store knows a living owner of this host and kernel whose lock this user does not see."""
    from .election import instance_tag
    from .hosts import living_hosts
    from .status import election_dict

    seen = election_dict(engine)
    own = [
        doc
        for doc in living_hosts(docs, now)
        if doc.body.get("host") == engine.settings.host_id and doc.body.get("machine") == instance_tag()
    ]
    if seen.get("held") is False and own:
        with contextlib.suppress(OSError):
            yield Finding(
                "warning",
                "lock",
                f"Host {engine.settings.host_id!r} has an owner (pid {own[0].body.get('pid')}) whose lock is not to be seen "
                f"from here ({seen.get('place')}): that process has another user, environment or container "
                f"(private directory here: {private_directory()}).",
                "Run the commands as the user of the web app and with its environment, or set SINGLEJOB_LOCK_FILE.",
            )
    elif seen.get("held") is False and engine.settings.enabled:
        yield Finding(
            "warning",
            "hosts",
            f"Host {engine.settings.host_id!r} has no owner: no worker of it runs the schedule.",
            "Start the web app, or 'flask singlejob scheduler'.",
        )
    elif seen.get("held") and not own:
        yield Finding(
            "warning",
            "hosts",
            f"The owner of host {engine.settings.host_id!r} (pid {seen.get('pid')}) holds its lock but has told the "
            "store nothing for some time: it is starting, stopped (SIGSTOP), stuck, or cut off from the store.",
            "Look at its log and at 'flask singlejob health'; restart it if it does not recover.",
        )
