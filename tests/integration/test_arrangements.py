"""Rarer arrangements: several apps in a process, a module loaded anew, threads that a server forbids."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from .harness import Cluster
from .waiting import wait_until

TICK = {"id": "each-second", "trigger": "interval", "seconds": 1}


def served(cluster: Cluster, text: str) -> Path:
    """Write ``served.py`` into the host's directory and return the directory."""
    directory = cluster.directory / "a"
    directory.mkdir(exist_ok=True)
    (directory / "served.py").write_text(text)
    return directory


def assert_each_once(cluster: Cluster) -> None:
    keys = [(run.facts.get("app"), run.tick) for run in cluster.runs("each-second")]
    assert len(keys) == len(set(keys))


@pytest.mark.slow
def test_two_apps_behind_a_dispatcher_have_an_owner_each(cluster: Cluster) -> None:
    directory = served(
        cluster,
        "import os\n"
        "from werkzeug.middleware.dispatcher import DispatcherMiddleware\n"
        "from tests.integration.apps.basic import create_app\n"
        "first = create_app()\n"
        "lock = os.environ.pop('FLASK_SINGLEJOB_LOCK_FILE')\n"
        "os.environ['FLASK_SINGLEJOB_LOCK_FILE'] = lock.replace('owner', 'second')\n"
        "os.environ['FLASK_SINGLEJOB_CLUSTER'] = 'second'\n"
        "second = create_app()\n"
        "app = DispatcherMiddleware(first.wsgi_app, {'/second': second.wsgi_app})\n",
    )
    host = cluster.host("a", workers=2, jobs=[TICK], app="served:app", flags=["--pythonpath", str(directory)])

    def both_own() -> bool:
        states: dict[str, bool] = {}
        for path in ("/owner", "/second/owner"):
            for _ in range(10):
                answer = host.get(path).json()
                states[path] = states.get(path, False) or answer["is_owner"]
        return all(states.values())

    wait_until(both_own, 60, "each app has an owner")
    # Both clusters run each tick once: every tick is seen for either.
    cluster.wait_runs("each-second", 6)
    tokens = {run.run for run in cluster.runs("each-second")}
    assert len(tokens) == len(cluster.runs("each-second"))
    assert host.stop() == 0
    assert "Traceback" not in host.log, host.log_tail()


@pytest.mark.slow
def test_debug_under_gunicorn_runs_jobs(cluster: Cluster) -> None:
    host = cluster.host("a", workers=2, jobs=[TICK], env={"FLASK_DEBUG": "1"}, config={"DEBUG": True})
    cluster.wait_runs("each-second", 2)
    assert len(host.owners()) == 1
    assert_each_once(cluster)
    host.kill_all()


@pytest.mark.slow
def test_module_that_is_imported_anew_in_a_live_process_has_one_owner(cluster: Cluster) -> None:
    """As mod_wsgi reloads a script: the old module's app goes, the new one's is served by the same process."""
    directory = served(cluster, "from tests.integration.apps.basic import create_app\napp = create_app()\n")
    (directory / "live.py").write_text(
        "import importlib, sys\n"
        "from werkzeug.serving import make_server\n"
        "import served\n"
        "class Live:\n"
        "    def __call__(self, environ, start_response):\n"
        "        if environ['PATH_INFO'] == '/reload':\n"
        "            importlib.reload(served)\n"
        "        return served.app(environ, start_response)\n"
        "make_server('127.0.0.1', int(sys.argv[1]), Live(), threaded=True).serve_forever()\n"
    )
    env = {"PYTHONPATH": os.pathsep.join([str(directory), str(Path(__file__).parents[2])])}
    process = cluster.process("a", [sys.executable, "live.py", "{port}"], jobs=[TICK], env=env)
    cluster.wait_runs("each-second", 1)
    for _ in range(3):
        process.get("/reload")
        now = time.time() * 1000
        wait_until(
            lambda now=now: max(run.tick or 0 for run in cluster.runs("each-second")) > now + 1000,  # type: ignore[misc]
            60,
            "the ticks go on",
        )
    assert_each_once(cluster)
    process.kill_all()


@pytest.mark.slow
@pytest.mark.parametrize("master", [[], ["--master", "--processes", "2"]], ids=["alone", "master"])
def test_uwsgi_without_threads_says_so_and_health_is_not_ok(cluster: Cluster, master: list[str]) -> None:
    uwsgi = Path(sys.executable).with_name("uwsgi")
    if not uwsgi.exists():
        pytest.skip("uwsgi is not installed")
    argv = [
        str(uwsgi),
        "--http-socket",
        "127.0.0.1:{port}",
        "--module",
        "tests.integration.apps.basic:create_app()",
    ]
    process = cluster.process("a", [*argv, "--die-on-term", *master], jobs=[TICK])
    answer = wait_until(lambda: process.get("/health?check=jobs"), 30, "an answer")
    assert answer.status == 503
    assert "enable-threads" in answer.text
    assert "enable-threads" in process.log
    process.kill_all()


@pytest.mark.slow
def test_scheduler_command_owns_and_hands_over_when_it_is_stopped(cluster: Cluster) -> None:
    argv = [sys.executable, "-m", "flask", "--app", "tests.integration.apps.basic:create_app()"]
    first = cluster.process("a", [*argv, "singlejob", "scheduler"], port=0, jobs=[TICK])
    owner = first.owner_pid(60)
    cluster.wait_runs("each-second", 2)
    config = {"SINGLEJOB_LOCK_FILE": str(first.lock_file), "SINGLEJOB_HOST_ID": "a"}
    env = {"SINGLEJOB_TEST_INSTANCE": first.env["SINGLEJOB_TEST_INSTANCE"]}
    web = cluster.host("b", workers=2, jobs=[TICK], config=config, env=env)
    assert first.owners() == (owner,)
    assert first.stop() == 0
    now = time.time() * 1000
    wait_until(
        lambda: any(
            (run.tick or 0) > now and run.pid in web.workers() for run in cluster.runs("each-second")
        ),
        60,
        "a worker of the server runs the ticks",
    )
    assert_each_once(cluster)
    assert "Traceback" not in first.log, first.log_tail()
    web.kill_all()
