"""What a process is, and what its apps are told when: over stand-ins for servers and programs."""

from __future__ import annotations

import gc
import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from flask_singlejob import programs, servers
from flask_singlejob.process import Process, Role


class App:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def serve(self, reason: str) -> None:
        self.told.append(f"serve: {reason}")

    def told_to_stop(self, quick: bool) -> None:
        self.told.append(f"told, quick={quick}")

    def leave(self, quick: bool) -> None:
        self.told.append(f"leave, quick={quick}")

    def after_fork(self) -> None:
        self.told.append("forked")


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    # A hook on a real server's class would outlive the test.
    monkeypatch.setattr(servers, "hook", lambda life: None)
    monkeypatch.setattr("atexit.register", lambda function: function)
    return Process()


@pytest.fixture
def app(process: Process) -> App:
    made = App()
    process.attach(made)
    return made


def called_from(module: str, function: Callable[[], Any], **variables: Any) -> Any:
    """Call a function from code that belongs to a module of the given name."""
    namespace: dict[str, Any] = {"__name__": module, "function": function}
    names = ", ".join(variables) or "nothing=None"
    exec(f"def call({names}):\n    return function()", namespace)
    return namespace["call"](**variables)


class Worker:
    """A worker as gunicorn has them."""

    def __init__(self, body: Callable[[], None] = lambda: None) -> None:
        self.alive = True
        self.ppid = os.getppid()
        self.notified = 0
        self.body = body

    def notify(self) -> None:
        self.notified += 1

    def run(self) -> None:
        self.body()


def test_script_may_campaign_and_is_told_nothing_by_itself(process: Process, app: App) -> None:
    standing = process.current_role()
    assert standing.role in (Role.SCRIPT, Role.UNKNOWN)
    assert standing.role.may_campaign
    assert app.told == []


def test_app_is_held_weakly(process: Process) -> None:
    process.attach(App())
    gc.collect()
    process.begin_serving("a test")
    assert process._apps() == []


def test_first_request_starts_the_apps_of_an_unknown_server(process: Process, app: App) -> None:
    process.note_request(app)
    assert app.told == ["serve: a process whose first request has come"]
    assert process.current_role().role is Role.SERVING


@pytest.mark.parametrize("client", ["werkzeug.test", "webtest.app", "httpx"])
def test_request_of_a_test_client_starts_nothing(process: Process, app: App, client: str) -> None:
    called_from(client, lambda: process.note_request(app))
    assert app.told == []


def test_app_that_came_late_is_served_with_its_first_request(process: Process, app: App) -> None:
    process.begin_serving("a worker")
    late = App()
    process.attach(late)
    assert late.told == []
    process.note_request(late)
    assert late.told == ["serve: a worker"]


@pytest.mark.parametrize(
    ("argv", "role"),
    [
        (["/usr/bin/celery", "-A", "app", "worker"], Role.TASK_QUEUE),
        (["/x/celery/__main__.py", "worker"], Role.TASK_QUEUE),
        (["/usr/bin/rq", "worker"], Role.TASK_QUEUE),
        (["/usr/bin/dramatiq", "app"], Role.TASK_QUEUE),
        (["/usr/bin/huey_consumer.py", "app.huey"], Role.TASK_QUEUE),
        (["/usr/bin/flask", "--app", "run", "routes"], Role.COMMAND),
        (["/x/flask/__main__.py", "db", "upgrade"], Role.COMMAND),
        (["/usr/bin/flask", "-A", "app", "run", "--debug"], Role.STARTING),
        (["/usr/bin/uvicorn", "app:app"], Role.UNKNOWN),
        (["-c"], Role.UNKNOWN),
        (["nightly.py"], Role.SCRIPT),
    ],
)
def test_program_is_recognised_by_its_name(
    process: Process, monkeypatch: pytest.MonkeyPatch, argv: list[str], role: Role
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert process.current_role().role is role


@pytest.mark.parametrize("program", ["celery", "flask"])
def test_no_request_starts_a_process_that_does_not_serve(
    process: Process, app: App, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "shell"])
    process.note_request(app)
    assert app.told == []
    assert not process.current_role().role.may_campaign


