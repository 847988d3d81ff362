"""Whether greenlets have replaced this process's threads. Looks at what is loaded; imports nothing."""

from __future__ import annotations

import sys

__all__ = ["green_kind"]


def green_kind() -> str | None:
    """Return ``gevent`` or ``eventlet`` when it has replaced this process's threads, else None."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        return "gevent"
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        return "eventlet"
    return None
