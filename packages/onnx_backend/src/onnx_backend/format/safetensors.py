"""Weights that lie in .safetensors files already: finding them there, so that a model can refer to them.

Nothing is referred to whose bytes were not compared with the model's own.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir

from ir.errors import ExportError
from ir.stored import Shards, tensors_of
from onnx_backend.format.writer import INSIDE, Place

_SAMPLE = 64
_CHUNK = 1 << 24
_DTYPES = {
    "BOOL": "BOOL", "U8": "UINT8", "I8": "INT8", "U16": "UINT16", "I16": "INT16", "F16": "FLOAT16", "BF16": "BFLOAT16",
    "U32": "UINT32", "I32": "INT32", "F32": "FLOAT", "U64": "UINT64", "I64": "INT64", "F64": "DOUBLE",
    "F8_E4M3": "FLOAT8E4M3FN", "F8_E5M2": "FLOAT8E5M2",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its bytes lie from `offset` of the file on."""

    file: Path
    name: str
    dtype: onnx_ir.DataType
    shape: tuple[int, ...]
    offset: int
    length: int


def entries(file: Path) -> list[Entry]:
    """The tensors of a file.

    Raises:
        ExportError: the header does not fit the file.
    """
    found = tensors_of(file, "take it away, or use external_data=True")
    dtypes = [onnx_ir.DataType[_DTYPES[e.dtype]] if e.dtype else onnx_ir.DataType.UINT8 for e in found]
    return [Entry(e.file, e.name, d, e.shape, e.offset, e.length) for e, d in zip(found, dtypes, strict=True)]


def find(tensors: Iterable[Any], shards: Shards) -> dict[str, Place]:
    """The places of those tensors that lie in one of these files, byte for byte.

    Raises:
        ExportError: no tensor lies there, a file is not sound, or one is a link, which onnxruntime refuses to read.
    """
    with _Files() as open_files:
        index: dict[Any, list[Entry]] = {}
        for entry in (e for f in shards.files for e in entries(f)):
            if entry.length >= INSIDE:
                sample = open_files.read(entry, 0, _SAMPLE)
                index.setdefault((entry.dtype, entry.shape, sample), []).append(entry)
        places = {}
        for tensor in tensors:
            if tensor.nbytes < INSIDE or isinstance(tensor, onnx_ir.LazyTensor):
                continue  # a lazy one is computed: it lies nowhere
            content = _bytes(tensor)
            key = tensor.dtype, tuple(int(d) for d in tensor.shape), content[:_SAMPLE].tobytes()
            named = sorted(index.get(key, ()), key=lambda e: not tensor.name.endswith(e.name))
            same = next((e for e in named if open_files.equal(e, content)), None)
            if same is not None:
                _refuse_links(same.file)
                places[tensor.name] = Place(same.file.name, same.offset, same.length)
    if not places:
        seen = f"{len(shards.files)} such files there" if shards.files else "no such file there"
        raise ExportError(
            f"external_data='reference': no weight of the model lies in a .safetensors file of {shards.folder} "
            f"({seen}); write the model into the folder of its weights, name that by weights_folder=, or use "
            "external_data=True"
        )
    return places


def _bytes(tensor: Any) -> np.ndarray:
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)


def _refuse_links(file: Path) -> None:
    kind = "a symbolic link" if file.is_symlink() else "a hard link" if file.stat().st_nlink > 1 else ""
    if kind:
        raise ExportError(
            f"{file} is {kind}, which onnx and onnxruntime refuse as external data; put a copy of its own in its place "
            f"(cp -L {file.name} copy && mv copy {file.name}), or use external_data=True"
        )


class _Files:
    """Files mapped into memory while they are compared."""

    def __init__(self) -> None:
        self.maps: dict[Path, mmap.mmap] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for held in self.maps.values():
            held.close()

    def read(self, entry: Entry, start: int, count: int) -> bytes:
        """Bytes of an entry, from `start` on."""
        if entry.file not in self.maps:
            with entry.file.open("rb") as stream:
                self.maps[entry.file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        first = entry.offset + start
        return self.maps[entry.file][first : min(first + count, entry.offset + entry.length)]

    def equal(self, entry: Entry, content: np.ndarray) -> bool:
        """True if the entry holds these bytes."""
        return all(self.read(entry, i, _CHUNK) == content[i : i + _CHUNK].tobytes() for i in _steps(content.size))


def _steps(size: int) -> Iterator[int]:
    yield from range(0, size, _CHUNK)
