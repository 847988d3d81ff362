"""A host's own wall clock: builds the preloaded shim and steps the offset while servers run.

Shifts ``CLOCK_REALTIME`` only, for processes started with :meth:`HostClock.environment`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["ClockUnavailable", "HostClock", "cache_directory"]

_SOURCE = Path(__file__).with_name("clock_shim.c")


class ClockUnavailable(Exception):
    """A host cannot have a clock of its own here; the message says why and what helps."""


def cache_directory() -> Path:
    """Return a directory of this user's that outlives test runs: for the shim and compiled modules."""
    directory = Path(tempfile.gettempdir()) / f"singlejob-tests-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _build() -> Path:
    """Return the compiled shim; it is built once per user and per version of its source."""
    if sys.platform != "linux":
        raise ClockUnavailable("host clocks are shifted by LD_PRELOAD, on Linux only")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise ClockUnavailable("no C compiler was found to build the clock shim (install gcc)")
    version = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    library = cache_directory() / f"clock_shim-{version}.so"
    if library.exists():
        return library
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(unfinished), str(_SOURCE), "-ldl", "-pthread"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise ClockUnavailable(f"the clock shim could not be built: {built.stderr.strip()}")
    unfinished.replace(library)
    return library


class HostClock:
    """An offset of the wall clock that all processes of one host share.

    :param directory: where the file with the offset is kept.
    :param offset: seconds that the host's clock is ahead (negative: behind).
    :raises ClockUnavailable: when no shim can be built here.
    """

    def __init__(self, directory: Path, *, offset: float = 0.0) -> None:
        self._library = _build()
        self._file = directory / "clock-offset"
        self._file.write_bytes(struct.pack("=q", 0))
        self.set(offset)

    @property
    def offset(self) -> float:
        """Seconds that the host's clock is ahead at present."""
        return float(struct.unpack("=q", self._file.read_bytes()[:8])[0]) / 1e9

    def set(self, offset: float) -> None:
        """Set the offset, in seconds, of the running processes and of those to come."""
        with open(self._file, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), struct.pack("=q", round(offset * 1e9)), 0)

    def step(self, seconds: float) -> None:
        """Move the clock by so many seconds, forth or back."""
        self.set(self.offset + seconds)

    def environment(self) -> dict[str, str]:
        """Return the variables that put a process on this clock."""
        return {"LD_PRELOAD": str(self._library), "SINGLEJOB_TEST_CLOCK": str(self._file)}
