"""The artifact: the text of a module and the tensors beside it, as files."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import numpy as np
from iree.runtime import ParameterIndex

from ir.types import DType

SUFFIXES = (".mlir", ".vmfb")
UNNAMED = 'archive = "none"'  # in the text, until it is written
_ARCHIVE = re.compile(rb"[^\"\0/]{1,200}\.[0-9a-f]{8}\.irpa")
Source = Union[np.ndarray, Callable[[], Any]]


@dataclass(frozen=True)
class Module:
    """MLIR text whose function is `main`; what it reads as "model"::name are `tensors`, computed when written.

    `takes` and `gives` are the element types of its inputs and results.
    """

    text: str
    tensors: Mapping[str, Source]
    takes: tuple[DType, ...]
    gives: tuple[DType, ...]

    def array(self, name: str) -> np.ndarray:
        """One of the tensors, as it lies in the archive: truth values as bytes."""
        source = self.tensors[name]
        found = np.ascontiguousarray(source() if callable(source) else source)
        return found.view(np.int8) if found.dtype == np.bool_ else found

    def write_archive(self, path: Path) -> str:
        """The tensors, if there are any, as a parameter archive of IREE beside `path`; the text that names it."""
        if not self.tensors:
            return self.text
        index = ParameterIndex()
        for name in self.tensors:
            index.add_buffer(name, self.array(name).reshape(-1).view(np.uint8))
        archive = f"{_stem(path)}.{secrets.token_hex(4)}.irpa"  # an older one stays until the module has its place
        index.create_archive_file(str(path.with_name(archive)))
        return self.text.replace(UNNAMED, f'archive = "{archive}"', 1)


def _stem(path: Path) -> str:
    """What the names of the archives of a file begin with."""
    return re.sub(r"[^\w.-]", "_", path.name, flags=re.ASCII)[:150]


def is_archive_name(name: str, path: Path) -> bool:
    """Whether an archive that was written for the file at `path` can be called so."""
    return re.fullmatch(rf"{re.escape(_stem(path))}\.[0-9a-f]{{8}}\.irpa", name) is not None


def archive_of(path: Path) -> Path | None:
    """The archive that a module's file names, None where it names none."""
    found = _ARCHIVE.search(path.read_bytes()) if path.is_file() else None
    return path.with_name(found[0].decode(errors="replace")) if found else None


def own_archive(path: Path) -> set[str]:
    """The name of the archive that goes with the file at `path`; none where another file beside it names it too."""
    archive = archive_of(path)
    if archive is None:
        return set()
    others = (p for p in path.parent.iterdir() if p.suffix.lower() in SUFFIXES and p != path)
    return set() if any(archive_of(p) == archive for p in others) else {archive.name}
