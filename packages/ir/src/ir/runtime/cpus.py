"""How many CPUs this process may compute with: what the system gives it, what its engine says, its share of them."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "microseconds period", or "max period"
_SAID = "OMP_NUM_THREADS"  # Ray sets it to an actor's num_cpus, Spark to an executor's cores by its tasks'


def available() -> int:
    """The CPUs that the system lets this process use: its affinity, and the quota of its control group."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, math.ceil(int(quota) / int(period))))


def share(workers: int | None = None) -> int:
    """The threads for one of so many workers on this machine; None is what the engine that started it says.

    >>> share(workers=available() * 2)
    1
    """
    if workers is not None:
        return max(1, available() // workers)
    said = os.environ.get(_SAID, "").split(",")[0].strip()
    return max(1, min(int(said), available())) if said.isdigit() else available()
