"""The lock file of a folder that one process makes and another may have to clear: whose it is, and what stands in it.

Anybody may have put a folder or a file of such a name there, so nothing is taken for ours that we would not write.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import IO, NamedTuple

LOCK = ".ir.lock"
_LONGEST = 1 << 24  # characters: more than 60,000 side files of the longest names
_LINE = re.compile(r"([+-]) ([^ ]*) (?!\.\.?$)([^/\0]+)", re.DOTALL)


def take_lock(file: IO[str] | int, wait: bool = False) -> bool:
    """Take a lock that ends with the process; False if another process has it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except ImportError:  # Windows
        return True
    except OSError as error:  # other numbers: a file system without locks
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def is_own_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a directory of this user's: another's may hold anything under the names of ours."""
    if not hasattr(os, "getuid"):  # Windows
        return entry.is_dir(follow_symlinks=False)
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()


def held_lock(folder: Path) -> IO[str]:
    """The lock file of a folder that a process of ours may have left.

    Raises:
        OSError: there is none, or it is nothing that we write: a link, a pipe, a device, a file without end.
    """
    held = os.open(folder / LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        found = os.fstat(held)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LONGEST:
            raise OSError(errno.EINVAL, "it is no lock file", os.fspath(folder / LOCK))
        return open(held, "r+", encoding="utf-8", errors="surrogateescape", newline="")
    except BaseException:
        os.close(held)
        raise


class Line(NamedTuple):
    """A file that is about to be moved to its place, "+", or taken away from there, "-"; `known` is its identity."""

    sign: str
    known: str
    name: str


def journal(lock: IO[str]) -> list[Line] | None:
    """What the lock file says; None where nothing was moved yet.

    Raises:
        ValueError: it is none that we write.
    """
    lock.seek(0)
    *lines, end = lock.read(_LONGEST).split("\0")
    if end != ".":
        return None
    found = [_LINE.fullmatch(line) for line in lines]
    if not all(found):
        raise ValueError("no journal")
    return [Line(*line.groups()) for line in found if line]
