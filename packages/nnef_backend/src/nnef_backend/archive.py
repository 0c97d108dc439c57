"""Documents on disk: a directory, a .tar or a .tgz, written in one go and whole, or not at all.

The same document makes the same bytes: members are sorted, with graph.nnef first, and carry no time, owner
or host.
"""

from __future__ import annotations

import gzip
import os
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeAlias

import numpy as np

from .dat import BlockQuantised, file_size, pieces
from .document import Document, TensorSource
from .errors import DocumentError

Write: TypeAlias = Callable[[bytes | memoryview], int]
GRAPH = "graph.nnef"
KINDS = ("directory", "tar", "tgz")
TAR_BLOCK, TAR_RECORD = 512, 10240
# Float weights hardly shrink at any level, and the quickest takes 2.5 s for 100 MB already.
GZIP_LEVEL = 1


def kind_of(path: Path) -> str:
    """What a path's name asks for: "tgz", "tar" or "directory"."""
    name = path.name.lower()
    if name.endswith((".tgz", ".tar.gz")):
        return "tgz"
    return "tar" if name.endswith(".tar") else "directory"


def write(document: Document, path: str | Path, kind: str | None = None) -> Path:
    """Write a document as `kind`, or as the path's name asks for; what was there before stays until the last moment.

    Raises:
        DocumentError: the document cannot be expressed, a label is no safe file name, the path's name asks for another
            kind, or the path holds something that is not such an artifact.
        OSError: the disk refused.
    """
    path = Path(path)
    text = document.to_text().encode()
    members = sorted((_member_name(label), source) for label, source in document.tensors.items())
    named = kind_of(path)
    if kind not in (None, named) and named != "directory":
        raise DocumentError(f"{path.name} is the name of a {named}, but compression={kind!r} was asked for")
    kind = kind or named
    _check_replaceable(path, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "directory":
        with _replacing_directory(path) as folder:
            _write_folder(folder, text, members)
        return path
    with _replacing_file(path) as stream:
        if kind == "tar":
            _write_tar(stream.write, text, members)
        else:
            with gzip.GzipFile("", "wb", GZIP_LEVEL, stream, mtime=0) as packed:
                _write_tar(packed.write, text, members)
    return path


def members(path: str | Path) -> dict[str, int]:
    """The names of an artifact's files and their sizes.

    Raises:
        DocumentError: a member that is no plain file, or whose name leads out of the artifact.
        OSError: the artifact cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        found = {}
        for entry in sorted(path.rglob("*")):
            if entry.is_symlink():
                raise DocumentError(f"{path}: {entry.name} is a link")
            if entry.is_file():
                found[entry.relative_to(path).as_posix()] = entry.stat().st_size
        return found
    with _open_tar(path) as tar:
        return {_checked(path, entry): entry.size for entry in tar if not entry.isdir()}


def read_member(path: str | Path, name: str) -> bytes:
    """The bytes of one file of an artifact.

    Raises:
        DocumentError: there is no such plain file.
        OSError: the artifact cannot be read.
    """
    path = Path(path)
    _check_inside(str(path), name)
    if path.is_dir():
        file = path / name
        if not file.is_file() or not file.resolve().is_relative_to(path.resolve()):
            raise DocumentError(f"{path} holds no {name}")
        return file.read_bytes()
    with _open_tar(path) as tar:
        for entry in tar:
            if _plain(entry.name) == name and entry.isfile():
                stream = tar.extractfile(entry)
                assert stream is not None
                return stream.read()
    raise DocumentError(f"{path} holds no {name}")


def extract(path: str | Path, folder: Path) -> None:
    """Unpack a .tar or .tgz into an existing folder.

    Raises:
        DocumentError: as for `members`.
        OSError: reading or writing failed.
    """
    with _open_tar(Path(path)) as tar:
        for entry in tar:
            if entry.isdir():
                continue
            target = folder / _checked(Path(path), entry)
            target.parent.mkdir(parents=True, exist_ok=True)
            stream = tar.extractfile(entry)
            assert stream is not None
            with target.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)


@contextmanager
def _open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r|*", bufsize=1 << 20) as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DocumentError(f"{path} is neither a directory nor a whole tar archive: {error}") from error


def _plain(name: str) -> str:
    return name.removeprefix("./")


def _checked(path: Path, entry: tarfile.TarInfo) -> str:
    name = _plain(entry.name)
    if not entry.isfile():
        raise DocumentError(f"{path}: {entry.name} is no plain file")
    _check_inside(str(path), name)
    return name


def _check_inside(where: str, name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or ":" in parts[0]:
        raise DocumentError(f"{where}: the name {name!r} leads out of the artifact")


def _member_name(label: str) -> str:
    _check_inside("label", label)
    if str(PurePosixPath(label)) != label:
        raise DocumentError(f"the label {label!r} is no plain relative path")
    return f"{label}.dat"


def _array(source: TensorSource) -> np.ndarray | BlockQuantised:
    return source() if callable(source) else source


def _write_folder(folder: Path, text: bytes, tensors: list[tuple[str, TensorSource]]) -> None:
    (folder / GRAPH).write_bytes(text)
    for name, source in tensors:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb", buffering=0) as stream:
            for piece in pieces(_array(source)):
                _write_all(stream, piece)


def _write_all(stream: BinaryIO, piece: bytes | memoryview) -> None:
    # One unbuffered write moves 2 GiB at most.
    rest = memoryview(piece)
    while rest:
        rest = rest[stream.write(rest) :]


def _write_tar(write: Write, text: bytes, tensors: list[tuple[str, TensorSource]]) -> None:
    size = _write_tar_member(write, GRAPH, len(text), [text])
    for name, source in tensors:
        tensor = _array(source)
        size += _write_tar_member(write, name, file_size(tensor), pieces(tensor))
    write(bytes(2 * TAR_BLOCK + -(size + 2 * TAR_BLOCK) % TAR_RECORD))


def _write_tar_member(write: Write, name: str, size: int, content: Iterable[bytes | memoryview]) -> int:
    # tarfile.addfile wants a file to read from; an array has none, and a copy of the weights is what we
    # avoid.
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o644
    head = entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")
    write(head)
    for piece in content:
        write(piece)
    padding = -size % TAR_BLOCK
    write(bytes(padding))
    return len(head) + size + padding


def _check_replaceable(path: Path, kind: str) -> None:
    if kind == "directory":
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise DocumentError(f"{path} is a file or a link; an NNEF directory cannot replace it")
        if path.is_dir() and any(path.iterdir()) and not (path / GRAPH).is_file():
            raise DocumentError(f"{path} holds files but no {GRAPH}; it is no NNEF directory and stays as it is")
    elif path.is_dir():
        raise DocumentError(f"{path} is a directory; an archive cannot replace it")


def _sibling(path: Path, purpose: str) -> Path:
    return path.parent / f".{path.name}.{secrets.token_hex(6)}.{purpose}"


@contextmanager
def _replacing_file(path: Path) -> Iterator[BinaryIO]:
    temporary = _sibling(path, "part")
    try:
        with temporary.open("xb", buffering=1 << 20) as stream:
            yield stream
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _replacing_directory(path: Path) -> Iterator[Path]:
    temporary, older = _sibling(path, "part"), _sibling(path, "old")
    temporary.mkdir()
    try:
        yield temporary
        existed = path.exists()
        if existed:
            path.rename(older)
        try:
            temporary.rename(path)
        except BaseException:
            if existed:
                older.rename(path)
            raise
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(older, ignore_errors=True)
