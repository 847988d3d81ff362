"""Real servers and programs around a bare app: who campaigns, who takes over, who never does."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from .waiting import wait_until

APP = """
import os, sys, threading
from flask import Flask
from flask_singlejob import process
from flask_singlejob.election import Campaign, make_elector


def say(*words):
    with open(os.environ["SAID"], "a") as file:
        file.write(" ".join(map(str, (os.getpid(), *words))) + "\\n")


class App:
    def __init__(self):
        elector = make_elector(os.environ.get("KIND", "file"), identity=os.environ["IDENTITY"])
        self.campaign = Campaign(elector, self)

    def serve(self, reason):
        if self.campaign.state != "idle":
            return
        say("serves")
        self.campaign.start()

    def told_to_stop(self, quick):
        self.campaign.stop("told to stop")

    def leave(self, quick):
        self.campaign.stop("left")
        self.campaign.wait_until_left(5)

    def after_fork(self):
        self.campaign.after_fork()

    def begin_term(self):
        say("owns")

    def check_term(self):
        return process.stopping()

    def end_term(self, reason):
        say("ends", reason)


def create_app():
    app = Flask(__name__)
    single = app.extensions["single"] = App()
    before = threading.active_count()
    process.attach(single)
    say("role", process.current_role().role.name, threading.active_count() - before)
    if "START" in os.environ and process.current_role().role in (process.Role.SCRIPT, process.Role.UNKNOWN):
        single.serve("start()")
        process.note_started()
    inner = app.wsgi_app

    def wsgi_app(environ, start_response):
        process.note_request(single)
        return inner(environ, start_response)

    app.wsgi_app = wsgi_app

    @app.route("/")
    def index():
        return str(os.getpid())

    @app.cli.command("mine")
    def mine():
        say("command", process.current_role().role.name)

    return app


if __name__ == "__main__":
    create_app().run(port=int(os.environ["PORT"]), debug=True)