def test_task_queue_is_recognised_inside_its_tasks(process: Process) -> None:
    standing = called_from("celery.worker.request", process.current_role)
    assert standing.role is Role.TASK_QUEUE


def test_loop_of_a_side_server_in_a_task_queue_serves_nothing(
    process: Process, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["celery", "worker"])
    process.begin_serving("a process of Werkzeug's development server")
    assert app.told == []


def test_flask_command_is_recognised_by_its_context(process: Process) -> None:
    from click.testing import CliRunner
    from flask import Flask
    from flask.cli import FlaskGroup

    seen: list[Any] = []
    flask_app = Flask(__name__)
    flask_app.cli.command("mine")(lambda: seen.append(process.current_role()))

    def create_app() -> Flask:
        seen.append(process.current_role())
        return flask_app

    group = FlaskGroup(create_app=create_app)
    CliRunner().invoke(group, ["mine"], catch_exceptions=False)
    assert [standing.role for standing in seen] == [Role.COMMAND, Role.COMMAND]
    assert "flask mine" in seen[1].reason


def test_gunicorn_worker_that_loads_the_app_is_starting(process: Process) -> None:
    standing = called_from("gunicorn.workers.base", process.current_role, self=Worker())
    assert standing.role is Role.STARTING


def test_gunicorn_master_that_preloads_the_app_may_not_campaign(process: Process) -> None:
    standing = called_from("gunicorn.arbiter", process.current_role)
    assert standing.role is Role.PRELOAD_MASTER
    assert not standing.role.may_campaign


def test_gunicorn_reading_a_configuration_that_imports_the_app_may_not_campaign(process: Process) -> None:
    assert called_from("gunicorn.app.base", process.current_role).role is Role.PRELOAD_MASTER


def test_innermost_frame_of_gunicorn_decides(process: Process) -> None:
    def in_worker() -> Any:
        return called_from("gunicorn.workers.base", process.current_role, self=Worker())

    assert called_from("gunicorn.arbiter", in_worker).role is Role.STARTING


def test_gunicorn_worker_serves_in_its_main_loop_and_leaves_after_it(app: App, process: Process) -> None:
    class Hooked(Worker):
        pass

    during: list[list[str]] = []
    servers.hook_gunicorn_worker(Hooked, process)
    servers.hook_gunicorn_worker(Hooked, process)
    Hooked(lambda: during.append(list(app.told))).run()
    assert during == [["serve: a worker of gunicorn"]]
    assert app.told[1:] == ["leave, quick=False"]


@pytest.mark.parametrize(("number", "quick"), [(signal.SIGTERM, False), (signal.SIGQUIT, True)])
def test_gunicorn_workers_signal_is_passed_on_to_apps_and_to_gunicorn(
    app: App, process: Process, number: signal.Signals, quick: bool
) -> None:
    class Hooked(Worker):
        pass

    servers.hook_gunicorn_worker(Hooked, process)
    gunicorns: list[int] = []
    before = {each: signal.getsignal(each) for each, _ in servers._SIGNALS}
    try:
        signal.signal(number, lambda received, frame: gunicorns.append(received))
        Hooked(lambda: os.kill(os.getpid(), number)).run()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert gunicorns == [number]
    assert app.told[1:] == [f"told, quick={quick}", f"leave, quick={quick}"]


def test_gunicorn_worker_past_its_requests_is_found_by_the_watch(app: App, process: Process) -> None:
    class Hooked(Worker):
        pass

    servers.hook_gunicorn_worker(Hooked, process)
    answers: list[str | None] = []

    def body() -> None:
        answers.append(process.stopping())
        worker.alive = False
        answers.append(process.stopping())

    worker = Hooked(body)
    worker.run()
    assert answers == [None, "gunicorn's worker ends"]
    assert "told, quick=False" in app.told


