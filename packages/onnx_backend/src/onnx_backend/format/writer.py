"""Writing a model, streamed: a protobuf message is its fields one after the other.

onnx_ir makes the message without initializers; each initializer's bytes then go from the model's own tensor to the
file, so nothing is held twice. Format: the protocol buffers' wire format, field numbers of onnx.proto. An initializer
with a place outside of the file is a name, an offset and a length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir

_LENGTH_DELIMITED = 2
_GRAPH = (onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number << 3) | _LENGTH_DELIMITED
_INITIALIZER = (onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number << 3) | _LENGTH_DELIMITED
_RAW_DATA = (onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number << 3) | _LENGTH_DELIMITED
PAGE = 4096  # where a tensor of a data file begins, so that a runtime can map it
INSIDE = 1024  # smaller ones stay in the model: runtimes read shapes and axes while they load


@dataclass(frozen=True)
class Place:
    """Where the bytes of a tensor lie: a file beside the model, an offset and a length in bytes."""

    location: str
    offset: int
    length: int


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
        proto = onnx_ir.to_proto(model)
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

    Raises:
        OSError: the disk refused.
    """
    places = {}
    with path.open("wb") as file:
        for tensor in tensors:
            file.write(bytes(-file.tell() % PAGE))
            places[tensor.name] = Place(path.name, file.tell(), tensor.nbytes)
            _write_data(tensor, file)
    return places


def _header(tensor: Any, place: Place | None) -> bytes:
    """The tensor's message up to its data."""
    shape = [int(d) for d in tensor.shape]
    proto = onnx.TensorProto(name=tensor.name, data_type=int(tensor.dtype), dims=shape)
    if place is None:
        return proto.SerializeToString() + bytes([_RAW_DATA]) + _varint(tensor.nbytes)
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", place.location), ("offset", place.offset), ("length", place.length)):
        proto.external_data.add(key=key, value=str(value))
    return proto.SerializeToString()


def _write_data(tensor: Any, file: BinaryIO) -> None:
    start = file.tell()
    if hasattr(tensor, "tofile"):
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())
    if file.tell() - start != tensor.nbytes:
        raise OSError(f"{tensor.name}: {file.tell() - start} bytes written for {tensor.nbytes}")


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)
