"""What the living processes of a host tell of themselves in their alive files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flask_singlejob.election import AliveFile
from flask_singlejob.stores.memory import MemoryStore
from tests.unit.rig import hosts_on


def test_the_living_are_told_from_the_dead(tmp_path: Path) -> None:
    directory = tmp_path / "alive"
    one, two = AliveFile(directory, "one"), AliveFile(directory, "two")
    assert one.acquire()
    assert two.acquire()
    one.tell({"pid": os.getpid(), "election": "a"})
    two.tell({"pid": 2, "election": "a"})
    assert sorted(told["pid"] for told in one.living()) == [2, os.getpid()]
    # A forked child's copy is closed without unlocking: here the process ends in the same way.
    two.after_fork()
    assert [told["pid"] for told in one.living()] == [os.getpid()]
    assert one.is_dead("two")


def test_a_shorter_tale_leaves_nothing_of_the_longer_one(tmp_path: Path) -> None:
    alive = AliveFile(tmp_path / "alive", "one")
    assert alive.acquire()
    alive.tell({"pid": 1, "since": "x" * 100})
    alive.tell({"pid": 2})
    assert alive.living() == [{"pid": 2}]


@pytest.mark.skipif(os.name == "nt", reason="there are no alive files on Windows")
def test_a_process_that_leaves_in_peace_leaves_no_file(tmp_path: Path) -> None:
    store = MemoryStore(cluster="rig")
    with hosts_on(store, tmp_path) as host:
        one = host("one").start()
        (alive,) = (tmp_path / "locks" / "singlejob-alive").iterdir()
        assert one.engine.instance in alive.name
        with one.app.app_context(), one.jobs.lock("a"):
            one.engine.leave(quick=True)
            # Its death would have to be proven: it holds a lock.
            assert alive.exists()
        one.engine.leave(quick=True)
        assert not alive.exists()
