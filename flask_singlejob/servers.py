"""Recognises servers by what is loaded and running, and hooks the entry of their workers' main loop.

Each hook is set once per class and only reports: what follows is decided in ``process.py``. Imports
no server by itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from . import programs

__all__ = ["UNRECOGNISED", "Life", "Seen", "hook", "hook_gunicorn_worker", "seen_from_here"]

#: Programs that serve and are not recognised: their workers show by their first request.
UNRECOGNISED: Final = frozenset(
    {
        "uvicorn",
        "hypercorn",
        "granian",
        "daphne",
        "cheroot",
        "bjoern",
        "mod_wsgi-express",
        "passenger_wsgi",
        "unitd",
    }
)
_MARK: Final = "_singlejob_hooked"
_LOOPS: Final = (
    ("werkzeug.serving", "BaseWSGIServer", "serve_forever", "a process of Werkzeug's development server"),
    ("waitress.server", "BaseWSGIServer", "run", "a process of waitress"),
    ("waitress.server", "MultiSocketServer", "run", "a process of waitress"),
    ("gevent.pywsgi", "WSGIServer", "serve_forever", "a process of gevent's WSGI server"),
    ("cheroot.wsgi", "Server", "serve", "a process of cheroot"),
)
_NO_THREADS: Final = "uWSGI runs without threads, so no job can run in its workers: give it --enable-threads"
_SIGNALS: Final = tuple(
    (getattr(signal, name), quick)
    for name, quick in (("SIGTERM", False), ("SIGQUIT", True), ("SIGINT", True), ("SIGABRT", True))
    if hasattr(signal, name)
)


class Life(Protocol):
    """What a server reports to; see :class:`~flask_singlejob.process.Process`."""

    def begin_serving(
        self,
        reason: str,
        *,
        keep_alive: Callable[[], None] | None = None,
        is_stopping: Callable[[], str | None] | None = None,
    ) -> None: ...

    def told_to_stop(self, *, quick: bool, reason: str = ...) -> None: ...

    def end_serving(self, *, quick: bool = False) -> None: ...

    def mark_preload_master(self, reason: str, *, patches: bool = ...) -> None: ...

    def mark_reloader_parent(self) -> None: ...

    def in_trouble(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Seen:
    """A server whose code called the code that runs now.

    :param is_worker: False in the process that its workers are forked from.
    :param worker_class: gunicorn's class of the worker, when it could be seen.
    """

    is_worker: bool
    reason: str
    worker_class: type[Any] | None = None


def seen_from_here() -> Seen | None:
    """Return the server that is loading an app in this thread, or None."""
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is not None and hasattr(uwsgi, "worker_id"):
        if uwsgi.worker_id() == 0:
            return Seen(False, "uWSGI's master, which its workers are forked from")
        return Seen(True, "a worker of uWSGI that is starting")
    config_only = False
    for frame in programs.frames():
        module = programs.module_of(frame)
        if not module.startswith("gunicorn."):
            continue
        if module.startswith("gunicorn.workers."):
            return Seen(True, "a worker of gunicorn that is starting", type(frame.f_locals.get("self")))
        if module == "gunicorn.arbiter":
            worker_class = getattr(frame.f_locals.get("self"), "worker_class", None)
            return Seen(False, "gunicorn's master, which its workers are forked from", worker_class)
        config_only = config_only or module.startswith(("gunicorn.app.", "gunicorn.config"))
    return Seen(False, "gunicorn's master reading its configuration") if config_only else None


def hook(life: Life) -> None:
    """Hook whatever server is loaded in this process; harmless when it is hooked already."""
    seen = seen_from_here()
    if seen is not None and "uwsgi" in sys.modules and hasattr(sys.modules["uwsgi"], "worker_id"):
        _hook_uwsgi(sys.modules["uwsgi"], seen, life)
        return
    if seen is not None:
        if not seen.is_worker:
            life.mark_preload_master(seen.reason, patches=_patches(seen.worker_class))
        if seen.worker_class is not None:
            hook_gunicorn_worker(seen.worker_class, life)
        return
    for module, class_name, method, reason in _LOOPS:
        server = getattr(sys.modules.get(module), class_name, None)
        if server is not None:
            _hook_loop(server, method, reason, life)
    _hook_reloader(life)


# -- gunicorn -----------------------------------------------------------------------------------


def hook_gunicorn_worker(worker_class: type[Any], life: Life) -> None:
    """Make a class of gunicorn workers report the begin, the signals and the end of its main loop."""
    run = getattr(worker_class, "run", None)
    if run is None or getattr(run, _MARK, False):
        return

    @functools.wraps(run)
    def run_and_report(worker: Any, *args: Any, **kwargs: Any) -> Any:
        with _gunicorn_worker(worker, life):
            return run(worker, *args, **kwargs)

    setattr(run_and_report, _MARK, True)
    worker_class.run = run_and_report  # type: ignore[attr-defined]


def _patches(worker_class: type[Any] | None) -> bool:
    """Tell whether a class of workers replaces threads and sockets after the fork; True when it is not known."""
    modules = {cls.__module__ for cls in getattr(worker_class, "__mro__", ())}
    return not modules or bool(modules & {"gunicorn.workers.ggevent", "gunicorn.workers.geventlet"})


@contextlib.contextmanager
def _gunicorn_worker(worker: Any, life: Life) -> Iterator[None]:
    pid = os.getpid()

    def is_stopping() -> str | None:
        if not worker.alive:
            return "gunicorn's worker ends"
        return "gunicorn's master has gone" if worker.ppid != os.getppid() else None

    if threading.current_thread() is threading.main_thread():
        for number, quick in _SIGNALS:
            _chain(number, quick, life)
    life.begin_serving("a worker of gunicorn", keep_alive=worker.notify, is_stopping=is_stopping)
    try:
        yield
    finally:
        # A child that a request forked unwinds through here too.
        if pid == os.getpid():
            life.end_serving()


def _chain(number: int, quick: bool, life: Life) -> None:
    previous = signal.getsignal(number)
    if not callable(previous):
        return

    def handle(received: int, frame: Any) -> None:
        life.told_to_stop(quick=quick)
        previous(received, frame)

    signal.signal(number, handle)
    if number == signal.SIGTERM:
        # As gunicorn has it: a stop must not break off system calls of requests.
        signal.siginterrupt(number, False)


# -- servers that run in the process that loaded the app ------------------------------------------


def _hook_loop(server: type[Any], method: str, reason: str, life: Life) -> None:
    loop = getattr(server, method, None)
    if loop is None or getattr(loop, _MARK, False):
        return

    @functools.wraps(loop)
    def loop_and_report(self: Any, *args: Any, **kwargs: Any) -> Any:
        pid = os.getpid()
        life.begin_serving(reason)
        try:
            return loop(self, *args, **kwargs)
        finally:
            if pid == os.getpid():
                life.end_serving(quick=True)

    setattr(loop_and_report, _MARK, True)
    setattr(server, method, loop_and_report)


def _hook_reloader(life: Life) -> None:
    if "werkzeug.serving" not in sys.modules:
        return
    try:
        from werkzeug._reloader import ReloaderLoop
    except ImportError:
        return
    restart = ReloaderLoop.restart_with_reloader
    if getattr(restart, _MARK, False):
        return

    @functools.wraps(restart)
    def restart_and_report(self: Any) -> int:
        life.mark_reloader_parent()
        return restart(self)

    setattr(restart_and_report, _MARK, True)
    ReloaderLoop.restart_with_reloader = restart_and_report  # type: ignore[method-assign]


# -- uWSGI --------------------------------------------------------------------------------------


def _hook_uwsgi(uwsgi: Any, seen: Seen, life: Life) -> None:
    if getattr(uwsgi, _MARK, False):
        return
    setattr(uwsgi, _MARK, True)
    if not _uwsgi_has_threads(uwsgi):
        life.in_trouble(_NO_THREADS)
    _chain_attribute(uwsgi, "atexit", lambda: life.end_serving(quick=True))
    if seen.is_worker:
        threading.Thread(
            target=_serve_when_loaded, args=(uwsgi, life), name="singlejob-start", daemon=True
        ).start()
        return
    life.mark_preload_master(seen.reason, patches="gevent" in _uwsgi_options(uwsgi))
    decorators = sys.modules.get("uwsgidecorators")

    def begin() -> None:
        if uwsgi.worker_id() > 0:
            if not _uwsgi_has_threads(uwsgi):
                life.in_trouble(_NO_THREADS)
            life.begin_serving("a worker of uWSGI")

    if decorators is not None:
        decorators.postfork(begin)
    else:
        _chain_attribute(uwsgi, "post_fork_hook", begin)


def _uwsgi_has_threads(uwsgi: Any) -> bool:
    asked = getattr(uwsgi, "has_threads", None)
    if callable(asked):
        return bool(asked())
    return bool(_uwsgi_options(uwsgi) & {"enable-threads", "threads"})


def _uwsgi_options(uwsgi: Any) -> set[str]:
    return {name.decode() if isinstance(name, bytes) else str(name) for name in getattr(uwsgi, "opt", {})}


def _chain_attribute(module: Any, name: str, function: Callable[[], None]) -> None:
    previous = getattr(module, name, None)

    def chained() -> None:
        if callable(previous):
            previous()
        function()

    setattr(module, name, chained)


def _serve_when_loaded(uwsgi: Any, life: Life) -> None:
    """Wait, in a worker that loads its app itself (lazy-apps), until it has one and serves it."""
    while not any(worker.get("apps") for worker in uwsgi.workers() if worker.get("id") == uwsgi.worker_id()):
        time.sleep(0.02)
    life.begin_serving("a worker of uWSGI")
