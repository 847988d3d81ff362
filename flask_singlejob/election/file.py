"""The election by a locked file: the kernel frees it at its owner's death and wakes a waiter.

The lock is ``flock`` on an open file. What the file holds decides nothing, it only tells a person
who owns it. The kernel's word holds on one host; a waiter that is blocked while the owner is
*frozen* and the file is replaced stays blocked on the old file until the owner ends or goes on.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, Final

from .. import forks
from . import places
from .base import Elector
from .native import original

if sys.platform != "win32":
    import fcntl

__all__ = ["FileElector", "probe"]

_BUSY: Final = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_CURE: Final = f"set {places.LOCK_FILE_KEY} to a file of its own in a directory that only this user can write"
_TOUCH_SECONDS: Final = 60.0
_PROBE_TRIES: Final = 50
_MARK: Final = "singlejob"


class FileElector(Elector):
    """An election for one file.

    :param path: the lock file; None: the default place of ``identity``, found at its first use, since
        user and environment may still change between the making of an app and its serving.
    :param identity: what tells this election from others; needed without ``path``.
    :param instance: the random name of this process, for :func:`probe`.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, identity: str = "", instance: str | None = None
    ) -> None:
        if path is None and not identity:
            raise ValueError("FileElector needs a path or an identity")
        self._explicit = None if path is None else os.path.abspath(os.fspath(path))
        self._identity = identity
        self._instance = instance
        self._default: str | None = None
        self._held: int | None = None
        self._waiting: int | None = None
        # Native, since a waiter may be a thread that a hub knows nothing of; re-entrant, since a signal
        # handler may cancel what its own thread is doing.
        self._guard = original("_thread", "RLock")()
        self._pid = os.getpid()
        self._cancelled = False
        self._touched = 0.0
        forks.watch(self)

    @property
    def path(self) -> str:
        """The lock file.

        :raises OSError: when there is no usable place for the default one.
        """
        if self._explicit is not None:
            return self._explicit
        if self._default is None:
            self._default = places.lock_path(self._identity)
        return self._default

    def describe(self) -> str:
        try:
            return f"lock file {self.path}"
        except OSError as error:
            return str(error)

    def try_acquire(self) -> bool:
        if self._held is not None:
            return True
        self._take_cancel()
        for _ in range(_PROBE_TRIES):
            with self._opened() as fd:
                if _lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, self.path):
                    if self._take(fd):
                        return True
                    continue
                if not _lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, self.path):
                    self._refuse_other_kernel(fd)
                    return False
                # Nobody owns it, somebody was only looking.
                fcntl.flock(fd, fcntl.LOCK_UN)
        return False

    def wait_acquire(self) -> bool:
        if self._held is not None:
            return True
        while not self._take_cancel():
            try:
                with self._opened() as fd:
                    if not _lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, self.path):
                        self._refuse_other_kernel(fd)
                        _lock(fd, fcntl.LOCK_EX, self.path)
                    # Not taken: the file was deleted or replaced while we waited, go for the new one.
                    if self._take(fd):
                        return True
            except OSError:
                # A descriptor that was replaced under us by cancel() is no trouble.
                if not self._cancelled:
                    raise
        return False

    def cancel(self) -> None:
        # Nothing can wake a thread that is blocked for a lock. But when its descriptor is replaced, the
        # kernel's own use of the file is the last, and a lock granted later is freed in the same moment,
        # even where the process is ending and the thread never runs again.
        with self._guard:
            self._cancelled = True
            self._replace_waiting()

    def still_held(self) -> bool:
        fd = self._held
        if fd is None or self._pid != os.getpid():
            return False
        try:
            if not _same_file(fd, self.path):
                return False
            now = time.monotonic()
            if now - self._touched >= _TOUCH_SECONDS:
                # Cleaners of temp directories delete what looks old.
                self._touched = now
                os.utime(fd)
        except OSError:
            # Fail closed: what cannot be looked at cannot be known to be ours.
            return False
        return True

    def release(self) -> None:
        fd, self._held = self._held, None
        if fd is None:
            return
        if self._pid == os.getpid():
            # Frees it even where a child that knows nothing of us keeps a copy.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(fd)

    def after_fork(self) -> None:
        for fd in (self._held, self._waiting):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._held = self._waiting = None
        self._default = None
        self._guard = original("_thread", "RLock")()
        self._pid = os.getpid()
        self._cancelled = False

    # -- within -------------------------------------------------------------------------------

    def _take_cancel(self) -> bool:
        with self._guard:
            cancelled, self._cancelled = self._cancelled, False
            return cancelled

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        while True:
            forked = forks.fork_count()
            fd = _open(self.path, make_directory=self._explicit is None)
            with self._guard:
                self._waiting = fd
                if self._cancelled:
                    self._replace_waiting()
            if forked == forks.fork_count():
                break
            # A child forked just now may have a copy that nobody closes.
            self._close_waiting()
        try:
            yield fd
        finally:
            self._close_waiting()

    def _replace_waiting(self) -> None:
        if self._waiting is None:
            return
        ends = os.pipe()
        try:
            os.dup2(ends[0], self._waiting, inheritable=False)
        finally:
            for end in ends:
                os.close(end)

    def _close_waiting(self) -> None:
        with self._guard:
            fd, self._waiting = self._waiting, None
            if fd is not None:
                os.close(fd)

    def _take(self, fd: int) -> bool:
        try:
            if not _same_file(fd, self.path):
                return False
        except FileNotFoundError:
            return False
        _check_locks_work(fd, self.path)
        with self._guard:
            if self._cancelled or self._waiting is None:
                return False
            self._held, self._waiting = fd, None
        self._touched = time.monotonic()
        self._sign(fd)
        return True

    def _sign(self, fd: int) -> None:
        # For people and pages only: a full disk must not cost the election.
        with contextlib.suppress(OSError, ValueError):
            old = os.pread(fd, 4096, 0)
            if old and _read_signature(old) is None and not old.startswith(b'{"' + _MARK.encode()):
                return  # somebody's file: hold it, but leave its content alone
            signature = {
                _MARK: 1,
                "pid": os.getpid(),
                "instance": self._instance,
                "since": datetime.now(timezone.utc).isoformat(),
                "kernel": places.instance_tag(),
            }
            text = json.dumps(signature).encode() + b"\n"
            os.pwrite(fd, text, 0)
            os.ftruncate(fd, len(text))

    def _refuse_other_kernel(self, fd: int) -> None:
        ours = places.instance_tag()
        for _ in range(5):
            signature = _read_signature(os.pread(fd, 4096, 0))
            if signature is None or signature.get("kernel") in (None, ours):
                return
            # An owner that took it this instant has not signed yet.
            _sleep(0.05)
            if not _is_locked(fd, self.path):
                return
        raise OSError(
            errno.ENOLCK,
            f"lock file {self.path} is held by a process of another host: each host needs its own owner; "
            f"set {places.LOCK_FILE_KEY} to a file that is not shared between hosts",
        )