"""


class Program:
    """A program in a process group of its own, and what its processes said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said = directory / "said"
        self.said.touch()
        (directory / "bare.py").write_text(APP)
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.environment = {
            **os.environ,
            "SAID": str(self.said),
            "IDENTITY": f"test:{uuid.uuid4().hex}",
            "PYTHONPATH": os.pathsep.join([str(directory), *filter(None, [str(Path.cwd())])]),
        }

    def run(self, *command: str, **environment: str) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={**self.environment, **environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def pids(self, *words: str) -> list[int]:
        """Return the processes that said something, in its order."""
        lines = [line.split() for line in self.said.read_text().splitlines()]
        return [int(line[0]) for line in lines if tuple(line[1 : 1 + len(words)]) == words]

    def next_owner(self, known: int) -> int:
        """Return the newest owner as soon as there were more than ``known``."""
        return wait_until(lambda: self.pids("owns")[known:], what="an owner")[-1]

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(30)

    def end(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.end()
    sys.stdout.write(made.log.read_text(errors="replace") if made.log.exists() else "")
    sys.stdout.write(made.said.read_text())


def gunicorn(program: Program, *options: str, **environment: str) -> None:
    address = f"unix:{program.directory}/g.sock"
    command = (
        "-m",
        "gunicorn",
        "-w",
        "3",
        "-b",
        address,
        "--no-control-socket",
        *options,
        "bare:create_app()",
    )
    if not _has_control_socket():
        command = tuple(word for word in command if word != "--no-control-socket")
    program.run(sys.executable, *command, **environment)


def _has_control_socket() -> bool:
    return importlib.util.find_spec("gunicorn.ctl") is not None


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def worker_classes() -> list[str]:
    return [f"{kind} {flag}".strip() for kind in ("sync", "gthread", "gevent") for flag in ("", "--preload")]


@pytest.mark.parametrize("options", worker_classes())
def test_gunicorn_hands_over_after_kill_and_reload_and_stops_cleanly(program: Program, options: str) -> None:
    needs("gevent" if "gevent" in options else "gunicorn")
    gunicorn(program, "-k", *options.split())
    first = program.next_owner(0)
    wait_until(lambda: len(program.pids("serves")) == 3, what="three workers")
    os.kill(first, signal.SIGKILL)
    second = program.next_owner(1)
    assert second != first
    wait_until(lambda: len(program.pids("serves")) == 4, what="the worker's replacement")
    assert program.process is not None
    program.process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(program.pids("serves")) == 7, what="three new workers")
    wait_until(lambda: program.pids("owns")[-1] in program.pids("serves")[4:], what="a new owner")
    program.process.terminate()
    assert program.ended() == 0
    assert program.process.pid not in program.pids("serves")
    assert "Traceback" not in program.log.read_text()
    roles = {line.split(" ", 1)[1] for line in program.said.read_text().splitlines() if " role " in line}
    assert roles == {"role PRELOAD_MASTER 0" if "--preload" in options else "role STARTING 0"}


def test_gunicorn_with_election_by_port_hands_over(program: Program) -> None:
    gunicorn(program, KIND="socket")
    first = program.next_owner(0)
    os.kill(first, signal.SIGKILL)
    assert program.next_owner(1) != first


def test_gunicorn_owner_past_its_requests_hands_over_before_its_connections_end(program: Program) -> None:
    gunicorn(program, "--max-requests", "1")
    program.next_owner(0)

    def ask() -> bool:
        import socket

        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{program.directory}/g.sock")
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            client.recv(1000)
        return len(program.pids("owns")) > 2

    wait_until(ask, what="several owners")


def test_gunicorn_removes_its_owner_and_another_takes_over(program: Program) -> None:
    gunicorn(program, "-w", "1")
    first = program.next_owner(0)
    assert program.process is not None
    program.process.send_signal(signal.SIGTTIN)
    wait_until(lambda: len(program.pids("serves")) == 2, what="a second worker")
    # The master stops its oldest worker first.
    program.process.send_signal(signal.SIGTTOU)
    assert program.next_owner(1) != first
    assert program.pids("ends") == [first]


def test_gunicorn_quits_at_once(program: Program) -> None:
    gunicorn(program)
    program.next_owner(0)
    assert program.process is not None
    program.process.send_signal(signal.SIGINT)
    assert program.ended() == 0
    assert "Traceback" not in program.log.read_text()


def free_port() -> str:
    import socket

    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return str(trial.getsockname()[1])


def test_flask_run_serves_without_a_request(program: Program) -> None:
    program.run(sys.executable, "-m", "flask", "--app", "bare", "run", "-p", free_port())
    assert program.process is not None
    assert program.next_owner(0) == program.process.pid


@pytest.mark.parametrize("start", [{}, {"START": "1"}])
def test_only_the_reloaders_child_owns(program: Program, start: dict[str, str]) -> None:
    program.run(sys.executable, "bare.py", PORT=free_port(), **start)
    assert program.process is not None
    parent = program.process.pid
    wait_until(lambda: [pid for pid in program.pids("owns") if pid != parent], what="the child to own")
    assert len(program.pids("ends")) == (1 if parent in program.pids("owns") else 0)
    for edits in range(1, 4):
        owners = len(program.pids("owns"))
        # A reloader takes the state at its first look for granted: the file gets younger until it is seen.
        ages = itertools.count()

        def seen(edits: int = edits, owners: int = owners, ages: Iterator[int] = ages) -> bool:
            ahead = time.time() + 1000 * edits + next(ages)
            os.utime(program.directory / "bare.py", (ahead, ahead))
            return len(program.pids("owns")) > owners

        wait_until(seen, 60, "an owner after the edit", every=0.5)
        assert program.pids("owns")[-1] != parent


@pytest.mark.parametrize("command", [("routes",), ("mine",), ("shell",)])
def test_flask_command_neither_campaigns_nor_starts_a_thread(
    program: Program, command: tuple[str, ...]
) -> None:
    program.run(sys.executable, "-m", "flask", "--app", "bare", *command, START="1")
    assert program.ended() == 0
    assert program.pids("role", "COMMAND", "0")
    assert not program.pids("serves")


def test_importing_the_app_does_nothing(program: Program) -> None:
    program.run(sys.executable, "-c", "import bare; app = bare.create_app(); app.test_client().get('/')")
    assert program.ended() == 0
    assert not program.pids("serves")


def test_script_that_starts_owns_and_ends_by_itself(program: Program) -> None:
    (program.directory / "script.py").write_text("import bare, time; bare.create_app(); time.sleep(1)")
    program.run(sys.executable, "script.py", START="1")
    assert program.ended() == 0
    assert program.pids("owns")
    assert program.pids("ends")


def test_waitress_serves_without_a_request(program: Program) -> None:
    needs("waitress")
    program.run(
        sys.executable, "-m", "waitress", "--listen", f"127.0.0.1:{free_port()}", "--call", "bare:create_app"
    )
    program.next_owner(0)


@pytest.mark.parametrize("options", [["--processes", "2"], ["--processes", "2", "--lazy-apps"], []])
def test_uwsgi_worker_serves_without_a_request_and_its_master_never(
    program: Program, options: list[str]
) -> None:
    uwsgi = shutil.which("uwsgi", path=sysconfig.get_path("scripts"))
    if uwsgi is None:
        pytest.skip("uwsgi is not installed")
    master = ["--master"] if options else []
    address = f"127.0.0.1:{free_port()}"
    program.run(
        uwsgi,
        "--http-socket",
        address,
        "--module",
        "bare:create_app()",
        "--enable-threads",
        *master,
        *options,
    )
    first = program.next_owner(0)
    assert program.process is not None
    if master:
        wait_until(lambda: len(program.pids("serves")) == 2, what="two workers")
        assert program.process.pid not in program.pids("serves")
        os.kill(first, signal.SIGKILL)
        assert program.next_owner(1) != first


@pytest.mark.parametrize("flags", [["worker", "-c", "1"], ["report"]])
def test_celery_never_campaigns(program: Program, flags: list[str]) -> None:
    needs("celery")
    (program.directory / "queue_app.py").write_text(
        "import bare; bare.create_app()\nfrom celery import Celery\napp = Celery('x', broker='memory://')\n"
    )
    program.run(sys.executable, "-m", "celery", "-A", "queue_app", *flags, START="1")
    wait_until(lambda: program.pids("role", "TASK_QUEUE"), what="the app to be made")
    assert not program.pids("serves")
