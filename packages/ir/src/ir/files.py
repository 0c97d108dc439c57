"""Writing without half files: everything is made in a directory beside its place, then moved there.

That directory, `.<name>.<16 hex digits>.partial`, holds a file `.ir.lock`, which is locked for as long as its process
lives, and in which stands what is about to be moved and taken away. So whoever comes next can tell what a killed
process left, and ends what it began or undoes it. Nothing else beside the place is ever touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import operator
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO

from ir.errors import OutputError
from ir.lock_files import LOCK, Line, held_lock, is_own_folder, journal, take_lock

_OLD, _LEFT = ".ir.old", ".ir.left"
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_LONGEST = 200  # bytes of a name that its staging directory bears, too


def writable(path: str | os.PathLike[str]) -> Path:
    """The path, once it is known that a file or a directory may be put there.

    Raises:
        OutputError: its folder does not exist, its name is none, or what lies there is no plain file or directory, or
            read-only.
        TypeError: it is no path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path={path!r:.80}: give a text or a pathlib.Path")
    place = Path(path)
    text = os.fspath(place)
    short = text if len(text) < 200 else f"{text[:100]}...{text[-60:]}"
    if not place.name or place.name == ".." or "\0" in text:
        raise OutputError(f"{text!r:.200} is no name for a file: give path= one, as 'folder/model'")
    if text.encode(errors="surrogatepass").decode(errors="ignore") != text:
        raise OutputError(f"{short!a}: the name is no UTF-8, which the formats want in references; choose another")
    try:
        folder, there = os.stat(place.parent), _found(place)
    except OSError as error:
        raise _refused(f"{short}: nothing can be written there", error, "its folder is to be made first") from error
    if not stat.S_ISDIR(folder.st_mode):
        raise OutputError(f"{short}: {place.parent} is no directory")
    if there is not None and not stat.S_ISLNK(there.st_mode):
        if not (stat.S_ISREG(there.st_mode) or stat.S_ISDIR(there.st_mode)):
            raise OutputError(f"{short} is neither a file nor a directory; choose another path")
        if not there.st_mode & 0o222:
            raise OutputError(f"{short} is read-only and stays as it is; choose another path, or make it writable")
    return place


def stem(name: str) -> str:
    """A file's name without what says its kind."""
    return re.sub(r"(?<=.)(\.nnef|\.tar)?\.[A-Za-z]\w*$", "", name)


def opened(path: str | os.PathLike[str]) -> BufferedReader:
    """A plain file, opened to be read; nothing else: a pipe would let the reader wait, a device read on for ever.

    Raises:
        OSError: there is none, or it cannot be read; with one sentence in `strerror`.
    """
    try:
        held = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from error
    try:
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", os.fspath(path))
        return open(held, "rb")
    except BaseException:
        os.close(held)
        raise


def head(path: str | os.PathLike[str], count: int) -> bytes:
    """The first bytes of a plain file; none of what is no such file, or cannot be read."""
    with contextlib.suppress(OSError), opened(path) as file:
        return file.read(count)
    return b""


def strange(folder: Path) -> str:
    """The name of what lies in a folder and is neither a file nor a folder, which readers would wait for; else empty.

    Raises:
        OSError: it cannot be read.
    """
    entries = sorted(folder.iterdir())
    return next((p.name for p in entries if p.exists() and not p.is_file() and not p.is_dir()), "")


