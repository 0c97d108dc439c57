"""Folders among the system's temporary files, which do not stay for good where their process is killed.

Such a folder, `<kind>-<16 hex digits>`, holds a file `.ir.lock`: it is locked for as long as its process lives, and
says which that is, on which machine. The next process that wants one of the kind takes away those whose process is
surely gone. Nothing else in that directory is ever touched.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import secrets
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

from ir.files import remove
from ir.lock_files import LOCK, held_lock, is_own_folder, take_lock


class TemporaryFolder:
    """An empty folder that goes with this object, in the process that made it."""

    def __init__(self, kind: str) -> None:
        sweep(kind)
        self._owner = os.getpid()
        self.path = Path(tempfile.gettempdir(), f"{kind}-{secrets.token_hex(8)}")
        self.path.mkdir(0o700)
        held = (self.path / LOCK).open("x", encoding="utf-8")
        weakref.finalize(self, _end, self.path, held, self._owner)
        take_lock(held, wait=True)  # a sweep may look at it
        held.write(_owner_line(self._owner))
        held.flush()

    @property
    def is_inherited(self) -> bool:
        """True in a process that was forked since."""
        return os.getpid() != self._owner


def _end(folder: Path, held: IO[str], owner: int) -> None:
    if os.getpid() == owner:
        remove(folder)
        held.close()


def _owner_line(process: int) -> str:
    return f"{process} {platform.node()}\n"


@functools.cache
def sweep(kind: str) -> None:
    """Once in a process: take away the folders of a kind that processes left which were killed."""
    if not hasattr(os, "getuid"):  # Windows, where whether a process lives cannot be told by a lock
        return
    ours = re.compile(re.escape(kind) + "-[0-9a-f]{16}")
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if ours.fullmatch(entry.name) and is_own_folder(entry):
                _take_away(Path(entry.path))


def _take_away(folder: Path) -> None:
    """Remove a folder, if its process has been one of this machine and is no more."""
    with suppress(OSError, ValueError, OverflowError), held_lock(folder) as held:
        said = held.read(1000)
        process = int(said.partition(" ")[0])
        if said == _owner_line(process) and not _lives(process) and take_lock(held) and _holds(folder / LOCK):
            remove(folder)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


def _holds(file: Path) -> bool:
    """Whether a file that is locked cannot be locked again; some file systems let everybody think that he has it."""
    with file.open("r+", encoding="utf-8") as again:
        return not take_lock(again)
