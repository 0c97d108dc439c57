"""Artifacts as they come from elsewhere: a directory, a .tar or a .tgz, read piece by piece and not trusted.

What tract gets was seen whole before: every member a plain file inside the artifact, tensor files of the sizes that
their headers say, checksums right where there are any. A .tgz has one of its own (of gzip), tensor files that we wrote
have one in their headers (see dat), and a .tar that we wrote ends in one of its graph.nnef. A directory's graph.nnef is
there to be edited, so it has none.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ir.files import opened
from nnef_backend.errors import DocumentError, PathError
from nnef_backend.format import dat
from nnef_backend.format.document import without_comments

GRAPH = "graph.nnef"
MAX_EMPTY = 10_000  # lines; 0.2 s for tract, and four times as much for twice as many
MAX_TEXT = 1 << 24
MAX_MEMBERS = 1 << 14
MAX_END = 1 << 24  # of zeros behind the last member, with which a tar fills the last block of a tape
MAX_RATIO, FREE_BYTES = 100, 1 << 28  # an archive may hold 256 MB, or 100 times what it takes on the disk
_MAX_EXTRA = 1 << 16  # of what a tar says of a member beside its header: a long name
_PIECE = 1 << 20
_VERSION = re.compile(r"\s*version\s+\d")  # what a document begins with
_NOTE = re.compile(rb"crc32 of graph\.nnef: ([0-9a-f]{8})\n")


def members(path: str | Path) -> dict[str, int]:
    """The names of an artifact's files and their sizes.

    Raises:
        DocumentError: it cannot be read, a member is no plain file, or its name leads out of the artifact.
    """
    with _reading(Path(path)):
        return {name: size for name, size, _ in _files(Path(path))}


def read_member(path: str | Path, name: str) -> bytes:
    """The bytes of one file of an artifact.

    Raises:
        DocumentError: there is no such plain file.
    """
    check_inside(str(path), name)
    with _reading(Path(path)):
        for found, size, stream in _files(Path(path)):
            if found == name:
                return _text(Path(path), size, stream) if name == GRAPH else stream.read()
    raise DocumentError(f"{path} holds no {name}")


def extract(path: str | Path, folder: Path) -> None:
    """Unpack a .tar or .tgz into an existing folder.

    Raises:
        DocumentError: as for `members`.
    """
    with _reading(Path(path)):
        for name, _, stream in _files(Path(path)):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as out:
                shutil.copyfileobj(stream, out, _PIECE)


def stored(path: Path) -> int:
    """The bytes that a checked artifact takes on the disk."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(f.stat().st_size for f in files if f.is_file())


def checked(path: str | Path) -> str:
    """The text of an artifact's graph.nnef, once all of the artifact is known to be sound.

    Raises:
        DocumentError: it is not, or cannot be read; with the member and the reason.
    """
    path, text, tensors = Path(path), None, []
    with _reading(path):
        for name, size, stream in _files(path):
            if name == GRAPH:
                text = _text(path, size, stream)
            elif name.endswith(".dat"):
                tensors.append(name)
                try:
                    dat.check(stream, size)
                except DocumentError as error:
                    raise DocumentError(f"{path}: {name}: {error}") from error
    if text is None:
        raise DocumentError(f"{path} holds no {GRAPH}")
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path}: {GRAPH} is no text in UTF-8") from error
    if _empty_lines(decoded) > MAX_EMPTY:
        raise DocumentError(f"{path}: {GRAPH} has {MAX_EMPTY} lines of nothing in a row, which tract reads for long")
    named = _tensor_files(decoded)
    strangers = [name for name in tensors if name not in named]
    if strangers:  # tract would load it all the same
        raise DocumentError(f"{path} holds {strangers[0]}, which no variable of its {GRAPH} names; take it out")
    return decoded


def _empty_lines(text: str) -> int:
    """The most lines in a row that are empty or comments: tract's parser is quadratic in them."""
    most = here = 0
    for line in text.split("\n"):
        here = here + 1 if not line.strip() or line.lstrip().startswith("#") else 0
        most = max(most, here)
    return most


def stranger(folder: Path) -> str:
    """The first thing in a directory that is no part of an NNEF artifact; empty for an artifact or an empty one.

    A document may name any file as its own: what it names has to be a tensor file as well.
    """
    text = ""
    if os.path.lexists(folder / GRAPH):
        try:
            with opened(folder / GRAPH) as stream:
                text = without_comments(_text(folder, 0, stream).decode(errors="replace"))
        except (DocumentError, OSError):
            return GRAPH
    elif next(folder.iterdir(), None) is None:
        return ""
    own = _tensor_files(text) | {GRAPH} if _VERSION.match(text) else set()
    folders = {parent.as_posix() for name in own for parent in PurePosixPath(name).parents}
    for entry in sorted(folder.rglob("*")):
        name = entry.relative_to(folder).as_posix()
        ours = name == GRAPH or _is_tensor(entry) if name in own else entry.is_dir() and name in folders
        if not ours or entry.is_symlink():
            return name
    return ""


def _is_tensor(file: Path) -> bool:
    """Whether a file has the header of a tensor of its size."""
    try:
        with opened(file) as stream:
            dat.check_header(stream, os.fstat(stream.fileno()).st_size)
    except (DocumentError, OSError):
        return False
    return True


