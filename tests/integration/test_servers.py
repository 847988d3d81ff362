"""Each server, in a steady state, when its owner is killed, at a reload and at a stop: every tick once.

``SINGLEJOB_TEST_MATRIX=full`` runs all rows and ``SINGLEJOB_WRITE_DOCS=1`` writes what they gave into
docs/servers.md; the default run has a few of them, on the Python that runs the tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import itertools
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from .checker import Expected
from .harness import Cluster, Host, Process
from .servers import ROWS, Row, edit, interpreter, start
from .waiting import observe, wait_until, window_seconds

FULL = os.environ.get("SINGLEJOB_TEST_MATRIX") == "full"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "servers.md"
HEAD = ("server", "class", "flags", "steady", "`kill -9` of the owner", "graceful reload", "stop and start")
JOBS = [{"id": "each-second", "trigger": "interval", "seconds": 1, "coalesce": False}]
#: A run may be in its midst when its process is killed: the history must say so, and no oftener than killed.
EXCUSED = ("lost", "skipped")


class Matrix:
    """One row while it is tried: the server, and the moments between the columns."""

    def __init__(self, cluster: Cluster, row: Row, python: str) -> None:
        self.cluster = cluster
        self.row = row
        self.host: Process = start(cluster, row, python, jobs=JOBS)
        self.moments: list[float] = []
        self.kills = 0

    def runs_go_on(self) -> None:
        """Wait until a tick that fell due from now on has run."""
        now = time.time() * 1000
        wait_until(
            lambda: max((run.tick or 0 for run in self.cluster.runs("each-second")), default=0) > now,
            90,
            "the ticks go on",
            every=0.1,
        )

    def next_column(self) -> None:
        """Watch for a while, then end a column after whatever is due has run."""
        observe(window_seconds(3))
        self.runs_go_on()
        self.moments.append(time.time())

    def kill_owner(self) -> None:
        """Kill the owner; a server of one process is started again, as its supervisor would."""
        owner = self.host.owner_pid(60)
        self.kills += 1
        if self.row.workers > 1:
            self.host.kill(owner)
            return
        self.host.signal(owner, signal.SIGKILL)
        self.host.kill_all()
        self.host.start()

    def reload(self) -> None:
        """Reload as the server can: by signal, by an edit (five of them), or by a stop and a start."""
        if self.row.reload == "restart":
            self.host.stop()
            self.host.start()
        elif self.row.reload == "edit":
            for _ in range(5):
                self._edit_until_it_is_seen()
        elif isinstance(self.host, Host):
            self.host.reload()
        else:
            old = self.host.owner_pid(60)
            os.kill(self.host.pid, signal.SIGHUP)
            wait_until(lambda: self.host.owners() not in ((), (old,)), 60, "another owner")

    def _edit_until_it_is_seen(self) -> None:
        old = self.host.owner_pid(60)

        def seen() -> bool:
            return self.host.owners() not in ((), (old,))

        # A reloader that has not looked yet takes the first look for the state of things: edit again.
        for _ in range(6):
            edit(self.host.directory / "served.py")
            with contextlib.suppress(AssertionError):
                wait_until(seen, 10, "the edit is seen")
                return
        raise AssertionError("no reload after six edits")

    def settled(self) -> list[int]:
        """Return the ticks that the history says were lost with their process or skipped by the job."""
        excused = []
        for status in EXCUSED:
            for run in self.host.get(f"/runs?job=each-second&status={status}").json()["runs"]:
                print(f"{self.row.id}: {status}: {run}")
                first, last = (
                    round(datetime.fromisoformat(run[name] or run["scheduled_at"]).timestamp() * 1000)
                    for name in ("scheduled_at", "last_scheduled_at")
                )
                # A record that stands for several need not stand for all between them: those must have run.
                excused += (
                    list(range(first, last + 1, 1000))
                    if last - first == 1000 * (run["count"] - 1)
                    else [first, last]
                )
        return excused


@contextlib.contextmanager
def probed(host: Process) -> Iterator[None]:
    """Send a request every so often, as a health probe does: some servers are recognised by it only."""
    over = threading.Event()

    def probe() -> None:
        while not over.wait(0.15):
            with contextlib.suppress(Exception):
                host.get("/pid", timeout=5)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(20)


def python_of(row: Row) -> str:
    """Return the interpreter for a row, or skip it."""
    if FULL:
        return interpreter(row.venv)
    for module in row.needs:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None and not (module == "pyuwsgi" and Path(sys.executable).with_name("uwsgi").exists()):
            pytest.skip(f"{module} is not installed")
    return sys.executable


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS if FULL or row.quick])
def test_each_tick_runs_once_on_every_server(cluster: Cluster, row: Row) -> None:
    matrix = Matrix(cluster, row, python_of(row))
    host = matrix.host
    with probed(host):
        cluster.wait_runs("each-second", 2, 90)
        cluster.sample_owners(0.05)
        matrix.moments.append(time.time())
        matrix.next_column()
        matrix.kill_owner()
        matrix.next_column()
        matrix.reload()
        matrix.next_column()
        host.stop()
        host.start()
        matrix.next_column()
        excused = matrix.settled()
    host.stop()
    cells, ticks = count(cluster, matrix.moments, excused)
    print(f"{row.id}: {cells} of {ticks} ticks, excused {excused}")
    assert ticks >= 12
    assert len(excused) <= 2 + 2 * ticks // 10
    window = (matrix.moments[0], matrix.moments[-1])
    # A server that ends without waiting for its threads ends its running job too: the history must say so.
    report = cluster.judge(
        Expected("each-second"), window=window, excused={"each-second": excused}, finished=False
    )
    report.assert_clean()
    if isinstance(host, Host):
        # eventlet complains of Flask's proxies when it patches late, and of its own sockets at a stop.
        found = r"flask_singlejob/.*" if row.kind == "eventlet" else r"^Traceback.*"
        assert not re.findall(rf"{found}|cannot schedule new futures.*", host.log, re.M), host.log_tail(200)
    if os.environ.get("SINGLEJOB_WRITE_DOCS"):
        write(row, cells)


def count(cluster: Cluster, moments: list[float], excused: list[int]) -> tuple[list[str], int]:
    """Return, by column, how many ticks ran twice and how many were missed; and how many there were."""
    ran = Counter(run.tick for run in cluster.runs("each-second") if run.tick is not None)
    first = min(ran)
    cells, total = [], 0
    for low, high in itertools.pairwise(moments):
        start_at = first + -(-(round(low * 1000) - first) // 1000) * 1000
        ticks = range(start_at, round(high * 1000), 1000)
        twice = sum(ran[tick] > 1 for tick in ticks)
        missed = sum(not ran[tick] and tick not in excused for tick in ticks)
        cells.append(f"{twice} / {missed}")
        total += len(ticks)
    return cells, total


def write(row: Row, cells: list[str]) -> None:
    """Put a row into the table of docs/servers.md, in the order of the matrix."""
    with open(PAGE.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = PAGE.read_text()
        begin, end = "<!-- matrix -->\n", "<!-- end of the matrix -->"
        before, _, rest = text.partition(begin)
        table, _, after = rest.partition(end)
        known: dict[tuple[str, ...], list[str]] = {}
        for line in table.splitlines()[2:]:
            parts = [part.strip() for part in line.strip().strip("|").split("|")]
            known[tuple(parts[:3])] = parts[3:]
        known[name_of(row)] = cells
        lines = ["| " + " | ".join(HEAD) + " |", "| " + " | ".join("---" for _ in HEAD) + " |"]
        lines += [
            "| " + " | ".join([*name_of(each), *known[name_of(each)]]) + " |"
            for each in ROWS
            if name_of(each) in known
        ]
        PAGE.write_text(before + begin + "\n".join(lines) + "\n" + end + after)
    with contextlib.suppress(FileNotFoundError):
        PAGE.with_suffix(".lock").unlink()


def name_of(row: Row) -> tuple[str, str, str]:
    """Return a row's first three cells."""
    return row.server, row.kind, f"`{row.flags}`" if row.flags else ""


def test_table_of_servers_is_all_zero() -> None:
    table = PAGE.read_text().partition("<!-- matrix -->")[2].partition("<!-- end of the matrix -->")[0]
    lines = [line for line in table.splitlines() if "/" in line]
    assert len(lines) > 20
    assert {cell for line in lines for cell in re.findall(r"\d+ / \d+", line)} == {"0 / 0"}
