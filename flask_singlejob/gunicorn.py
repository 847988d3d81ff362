"""Optional hooks for a ``gunicorn.conf.py``: ``from flask_singlejob.gunicorn import *``.

Nothing depends on them. They serve where an app is loaded in a way that its workers are not
recognised by, so that the campaign would start with the first request only.
"""

from __future__ import annotations

from typing import Any

from . import process, servers

__all__ = ["post_worker_init", "worker_abort", "worker_int"]


def post_worker_init(worker: Any) -> None:
    """Campaign as soon as the worker enters its main loop."""
    servers.hook_gunicorn_worker(type(worker), process.this)


def worker_int(worker: Any) -> None:
    """Hand over at once when the worker is interrupted."""
    process.this.told_to_stop(quick=True)


def worker_abort(worker: Any) -> None:
    """Hand over at once when the worker is aborted."""
    process.this.told_to_stop(quick=True)
