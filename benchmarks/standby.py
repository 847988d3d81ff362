"""What a standby costs beside a worker of the same app without the extension."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests.integration.harness import Cluster

from .report import Row

JOBS = [{"id": f"job-{n}", "trigger": "interval", "seconds": 1} for n in range(5)]
_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def threads(pid: int) -> int:
    """Return how many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def connections(pid: int) -> int:
    """Return how many established sockets and open database files a process has."""
    established = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "01"
    }
    count = 0
    for entry in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{entry}")
        count += target.startswith("socket:[") and target[8:-1] in established
        count += ".sqlite3" in target or target.endswith(".db")
    return count


def measure(name: str, store: str | None, seconds: float = 20) -> Row:
    """Let three standbys and three plain workers be idle for some seconds."""
    with tempfile.TemporaryDirectory() as directory:
        ours, plain = Cluster(Path(directory) / "ours", store=store), Cluster(Path(directory) / "plain")
        try:
            host = ours.host("a", workers=4, jobs=JOBS)
            host.wait_loaded()
            other = plain.host("b", app="tests.integration.apps.plain:create_app()", workers=3)
            ours.wait_runs("job-0", 2)
            time.sleep(2)
            standbys = [pid for pid in host.workers() if pid != host.owner_pid()]
            idle = other.workers()
            before = {pid: cpu_seconds(pid) for pid in standbys + idle}
            time.sleep(seconds)
            used = {pid: cpu_seconds(pid) - before[pid] for pid in before}
            more_cpu = max(used[pid] for pid in standbys) - max(used[pid] for pid in idle)
            more_threads = max(map(threads, standbys)) - max(map(threads, idle))
            open_connections = max(map(connections, standbys)) - max(map(connections, idle))
        finally:
            ours.reap()
            plain.reap()
    return Row(
        f"(e) a standby, {name}",
        f"{max(more_cpu, 0):.2f} s of processor more in {seconds:g} s",
        "0 s, <= 1 thread, 0 connections",
        more_cpu <= 1.5 / _TICK and more_threads <= 1 and open_connections <= 0,
        f"{more_threads} threads and {open_connections} connections more than a worker of plain Flask",
    )
