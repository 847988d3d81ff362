"""What this process tells others of its server: by what it is loaded and patched, and by which driver.

Looks at what is loaded only; imports nothing and asks nobody.
"""

from __future__ import annotations

import sys
from typing import Any

from . import process
from .stores.base import Store

__all__ = ["describe_server", "patched_by"]


def patched_by() -> str | None:
    """Return ``gevent`` or ``eventlet`` when it has replaced this process's sockets, else None."""
    for name in ("gevent", "eventlet"):
        patcher: Any = sys.modules.get(f"{name}.monkey" if name == "gevent" else f"{name}.patcher")
        asked = getattr(patcher, "is_module_patched" if name == "gevent" else "is_monkey_patched", None)
        if asked is not None and asked("socket"):
            return name
    return None


def describe_server(store: Store) -> dict[str, Any]:
    """Return role, preloading, patching and the store's driver of this process, JSON-ready."""
    target = getattr(store, "_target", None)
    return {
        "role": process.current_role().reason,
        "preload": process.this.preloaded,
        "patched": patched_by(),
        "driver": getattr(target, "driver", None),
    }
