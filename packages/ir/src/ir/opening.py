"""Opening a file: whose it is, and the file in that target's runtime."""

from __future__ import annotations

import stat
from pathlib import Path

from ir.errors import ExportError
from ir.opened import Opened
from ir.plugins import find_target, working_targets
from ir.target import Target


def open_artifact(path: str | Path, target: str | Target | None = None, threads: int | None = None) -> Opened:
    """An artifact in its runtime.

    Args:
        path: a file or directory that `ir.export` wrote, or another of the same format.
        target: whose it is; by default the first installed target that knows the name, of those of this project.
        threads: to compute with, where the runtime lets one choose.

    Raises:
        ExportError: there is no such file, no installed target reads it, or it does not say what it takes.
        RuntimeFailure: the runtime does not load it.
    """
    return target_of(path, target).open(Path(path), threads)


def target_of(path: str | Path, target: str | Target | None = None) -> Target:
    """The target whose artifact lies at a path, which is a plain file or a folder; raises as `open_artifact`."""
    place = Path(path)
    try:
        kind = place.stat().st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ExportError(f"{place!s:.200}: {why.lower()}") from error
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # a pipe would let the reader wait, a device read on for ever
        raise ExportError(f"{place}: it is no plain file")
    if target is not None:
        return find_target(target, {})
    working, left = working_targets()
    for found in working:
        if found.reads(place):
            return found
    raise ExportError(
        "; ".join([f"{place}: no installed target reads files of this name (--target says which one does)", *left])
    )
