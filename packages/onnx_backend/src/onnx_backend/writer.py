"""Writing a model with its weights inside, streamed: a protobuf message is its fields one after the other.

onnx_ir makes the message without initializers; each initializer's bytes then go from the model's own tensor to the
file, so nothing is held twice. Format: the protocol buffers' wire format, field numbers of onnx.proto.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir

_LENGTH_DELIMITED = 2
_GRAPH = (onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number << 3) | _LENGTH_DELIMITED
_INITIALIZER = (onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number << 3) | _LENGTH_DELIMITED
_RAW_DATA = (onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number << 3) | _LENGTH_DELIMITED


def write_embedded(model: onnx_ir.Model, path: Path) -> None:
    """Write a model of less than 2 GB as one file.

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
    headers = [_header(t) for t in tensors]
    sizes = [len(h) + t.nbytes for h, t in zip(headers, tensors, strict=True)]
    total = len(graph) + sum(1 + len(_varint(s)) + s for s in sizes)
    with path.open("wb") as file:
        file.write(proto.SerializeToString())
        file.write(bytes([_GRAPH]) + _varint(total) + graph)
        for tensor, header, size in zip(tensors, headers, sizes, strict=True):
            file.write(bytes([_INITIALIZER]) + _varint(size) + header)
            _write_data(tensor, file)


def _header(tensor: Any) -> bytes:
    """The tensor's message up to its data."""
    shape = [int(d) for d in tensor.shape]
    proto = onnx.TensorProto(name=tensor.name, data_type=int(tensor.dtype), dims=shape)
    return proto.SerializeToString() + bytes([_RAW_DATA]) + _varint(tensor.nbytes)


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
