"""Which program runs in this process: a Flask command, a task queue's worker, a script, something else.

Looks at what is loaded and running only; imports no server, no queue and no Flask, changes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

__all__ = [
    "flask_command",
    "frames",
    "is_child_process",
    "is_test_client",
    "is_test_run",
    "program_name",
    "task_queue",
]

_QUEUES: Final = {
    "celery": "Celery",
    "rq": "RQ",
    "rqworker": "RQ",
    "rqscheduler": "RQ",
    "dramatiq": "Dramatiq",
    "dramatiq-gevent": "Dramatiq",
    "huey_consumer": "Huey",
    "arq": "arq",
    "taskiq": "Taskiq",
    "procrastinate": "Procrastinate",
}
_QUEUE_MODULES: Final = {
    "celery": "Celery",
    "celery.__main__": "Celery",
    "celery.bin": "Celery",
    "celery.worker": "Celery",
    "celery.apps": "Celery",
    "celery.concurrency": "Celery",
    "billiard": "Celery",
    "rq.cli": "RQ",
    "rq.worker": "RQ",
    "dramatiq.__main__": "Dramatiq",
    "dramatiq.cli": "Dramatiq",
    "huey.bin": "Huey",
    "huey.consumer": "Huey",
}
_TEST_CLIENTS: Final = ("werkzeug.test", "webtest", "httpx", "starlette.testclient", "wsgi_intercept")
_OPTIONS_WITH_VALUE: Final = ("-A", "--app", "-e", "--env-file")


def frames(start: FrameType | None = None) -> Iterator[FrameType]:
    """Yield the frames of this thread, innermost first."""
    frame: FrameType | None = start if start is not None else sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__", ""))


def program_name() -> str:
    """Return the name of the program as it was called, without folder and ending."""
    path = sys.argv[0] if sys.argv and sys.argv[0] else ""
    name = os.path.basename(path)
    if name in ("__main__.py", "__init__.py"):
        # "python -m celery" and its like.
        name = os.path.basename(os.path.dirname(path))
    for ending in (".exe", ".py", "-script"):
        name = name.removesuffix(ending)
    return name


def flask_command() -> str | None:
    """Return the Flask command that runs in this process ("db upgrade"), "" for an unknown one, or None."""
    names = _command_of_context()
    if names is None and program_name() == "flask":
        # A thread of a command, or the program before its first context.
        return _command_of_arguments()
    if names == "":
        for frame in frames():
            if module_of(frame) == "flask.cli" and frame.f_code.co_name == "get_command":
                return str(frame.f_locals.get("name", ""))
    return names


def task_queue() -> str | None:
    """Return the name of the task queue whose worker this process is, or None."""
    by_name = _QUEUES.get(program_name())
    if by_name is not None:
        return by_name
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    for module in [getattr(spec, "name", "") or "", *map(module_of, frames())]:
        parts = module.split(".")
        for name in (module, ".".join(parts[:2]), parts[0]):
            if name in _QUEUE_MODULES and (name != "celery" or module == "celery"):
                return _QUEUE_MODULES[name]
    return None


def is_child_process() -> bool:
    """Tell whether ``multiprocessing`` made this process, by whatever start method."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # A spawned child imports its program anew before it knows its parent.
    return process.parent_process() is not None or hasattr(process.current_process(), "_inheriting")


def is_test_client() -> bool:
    """Tell whether a test client, not a server, called the code that runs in this thread."""
    return any(module_of(frame).startswith(_TEST_CLIENTS) for frame in frames())


def is_test_run() -> bool:
    """Tell whether pytest or unittest runs this process's code."""
    return "_pytest.main" in sys.modules or "unittest.main" in sys.modules


def _command_of_context() -> str | None:
    click: Any = sys.modules.get("click")
    context = click.get_current_context(silent=True) if click is not None else None
    names: list[str] = []
    found: str | None = None
    while context is not None:
        if any(
            cls.__module__ == "flask.cli" and cls.__name__ == "FlaskGroup"
            for cls in type(context.command).__mro__
        ):
            found = " ".join(reversed(names))
        names.append(str(context.info_name))
        context = context.parent
    return found


def _command_of_arguments() -> str:
    arguments = iter(sys.argv[1:])
    for argument in arguments:
        if argument in _OPTIONS_WITH_VALUE:
            next(arguments, None)
        elif not argument.startswith("-"):
            return argument
    return ""
