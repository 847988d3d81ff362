"""Where an election's files lie and what they are called: a private directory of this user on this host.

Chooses by looking only; whoever opens a file makes the directory and checks it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import sys
import tempfile

__all__ = [
    "LOCK_FILE_KEY",
    "alive_directory",
    "instance_tag",
    "lock_path",
    "make_private_directory",
    "private_directory",
    "user_id",
]

logger = logging.getLogger(__name__)

LOCK_FILE_KEY = "SINGLEJOB_LOCK_FILE"
_NAME_LIMIT = 120
_DEV_SHM = "/dev/shm"
_complained: set[str] = set()


def user_id() -> int | None:
    """Return the effective user of this process, or None where the system has no such numbers."""
    return os.geteuid() if sys.platform != "win32" else None


def instance_tag() -> str:
    """Return 12 hex digits that name this kernel since its last start.

    Locks on files tell the truth among processes of one kernel only: what carries another tag is not
    judged by them.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        text = ""
    if not text:
        import platform

        text = platform.node()
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def private_directory() -> str:
    """Return this user's directory for locks, without making it.

    It lies in the first usable of ``$XDG_RUNTIME_DIR``, the temp directory and ``/dev/shm``.

    :raises OSError: when none of them is usable; the message names them and the cure.
    """
    reasons = []
    for base in _bases():
        path = os.path.join(base, _directory_name())
        problem = _why_not(base, path)
        if problem is None:
            return path
        reasons.append(problem)
        if os.path.lexists(path) and problem not in _complained:
            # Somebody else may have made it on purpose: said once, never passed over in silence.
            _complained.add(problem)
            logger.warning("%s; looking for another place for the lock", problem)
    raise OSError(
        f"no place for the lock file: {'; '.join(reasons)}. "
        f"Set {LOCK_FILE_KEY} to a file in a directory that this user can write"
    )


def make_private_directory(path: str) -> None:
    """Make a directory, and every one above it that is missing, of mode 0700, and check that it is this user's alone.

    What others could read, not write, is closed to them.

    :raises OSError: when it cannot be made or others could tamper with it.
    """
    above = os.path.dirname(path)
    if above != path and not os.path.isdir(above):
        make_private_directory(above)
    # os.makedirs would give its mode to the last one only: the others would be open to other users.
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode=0o700)
    problem = _why_not_private(path)
    if problem is not None:
        raise PermissionError(problem)
    if os.lstat(path).st_mode & 0o077 and user_id() is not None:
        os.chmod(path, 0o700)


def lock_path(identity: str) -> str:
    """Return the default lock file of an election: the same for every worker of this user on this host.

    :param identity: what tells this election from others.
    :raises OSError: when there is no usable place.
    """
    return os.path.join(private_directory(), file_name(identity, ".lock"))


def alive_directory(lock_file: str | None = None) -> str:
    """Return the directory of the files that prove this host's processes dead, without making it.

    :param lock_file: an explicitly configured lock file; the directory then lies beside it.
    :raises OSError: when there is no usable place.
    """
    if lock_file is not None:
        return os.path.join(os.path.dirname(os.path.abspath(lock_file)), "singlejob-alive")
    return os.path.join(private_directory(), "alive")


def file_name(identity: str, suffix: str) -> str:
    """Return a file name with a readable beginning and a hash of the whole identity."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", identity).strip("-.")
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    room = _NAME_LIMIT - len(digest) - len(suffix) - 1
    return f"{readable[:room].rstrip('-.') or 'singlejob'}-{digest}{suffix}"


def _directory_name() -> str:
    user = user_id()
    return f"flask-singlejob-{user if user is not None else 'user'}"


def _bases() -> list[str]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    found = [runtime] if runtime and os.path.isabs(runtime) else []
    # Without a temp directory that can be written another base may do.
    with contextlib.suppress(OSError):
        found.append(tempfile.gettempdir())
    if os.path.isdir(_DEV_SHM):
        found.append(_DEV_SHM)
    return found


def _why_not(base: str, path: str) -> str | None:
    if os.path.lexists(path):
        problem = _why_not_private(path)
        if problem is None and not os.access(path, os.W_OK | os.X_OK):
            return f"{path} is not writable"
        return problem
    if not os.path.isdir(base):
        return f"{base} is no directory"
    if not os.access(base, os.W_OK | os.X_OK):
        return f"{base} is not writable"
    return None


def _why_not_private(path: str) -> str | None:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a symbolic link; remove it"
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is no directory; remove it"
    user = user_id()
    if user is None:
        return None
    if status.st_uid != user:
        return f"{path} belongs to user {status.st_uid}, not to this process's user {user}; remove it"
    if status.st_mode & 0o022:
        return f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}); chmod it to 0700"
    return None
