"""Kills the process groups that a test run left behind, also when the run itself was killed.

Reads lines ``+PGID`` and ``-PGID`` from standard input; at its end, which comes with the death of the
process that holds the other end of the pipe in whatever way, the groups still listed get SIGKILL.
Imports nothing of the project: it is started as a script.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Follow the list until the input ends, then kill what is left on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        pgid = int(line[1:])
        (groups.add if line[0] == "+" else groups.discard)(pgid)
    for pgid in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pgid, signal.SIGKILL)


if __name__ == "__main__":
    main()
