"""Whether greenlets have replaced parts of this process's standard library. Looks at what is loaded; imports nothing."""

from __future__ import annotations

import sys
from typing import Any, Literal

__all__ = ["green_kind"]

_ASKED = {
    "gevent": ("gevent.monkey", "is_module_patched", {"threads": "threading", "sockets": "socket"}),
    "eventlet": ("eventlet.patcher", "is_monkey_patched", {"threads": "thread", "sockets": "socket"}),
}


def green_kind(what: Literal["threads", "sockets"] = "threads") -> str | None:
    """Return ``gevent`` or ``eventlet`` when it has replaced this process's threads (or sockets), else None."""
    for kind, (module, question, names) in _ASKED.items():
        asked: Any = getattr(sys.modules.get(module), question, None)
        if asked is not None and asked(names[what]):
            return kind
    return None
