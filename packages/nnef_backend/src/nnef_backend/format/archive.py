"""Documents on disk: a directory, a .tar or a .tgz, written in one go and whole, or not at all.

The same document makes the same bytes: members are sorted, with graph.nnef first, and carry no time, owner
or host.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeAlias

import numpy as np

from ir.files import staged
from ir.progress import wrote
from nnef_backend.errors import DocumentError, PathError
from nnef_backend.format import unpack
from nnef_backend.format.dat import BlockQuantised, file_size, pieces
from nnef_backend.format.document import Document, TensorSource
from nnef_backend.format.unpack import GRAPH as GRAPH
from nnef_backend.format.unpack import check_inside
from nnef_backend.format.unpack import extract as extract
from nnef_backend.format.unpack import members as members
from nnef_backend.format.unpack import read_member as read_member

Write: TypeAlias = Callable[[bytes | memoryview], int]
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
        OutputError: the disk refused.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with staged(path, lambda place: check_place(place, kind)) as temporary:
        write_new(document, temporary, kind)
    return path


def write_new(document: Document, path: Path, kind: str | None = None) -> None:
    """As `write`, where nothing is yet and a failure may leave something."""
    text = document.to_text().encode()
    members = sorted((_member_name(label), source) for label, source in document.tensors.items())
    kind = _kind(path, kind)
    if kind == "directory":
        path.mkdir()
        _write_folder(path, text, members)
        return
    with path.open("xb", buffering=1 << 20) as stream:
        if kind == "tar":
            _write_tar(stream.write, text, members)
        else:
            with gzip.GzipFile("", "wb", GZIP_LEVEL, stream, mtime=0) as packed:
                _write_tar(packed.write, text, members)


def check_place(path: Path, kind: str | None = None) -> None:
    """Raise where an artifact may not take the place of what lies at a path.

    Raises:
        PathError: the name is one of another kind, or there is something that is no such artifact.
    """
    kind = _kind(path, kind)
    if kind == "directory":
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise PathError(f"{path} is a file or a link; an NNEF directory cannot replace it")
        stranger = unpack.stranger(path) if path.is_dir() else ""
        if stranger:
            raise PathError(
                f"{path} is no NNEF directory and stays as it is: it holds {stranger:.100}; choose another path"
            )
    elif path.is_dir() and not path.is_symlink():
        raise PathError(f"{path} is a directory and stays as it is; an archive cannot replace it")


def _kind(path: Path, kind: str | None) -> str:
    named = kind_of(path)
    if kind not in (None, named) and named != "directory":
        raise PathError(f"{path.name} is the name of a {named}, but compression={kind!r} was asked for")
    return kind or named


def _member_name(label: str) -> str:
    check_inside("label", label)
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
    wrote(len(piece))


def _write_tar(write: Write, text: bytes, tensors: list[tuple[str, TensorSource]]) -> None:
    size = _write_tar_member(write, GRAPH, len(text), [text])
    for name, source in tensors:
        tensor = _array(source)
        size += _write_tar_member(write, name, file_size(tensor), pieces(tensor))
    end = bytes(2 * TAR_BLOCK) + unpack.note(zlib.crc32(text))
    write(end + bytes(-(size + len(end)) % TAR_RECORD))


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
        wrote(len(piece))
    padding = -size % TAR_BLOCK
    write(bytes(padding))
    return len(head) + size + padding
