"""Programs that import an app and do not serve it: no thread, no lock, no statement in the database."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask

from flask_singlejob import SingleJob
from tests.redis_server import RedisServer, need_redis

from .waiting import wait_until

APP = """
import os, threading
from flask import Flask
from flask_singlejob import SingleJob

HERE = os.path.dirname(os.path.abspath(__file__))


def say(*words):
    names = [t.name for t in threading.enumerate() if t.name.startswith("singlejob")]
    with open(os.path.join(HERE, "said"), "a") as file:
        file.write(" ".join([*words, "threads:", *names]) + "\\n")


def create_app(testing=False):
    app = Flask("shop", instance_path=os.path.join(HERE, "instance"))
    app.config["SINGLEJOB_LOCK_FILE"] = os.path.join(HERE, "run", "owner.lock")
    if testing == "before":
        app.testing = True
    if "WITH_DATABASE" in os.environ:
        from flask_migrate import Migrate
        from flask_sqlalchemy import SQLAlchemy
        app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///" + os.path.join(HERE, "shop.db")
        db = SQLAlchemy(app)
        Migrate(app, db, directory=os.path.join(HERE, "migrations"))
        app.config["SINGLEJOB_STORE"] = db
    jobs = SingleJob()
    jobs.init_app(app)

    @jobs.task("interval", id="tick", seconds=1)
    def tick():
        say("ran")

    @app.get("/")
    def index():
        return "ok"

    @app.cli.command("mine")
    def mine():
        app.test_client().get("/")
        say("mine")

    if "START" in os.environ:
        jobs.start()
    say("made")
    return app