def note(checksum: int) -> bytes:
    """What a .tar of ours ends in, behind its last block, where no reader looks."""
    return f"crc32 of {GRAPH}: {checksum:08x}\n".encode()


def check_inside(where: str, name: str) -> None:
    """Raise DocumentError for a name that leads out of the artifact."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or ":" in parts[0]:
        raise DocumentError(f"{where}: the name {name!r:.200} leads out of the artifact")


def _tensor_files(text: str) -> set[str]:
    labels = re.findall(r"""\blabel\s*=\s*(?:'([^']*)'|"([^"]*)")""", without_comments(text))
    return {f"{(a or b).lstrip('/')}.dat" for a, b in labels}


def _text(path: Path, size: int, stream: BinaryIO) -> bytes:
    text = stream.read(MAX_TEXT + 1) if size <= MAX_TEXT else b""
    if size > MAX_TEXT or len(text) > MAX_TEXT:
        raise DocumentError(f"{path}: its {GRAPH} is larger than {MAX_TEXT >> 20} MB, which no model needs")
    return text


# -- members -----------------------------------------------------------------------------------------------------------


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What goes wrong while an artifact is read, as one error of ours."""
    try:
        yield
    except DocumentError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError) as error:
        raise DocumentError(f"{path!s:.300} is neither a directory nor a whole tar archive: {error}") from error
    except OSError as error:
        raise PathError(f"{path!s:.300} cannot be read: {error.strerror or error}") from error


def _files(path: Path) -> Iterator[tuple[str, int, BinaryIO]]:
    """(name, size, content) of each file; to be read before the next one is asked for."""
    return _in_folder(path) if path.is_dir() else _in_tar(path)


def _in_folder(path: Path) -> Iterator[tuple[str, int, BinaryIO]]:
    for entry in sorted(path.rglob("*")):
        name = entry.relative_to(path).as_posix()
        if entry.is_symlink():
            raise DocumentError(f"{path}: {name!a:.200} is a link")
        if not entry.is_dir():
            with opened(entry) as stream:
                yield name, os.fstat(stream.fileno()).st_size, stream


def _in_tar(path: Path) -> Iterator[tuple[str, int, BinaryIO]]:
    seen: set[str] = set()
    total, text = 0, None
    with _open_tar(path) as (tar, stream, stored):
        for count, entry in enumerate(tar):
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
            if count >= MAX_MEMBERS:  # folders are some, too
                raise DocumentError(f"{path}: more than {MAX_MEMBERS} members")
            if entry.isdir():
                continue
            name = entry.name.removeprefix("./")
            check_inside(str(path), name)
            if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                raise DocumentError(f"{path}: {entry.name!r:.200} is no plain file")
            if name in seen:
                raise DocumentError(f"{path}: {name!r:.200} stands in it twice")
            seen.add(name)
            total += entry.size
            if total > FREE_BYTES and total > MAX_RATIO * stored:
                raise DocumentError(
                    f"{path} unpacks to more than {MAX_RATIO} times its size, {total >> 20} MB and more; if that is "
                    "meant, unpack it yourself and load the directory"
                )
            content = tar.extractfile(entry)
            assert content is not None
            counted = _Counted(content) if name == GRAPH else None
            yield name, entry.size, counted or content  # type: ignore[misc]
            text = counted.checksum if counted and counted.size == entry.size else text
        _check_end(path, stream, text)


class _Counted:
    """A member whose checksum is taken while it is read."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.checksum, self.size = stream, 0, 0

    def read(self, count: int = -1) -> bytes:
        piece: bytes = self.stream.read(count)
        self.checksum, self.size = zlib.crc32(piece, self.checksum), self.size + len(piece)
        return piece


def _check_end(path: Path, stream: BinaryIO, text: int | None) -> None:
    """Read to the end, where gzip has its checksum: what stands behind the last member is our note and nothing else."""
    rest = stream.read(tarfile.RECORDSIZE * 2)
    more, left = True, MAX_END
    while more:
        more = bool(piece := stream.read(_PIECE))
        left -= len(piece)
        if left < 0:
            raise DocumentError(f"{path}: more than {MAX_END >> 20} MB stand behind the end of the tar archive")
        rest = rest if piece.count(0) == len(piece) else b"?"
    found = _NOTE.search(rest)
    if rest.replace(found.group() if found else b"", b"").strip(b"\0"):
        raise DocumentError(f"{path}: something stands behind the end of the tar archive")
    if found and text is not None and int(found.group(1), 16) != text:
        raise DocumentError(f"{path}: the checksum of {GRAPH} is not the one that was written; export the model again")


class _Member(tarfile.TarInfo):
    """A header that does not make tarfile read without bound."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) and self.size > _MAX_EXTRA:
            raise tarfile.ReadError("a member that is neither a file nor a name has a size")
        return super()._proc_member(tar)  # type: ignore[misc]


@contextmanager
def _open_tar(path: Path) -> Iterator[tuple[tarfile.TarFile, BinaryIO, int]]:
    with opened(path) as raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        with tarfile.open(fileobj=stream, mode="r:", tarinfo=_Member) as tar:
            yield tar, stream, os.fstat(raw.fileno()).st_size
