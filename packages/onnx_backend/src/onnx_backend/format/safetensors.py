"""Weights that lie in .safetensors files already: finding them there, so that a model can refer to them.

A file is 8 bytes of header length (little endian), a header in JSON, then the tensors' bytes, row-major and little
endian (https://huggingface.co/docs/safetensors, "Format"). The file is not trusted: a header that does not fit its file
is refused, and nothing is referred to whose bytes were not compared with the model's own.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir

from ir.errors import ExportError
from ir.files import opened
from onnx_backend.format.writer import INSIDE, Place

HEADER_LIMIT = 10_000_000  # bytes, of which JSON in Python makes forty times as many; the format allows 100 MB
MAX_RANK = 64
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
    """The tensors of a file whose element types ONNX has.

    Raises:
        ExportError: the header does not fit the file.
    """

    def wrong(reason: str) -> ExportError:
        shown = str(file) if str(file).isprintable() else ascii(str(file))
        how = "take it away, or use external_data=True"
        return ExportError(f"{shown} is no sound .safetensors file: {reason}; {how}")

    if not os.fsencode(file.name).decode(errors="ignore") == file.name:
        raise wrong("its name is no UTF-8")
    try:
        with opened(file) as stream:
            total = os.fstat(stream.fileno()).st_size
            size = int.from_bytes(stream.read(8), "little")
            if total < 8 or size > min(HEADER_LIMIT, total - 8):
                raise wrong(f"its header claims {size} bytes, the file has {total}")
            raw = stream.read(size)
    except OSError as error:
        raise wrong(error.strerror or str(error)) from error
    try:
        header = json.loads(raw, object_pairs_hook=_distinct)
        found = [_entry(file, name, value, 8 + size) for name, value in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise wrong(f"its header cannot be read ({type(error).__name__}: {error})") from error
    end = 8 + size
    for entry in sorted(found, key=lambda e: (e.offset, e.length)):
        items = math.prod(entry.shape)
        if entry.offset < end or entry.offset + entry.length > total:
            raise wrong(f"{entry.name!r} lies outside of the file or over another tensor")
        if entry.length * 8 != items * entry.dtype.bitwidth or min(entry.shape, default=0) < 0:
            raise wrong(f"{entry.name!r} of shape {entry.shape} has {entry.length} bytes")
        end = entry.offset + entry.length
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({k for k, _ in pairs}) != len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def _entry(file: Path, name: str, value: Mapping[str, Any], base: int) -> Entry:
    begin, end = value["data_offsets"]
    shape = tuple(value["shape"])
    if len(shape) > MAX_RANK:
        raise ValueError(f"{name!r} has {len(shape)} dimensions")
    if not all(type(n) is int for n in (begin, end, *shape)):
        raise ValueError(f"{name!r} has a size that is no integer")
    dtype = onnx_ir.DataType[_DTYPES[value["dtype"]]] if value["dtype"] in _DTYPES else onnx_ir.DataType.UNDEFINED
    if dtype is onnx_ir.DataType.UNDEFINED:  # of no use here, but its place counts
        return Entry(file, name, onnx_ir.DataType.UINT8, (end - begin,), base + begin, end - begin)
    return Entry(file, name, dtype, shape, base + begin, end - begin)


def find(tensors: Iterable[Any], folder: Path) -> dict[str, Place]:
    """The places of those tensors that lie in a .safetensors file of the folder, byte for byte.

    Raises:
        ExportError: no tensor lies there, a file is not sound, or one is a link, which onnxruntime refuses to read.
    """
    files = sorted(folder.glob("*.safetensors"))
    with _Files() as open_files:
        index: dict[Any, list[Entry]] = {}
        for entry in (e for f in files for e in entries(f)):
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
        seen = f"{len(files)} such files there" if files else "no such file there"
        raise ExportError(
            f"external_data='reference': no weight of the model lies in a .safetensors file of {folder} ({seen}); "
            "write the model into the folder of its weights, or use external_data=True"
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
