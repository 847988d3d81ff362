"""Serves the shop with gunicorn for ``make demo``; Ctrl-C stops it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def free_address(first: int = 8000, tries: int = 50) -> str:
    """Return an address of this machine on which nothing listens yet."""
    for port in range(first, first + tries):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return f"127.0.0.1:{port}"
    sys.exit(f"No free port from {first} to {first + tries - 1}: say BIND=127.0.0.1:PORT make demo.")


def main() -> None:
    """Say what there is to see and become gunicorn."""
    address = os.environ.setdefault("BIND", free_address())
    print(f"The shop, its orders, its jobs and who owns them: http://{address}/")
    print("The number in brackets is the worker. Kill the owner and watch: kill -9 PID")
    print("From another terminal: .venv/bin/flask --app example_app singlejob status")
    print("Ctrl-C stops it.", flush=True)
    os.chdir(PROJECT)
    gunicorn = str(Path(sys.executable).with_name("gunicorn"))
    os.execv(sys.executable, [sys.executable, gunicorn, "--config", "gunicorn.conf.py"])


if __name__ == "__main__":
    main()