def probe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Tell who holds a lock file, by trying its lock without disturbing anybody.

    :returns: ``held`` and, when it is, what its holder wrote: ``pid``, ``instance``, ``since`` (text) and
        ``kernel``, each None when unknown.
    :raises OSError: when the file is there and cannot be looked at.
    """
    path = os.fspath(path)
    answer: dict[str, Any] = {"held": False, "pid": None, "instance": None, "since": None, "kernel": None}
    flags = (
        os.O_RDONLY
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_CLOEXEC", 0)
    )
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        return answer
    try:
        if _is_locked(fd, path):
            answer["held"] = True
            signature = _read_signature(os.pread(fd, 4096, 0)) or {}
            answer.update({key: signature.get(key) for key in ("pid", "instance", "since", "kernel")})
    finally:
        os.close(fd)
    return answer


def _is_locked(fd: int, path: str) -> bool:
    """Tell whether somebody owns the lock, by sharing it for an instant: lookers exclude no lookers."""
    if not _lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, path):
        return True
    # Our own description: unlock rather than only close, a child forked just now has a copy.
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _open(path: str, *, make_directory: bool) -> int:
    if sys.platform == "win32":
        raise OSError("there is no election by file on Windows; set SINGLEJOB_ELECTION to 'socket'")
    directory = os.path.dirname(path)
    try:
        if make_directory:
            places.make_private_directory(directory)
        else:
            _check_directory(directory)
        # Non-blocking: opening a FIFO must not hang. Never truncated: it may turn out to be another's file.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise _explained(error, path) from error
    try:
        _check_file(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_directory(directory: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.makedirs(directory, mode=0o700, exist_ok=True)
    mode = os.stat(directory).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise PermissionError(
            errno.EPERM, f"every user can replace files in {directory}", os.path.join(directory, "")
        )


def _check_file(fd: int, path: str) -> None:
    status = os.fstat(fd)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "is no regular file"
    elif status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}, not to this process's user {os.geteuid()}"
    elif status.st_nlink > 1:
        problem = f"has {status.st_nlink} names (hard links)"
    if problem is not None:
        raise OSError(errno.EPERM, f"lock file {path} {problem}; remove it, or {_CURE}")
    if status.st_mode & 0o077:
        # Whoever can open it can lock it.
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o600)


def _check_locks_work(fd: int, path: str) -> None:
    try:
        other = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return  # deleted this instant: still_held() will tell
    try:
        if _same_file(fd, path) and not _is_locked(other, path):
            raise OSError(
                errno.ENOLCK,
                f"lock file {path} lies on a file system that does not keep locks apart; "
                f"set {places.LOCK_FILE_KEY} to a file on a local disk or in /dev/shm",
            )
    except FileNotFoundError:
        return
    finally:
        os.close(other)


def _lock(fd: int, operation: int, path: str) -> bool:
    try:
        fcntl.flock(fd, operation)
    except OSError as error:
        if operation & fcntl.LOCK_NB and error.errno in _BUSY:
            return False
        raise OSError(
            error.errno,
            f"lock file {path} cannot be locked ({error.strerror}); "
            f"set {places.LOCK_FILE_KEY} to a file on a local disk or in /dev/shm",
        ) from error
    return True


def _same_file(fd: int, path: str) -> bool:
    here, there = os.fstat(fd), os.stat(path, follow_symlinks=False)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _read_signature(content: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) and _MARK in value else None


def _explained(error: OSError, path: str) -> OSError:
    reasons = {
        errno.ELOOP: "it is a symbolic link, or its path has too many of them",
        errno.EISDIR: "it is a directory",
        errno.EACCES: "this user may not write it",
        errno.EROFS: "its file system is read-only",
        errno.ENOSPC: "its disk is full",
        errno.EDQUOT: "this user's disk quota is used up",
        errno.ENAMETOOLONG: "its name is too long",
        errno.ENXIO: "it is no regular file",
    }
    reason = reasons.get(error.errno or 0) or error.strerror or str(error)
    return type(error)(error.errno or errno.EPERM, f"lock file {path} cannot be opened: {reason}; {_CURE}")


def _sleep(seconds: float) -> None:
    # Runs in a native thread under gevent and eventlet too, where time.sleep belongs to the hub.
    original("time", "sleep")(seconds)
