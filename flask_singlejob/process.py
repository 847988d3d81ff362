"""What this process is, and when it serves: the one place that tells each app to campaign or to leave.

Servers report to the :class:`Process` of this process through ``servers.py``. Correctness never
hangs on a signal or an exit hook: the kernel frees what a dead process held; they only make it quick.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from . import forks, preload, programs, servers

__all__ = [
    "Process",
    "Role",
    "Served",
    "Standing",
    "attach",
    "current_role",
    "note_request",
    "note_started",
    "stopping",
    "this",
    "trouble",
]

logger = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 0.5


class Role(str, Enum):
    """What a process is."""

    SERVING = "serving"
    STARTING = "starting"
    SCRIPT = "script"
    UNKNOWN = "unknown"
    PRELOAD_MASTER = "preload master"
    RELOADER_PARENT = "reloader's parent"
    COMMAND = "command"
    TASK_QUEUE = "task queue"
    FORKED_CHILD = "forked child"

    def __str__(self) -> str:
        return self.value

    @property
    def may_campaign(self) -> bool:
        """Whether ``start()`` campaigns without force. (STARTING: by itself, in a moment.)"""
        return self in (Role.SERVING, Role.STARTING, Role.SCRIPT, Role.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Standing:
    """A role and, in words that complete "this process is …", why."""

    role: Role
    reason: str


class Served(Protocol):
    """One app of this process."""

    def serve(self, reason: str) -> None:
        """Begin to campaign, if that is wanted: this process serves. Called again and again."""

    def told_to_stop(self, quick: bool) -> None:
        """Hand over: the worker was told to stop. Called in a signal handler: no lock, no log, no wait."""

    def leave(self, quick: bool) -> None:
        """Leave for good: the worker is done. May wait for running jobs unless ``quick``."""

    def after_fork(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""


#: Why a process stops whose server came to its end by itself.
_ENDED = "the server has ended"


class Process:
    """The state of one process: its apps, and whether it serves."""

    def __init__(self) -> None:
        # A tuple that is replaced, never changed: a signal handler may read it at any time.
        self._served: tuple[weakref.ReferenceType[Served], ...] = ()
        self._hooked = False
        #: True in a process that workers are forked from, where they can use what it has imported.
        self.may_import_ahead = False
        self._reset()

    def _reset(self) -> None:
        self._depth = 0
        self._serving: str | None = None
        self._by_hand = False
        self._stopping: str | None = None
        self._quick = False
        self._marked: Standing | None = None
        self._parent_served = False
        self._is_fork = False
        self._keep_alive: Callable[[], None] | None = None
        self._is_stopping: Callable[[], str | None] | None = None
        self._trouble: str | None = None

    # -- for the extension --------------------------------------------------------------------

    def attach(self, served: Served) -> None:
        """Take an app in (weakly) and look which server this is; called at ``init_app``."""
        living = tuple(ref for ref in self._served if ref() is not None)
        if all(ref() is not served for ref in living):
            living += (weakref.ref(served),)
        self._served = living
        if not self._hooked:
            self._hooked = True
            forks.watch(self)
            atexit.register(self._at_exit)
        servers.hook(self)

    def current_role(self) -> Standing:
        """Return what this process is now; nothing is started or changed."""
        if self._serving is not None:
            return Standing(Role.SERVING, self._serving)
        if self._is_fork and self._parent_served:
            return Standing(Role.FORKED_CHILD, "a child forked by a process that serves or runs jobs")
        seen = servers.seen_from_here()
        if seen is not None:
            return Standing(Role.STARTING if seen.is_worker else Role.PRELOAD_MASTER, seen.reason)
        if self._marked is not None:
            if self._is_fork:
                return Standing(Role.FORKED_CHILD, f"a child forked by {self._marked.reason}")
            return self._marked
        queue = programs.task_queue()
        if queue is not None:
            return Standing(Role.TASK_QUEUE, f"a worker of the task queue {queue}")
        command = programs.flask_command()
        if command is not None:
            if command == "run":
                return Standing(Role.STARTING, "the command 'flask run' before its server runs")
            return Standing(Role.COMMAND, f"the command 'flask {command}'".rstrip())
        if programs.is_child_process():
            return Standing(Role.FORKED_CHILD, "a child process made by multiprocessing")
        name = programs.program_name()
        if name in servers.UNRECOGNISED:
            return Standing(Role.UNKNOWN, f"a worker of the server {name}, which shows by its first request")
        if not name or name in ("-c", "mod_wsgi"):
            return Standing(Role.UNKNOWN, "a process of no program that is known here")
        return Standing(Role.SCRIPT, f"the script or program {name}")

    def note_request(self, served: Served) -> None:
        """Take notice of a request: the first one starts the apps of a server that isn't recognised."""
        if self._stopping is not None:
            return
        if self._serving is None:
            role = self.current_role().role
            if role in (Role.PRELOAD_MASTER, Role.RELOADER_PARENT, Role.COMMAND, Role.TASK_QUEUE):
                return
            if (self._is_fork and self._parent_served) or programs.is_test_client():
                return
            self.begin_serving("a process whose first request has come")
            return
        self._serve(served, self._serving)

    def note_started(self) -> None:
        """Take notice that an app campaigns by ``start()``: children forked from now on never do.

        Where a server ran in this process and has ended, the process goes on without it.
        """
        self._by_hand = True
        if self._serving is None and self._stopping == _ENDED:
            self._stopping = None
            self._quick = False

    def stopping(self) -> str | None:
        """Return why this process is about to stop, or None; cheap, for the owner's watch.

        Finds what no signal tells: a worker past its ``max_requests``, or whose parent has gone.
        """
        if self._stopping is None and self._is_stopping is not None:
            reason = self._is_stopping()
            if reason is not None:
                self.told_to_stop(quick=False, reason=reason)
        return self._stopping

    @property
    def preloaded(self) -> bool:
        """True when this process was forked from a server's master that had imported the app."""
        return self._is_fork and self._marked is not None and self._marked.role is Role.PRELOAD_MASTER

    def trouble(self) -> str | None:
        """Return why this process cannot run jobs although it serves, or None."""
        return self._trouble

    # -- for servers --------------------------------------------------------------------------

    def begin_serving(
        self,
        reason: str,
        *,
        keep_alive: Callable[[], None] | None = None,
        is_stopping: Callable[[], str | None] | None = None,
    ) -> None:
        """Take notice that this process serves from now on.

        :param reason: what it is, completing "this process is …".
        :param keep_alive: to be called every so often while leaving takes its time.
        :param is_stopping: tells why the server is about to stop, or None.
        """
        self._depth += 1
        if self._is_fork and self._parent_served:
            return
        if self.current_role().role is Role.TASK_QUEUE:
            return
        if self._depth == 1 or self._serving is None:
            self._stopping = None
            self._quick = False
            self._keep_alive = keep_alive
            self._is_stopping = is_stopping
            self._serving = reason
            if self.preloaded:
                preload.say_what_changed()
        for served in self._apps():
            self._serve(served, reason)

    def told_to_stop(self, *, quick: bool, reason: str = "the worker was told to stop") -> None:
        """Hand over now. Runs in signal handlers: no lock, no log, no wait."""
        self._stopping = reason
        self._quick = self._quick or quick
        for served in self._apps():
            try:
                served.told_to_stop(self._quick)
            except Exception:
                # Neither may this raise in a handler nor log; leave() follows and the kernel frees the rest.
                continue

    def end_serving(self, *, quick: bool = False) -> None:
        """Take notice that the server's main loop has ended; returns when the apps have left."""
        self._depth = max(0, self._depth - 1)
        if self._depth or self._serving is None:
            return
        self._serving = None
        self._stopping = self._stopping or _ENDED
        self._leave(quick=quick or self._quick)

    def mark(self, role: Role, reason: str) -> None:
        """Take notice that this process does not serve, whatever else it seems to be."""
        self._marked = Standing(role, reason)

    def mark_preload_master(self, reason: str, *, patches: bool = True) -> None:
        """Take notice that workers will be forked from this process.

        :param patches: whether they replace threads and sockets after their fork, as gevent's do.
        """
        self.mark(Role.PRELOAD_MASTER, reason)
        self.may_import_ahead = not patches
        preload.note_loading()

    def mark_reloader_parent(self) -> None:
        """Take notice that a child of this process serves in its place."""
        self.mark(Role.RELOADER_PARENT, "the parent of a reloader")
        self._leave(quick=True)

    def in_trouble(self, text: str) -> None:
        """Log once, and keep for :meth:`trouble`, why this process cannot run jobs."""
        if text != self._trouble:
            self._trouble = text
            logger.error("%s", text)

    def after_fork(self) -> None:
        """Mark a forked child and no more: it may become a worker, or run another program at once."""
        served = self._serving is not None or self._by_hand or (self._is_fork and self._parent_served)
        marked = self._marked
        self._reset()
        self._is_fork = True
        self.may_import_ahead = False
        self._parent_served = served
        self._marked = marked
        for app in self._apps():
            app.after_fork()

    # -- within -------------------------------------------------------------------------------

    def _apps(self) -> list[Served]:
        return [served for ref in self._served if (served := ref()) is not None]

    def _serve(self, served: Served, reason: str) -> None:
        try:
            served.serve(reason)
        except Exception:
            logger.exception("An app could not begin to campaign")

    def _leave(self, *, quick: bool) -> None:
        apps = self._apps()
        if not apps:
            return
        if quick:
            _leave_each(apps, True)
            return
        # Elsewhere, so that this thread still answers to its master and to signals meanwhile.
        thread = threading.Thread(target=_leave_each, args=(apps, False), name="singlejob-leave", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_KEEP_ALIVE_SECONDS)
            if self._keep_alive is not None:
                self._keep_alive()

    def _at_exit(self) -> None:
        if not self._is_fork or self._serving is not None or self._by_hand:
            _leave_each(self._apps(), True)


def _leave_each(apps: list[Served], quick: bool) -> None:
    for served in apps:
        try:
            served.leave(quick)
        except Exception:
            logger.exception("An app could not leave in order")


#: The one of this process.
this = Process()
attach = this.attach
current_role = this.current_role
note_request = this.note_request
note_started = this.note_started
stopping = this.stopping
trouble = this.trouble
