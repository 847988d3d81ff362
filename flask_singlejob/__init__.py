"""Scheduled jobs that run once, however many gunicorn workers and hosts serve a Flask app.

The public names, and nothing else. Start reading at :class:`SingleJob` in ``extension.py``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from apscheduler.schedulers.base import STATE_PAUSED, STATE_RUNNING, STATE_STOPPED

from .errors import (
    ConfigError,
    JobDefinitionError,
    LeaseLostError,
    LockHeldError,
    SingleJobError,
    StoreError,
)
from .extension import SingleJob
from .signals import (
    lease_lost,
    owner_elected,
    owner_resigned,
    run_failed,
    run_lost,
    run_missed,
    run_overran,
    run_skipped,
    run_started,
    run_succeeded,
)

if TYPE_CHECKING:
    from .lease import Lease
    from .locks import single_task
    from .records import Health, Run, RunStatus
    from .runner import current_run
    from .stores import open_store

__version__ = "0.1.0"

__all__ = [
    "STATE_PAUSED",
    "STATE_RUNNING",
    "STATE_STOPPED",
    "ConfigError",
    "Health",
    "JobDefinitionError",
    "Lease",
    "LeaseLostError",
    "LockHeldError",
    "Run",
    "RunStatus",
    "SingleJob",
    "SingleJobError",
    "StoreError",
    "__version__",
    "current_run",
    "lease_lost",
    "open_store",
    "owner_elected",
    "owner_resigned",
    "run_failed",
    "run_lost",
    "run_missed",
    "run_overran",
    "run_skipped",
    "run_started",
    "run_succeeded",
    "single_task",
]

#: Names whose modules a worker needs only when it runs jobs: imported at their first use.
_LATER = {
    "Health": "records",
    "Lease": "lease",
    "Run": "records",
    "RunStatus": "records",
    "current_run": "runner",
    "open_store": "stores",
    "single_task": "locks",
}


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f".{module}", __name__), name)
    return found
