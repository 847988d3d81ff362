"""What the extension adds to a worker's boot: ``import`` and ``init_app`` in processor time, without Flask."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

from .report import Row

_SCRIPT = """
import time
from flask import Flask
app = Flask("boot", instance_path={instance!r})
begun = time.process_time()
{boot}
print(time.process_time() - begun)
"""
_OURS = "from flask_singlejob import SingleJob; SingleJob(app)"
_OTHER = "from flask_apscheduler import APScheduler; APScheduler().init_app(app)"


def measure(rounds: int = 15) -> Row:
    """Boot both by turns, each in a fresh interpreter."""
    times: dict[str, list[float]] = {_OURS: [], _OTHER: []}
    with tempfile.TemporaryDirectory() as instance:
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{instance}/pycache"}
        env = {**os.environ, **compiled}
        for number in range(rounds + 1):
            for boot, seconds in times.items():
                script = _SCRIPT.format(instance=instance, boot=boot)
                done = subprocess.run(
                    [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env
                )
                if number:  # the first round writes bytecode and fills the disk's cache
                    seconds.append(float(done.stdout.strip().splitlines()[-1]))
    ours, other = (statistics.median(values) for values in times.values())
    return Row(
        "(d) boot",
        f"{ours / other:.2f} times Flask-APScheduler's own",
        "<= 1.3",
        ours / other <= 1.3,
        f"{ours * 1000:.0f} ms of processor time against {other * 1000:.0f} ms, median of {rounds}",
    )
