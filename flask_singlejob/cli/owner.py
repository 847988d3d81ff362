"""The command that runs an owner without a web server."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from .. import process
from .. import status as reports
from .kit import command, fail, one_line, warn
from .text import write

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["scheduler"]

_LOOK_SECONDS = 0.1
#: How long to wait before saying that another process owns the host, seconds.
_SETTLE_SECONDS = 1.0


class _Stop:
    """What the signals asked for. Handlers only set attributes: no lock, no output."""

    def __init__(self) -> None:
        self.asked: int | None = None

    def handle(self, number: int, frame: Any) -> None:
        if self.asked is not None:
            # A second time: at once. Its runs are proven dead and recorded as lost by whoever looks next.
            os._exit(128 + number)
        self.asked = number
        process.this.told_to_stop(quick=False, reason="this scheduler was told to stop")


@command("scheduler", short_help="Run an owner without a web server, until TERM or Ctrl-C.")
def scheduler(engine: Engine) -> None:
    """Campaign for this host's schedule in the foreground and run its jobs, without a web server.

    On TERM or Ctrl-C ownership passes on at once, running jobs get SINGLEJOB_SHUTDOWN_TIMEOUT to end, and
    the exit code is 0; a second signal ends it at once. Exit code 1: this process may not or cannot campaign.
    """
    settings = engine.settings
    if not settings.enabled:
        raise fail("SINGLEJOB_ENABLED is False: this process runs no job by schedule; set it to true here")
    stop = _Stop()
    # In a thread (a test, an embedding program) there are no signals to be had.
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), stop.handle)
    write(
        f"Scheduler of host {one_line(repr(settings.host_id))}, cluster {one_line(repr(settings.cluster))}, "
        f"pid {os.getpid()}, store: {one_line(engine.describe_store())}"
    )
    engine.forced = True
    process.this.begin_serving("the command 'flask singlejob scheduler'")
    try:
        engine.start(force=True)
        _watch(engine, stop)
    finally:
        busy = sum(lane.busy for lane in engine.lanes.values())
        if stop.asked is not None and busy:
            write(
                f"Stopping: ownership is handed on; {busy} running job(s) may take "
                f"{settings.shutdown_timeout:g} s to end. A second signal ends them at once."
            )
        process.this.end_serving()
    write("Stopped.")


def _watch(engine: Engine, stop: _Stop) -> None:
    said: str | None = None
    trouble: str | None = None
    began = time.monotonic()
    while stop.asked is None:
        if engine.trouble is not None and engine.campaign is None:
            raise fail(engine.trouble)
        if not engine.running and time.monotonic() - began > _SETTLE_SECONDS:
            raise fail(_why_not(engine))
        own = engine.campaign.trouble if engine.campaign is not None else None
        if own != trouble:
            warn(own if own is not None else "The trouble is over.")
            trouble = own
        words = _standing(engine, time.monotonic() - began)
        if words is not None and words != said:
            write(words)
            said = words
        time.sleep(_LOOK_SECONDS)


def _standing(engine: Engine, waited: float) -> str | None:
    if engine.is_owner:
        host = one_line(repr(engine.settings.host_id))
        return f"Owner: this process (pid {os.getpid()}) runs the schedule of host {host}."
    if engine.campaign is None or waited < _SETTLE_SECONDS:
        return None
    found = reports.election_dict(engine)
    if not found.get("held") or found.get("pid") == os.getpid():
        # Its own lock: it was won a moment ago, and the term has not begun yet.
        return None
    since = f" since {found['since']}" if found.get("since") else ""
    return (
        f"Standby: pid {found.get('pid') or '?'} owns this host{since}; this process takes over when it ends."
    )


def _why_not(engine: Engine) -> str:
    settings = engine.settings
    if "*" not in settings.allowed_hosts and settings.host_id not in settings.allowed_hosts:
        return (
            f"host {settings.host_id!r} is not among SCHEDULER_ALLOWED_HOSTS "
            f"({', '.join(settings.allowed_hosts)}): add it, or run the scheduler elsewhere"
        )
    return engine.trouble or "this process does not campaign: shutdown() was called in it"
