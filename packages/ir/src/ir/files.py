"""Writing without half files: everything is made in a temporary directory beside its place, then moved."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A path to write to; when the block ends without an error, what lies there moves to `path`, side files first.

    An older file or directory at `path` stays untouched until then, and for good if the block raises.

    Raises:
        FileNotFoundError: the directory of `path` does not exist.
    """
    path = Path(path)
    parent = path.parent
    if not parent.is_dir():
        raise FileNotFoundError(f"{parent}: no such directory")
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=parent))
    try:
        yield staging / path.name
        entries = sorted(staging.iterdir(), key=lambda e: e.name == path.name)
        for entry in entries:
            _move(entry, parent / entry.name, staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move(source: Path, place: Path, staging: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        old = staging / ".old"
        os.rename(place, old)
        try:
            os.rename(source, place)
        except OSError:
            os.rename(old, place)
            raise
        shutil.rmtree(old)
    else:
        os.replace(source, place)
