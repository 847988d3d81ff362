"""The errors that Flask-SingleJob raises, and nothing else.

    SingleJobError
    ├── ConfigError          a configuration value cannot be used
    ├── StoreError           the store failed or did not answer
    ├── LockHeldError        somebody else holds the claim that was asked for
    ├── LeaseLostError       a lease that this process held is no longer its own
    └── JobDefinitionError   a job cannot be defined, stored or restored as asked

A driver's own error is the ``__cause__`` of the one that is raised here.
"""

from __future__ import annotations

from datetime import datetime

__all__ = [
    "ConfigError",
    "JobDefinitionError",
    "LeaseLostError",
    "LockHeldError",
    "SingleJobError",
    "StoreError",
]


class SingleJobError(Exception):
    """Any error that Flask-SingleJob raises by itself."""


class ConfigError(SingleJobError):
    """A configuration value cannot be used: the message names key, value and cure."""


class StoreError(SingleJobError):
    """The store failed, refused or did not answer within its time limit."""


class LockHeldError(SingleJobError):
    """Somebody else holds the lock, job or once-only task that was asked for.

    :ivar name: what was asked for.
    :ivar holder_host: the host that holds it, when known.
    :ivar holder_pid: the process that holds it, when known.
    :ivar since: when it was taken (aware, UTC), when known.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        holder_host: str | None = None,
        holder_pid: int | None = None,
        since: datetime | None = None,
    ) -> None:
        super().__init__(message)
        self.name = name
        self.holder_host = holder_host
        self.holder_pid = holder_pid
        self.since = since


class LeaseLostError(SingleJobError):
    """The lease ended before the work did: another process may be doing the same work."""


class JobDefinitionError(SingleJobError, ValueError):
    """A job cannot be defined, stored or restored as asked."""
