"""What a benchmark answers with, the table of all answers, and the machine that they were measured on."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Row", "machine", "percentile", "table"]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    :param ratio: what counts, as text: a ratio or a difference.
    :param limit: what it should be at most or at least, as text.
    :param met: whether it is.
    :param detail: the numbers behind it.
    """

    name: str
    ratio: str
    limit: str
    met: bool
    detail: str


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float], scale: float = 1.0, unit: str = "") -> str:
    """Return median, 99th percentile and maximum as text."""
    numbers = (statistics.median(values), percentile(values, 0.99), max(values))
    return "median {:.3g}, p99 {:.3g}, max {:.3g}".format(*(n * scale for n in numbers)) + unit


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table, the ratios before the numbers."""
    lines = ["| what | ratio | should be | met | measured |", "|---|---|---|---|---|"]
    for row in rows:
        met = "yes" if row.met else "**no**"
        lines.append(f"| {row.name} | {row.ratio} | {row.limit} | {met} | {row.detail} |")
    return "\n".join(lines)


def machine() -> str:
    """Return processor, cores, memory, system and Python; nothing that names the machine."""
    facts = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next(
        (line.partition(":")[2].strip() for line in facts.splitlines() if line.startswith("model name")),
        platform.processor() or "unknown processor",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )
