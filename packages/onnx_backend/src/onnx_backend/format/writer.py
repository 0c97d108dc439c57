"""Writing a model, streamed: a protobuf message is its fields one after the other.

onnx_ir makes the message without initializers; each initializer's bytes then go from the model's own tensor to the
file, so nothing is held twice. Format: the protocol buffers' wire format, field numbers of onnx.proto. An initializer
with a place outside of the file is a name, an offset and a length.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir

from ir.errors import ExportError
from ir.files import left
from ir.progress import wrote
from onnx_backend.building.made import Made

_LENGTH_DELIMITED = 2
_GRAPH = (onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number << 3) | _LENGTH_DELIMITED
_INITIALIZER = (onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number << 3) | _LENGTH_DELIMITED
_RAW_DATA = (onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number << 3) | _LENGTH_DELIMITED
PAGE = 4096  # where a tensor of a data file begins, so that a runtime can map it
_STEP = 1 << 24
INSIDE = 1024  # smaller ones stay in the model: runtimes read shapes and axes while they load


@dataclass(frozen=True)
class Place:
    """Where the bytes of a tensor lie: a file beside the model, an offset and a length in bytes."""

    location: str
    offset: int
    length: int
    checksum: str = ""  # SHA-1 of the whole file in hexadecimal, as onnx.proto has it; "" where it was not written here


def proto_of(model: onnx_ir.Model) -> Any:
    """The model as onnx has it.

    Raises:
        ExportError: a computed weight is refused; onnx_ir tells of it as its own SerdeError.
    """
    try:
        return onnx_ir.to_proto(model)
    except onnx_ir.serde.SerdeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ExportError):
            cause = cause.__cause__
        raise cause or error from error


def write_model(model: onnx_ir.Model, path: Path, places: Mapping[str, Place]) -> None:
    """Write a model; the initializers with a place lie there already, the others go into the file, less than 2 GB.

    Raises:
        OSError: the disk refused.
    """
    initializers = model.graph.initializers
    held: list[Any] = list(initializers.values())
    tensors = [v.const_value for v in held]
    initializers.clear()
    try:
        proto = proto_of(model)
    finally:
        initializers.update({v.name: v for v in held})
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    headers = [_header(t, places.get(t.name)) for t in tensors]
    sizes = [len(h) + (0 if t.name in places else t.nbytes) for h, t in zip(headers, tensors, strict=True)]
    total = len(graph) + sum(1 + len(_varint(s)) + s for s in sizes)
    with path.open("wb") as file:
        file.write(proto.SerializeToString())
        file.write(bytes([_GRAPH]) + _varint(total) + graph)
        for tensor, header, size in zip(tensors, headers, sizes, strict=True):
            file.write(bytes([_INITIALIZER]) + _varint(size) + header)
            if tensor.name not in places:
                _write_data(tensor, file)


def write_data(tensors: Iterable[Any], path: Path) -> dict[str, Place]:
    """Write tensors into one file, each from the beginning of a page, and tell where.

    A file that an export which was cut off has left is gone on with: as far as it has these bytes they stay.

    Raises:
        OSError: the disk refused.
    """
    places = {}
    there = left(path)
    with path.open("r+b" if there else "wb") as raw:
        file = _Summed(raw, there)
        for tensor in tensors:
            file.write(bytes(-file.tell() % PAGE))
            places[tensor.name] = Place(path.name, file.tell(), tensor.nbytes)
            _write_data(tensor, file)
        if path.stat().st_size > file.tell():  # what was there was longer
            raw.truncate(file.tell())
    return {name: replace(place, checksum=file.sum.hexdigest()) for name, place in places.items()}


class _Summed:
    """A file that is written from its beginning to its end, and the checksum of what went in.

    Where `there`, the file has bytes: those that are right already are read and not written.
    """

    def __init__(self, file: BinaryIO, there: bool) -> None:
        self.file, self.there = file, there
        self.sum, self.length = hashlib.sha1(usedforsecurity=False), 0

    def write(self, data: Any) -> int:
        """All of the bytes."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _STEP):
            piece = view[start : start + _STEP]
            self.sum.update(piece)
            if self.there and self.file.read(len(piece)) != piece:
                self.there = False
                self.file.seek(self.length)
            if not self.there:
                self.file.write(piece)
            self.length += len(piece)
        return len(view)

    def flush(self) -> None:
        """Hand what went in to the system."""
        self.file.flush()

    def tell(self) -> int:
        """How many bytes went in."""
        return self.length


def shards(tensors: Iterable[Any], limit: int | None) -> list[list[Any]]:
    """The tensors in groups of at most so many bytes, in their order; one that is larger has a group of its own."""
    groups: list[list[Any]] = []
    room = 0
    for tensor in tensors:
        size = -(-tensor.nbytes // PAGE) * PAGE
        if not groups or (limit is not None and size > room):
            groups.append([])
            room = limit or 0
        groups[-1].append(tensor)
        room -= size
    return groups


def _header(tensor: Any, place: Place | None) -> bytes:
    """The tensor's message up to its data."""
    shape = [int(d) for d in tensor.shape]
    proto = onnx.TensorProto(name=tensor.name, data_type=int(tensor.dtype), dims=shape)
    if place is None:
        head: bytes = proto.SerializeToString()
        return head + bytes([_RAW_DATA]) + _varint(tensor.nbytes)
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key in ("location", "offset", "length", "checksum"):
        if (value := getattr(place, key)) != "":
            proto.external_data.add(key=key, value=str(value))
    data: bytes = proto.SerializeToString()
    return data


def _write_data(tensor: Any, file: BinaryIO | _Summed) -> None:
    start = file.tell()
    if hasattr(tensor, "tofile") and not isinstance(file, _Summed) and not isinstance(tensor, Made):
        tensor.tofile(file)
    else:
        for piece in _pieces(tensor):
            file.write(piece)
    if file.tell() - start != tensor.nbytes:
        raise OSError(f"{tensor.name}: {file.tell() - start} bytes written for {tensor.nbytes}")
    wrote(tensor.nbytes)


def _pieces(tensor: Any) -> Iterator[Any]:
    """The tensor's bytes; of numbers that are stored one by one, in the memory that they lie in."""
    if sys.byteorder != "little":
        yield tensor.tobytes()
        return
    for array in tensor.pieces() if isinstance(tensor, Made) else [tensor.numpy()]:
        if tensor.dtype.itemsize == 0.5 and array.itemsize == 1:
            yield from _halves(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        elif tensor.dtype.itemsize != array.itemsize:
            yield onnx_ir.tensor(array, dtype=tensor.dtype).tobytes()
        else:
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _halves(codes: np.ndarray) -> Iterator[bytes]:
    """Two numbers of 4 bits a byte, the first in the low half; some at a time, as a large weight has many."""
    for start in range(0, len(codes), _STEP):
        some = codes[start : start + _STEP] & 15
        packed = some[::2].copy()
        packed[: len(some) // 2] |= some[1::2] << 4
        yield packed.tobytes()


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)
