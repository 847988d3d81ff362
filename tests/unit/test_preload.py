"""A preload master: what it imports for its workers, and what a worker says of code that stayed old."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from flask_singlejob import preload, servers
from flask_singlejob.process import Process


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an imported module of the app, as old as the master's start; nothing was said yet."""
    file = tmp_path / "shop.py"
    file.write_text("")
    made = ModuleType("shop_that_was_preloaded")
    made.__file__ = str(file)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(preload, "_loading_since", None)
    monkeypatch.setattr(preload, "_told", None)
    # Every other file may be as new as it likes.
    monkeypatch.setattr(preload, "_changed", _only(file, preload._changed))
    os.utime(file, (1, 1))
    preload.note_loading()
    return file


def _only(file: Path, changed: object) -> object:
    def found(since: float) -> list[tuple[float, str]]:
        return [each for each in changed(since) if each[1] == str(file)]  # type: ignore[operator]

    return found


def test_nothing_is_said_while_the_files_are_as_they_were(
    module: Path, caplog: pytest.LogCaptureFixture
) -> None:
    preload.say_what_changed()
    assert not caplog.records


def test_changed_file_is_named_once_for_each_change(module: Path, caplog: pytest.LogCaptureFixture) -> None:
    ahead = time.time() + 100
    for change in (0, 1):
        os.utime(module, (ahead + change, ahead + change))
        preload.say_what_changed()
        preload.say_what_changed()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert all(str(module) in text and "--preload" in text for text in warnings)


def test_nothing_is_said_where_no_app_was_preloaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preload, "_loading_since", None)
    preload.say_what_changed()
    assert not caplog.records


def test_master_imports_ahead_for_workers_that_keep_their_threads_only() -> None:
    process = Process()
    assert not process.may_import_ahead
    process.mark_preload_master("gunicorn's master", patches=True)
    assert not process.may_import_ahead
    process.mark_preload_master("gunicorn's master", patches=False)
    assert process.may_import_ahead
    process.after_fork()
    assert not process.may_import_ahead


@pytest.mark.parametrize(("module", "patches"), [("sync", False), ("gthread", False), ("ggevent", True)])
def test_workers_class_tells_whether_it_patches(module: str, patches: bool) -> None:
    made = type("Worker", (), {"__module__": f"gunicorn.workers.{module}"})
    derived = type("Mine", (made,), {})
    assert servers._patches(made) is patches
    assert servers._patches(derived) is patches


def test_unknown_class_of_workers_may_patch() -> None:
    assert servers._patches(None)


def test_importing_ahead_connects_to_nothing_and_starts_no_thread(tmp_path: Path) -> None:
    code = (
        "import sys, threading\n"
        "from flask import Flask\n"
        "from flask_singlejob import SingleJob, process\n"
        "process.this.may_import_ahead = True\n"
        f"app = Flask('x', instance_path={str(tmp_path / 'instance')!r})\n"
        "SingleJob(app)\n"
        "print(threading.active_count(), 'flask_singlejob.stores.sql' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True"]
    assert not (tmp_path / "instance").exists()
