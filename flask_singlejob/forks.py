"""What has to happen when this process forks: one hook per process over weak references.

A hook cannot be taken back, so it only calls :meth:`Forked.after_fork` of whatever still lives. It
runs before a server's child dropped its privileges or patched its threads: nothing here logs,
locks or starts anything.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Forked", "fork_count", "watch"]


class Forked(Protocol):
    """A thing that a forked child must not go on using as its own."""

    def after_fork(self) -> None:
        """Close, in the child, the copies of what belongs to the parent."""


_watched: tuple[weakref.ReferenceType[Forked], ...] = ()
_forks = 0


def fork_count() -> int:
    """Return how many times this process or its forebears began to fork.

    A descriptor that was made while the number changed may have a copy in a child that knows
    nothing of it: close it and make another before locking or binding it.
    """
    return _forks


def watch(thing: Forked) -> None:
    """Call ``thing.after_fork()`` in every child forked from now on, as long as ``thing`` lives."""
    global _watched
    living = tuple(ref for ref in _watched if ref() is not None)
    if all(ref() is not thing for ref in living):
        living += (weakref.ref(thing),)
    # One assignment: a fork in another thread sees the old or the new tuple, never half of one.
    _watched = living


def _before() -> None:
    global _forks
    _forks += 1


def _in_child() -> None:
    for ref in _watched:
        thing = ref()
        if thing is not None:
            try:
                thing.after_fork()
            except Exception:
                # The child goes on: the worst that is left behind is an open copy. Logging may deadlock here.
                continue


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
