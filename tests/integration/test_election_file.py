"""The lock file in trouble: never two owners, and never none in silence."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob.election import AliveFile, FileElector, alive_directory, lock_path, places, probe

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no election by file on Windows")

DEADLINE_SECONDS = 15.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.lock"


@pytest.fixture
def elector(path: Path) -> Iterator[FileElector]:
    made = FileElector(path)
    yield made
    made.release()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def waiting(elector: FileElector) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(elector.wait_acquire()), daemon=True)
    thread.start()
    eventually(lambda: elector._waiting is not None)
    return thread, results


@pytest.mark.parametrize("content", [b"", b"12345", b"{", b"\x00" * 9000, b'{"singlejob": 1, "pid": 1}'])
def test_left_behind_content_is_harmless(path: Path, elector: FileElector, content: bytes) -> None:
    path.write_bytes(content)
    assert elector.try_acquire()


def test_content_that_is_not_ours_is_left_alone(path: Path, elector: FileElector) -> None:
    path.write_text("somebody's notes")
    assert elector.try_acquire()
    assert path.read_text() == "somebody's notes"


def test_symlink_is_refused_and_its_target_untouched(
    path: Path, elector: FileElector, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    with pytest.raises(OSError, match=r"app\.lock.*symbolic link.*SINGLEJOB_LOCK_FILE"):
        elector.try_acquire()
    assert victim.read_text() == "precious"


def test_hard_link_is_refused(path: Path, elector: FileElector, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    os.link(tmp_path / "other", path)
    with pytest.raises(OSError, match=r"app\.lock has 2 names"):
        elector.try_acquire()


def test_directory_in_its_place_is_refused(path: Path, elector: FileElector) -> None:
    path.mkdir()
    with pytest.raises(OSError, match=r"app\.lock.*directory"):
        elector.try_acquire()


def test_fifo_in_its_place_is_refused_without_blocking(path: Path, elector: FileElector) -> None:
    os.mkfifo(path)
    with pytest.raises(OSError, match=r"app\.lock is no regular file"):
        elector.try_acquire()


def test_file_of_another_user_is_refused(
    path: Path, elector: FileElector, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("")
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(path).st_uid + 1)
    with pytest.raises(OSError, match=r"app\.lock belongs to user"):
        elector.try_acquire()


def test_directory_that_every_user_may_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(OSError, match=r"app\.lock.*only this user can write"):
        FileElector(shared / "app.lock").try_acquire()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.ENAMETOOLONG])
def test_trouble_of_the_file_system_names_file_and_cure(
    elector: FileElector, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=r"app\.lock cannot be opened: .*SINGLEJOB_LOCK_FILE") as caught:
        elector.try_acquire()
    assert caught.value.errno == code


@pytest.fixture
def new_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host where nothing was ever made, with the usual umask; gives its runtime directory."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    before = os.umask(0o022)
    yield runtime
    os.umask(before)


@pytest.mark.parametrize("alive_first", [True, False])
def test_first_files_on_a_new_host_share_one_private_directory(new_host: Path, alive_first: bool) -> None:
    alive, elector = AliveFile(alive_directory(), "first"), FileElector(identity="an app")
    try:
        for acquire in (alive.acquire, elector.try_acquire)[:: 1 if alive_first else -1]:
            assert acquire()
        assert AliveFile(alive_directory(), "second").directory == alive.directory
        (private,) = new_host.iterdir()
        assert Path(elector.path).parent == private
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert stat.S_IMODE((private / "alive").stat().st_mode) == 0o700
    finally:
        elector.release()
        alive.release()


def test_own_directory_that_others_may_only_read_is_used_and_closed_to_them(new_host: Path) -> None:
    private = Path(places.private_directory())
    private.mkdir()
    private.chmod(0o755)
    elector = FileElector(identity="an app")
    try:
        assert elector.try_acquire()
        assert Path(elector.path).parent == private
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    finally:
        elector.release()


def test_own_directory_that_others_could_write_is_passed_over(new_host: Path) -> None:
    private = Path(places.private_directory())
    private.mkdir()
    private.chmod(0o775)
    assert Path(places.private_directory()).parent != new_host


def test_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="its name is too long"):
        FileElector(tmp_path / ("x" * 300)).try_acquire()


def test_file_system_that_keeps_no_locks_apart_is_refused(
    elector: FileElector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)
    with pytest.raises(OSError, match="does not keep locks apart"):
        elector.try_acquire()


def test_full_disk_costs_the_signature_and_not_the_election(
    elector: FileElector, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert elector.try_acquire()
    assert probe(path)["held"] is True


@pytest.mark.parametrize("replace", [False, True])
def test_owner_notices_that_its_file_is_gone(path: Path, elector: FileElector, replace: bool) -> None:
    assert elector.try_acquire()
    assert elector.still_held()
    path.unlink()
    if replace:
        path.write_text("")
    assert not elector.still_held()


def test_owner_keeps_a_file_that_others_open_and_close(path: Path, elector: FileElector) -> None:
    assert elector.try_acquire()
    path.read_text()
    with path.open("r+") as file:
        file.read()
    assert elector.still_held()
    assert FileElector(path).try_acquire() is False


def test_waiter_follows_to_the_new_file_when_the_old_one_was_deleted(
    path: Path, elector: FileElector
) -> None:
    assert elector.try_acquire()
    waiter = FileElector(path)
    thread, results = waiting(waiter)
    path.unlink()
    elector.release()
    thread.join(DEADLINE_SECONDS)
    assert results == [True]
    assert waiter.still_held()
    waiter.release()


def test_waiter_does_not_own_through_the_old_file_while_another_owns_the_new_one(
    path: Path, elector: FileElector
) -> None:
    assert elector.try_acquire()
    waiter = FileElector(path)
    thread, results = waiting(waiter)
    path.unlink()
    newcomer = FileElector(path)
    assert newcomer.try_acquire()
    elector.release()
    thread.join(0.2)
    assert results == []
    newcomer.release()
    thread.join(DEADLINE_SECONDS)
    assert results == [True]
    waiter.release()


def test_lock_file_held_on_another_host_is_refused_rather_than_waited_for(
    path: Path, elector: FileElector, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert elector.try_acquire()
    monkeypatch.setattr(places, "instance_tag", lambda: "0123456789ab")
    with pytest.raises(OSError, match="held by a process of another host"):
        FileElector(path).try_acquire()


def test_lock_file_is_private_and_touched(path: Path, elector: FileElector) -> None:
    path.write_text("")
    path.chmod(0o666)
    assert elector.try_acquire()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.utime(path, (1, 1))
    elector._touched -= 3600
    assert elector.still_held()
    assert path.stat().st_mtime > 1


def test_probe_tells_who_holds_it_and_disturbs_nobody(path: Path) -> None:
    assert probe(path)["held"] is False
    holder = FileElector(path, instance="abc")
    assert holder.try_acquire()
    found = probe(path)
    assert (found["held"], found["pid"], found["instance"]) == (True, os.getpid(), "abc")
    assert json.loads(path.read_text())["since"] == found["since"]
    holder.release()
    assert probe(path)["held"] is False
    looker = os.open(path, os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    threading.Timer(0.05, os.close, [looker]).start()
    # Somebody who only looks is no owner.
    eventually(holder.try_acquire)
    holder.release()


def test_default_place_is_private_and_differs_by_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    one, two = lock_path("app:one"), lock_path("app:two")
    assert one != two
    assert one == lock_path("app:one")
    assert len(os.path.basename(lock_path("x" * 2000))) < 200
    assert not os.path.exists(os.path.dirname(one)), "choosing a place makes nothing"
    elector = FileElector(identity="app:one")
    assert elector.try_acquire()
    assert elector.path == one
    assert stat.S_IMODE(os.stat(os.path.dirname(one)).st_mode) == 0o700
    elector.release()


def test_private_directory_of_somebody_else_is_passed_over_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, temp = tmp_path / "run", tmp_path / "tmp"
    runtime.mkdir()
    temp.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr("tempfile.tempdir", str(temp))
    trap = runtime / f"flask-singlejob-{os.geteuid()}"
    trap.symlink_to(temp)
    assert lock_path("app").startswith(str(temp))
    assert "symbolic link" in caplog.text


def test_no_usable_place_is_an_error_that_names_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places, "_bases", lambda: [str(tmp_path / "missing")])
    with pytest.raises(OSError, match=r"missing is no directory.*SINGLEJOB_LOCK_FILE"):
        FileElector(identity="app").try_acquire()


def test_alive_file_proves_death_and_nothing_else(tmp_path: Path) -> None:
    directory = tmp_path / "alive"
    mine = AliveFile(directory, "me")
    assert mine.acquire()
    assert not mine.is_dead("nobody"), "a missing file proves nothing"
    other = AliveFile(directory, "other")
    assert other.acquire()
    assert not mine.is_dead("other")
    os.close(other._fd or -1)
    other._fd = None
    assert mine.is_dead("other")
    assert not mine.is_dead("other", tag="another-kernel")
    assert not mine.is_dead("../me")
    assert mine.sweep(older_than_seconds=3600) == 0
    assert mine.sweep(older_than_seconds=-1) == 1
    assert not mine.is_dead("other")
    mine.release()


def test_alive_file_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    mine = AliveFile(tmp_path / "alive", "me")
    assert mine.acquire()
    os.unlink(mine.path)
    assert mine.acquire()
    assert not AliveFile(tmp_path / "alive", "other").is_dead("me")
    mine.release()


def test_forked_child_does_not_keep_its_dead_parent_alive(tmp_path: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        AliveFile(tmp_path / "alive", "parent").acquire()
        kept = AliveFile(tmp_path / "alive", "parent")
        kept.acquire()
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(60)
            os._exit(0)
        os.write(write, str(grandchild).encode())
        os._exit(0)
    os.waitpid(child, 0)
    grandchild = int(os.read(read, 20))
    try:
        assert AliveFile(tmp_path / "alive", "me").is_dead("parent")
    finally:
        os.kill(grandchild, 9)


def test_alive_directory_lies_beside_a_configured_lock_file(tmp_path: Path) -> None:
    assert alive_directory(str(tmp_path / "app.lock")) == str(tmp_path / "singlejob-alive")
