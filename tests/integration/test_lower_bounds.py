"""The lowest versions that pyproject.toml allows: installed beside the project, and its tests run with them.

The environment is made once per user and set of versions, and used again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.integration.clock import cache_directory
from tests.services import missing

PROJECT = Path(__file__).parents[2]
OLDEST_PYTHON = "python3.10"
#: What the lowest versions need beside themselves: Flask 2.3.0 was made for Werkzeug up to 3.0, APScheduler 3.10.0
#: and gunicorn 20.1.0 ask setuptools for their versions.
BESIDE = (
    "werkzeug==3.0.6",
    "setuptools<81",
    "psycopg[binary]>=3.1",
    "redis>=5",
    "pytest>=8",
    "hypothesis>=6.90",
)
TESTS = (
    "tests/contract/test_sqlite.py",
    "tests/contract/test_store_sql.py",
    "tests/unit/test_on_time.py",
    "tests/unit/test_late_ticks.py",
    "tests/unit/test_locks_and_once.py",
    "tests/unit/test_stored_jobs.py",
    "tests/unit/test_signals.py",
    "tests/unit/test_flask_apscheduler_surface.py",
    "tests/integration/test_steady.py",
)
#: Of the databases two, of the scenarios with gunicorn one.
WANTED = (
    "not psycopg2 and not MariaDB and not MySQL and not WithoutReturning and not boot and not default_paths "
    "and not test_each_tick_runs_once_per_scope or test_each_tick_runs_once_per_scope and sqlite"
)


def lowest() -> list[str]:
    """Return the runtime dependencies, each at the lowest version that is allowed."""
    pinned = []
    for text in requires("Flask-SingleJob") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            (least,) = (part.version for part in requirement.specifier if part.operator == ">=")
            pinned.append(f"{requirement.name}=={least}")
    return sorted(pinned)


def interpreter() -> str:
    """Return the oldest Python that is supported, where it is installed, else this one."""
    found = shutil.which(OLDEST_PYTHON)
    works = (
        found and subprocess.run([found, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0
    )
    return found if found and works else sys.executable


def environment() -> Path:
    """Return the interpreter of an environment with the lowest versions."""
    pins = [*lowest(), *BESIDE]
    python = interpreter()
    mark = hashlib.sha256("\n".join([python, sys.version, *pins]).encode()).hexdigest()[:16]
    place = cache_directory() / f"lowest-{mark}"
    ready = place / "ready"
    if not ready.exists():
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(place)], check=True, capture_output=True)
        install = [
            str(place / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        installed = subprocess.run([*install, *pins], capture_output=True, text=True)
        if installed.returncode != 0:
            missing(f"the lowest versions could not be installed: {installed.stderr.strip()[-500:]}")
        ready.touch()
    return place / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="gunicorn does not run there")
def test_tests_pass_with_the_lowest_versions_that_are_allowed() -> None:
    assert len(lowest()) == 5
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    ran = subprocess.run(
        [environment(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", WANTED, *TESTS],
        cwd=PROJECT,
        env=env | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, f"{ran.stdout[-6000:]}\n{ran.stderr[-2000:]}"
    assert " passed" in ran.stdout
