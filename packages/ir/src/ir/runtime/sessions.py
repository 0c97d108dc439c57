"""The artifacts that this process has open, each once; and those that travel as bytes to a process without the file.

A process opens what it uses itself: after a fork the parent's sessions are left alone, for the threads that they wait
for are the parent's.
"""

from __future__ import annotations

import atexit
import io
import os
import tarfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from ir.errors import ExportError
from ir.opened import Opened
from ir.opening import target_of
from ir.temporary import TemporaryFolder

_KEPT: list[object] = []  # of the parent, after a fork: to free them would wait for its threads


@dataclass(frozen=True)
class Packed:
    """An artifact's files as one tar archive in memory."""

    name: str
    data: bytes

    @classmethod
    def of(cls, path: Path, target: str | None = None) -> Packed:
        """The files of an artifact: itself, and those beside it that go with it."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for place in (path, *(path.parent / n for n in sorted(target_of(path, target).side_files(path)))):
                archive.add(place, place.name)
        return cls(path.name, buffer.getvalue())

    def unpacked(self, folder: Path) -> Path:
        """The artifact in a folder."""
        with tarfile.open(fileobj=io.BytesIO(self.data)) as archive:
            if hasattr(tarfile, "data_filter"):  # from Python 3.10.12 and 3.11.4 on
                archive.extractall(folder, filter="data")
            else:
                archive.extractall(folder)
        return folder / self.name


@dataclass(frozen=True)
class Key:
    """What makes two openings the same session: the file, or the bytes by their digest, and how it is opened."""

    name: str
    target: str | None
    threads: int
    stamp: tuple[int, int] | None = None  # of the file: one that was replaced is another


@dataclass
class Session:
    """An artifact that this process has opened, or had."""

    key: Key
    program: Opened | None
    process: int = field(default_factory=os.getpid)
    folder: TemporaryFolder | None = None  # of an artifact that came as bytes

    def close(self) -> None:
        """Let the runtime go, and the files that were unpacked for it."""
        program, self.program = self.program, None
        close = getattr(program, "close", None)
        if close is not None:
            close()
        self.folder = None


class _Sessions:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: dict[Key, Session] = {}
        self.opened: list[Key] = []  # every one that this process ever opened


_HERE = _Sessions()


def stamp(path: Path) -> tuple[int, int]:
    """When a file was written, and how large it is.

    Raises:
        ExportError: there is none.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise ExportError(f"{path}: no such file or directory in process {os.getpid()}") from error
    return found.st_mtime_ns, found.st_size


def session(key: Key, packed: Packed | None = None) -> Opened:
    """The artifact in its runtime: the one session of this process, opened at the first call.

    Raises:
        ExportError: see `ir.opening.open_artifact`.
    """
    found = _HERE.open.get(key)
    if found is None or found.program is None:
        with _HERE.lock:
            found = _HERE.open.get(key)
            if found is None or found.program is None:
                found = _HERE.open[key] = _opened(key, packed)
                _HERE.opened.append(key)
    assert found.program is not None
    return found.program


def _opened(key: Key, packed: Packed | None) -> Session:
    folder = None if packed is None else TemporaryFolder("ir-runner")
    path = Path(key.name) if packed is None or folder is None else packed.unpacked(folder.path)
    return Session(key, target_of(path, key.target).open(path, key.threads), folder=folder)


def close(key: Key) -> None:
    """End the session of this process, if it has one."""
    found = _HERE.open.pop(key, None)
    if found is not None:
        found.close()


def opened_here() -> list[Key]:
    """Every session that this process has opened, in order, those that were closed too."""
    return list(_HERE.opened)


@atexit.register
def _close_all() -> None:
    for key in list(_HERE.open):
        close(key)


def _forked() -> None:
    """After a fork: nothing is open here, and what the parent has is never freed here."""
    global _HERE
    _KEPT.append(_HERE)
    _HERE = _Sessions()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
