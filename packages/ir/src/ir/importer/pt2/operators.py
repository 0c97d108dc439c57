"""The operators that a node of a .pt2 file may name: those of torch's dispatcher, and arithmetic on sizes.

A name is looked up in torch's registries and never followed attribute by attribute: `torch.ops.aten.add.__init__`,
`torch.hub.load` and what only TorchScript's interpreter has (`aten::save`) are no entries of them.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ir.errors import CaptureError
from ir.importer.checked import checked_view
from ir.importer.torch_api import (
    HigherOrderOperator,
    OpOverload,
    has_kernel,
    higher_order,
    predispatch,
    register_quantized_decomposed,
    schema_of,
    sym_functions,
)

_OP = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)", re.ASCII)
_HIGHER = re.compile(r"torch\.ops\.higher_order\.(\w+)", re.ASCII)
_SIZES: dict[str, Any] = {f"_operator.{f.__name__}": f for f in (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.pow,
    operator.neg, operator.pos, operator.and_, operator.or_, operator.not_, operator.eq, operator.ne, operator.lt,
    operator.le, operator.gt, operator.ge, operator.lshift, operator.rshift, operator.abs,
)}  # fmt: skip
_SIZES |= {f"math.{f.__name__}": f for f in (math.trunc, math.ceil, math.floor, math.sqrt)}
_SIZES |= {f"torch.{n}": fn for n, fn in sym_functions.items() if re.fullmatch("_?sym_[a-z0-9]+", n)}
_TRANSFORM = re.compile(r"torch\._functorch\.predispatch\.([a-z_]+)")  # what vmap and grad leave in a graph
# what operators of torch's own take that act on files, on other processes or on a profiler
_OUTSIDE = {"filename", "group_name", "process_group", "op_list"}
_OUTSIDE_NAMESPACES = {"profiler", "debugprims", "prim", "c10d", "_c10d_functional", "symm_mem", "streams", "inductor"}
_WAY_OUT = "load a file that you trust with torch.export.load and pass the ExportedProgram"


_registered: set[str] = set()


@cache
def resolve(target: str) -> Any:
    """The operator, higher-order operator or function of sizes behind a node's target.

    Raises:
        CaptureError: it is none.
    """
    if target in _SIZES:
        return _SIZES[target]
    higher = _HIGHER.fullmatch(target)
    if higher is not None:
        found = higher_order(higher[1])
        if isinstance(found, HigherOrderOperator):
            return found
    transform = _TRANSFORM.fullmatch(target)
    if transform is not None and inspect.isfunction(found := getattr(predispatch, transform[1], None)):
        return found
    match = _OP.fullmatch(target)
    if match is not None and (overload := _overload(*match.groups())) is not None:
        outside = any(a.name in _OUTSIDE for a in schema_of(overload).arguments)
        if not outside and match[1] not in _OUTSIDE_NAMESPACES:
            return checked_view(overload)
    if match is not None and match[1] == "quantized_decomposed" and match[1] not in _registered:
        register_quantized_decomposed()
        _registered.add(match[1])
        return resolve(target)
    shown = target if target.isprintable() and len(target) < 200 else ascii(target[:200])
    if match is not None and match[1] not in ("aten", "prims", "prim") and "__" not in match[3]:
        raise CaptureError(
            f"a node calls {shown}, which is registered nowhere in this process: import the package that defines it"
        )
    raise CaptureError(f"a node calls {shown}, which is no operator of a model: {_WAY_OUT}")


def target_text(target: str) -> str:
    """A node's target as a file names it, with a view that looks at its bounds in the place of one that does not."""
    match = _OP.fullmatch(target)
    found = _overload(*match.groups()) if match is not None else None
    return target if found is None or checked_view(found) is found else f"torch.ops.{checked_view(found)}"


def _overload(namespace: str, op: str, overload: str) -> OpOverload | None:
    name = f"{namespace}::{op}" + ("" if overload == "default" else f".{overload}")
    try:
        if not has_kernel(name):
            return None
    except RuntimeError:
        return None
    found = getattr(getattr(getattr(torch.ops, namespace), op, None), overload, None)
    return found if isinstance(found, OpOverload) and found.name() == name else None


@dataclass(frozen=True)
class Parameter:
    """An argument of a schema: which tags of the file's format it takes."""

    name: str
    takes: frozenset[str]
    keyword: bool
    required: bool
    length: int  # of a list that stands for one number repeated; 1 for any other


