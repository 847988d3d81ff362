"""The basic app with requests that block and jobs that fork, and what may go wrong in a worker, on request.

``SINGLEJOB_TEST_FORK`` names how the job ``forks`` makes its child: ``fork``, ``leave`` (the child outlives
the job), ``multiprocessing``, ``pool`` or ``subprocess``.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import Any

from flask import Flask, request

from flask_singlejob import SingleJob, term

from .basic import define, routes, work
from .witness import tell, witnessed_run

__all__ = ["create_app"]


def in_child(seconds: float = 0.0) -> list[str]:
    """Tell the witness what a forked child is, after a moment in which it could have begun something."""
    time.sleep(0.3)
    own = threading.current_thread()
    names = [t.name for t in threading.enumerate() if t.name.startswith("singlejob-") and t is not own]
    tell("child", parent=os.getppid(), threads=names)
    time.sleep(seconds)
    return names


def forks() -> None:
    """Make a child as the environment says, and wait for it unless it is to outlive the job."""
    kind = os.environ.get("SINGLEJOB_TEST_FORK", "fork")
    with witnessed_run():
        if kind in ("fork", "leave"):
            pid = os.fork()
            if pid == 0:
                in_child(600 if kind == "leave" else 0)
                os._exit(0)
            tell("forked", child=pid)
            if kind == "fork":
                os.waitpid(pid, 0)
        elif kind == "multiprocessing":
            child = multiprocessing.get_context("fork").Process(target=in_child)
            child.start()
            child.join()
            tell("joined", code=child.exitcode)
        elif kind == "pool":
            context = multiprocessing.get_context("fork")
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
                list(pool.map(in_child, [0.0, 0.0]))
        else:
            subprocess.run([sys.executable, "-c", "pass"], check=True)


def kill_thread(name: str) -> bool:
    """Raise SystemExit in a thread of this process."""
    for thread in threading.enumerate():
        if thread.name == name and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
            )
            return True
    return False


def call_everything(jobs: SingleJob, where: str = "request") -> dict[str, Any]:
    """Call what is public and return, by name, what was raised (or None) and after how many seconds."""
    added = f"added-{where}"
    calls: dict[str, Any] = {
        "status": jobs.status,
        "runs": jobs.runs,
        "health": jobs.health,
        "get_jobs": jobs.get_jobs,
        "get_job": lambda: jobs.get_job("each-second"),
        "state": lambda: (jobs.running, jobs.state, jobs.is_owner, jobs.host_name),
        "scheduler": lambda: jobs.scheduler.get_jobs(),
        "pause_job": lambda: jobs.pause_job("each-second"),
        "resume_job": lambda: jobs.resume_job("each-second"),
        "modify_job": lambda: jobs.modify_job("each-second", name="tick"),
        "add_job": lambda: jobs.add_job(added, work, trigger="interval", hours=1, replace_existing=True),
        "remove_job": lambda: jobs.remove_job(added),
        "pause": jobs.pause,
        "resume": jobs.resume,
        "lock": lambda: jobs.lock("called").__enter__().check(),
        "run_job": lambda: jobs.run_job("each-second", wait=False),
        "start": jobs.start,
    }
    results: dict[str, Any] = {}
    for name, call in calls.items():
        begun = time.monotonic()
        raised = None
        try:
            call()
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
        results[name] = [time.monotonic() - begun, raised]
    return results


jobs = SingleJob()
if "SINGLEJOB_TEST_CALL" in os.environ:
    tell("called", where="import", calls=call_everything(jobs, "import"))


def create_app() -> Flask:
    """Return the app."""
    app = Flask("trouble", instance_path=os.environ.get("SINGLEJOB_TEST_INSTANCE"))
    app.config.from_prefixed_env()
    jobs.init_app(app)
    for entry in json.loads(os.environ.get("SINGLEJOB_TEST_JOBS") or "[]"):
        define(jobs, entry)
    if "SINGLEJOB_TEST_FORK" in os.environ:
        jobs.add_job("forks", forks, trigger="interval", seconds=1)
    jobs.register(work, "work")
    routes(app, jobs)
    if "SINGLEJOB_TEST_CALL" in os.environ:
        tell("called", where="factory", calls=call_everything(jobs, "factory"))

    @app.get("/sleep")
    def sleep() -> dict[str, Any]:
        time.sleep(float(request.args.get("seconds", 1)))
        return {"pid": os.getpid()}

    @app.post("/hurt/<what>")
    def hurt(what: str) -> dict[str, Any]:
        """Harm this worker's engine, if it is the owner's."""
        engine = app.extensions["singlejob"]
        owning = engine.term
        if owning is None:
            return {"done": False}
        if what == "thread":
            return {"done": kill_thread(request.get_json()["name"])}
        if what == "lock":

            def hold() -> None:
                with owning.planner._board.lock:
                    time.sleep(600)

            threading.Thread(target=hold, daemon=True).start()
        elif what == "store":
            # Only here, so that a test need not wait for as long.
            term.POLL_STUCK_SECONDS = 3.0

            def never(*args: Any, **kwargs: Any) -> Any:
                time.sleep(600)

            engine.store.poll = never
        return {"done": True}

    @app.get("/called")
    def called() -> dict[str, Any]:
        return {"pid": os.getpid(), "is_owner": jobs.is_owner, "calls": call_everything(jobs)}

    tell("loaded")
    return app