def test_gunicorn_worker_that_waits_for_jobs_still_tells_its_master_that_it_lives(
    app: App, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hooked(Worker):
        pass

    monkeypatch.setattr("flask_singlejob.process._KEEP_ALIVE_SECONDS", 0.01)
    worker = Hooked()

    def leave(quick: bool) -> None:
        while worker.notified < 3:
            pass

    monkeypatch.setattr(app, "leave", leave)
    servers.hook_gunicorn_worker(Hooked, process)
    worker.run()
    assert worker.notified >= 3


def test_reloaders_parent_leaves_what_it_began(process: Process, app: App) -> None:
    process.mark_reloader_parent()
    assert app.told == ["leave, quick=True"]
    assert process.current_role().role is Role.RELOADER_PARENT
    process.note_request(app)
    assert app.told == ["leave, quick=True"]


def in_child(check: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def test_child_forked_by_a_serving_process_never_serves(process: Process, app: App) -> None:
    process.begin_serving("a worker")

    def check() -> bool:
        process.note_request(app)
        process.begin_serving("a server in the child")
        return app.told == ["serve: a worker", "forked"] and process.current_role().role is Role.FORKED_CHILD

    assert in_child(check)
    assert process.current_role().role is Role.SERVING


def test_child_forked_after_a_start_by_hand_never_serves(process: Process, app: App) -> None:
    process.note_started()

    def check() -> bool:
        process.note_request(app)
        return app.told == ["forked"] and not process.current_role().role.may_campaign

    assert in_child(check)


def test_worker_forked_by_a_preload_master_serves_when_it_is_told(process: Process, app: App) -> None:
    process.mark_preload_master("gunicorn's master")

    def check() -> bool:
        before = process.current_role().role
        process.begin_serving("a worker of gunicorn")
        return before is Role.FORKED_CHILD and process.current_role().role is Role.SERVING

    assert in_child(check)
    assert process.current_role().role is Role.PRELOAD_MASTER


def test_an_app_that_fails_to_serve_does_not_keep_others_from_it(process: Process) -> None:
    class Broken(App):
        def serve(self, reason: str) -> None:
            raise RuntimeError("broken")

    broken, sound = Broken(), App()
    process.attach(broken)
    process.attach(sound)
    process.begin_serving("a worker")
    assert sound.told == ["serve: a worker"]


def test_uwsgi_without_threads_is_trouble_that_names_the_option(
    process: Process, app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uwsgi = types.SimpleNamespace(worker_id=lambda: 0, opt={"master": True})
    seen = servers.Seen(False, "uWSGI's master")
    servers._hook_uwsgi(uwsgi, seen, process)
    assert "--enable-threads" in str(process.trouble())
    assert "--enable-threads" in caplog.text
    assert app.told == []


def test_uwsgi_worker_serves_after_its_fork_and_other_hooks_are_kept(process: Process, app: App) -> None:
    calls: list[str] = []
    uwsgi = types.SimpleNamespace(
        worker_id=lambda: 0,
        opt={b"enable-threads": True},
        post_fork_hook=lambda: calls.append("fork"),
        atexit=lambda: calls.append("exit"),
    )
    servers._hook_uwsgi(uwsgi, servers.Seen(False, "uWSGI's master"), process)
    uwsgi.post_fork_hook()
    assert app.told == [], "the master itself"
    uwsgi.worker_id = lambda: 1
    uwsgi.post_fork_hook()
    assert app.told == ["serve: a worker of uWSGI"]
    uwsgi.atexit()
    assert app.told[-1] == "leave, quick=True"
    assert calls == ["fork", "fork", "exit"]


def test_program_name_is_free_of_folder_and_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, name in (
        ("/a/b/tool.py", "tool"),
        ("C/flask.exe", "flask"),
        ("/x/celery/__main__.py", "celery"),
        ("", ""),
    ):
        monkeypatch.setattr(sys, "argv", [path])
        assert programs.program_name() == name


def test_start_after_a_server_of_this_process_has_ended_is_no_stop(process: Process, app: App) -> None:
    process.begin_serving("a server in a thread")
    process.end_serving()
    assert process.stopping() == "the server has ended"
    process.note_started()
    assert process.stopping() is None


def test_start_does_not_outdo_a_signal(process: Process, app: App) -> None:
    process.begin_serving("a worker")
    process.told_to_stop(quick=False)
    process.end_serving()
    process.note_started()
    assert process.stopping() == "the worker was told to stop"