def _is_file(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        raise OutputError(f"{place} is a directory and stays as it is; give the path of a file")


def _found(place: Path) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(place)
    return None


@contextlib.contextmanager
def staged(
    path: str | os.PathLike[str],
    check: Callable[[Path], None] = _is_file,
    sides: Callable[[Path], Iterable[str]] = lambda place: (),
    is_side: Callable[[Path, str], bool] = lambda place, name: False,
) -> Iterator[Path]:
    """A path to write to; when the block ends without an error, what lies there moves to `path`, side files first.

    An older file or directory at `path` stays untouched until then, and for good if the block raises or its process is
    killed. What a killed process left is taken away by the next call.

    Args:
        path: where it goes.
        check: raises OutputError where what lies at a path is not to be replaced.
        sides: the names of the files beside `path` that go with what is replaced.
        is_side: whether a file of a name can be one of those of a path; no other is taken away for a killed process.

    Raises:
        OutputError: the path is not to be written, or the disk refused.
    """
    place = writable(path)
    check(place)
    try:
        staging, lock = _staging(place)
        try:
            _sweep(place, staging, is_side)
            yield staging / place.name
            with _alone(place.parent):
                check(writable(place))
                _move(staging, place, lock, check, sides)
        finally:
            _settle(staging, place, journal(lock))
            lock.close()
            remove(staging)
    except OutputError:
        raise
    except OSError as error:
        raise _refused(f"{place} is not written", error) from error


def _refused(what: str, error: OSError, missing: str = "") -> OutputError:
    """The error of ours, with the system's number; `missing` is the way out where a folder is not there."""
    way = f"; {missing}" if missing and error.errno == errno.ENOENT else ""
    made = OutputError(f"{what}: {error.strerror or error}{way}")
    made.errno = error.errno
    return made


# -- staging directories -----------------------------------------------------------------------------------------------


def _staging(place: Path) -> tuple[Path, IO[str]]:
    """A new directory beside the place and its lock file, locked."""
    while True:
        folder = place.parent / f"{_prefix(place)}{secrets.token_hex(8)}.partial"
        folder.mkdir(0o700)
        try:
            lock = (folder / LOCK).open("x+", encoding="utf-8", newline="")
        except FileNotFoundError:  # the sweep of another process took it for one that was left
            continue
        except BaseException:
            folder.rmdir()
            raise
        if take_lock(lock) and (folder / LOCK).exists():
            return folder, lock
        lock.close()


def _prefix(place: Path) -> str:
    name = place.name.encode()
    return f".{place.name if len(name) <= _LONGEST else hashlib.sha256(name).hexdigest()}."


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One at a time in a folder, where the system can say so: two exports to one path must not mix their files."""
    if sys.platform == "win32":
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        take_lock(held, wait=True)
        yield
    finally:
        os.close(held)


def left(path: Path) -> bool:
    """Give a path below a staging directory the side file of this name that a killed process left, if one did.

    It may have been cut off anywhere, and hold anything: whoever goes on with it compares what is there.
    """
    old = path.parent / _LEFT / path.name
    with contextlib.suppress(FileNotFoundError):
        found = old.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:  # no link to a file elsewhere
            os.replace(old, path)
            return True
    return False


def _sweep(place: Path, staging: Path, is_side: Callable[[Path, str], bool]) -> None:
    """Take away what killed processes left beside the place, but for side files, which go below the new directory.

    Anybody can make a directory of such a name, or have it come out of an archive: one that is not as ours are stays.
    """
    if sys.platform == "win32":  # whether their process lives cannot be told
        return
    ours = re.compile(re.escape(_prefix(place)) + r"[0-9a-f]{16}\.partial")
    with os.scandir(place.parent) as entries:
        stale = [Path(e.path) for e in entries if ours.fullmatch(e.name) and is_own_folder(e)]
    for folder in set(stale) - {staging}:
        with contextlib.suppress(OSError):
            folder.rmdir()  # killed before it had its lock
        with contextlib.suppress(OSError, ValueError), held_lock(folder) as lock:
            names = [*(e.name for e in folder.iterdir()), *(name for *_, name in journal(lock) or ())]
            if take_lock(lock) and all(_is_ours(name, place, is_side) for name in names):
                _settle(folder, place, journal(lock))
                _keep(folder, place, staging / _LEFT, is_side)
                remove(folder)


def _is_ours(name: str, place: Path, is_side: Callable[[Path, str], bool]) -> bool:
    """Whether an export to this place writes a file of this name."""
    return name in (place.name, LOCK, _OLD, _LEFT) or is_side(place, name)


def _keep(folder: Path, place: Path, kept: Path, is_side: Callable[[Path, str], bool]) -> None:
    """Move the side files of a staging directory, and those that it kept itself."""
    kept.mkdir(exist_ok=True)
    for source in (folder / _LEFT, folder):
        for entry in source.iterdir() if source.is_dir() and not source.is_symlink() else ():
            if not entry.name.startswith(".ir.") and entry.name != place.name and is_side(place, entry.name):
                os.replace(entry, kept / entry.name)


def remove(folder: Path) -> None:
    """Take away a staging directory, by the lock file last: without it nobody knows whose it is."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK:
                entry.unlink()
        (folder / LOCK).unlink()
        folder.rmdir()


# -- moving ------------------------------------------------------------------------------------------------------------


def _move(
    staging: Path,
    place: Path,
    lock: IO[str],
    check: Callable[[Path], None],
    sides: Callable[[Path], Iterable[str]],
) -> None:
    """Give everything its place; what is about to happen stands in the lock file before."""
    made = [e for e in staging.iterdir() if e.name not in (LOCK, _LEFT, place.name)]
    gone = [place.with_name(name) for name in sides(place) if os.path.lexists(place.with_name(name))]
    _keep_modes(staging / place.name, place, made, gone)
    lines = [f"{sign} {identity(e)} {e.name}" for sign, files in (("+", made), ("-", gone)) for e in files]
    lock.write("\0".join([*lines, "."]))
    lock.flush()
    for entry in made:
        if os.path.lexists(place.with_name(entry.name)):
            raise FileExistsError(errno.EEXIST, f"{entry.name} has come to be there meanwhile; export again")
        os.replace(entry, place.with_name(entry.name))
    source = staging / place.name
    if not place.is_dir() or place.is_symlink():
        os.replace(source, place)
    elif _exchange(source, place):
        try:
            check(source)  # once more, for what came before the exchange
        except OutputError:
            _exchange(source, place)
            raise
    else:
        os.rename(place, staging / _OLD)
        os.rename(source, place)


def _keep_modes(source: Path, place: Path, made: Iterable[Path], gone: Iterable[Path]) -> None:
    """Give what is about to be moved the permissions of what it replaces: its owner may have kept others from it."""
    if not place.exists():
        return
    there = [p for p in (place, *place.rglob("*")) if p == place or not p.is_symlink()]
    older = {(p.relative_to(place), p.is_dir()): _mode(p) for p in there}
    common = functools.reduce(operator.and_, older.values())  # for a new name: who may read all that was there
    for path in (source, *source.rglob("*")):
        key = path.relative_to(source), path.is_dir()
        if key in older or path.is_file():
            _give_mode(path, older.get(key, _mode(path) & (common | stat.S_IRWXU)))
    beside = functools.reduce(operator.and_, [_mode(p) for p in gone if p.exists()] or [_mode(place)])
    for path in made:
        _give_mode(path, beside)


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def _give_mode(path: Path, mode: int) -> None:
    """Set permissions, where they are others: a file system that has the same for all its files refuses to."""
    now = stat.S_IMODE(path.stat().st_mode)
    if now & 0o777 != mode:
        path.chmod(now & ~0o777 | mode)  # the group of a folder's files is told by a bit beyond them


def _settle(staging: Path, place: Path, lines: list[Line] | None) -> None:
    """End what a journal says: where the place has the new file the old side files go, otherwise the new ones."""
    if lines is None:
        return
    if os.path.lexists(staging / _OLD) and not os.path.lexists(place):
        os.rename(staging / _OLD, place)
    wanted = "+" if os.path.lexists(staging / place.name) else "-"
    for sign, known, name in lines:
        file = place.with_name(name)
        with contextlib.suppress(OSError):
            if sign == wanted and identity(file) == known:  # the same file, not one of the same name
                file.unlink()


def identity(place: Path) -> str:
    """What tells a file or a folder from another that is put in its place; empty if there is none."""
    try:
        found = place.lstat()
    except OSError:
        return ""
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def is_same(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> bool:
    """Whether two names are of one file or folder, by a link or by another way to it; not where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(first, second)
    return False


def _exchange(first: Path, second: Path) -> bool:
    """Give two directories each other's name, at once; False where the system cannot."""
    call = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    return call is not None and call(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0


def size_text(count: float) -> str:
    """A number of bytes in three digits."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
