"""Proof of death on the own host: a file that a process keeps locked for as long as it lives.

Whoever can lock it knows that the process is gone: no pid, no reuse, no namespaces. Proves nothing
of processes of another kernel, and nothing by a missing file.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from .. import forks
from . import places

if sys.platform != "win32":
    import fcntl

__all__ = ["AliveFile"]

_SUFFIX = ".alive"
_NEW = ".new"


class AliveFile:
    """This process's own file, and the look at those of others.

    :param directory: one that this host's processes share; made (mode 0700) when it is needed.
    :param instance: the random name of this process: letters, digits, ``-`` and ``_``.
    """

    def __init__(self, directory: str | os.PathLike[str], instance: str) -> None:
        self.directory = os.path.abspath(os.fspath(directory))
        self.instance = instance
        self._fd: int | None = None
        forks.watch(self)

    @property
    def path(self) -> str:
        """The file of this process."""
        return self._path(self.instance)

    @property
    def held(self) -> bool:
        """Whether this process has its file."""
        return self._fd is not None

    def acquire(self) -> bool:
        """Make and lock this process's file; make it again when it was deleted. Harmless when all is well.

        :returns: False where the system has no such locks: then nothing can be proven.
        :raises OSError: when the file cannot be made.
        """
        if sys.platform == "win32":
            return False
        if self._fd is not None and self._is_in_place(self._fd):
            with contextlib.suppress(OSError):
                os.utime(self._fd)
            return True
        places.make_private_directory(self.directory)
        new = self.path + _NEW
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        while True:
            forked = forks.fork_count()
            fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if forked == forks.fork_count():
                break
            os.close(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It gets its name when it is locked: under that name it is never seen unlocked while we live.
            os.rename(new, self.path)
        except BaseException:
            os.close(fd)
            raise
        old, self._fd = self._fd, fd
        if old is not None:
            os.close(old)
        return True

    def is_dead(self, instance: str, *, tag: str | None = None) -> bool:
        """Tell whether a process is proven dead; False whenever that cannot be known.

        :param instance: its random name.
        :param tag: its :func:`~flask_singlejob.election.places.instance_tag`, when known.
        """
        if sys.platform == "win32" or instance == self.instance or not _is_plain(instance):
            return False
        if tag is not None and tag != places.instance_tag():
            return False
        return self._lockable(self._path(instance))

    def tell(self, what: Mapping[str, Any]) -> None:
        """Write what this process is into its file, for those who look; nothing is decided by it."""
        fd = self._fd
        if fd is None:
            return
        data = json.dumps(what).encode()
        with contextlib.suppress(OSError):
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))

    def living(self) -> list[dict[str, Any]]:
        """Return what the living processes of this directory, this one among them, told of themselves."""
        found: list[dict[str, Any]] = []
        ours = places.instance_tag() + "-"
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.directory):
                if not entry.name.startswith(ours) or not entry.name.endswith(_SUFFIX):
                    continue
                if entry.path != self.path and self._lockable(entry.path):
                    continue
                with contextlib.suppress(OSError, ValueError), open(entry.path, encoding="utf-8") as file:
                    told = json.load(file)
                    if isinstance(told, dict):
                        found.append(told)
        return found

    def sweep(self, *, older_than_seconds: float = 86400.0) -> int:
        """Remove the files of processes proven dead whose last touch is so many seconds ago.

        :returns: how many were removed.
        """
        removed = 0
        ours = places.instance_tag() + "-"
        now = time.time()
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.directory):
                name = entry.name
                if not name.endswith((_SUFFIX, _SUFFIX + _NEW)) or entry.path == self.path:
                    continue
                with contextlib.suppress(OSError):
                    if now - entry.stat(follow_symlinks=False).st_mtime < older_than_seconds:
                        continue
                    # Of an earlier start of this kernel nobody can be alive; of another host we know
                    # nothing, but its living processes keep their files young.
                    if not name.startswith(ours) or self._lockable(entry.path):
                        os.unlink(entry.path)
                        removed += 1
        return removed

    def release(self) -> None:
        """Remove this process's file: its claims are ended, nothing is left to prove."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        with contextlib.suppress(OSError):
            if self._is_in_place(fd):
                os.unlink(self.path)
        os.close(fd)

    def after_fork(self) -> None:
        """Close a forked child's copy, which would keep its dead parent alive."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _path(self, instance: str) -> str:
        return os.path.join(self.directory, f"{places.instance_tag()}-{instance}{_SUFFIX}")

    def _is_in_place(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path, follow_symlinks=False))
        except OSError:
            return False

    @staticmethod
    def _lockable(path: str) -> bool:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def _is_plain(instance: str) -> bool:
    return bool(instance) and all(char.isalnum() or char in "-_" for char in instance)