_NUMBERS = {"as_int", "as_float", "as_bool", "as_complex", "as_sym_int", "as_sym_float", "as_sym_bool"}
_TAGS: dict[str, set[str]] = {  # schema type -> tags
    "Tensor": {"as_tensor", "as_optional_tensor", *_NUMBERS},
    "int": {"as_int", "as_sym_int", "as_bool"},
    "SymInt": {"as_int", "as_sym_int", "as_bool"},
    "float": {"as_float", "as_int", "as_sym_float", "as_sym_int", "as_bool"},
    "bool": {"as_bool", "as_sym_bool", "as_int"},
    "number": _NUMBERS,
    "Scalar": _NUMBERS,
    "complex": {"as_complex", *_NUMBERS},
    "str": {"as_string"},
    "ScalarType": {"as_scalar_type"},
    "Layout": {"as_layout"},
    "MemoryFormat": {"as_memory_format"},
    "Device": {"as_device"},
    "List[Tensor]": {"as_tensors"},
    "List[Optional[Tensor]]": {"as_tensors", "as_optional_tensors"},
    "List[int]": {"as_ints", "as_sym_ints", "as_int", "as_sym_int"},
    "List[SymInt]": {"as_ints", "as_sym_ints", "as_int", "as_sym_int"},
    "List[float]": {"as_floats", "as_ints", "as_sym_floats", "as_float"},
    "List[bool]": {"as_bools", "as_bool"},
    "List[number]": {"as_ints", "as_floats", "as_bools", "as_sym_ints", "as_sym_floats"},
    "List[str]": {"as_strings"},
}
_EMPTY = {"as_tensors", "as_ints", "as_floats", "as_bools", "as_strings"}  # what an empty list may be called


@cache
def parameters(overload: OpOverload) -> dict[str, Parameter]:
    """The arguments of an operator by name, in order."""
    found = {}
    for a in schema_of(overload).arguments:
        type = str(a.real_type)
        optional = type.startswith("Optional[")
        base = type[len("Optional[") : -1] if optional else type
        takes = _TAGS.get(base, set()) | ({"as_none"} if optional else set())
        if base.startswith("List["):
            takes = takes | {"empty"}
        found[a.name] = Parameter(a.name, frozenset(takes), a.kwarg_only, not a.has_default_value(), a.N or 1)
    return found


def bind(overload: OpOverload, inputs: Any, read: Callable[[str, Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call as torch passes them; `read` gives an argument of the file's its value.

    Raises:
        CaptureError: an argument that the operator does not have, of another type, or one that is missing.
    """
    given = {i["name"]: i for i in inputs}
    known = parameters(overload)
    if len(given) != len(inputs) or not given.keys() <= known.keys():
        raise CaptureError(f"a node gives {overload} arguments that it does not have: {', '.join(map(str, given))}")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for place, p in enumerate(known.values()):
        if p.name not in given:
            if p.required:
                raise CaptureError(f"a node calls {overload} without {p.name}")
            continue
        ((tag, value),) = given[p.name]["arg"].items()
        empty = "empty" in p.takes and tag in _EMPTY and value == []
        if tag not in p.takes and not empty:
            raise CaptureError(f"a node gives {overload} for {p.name} something else ({tag}) than it takes")
        number = read(tag, value)
        _positive(overload, p.name, number)
        if isinstance(number, list) and p.length > 1 and len(number) not in (0, 1, p.length):
            raise CaptureError(f"a node gives {overload} {len(number)} numbers for {p.name}, which takes {p.length}")
        kind = given[p.name].get("kind")
        if (kind == 1 or (kind is None and p.required)) and place == len(args) and not p.keyword:
            args.append(number)
        else:
            kwargs[p.name] = number
    return tuple(args), kwargs


# What kernels divide by, or make memory of: a number under the least ends the process, or never does.
_LEAST = {"stride": 1, "dilation": 1, "groups": 1, "kernel_size": 1, "upscale_factor": 1, "downscale_factor": 1,
          "num_groups": 1, "chunks": 1, "split_size": 0, "output_size": 0, "num_layers": 1}  # fmt: skip


def _positive(overload: OpOverload, name: str, value: Any) -> None:
    least = 0 if name == "stride" and "as_strided" in schema_of(overload).name else _LEAST.get(name)
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            continue
        if not -(2**63) <= number < 2**63 or (least is not None and number < least):
            raise CaptureError(f"a node gives {overload} {number} for {name}, which no kernel can compute with")
