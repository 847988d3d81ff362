"""What has to happen when this process forks: one hook per process over weak references.

A hook cannot be taken back, so it only calls the methods of whatever still lives. It
runs before a server's child dropped its privileges or patched its threads: nothing here logs,
locks or starts anything. Only a :class:`Resting` may have a fork wait, and for a moment.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

__all__ = ["Forked", "Resting", "fork_count", "watch"]


class Forked(Protocol):
    """A thing that a forked child must not go on using as its own."""

    def after_fork(self) -> None:
        """Close, in the child, the copies of what belongs to the parent."""


class Resting(Forked, Protocol):
    """A thing that has to be at rest while its process forks, because a child inherits it as it is."""

    def before_fork(self) -> None:
        """Come to rest, in the thread that forks; after about a second at most."""

    def after_fork_in_parent(self) -> None:
        """Go on, in the parent, in the thread that forked; also when there is no child."""


_watched: tuple[weakref.ReferenceType[Forked], ...] = ()
_forks = 0


def fork_count() -> int:
    """Return how many times this process or its forebears began to fork.

    A descriptor that was made while the number changed may have a copy in a child that knows
    nothing of it: close it and make another before locking or binding it.
    """
    return _forks


def watch(thing: Forked) -> None:
    """Tell ``thing`` of every fork from now on, as long as it lives: ``after_fork()`` is called in the child.

    What a :class:`Resting` has besides is called in the parent.
    """
    global _watched
    living = tuple(ref for ref in _watched if ref() is not None)
    if all(ref() is not thing for ref in living):
        living += (weakref.ref(thing),)
    # One assignment: a fork in another thread sees the old or the new tuple, never half of one.
    _watched = living


def _call(name: str) -> None:
    for ref in _watched:
        hook: Any = getattr(ref(), name, None)
        if hook is not None:
            try:
                hook()
            except Exception:
                # The child goes on: the worst that is left behind is an open copy. Logging may deadlock here.
                continue


def _before() -> None:
    global _forks
    _call("before_fork")
    # After what may wait: a descriptor that another thread made meanwhile has a copy in the child.
    _forks += 1


def _in_parent() -> None:
    _call("after_fork_in_parent")


def _in_child() -> None:
    _call("after_fork")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
