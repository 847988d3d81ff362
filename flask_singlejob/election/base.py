"""The contract of an election: at most one process of a host holds it, and the kernel says who.

Owns no thread and no policy: who campaigns, when, and what an owner does is in ``campaign.py``.
An elector never guarantees anything across hosts; ticks are kept single by claims.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

__all__ = ["ElectionTrouble", "Elector"]


@dataclass(frozen=True, slots=True)
class ElectionTrouble:
    """Why an election can neither be won nor is held by a standby's peer: one sentence with the cure."""

    message: str


class Elector(ABC):
    """One place on this host that one process can hold."""

    @abstractmethod
    def describe(self) -> str:
        """Return the file or port, for logs and pages."""

    @abstractmethod
    def try_acquire(self) -> bool:
        """Take it if it is free, without waiting.

        :returns: False when another process of the same election holds it.
        :raises OSError: when it cannot be told or taken (message names the thing and the cure).
        """

    @abstractmethod
    def wait_acquire(self) -> bool:
        """Block the calling (native) thread until it is taken or :meth:`cancel` was called.

        :returns: True when it is ours; False when cancelled.
        :raises OSError: as :meth:`try_acquire`.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Make a waiter give up as soon as it can; whatever it still takes later it frees at once."""

    @abstractmethod
    def still_held(self) -> bool:
        """Tell whether what we hold is still what others would contend for (same inode, socket open)."""

    @abstractmethod
    def release(self) -> None:
        """Give it up; harmless when not held, and in a forked child (there it only closes the copy)."""

    @abstractmethod
    def after_fork(self) -> None:
        """Close, in a forked child, the copy of what the parent holds, without freeing it."""