"""


class Program:
    """A directory with the app, a program in it, and what became of both."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said = directory / "said"
        (directory / "shop.py").write_text(APP)
        (directory / "run").mkdir(mode=0o700)
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(textwrap.dedent(text))

    def run(self, *command: str, stdin: str = "", **environment: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "FLASK_", "SINGLEJOB_"))}
        paths = [str(self.directory), str(Path(__file__).resolve().parents[2])]
        clean |= {"PYTHONPATH": os.pathsep.join(paths), "XDG_RUNTIME_DIR": str(self.directory / "run")}
        (self.directory / "stdin").write_text(stdin)
        with self.log.open("ab") as log, (self.directory / "stdin").open() as words:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self.directory,
                env={**clean, **environment},
                stdin=words,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(90)

    def wait_said(self, word: str) -> None:
        def said() -> bool:
            assert self.process is not None
            text = self.said.read_text() if self.said.exists() else ""
            assert self.process.poll() is None or word in text, self.log.read_text()
            return word in text

        wait_until(said, 90, f"{word!r} is said")

    def end(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def assert_left_nothing(self) -> None:
        lines = self.said.read_text().splitlines()
        assert lines
        assert all(line.endswith("threads:") for line in lines), lines
        assert not [line for line in lines if line.startswith("ran")]
        assert not list((self.directory / "run").iterdir()), "a lock file or a proof of life was made"
        assert not (self.directory / "instance").exists(), "the default store was made"
        if (self.directory / "shop.db").exists():
            import sqlite3

            with contextlib.closing(sqlite3.connect(self.directory / "shop.db")) as database:
                tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master")]
            assert not [name for name in tables if name.startswith("singlejob")]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.end()
    if made.log.exists():
        print(made.log.read_text(errors="replace"))


STARTED = pytest.mark.parametrize("start", [{}, {"START": "1"}], ids=["", "start"])


@STARTED
@pytest.mark.parametrize("command", ["routes", "mine", "shell", "singlejob jobs --help"])
def test_flask_command_leaves_nothing(program: Program, command: str, start: dict[str, str]) -> None:
    asked = "app.test_client().get('/')\n"
    program.run("flask", "--app", "shop:create_app()", *command.split(), stdin=asked, **start)
    assert program.ended() == 0
    program.assert_left_nothing()


@STARTED
def test_migration_leaves_nothing(program: Program, start: dict[str, str]) -> None:
    pytest.importorskip("flask_migrate")
    for command in ("init", "upgrade"):
        program.run("flask", "--app", "shop:create_app()", "db", command, WITH_DATABASE="1", **start)
        assert program.ended() == 0, program.log.read_text()
    program.assert_left_nothing()


def test_import_of_the_app_leaves_nothing(program: Program) -> None:
    program.write(
        "look.py", "import shop\napp = shop.create_app()\napp.test_client().get('/')\nshop.say('looked')\n"
    )
    program.run("look")
    assert program.ended() == 0
    program.assert_left_nothing()


@STARTED
@pytest.mark.parametrize("when", ["before", "after"])
def test_pytest_leaves_nothing(program: Program, when: str, start: dict[str, str]) -> None:
    program.write(
        "test_shop.py",
        f"""
        import time
        import shop

        def test_index():
            app = shop.create_app("{when}")
            app.testing = True
            assert app.test_client().get("/").text == "ok"
            time.sleep(1.5)
            shop.say("tested")
        """,
    )
    # Started without testing it may look, for a moment, whether it is a test after all.
    program.run("pytest", "-q", "-p", "no:cacheprovider", "test_shop.py", **start)
    assert program.ended() == 0, program.log.read_text()
    if start and when == "after":
        lines = program.said.read_text().splitlines()
        program.said.write_text("".join(f"{line}\n" for line in lines if not line.startswith("made")))
    program.assert_left_nothing()


def queue_files(program: Program, queue: str, url: str) -> list[str]:
    """Write the tasks of a queue, enqueue one, and return the command of its worker."""
    create = "import shop\nshop.create_app()\ndef body():\n    shop.say('task')\n"
    if queue == "celery":
        program.write(
            "tasks.py",
            f"from celery import Celery\napp = Celery('tasks', broker={url!r})\n{create}task = app.task(name='t')(body)\n",
        )
        program.write("put.py", "import tasks\ntasks.task.delay()\n")
        return ["celery", "-A", "tasks", "worker", "-c", "1"]
    if queue == "rq":
        program.write("tasks.py", create)
        program.write(
            "put.py",
            f"import redis, rq\nrq.Queue(connection=redis.Redis.from_url({url!r})).enqueue('tasks.body')\n",
        )
        return ["rq.cli", "worker", "--url", url]
    if queue == "dramatiq":
        program.write(
            "tasks.py",
            "import dramatiq\nfrom dramatiq.brokers.redis import RedisBroker\n"
            f"dramatiq.set_broker(RedisBroker(url={url!r}))\n{create}task = dramatiq.actor(body)\n",
        )
        program.write("put.py", "import tasks\ntasks.task.send()\n")
        return ["dramatiq", "tasks", "-p", "1", "-t", "1"]
    program.write(
        "tasks.py",
        f"from huey import SqliteHuey\nhuey = SqliteHuey(filename={str(program.directory / 'queue.db')!r})\n"
        f"{create}task = huey.task()(body)\n",
    )
    program.write("put.py", "import tasks\ntasks.task()\n")
    return ["huey.bin.huey_consumer", "tasks.huey"]


@pytest.mark.slow
@STARTED
@pytest.mark.parametrize("queue", ["celery", "rq", "dramatiq", "huey"])
def test_task_queues_worker_leaves_nothing(
    program: Program, queue: str, start: dict[str, str], tmp_path: Path
) -> None:
    if importlib.util.find_spec(queue) is None:
        pytest.skip(f"{queue} is not installed")
    url = ""
    server: RedisServer | None = None
    if queue != "huey":
        need_redis()
        server = RedisServer(tmp_path / "redis")
        server.start()
        url = server.url
    try:
        command = queue_files(program, queue, url)
        program.run("put")
        assert program.ended() == 0, program.log.read_text()
        program.run(*command, **start)
        program.wait_said("task")
        program.end()
        program.assert_left_nothing()
    finally:
        program.end()
        if server is not None:
            server.kill()


def test_fifty_apps_of_one_process_leave_nothing_behind(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "run", ignore_errors=True)

    def state() -> tuple[set[str], int]:
        gc.collect()
        names = {thread.name for thread in threading.enumerate()}
        return names, len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    def make(number: int) -> None:
        app = Flask(f"app{number}", instance_path=str(tmp_path / "instance"))
        app.config.update(SINGLEJOB_LOCK_FILE=str(tmp_path / "run" / "owner.lock"), TESTING=True)
        jobs = SingleJob()
        jobs.init_app(app)
        jobs.add_job("job", state, trigger="interval", seconds=1)
        jobs.start()
        app.test_client().get("/")
        with app.app_context():
            jobs.runs()
            jobs.status()

    make(0)
    threads, files = state()
    for number in range(1, 51):
        make(number)
    after, files_after = state()
    assert after <= threads
    assert files_after <= files + 2
    assert not list(tmp_path.rglob("*"))
