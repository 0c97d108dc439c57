"""What a .pt2 file says of tensors and numbers, and the arguments of its nodes, read with their types checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ir.errors import CaptureError
from ir.importer.pt2.expressions import Size, parse, torch_value
from ir.importer.tensor_meta import Described

DTYPES: dict[int, torch.dtype] = {
    number: getattr(torch, name) for number, name in (
        (1, "uint8"), (2, "int8"), (3, "int16"), (4, "int32"), (5, "int64"), (6, "float16"), (7, "float32"),
        (8, "float64"), (9, "complex32"), (10, "complex64"), (11, "complex128"), (12, "bool"), (13, "bfloat16"),
        (28, "uint16"), (29, "float8_e4m3fn"), (30, "float8_e5m2"), (31, "float8_e4m3fnuz"), (32, "float8_e5m2fnuz"),
        (33, "float8_e8m0fnu"), (34, "uint32"), (35, "uint64"),
    ) if hasattr(torch, name)
}  # fmt: skip
LAYOUTS = {1: torch.sparse_coo, 2: torch.sparse_csr, 3: torch.sparse_csc, 4: torch.sparse_bsr, 5: torch.sparse_bsc,
           7: torch.strided}  # fmt: skip
MEMORY_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d,
                  4: torch.preserve_format}  # fmt: skip
_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
_LONGEST_NAME, _MOST_DIMENSIONS, _LARGEST = 4096, 64, 2**62


def union(document: Any) -> tuple[str, Any]:
    """The one entry of a tagged value, such as {"as_int": 3}."""
    if not isinstance(document, dict) or len(document) != 1:
        raise CaptureError(f"{document!r:.100} stands where the format has a value with one tag")
    return next(iter(document.items()))


def identifier(name: Any) -> str:
    """The name of a value in a graph."""
    if not isinstance(name, str) or not name.isidentifier() or len(name) > _LONGEST_NAME:
        raise CaptureError(f"{name!r:.100} stands where the name of a value is expected")
    return name


def text(value: Any) -> str:
    """A text of any content."""
    if not isinstance(value, str):
        raise CaptureError(f"{value!r:.100} stands where a text is expected")
    return value


def integer(value: Any) -> int:
    """A whole number of 64 bits."""
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise CaptureError(f"{value!r:.100} stands where an integer is expected")
    return value


def boolean(value: Any) -> bool:
    """True or false, and no number."""
    if type(value) is not bool:
        raise CaptureError(f"{value!r:.100} stands where true or false is expected")
    return value


def floating(value: Any) -> float:
    """A number; the three that JSON has none for are words."""
    if type(value) is str and value in _FLOATS:
        return _FLOATS[value]
    if type(value) not in (int, float):
        raise CaptureError(f"{value!r:.100} stands where a number is expected")
    return float(value)


def choice(table: dict[int, Any], what: str, value: Any) -> Any:
    """An entry of a table, by its number."""
    if type(value) is not int or value not in table:
        raise CaptureError(f"the {what} {value!r:.40} is unknown to this torch")
    return table[value]


def device(value: Any) -> torch.device:
    """A device by its kind and index."""
    kind, index = text(value["type"]), value.get("index")
    try:
        return torch.device(kind) if index is None else torch.device(kind, integer(index))
    except RuntimeError as error:
        raise CaptureError(f"the device {kind!r:.40} is unknown to this torch") from error


PLAIN: dict[str, Callable[[Any], Any]] = {  # tag -> its value; what names other values is read by the graph
    "as_none": lambda _: None,
    "as_int": integer,
    "as_ints": lambda v: [integer(i) for i in v],
    "as_float": floating,
    "as_floats": lambda v: [floating(f) for f in v],
    "as_bool": boolean,
    "as_bools": lambda v: [boolean(b) for b in v],
    "as_string": text,
    "as_strings": lambda v: [text(t) for t in v],
    "as_complex": lambda v: complex(floating(v["real"]), floating(v["imag"])),
    "as_scalar_type": lambda v: choice(DTYPES, "element type", v),
    "as_memory_format": lambda v: choice(MEMORY_FORMATS, "memory format", v),
    "as_layout": lambda v: choice(LAYOUTS, "layout", v),
    "as_device": device,
    "as_int_lists": lambda v: [tuple(integer(i) for i in x) for x in v],
    "as_float_lists": lambda v: [[floating(f) for f in x] for x in v],
}


def number(document: Any) -> Any:
    """A number of the graph: known, or an expression."""
    tag, value = union(document)
    if tag != "as_expr":
        return {"as_int": integer, "as_float": floating, "as_bool": boolean}[tag](value)
    hint = value.get("hint")
    known = None if hint is None else PLAIN[union(hint)[0]](union(hint)[1])
    size = Size(text(value["expr_str"]), known)
    parse(size.text)
    return size


def size(document: Any) -> Any:
    """A size, stride or offset: not negative, and of 63 bits."""
    value = number(document)
    if not isinstance(value, Size) and (type(value) is not int or not 0 <= value < _LARGEST):
        raise CaptureError(f"a tensor of size or stride {value!r:.40}")
    return value


def lies_contiguous(tensor: Described) -> bool:
    """True if the elements lie in order, whatever the sizes are."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and torch_value(stride) != expected:
            return 0 in tensor.shape
        expected = expected * torch_value(size)
    return True


def described(document: Any) -> Described:
    """The description of a tensor."""
    shape = tuple(size(s) for s in document["sizes"])
    strides = tuple(size(s) for s in document["strides"])
    if len(shape) > _MOST_DIMENSIONS or math.prod(s for s in shape if isinstance(s, int)) > _LARGEST:
        raise CaptureError("a tensor with more elements than there can be")
    layout = choice(LAYOUTS, "layout", document["layout"])
    if layout is torch.strided and len(strides) != len(shape):
        raise CaptureError(f"a tensor of {len(shape)} dimensions with {len(strides)} strides")
    dtype = choice(DTYPES, "element type", document["dtype"])
    return Described(dtype, shape, strides, size(document["storage_offset"]), layout, device(document["device"]),
                     boolean(document["requires_grad"]))  # fmt: skip
