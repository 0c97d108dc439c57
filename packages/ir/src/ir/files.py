"""Writing without half files: everything is made in a temporary directory beside its place, then moved."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_LOCK = ".lock"


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A path to write to; when the block ends without an error, what lies there moves to `path`, side files first.

    An older file or directory at `path` stays untouched until then, and for good if the block raises. A process that
    is killed leaves a directory `.<name>.<random>.partial` behind; the next call takes it away, and with it the side
    files that had their places already when what they belong to had not.

    Raises:
        FileNotFoundError: the directory of `path` does not exist.
    """
    path = Path(path)
    parent = path.parent
    if not parent.is_dir():
        raise FileNotFoundError(f"{parent}: no such directory")
    _sweep(path)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=parent))
    lock = (staging / _LOCK).open("w")
    _lock(lock)
    try:
        yield staging / path.name
        entries = sorted((e for e in staging.iterdir() if e.name != _LOCK), key=lambda e: e.name == path.name)
        lock.writelines(f"{e.stat().st_ino} {e.name}\n" for e in entries if e.name != path.name and e.is_file())
        lock.flush()
        for entry in entries:
            _move(entry, parent / entry.name, staging)
    finally:
        lock.close()
        shutil.rmtree(staging, ignore_errors=True)


def _lock(file: IO[str]) -> bool:
    """Take the lock of a staging directory, which ends with the process; False if another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows: what a killed process leaves is left alone
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(path: Path) -> None:
    """Take away what killed processes left beside `path`."""
    for stale in path.parent.glob(f".{_escaped(path.name)}.*.partial"):
        with contextlib.suppress(OSError), (stale / _LOCK).open() as file:
            if _lock(file):
                if (stale / path.name).exists():
                    _take_back(file, path.parent)
                shutil.rmtree(stale, ignore_errors=True)


def _take_back(sides: IO[str], folder: Path) -> None:
    """Remove those of a killed process's side files that are in the folder: the same file, not one of the same name."""
    for line in sides:
        inode, _, name = line.rstrip("\n").partition(" ")
        with contextlib.suppress(OSError):
            if "/" not in name and str((folder / name).lstat().st_ino) == inode:
                (folder / name).unlink()


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


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
