"""Says when a preloaded app's files are newer than the code that its workers were forked with.

gunicorn's HUP then starts new workers with the old code. Looks at files only; it cannot tell which of
them matter, and sees no file that was not imported.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import struct
import sys
import sysconfig
import time

__all__ = ["note_loading", "say_what_changed"]

logger = logging.getLogger(__name__)

_loading_since: float | None = None
# One page that all workers share: the newest change that one of them has spoken of.
_told: mmap.mmap | None = None


def note_loading() -> None:
    """Remember, in the process that workers will be forked from, when it loaded the app's code."""
    global _loading_since, _told
    if _loading_since is None:
        _loading_since = time.time()
        with contextlib.suppress(OSError, ValueError):
            _told = mmap.mmap(-1, struct.calcsize("d"))


def say_what_changed() -> None:
    """Warn, in one of the workers, of imported files that changed since their code was loaded."""
    told = _told
    if _loading_since is None or told is None:
        return
    newest, name = max(_changed(_loading_since), default=(0.0, ""))
    if newest <= struct.unpack_from("d", told)[0]:
        return
    struct.pack_into("d", told, 0, newest)
    logger.warning(
        "%s has changed since the app was preloaded: HUP with --preload starts workers with the old code. "
        "Restart gunicorn, or send USR2, or leave --preload out",
        name,
    )


def _changed(since: float) -> list[tuple[float, str]]:
    libraries = tuple(
        {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    )
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or file.startswith(libraries):
            continue
        with contextlib.suppress(OSError):
            changed = os.stat(file).st_mtime
            if changed > since:
                found.append((changed, file))
    return found
