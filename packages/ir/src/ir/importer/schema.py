"""What the importer needs of an operator's schema, read once for each overload."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ir.errors import CaptureError
from ir.importer.torch_api import (
    OpOverload,
    OpOverloadPacket,
    definition_name,
    overload_name,
    packet_name,
    schema_of,
)
from ir.types import DType

DTYPES: dict[torch.dtype, DType] = {getattr(torch, d.name): d for d in DType if hasattr(torch, d.name)}
TORCH_DTYPES = {d: t for t, d in DTYPES.items()}
# c10/core/ScalarType.h, as far as defaults go
_NUMBERED = dict(enumerate((DType.uint8, DType.int8, DType.int16, DType.int32, DType.int64, DType.float16,
                            DType.float32, DType.float64)))  # fmt: skip
LAYOUTS = {
    getattr(torch, n): n for n in ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
}
_PLAIN = (torch.device, torch.layout, torch.memory_format)

INSTEAD_OF_QUANTISED = "quantise by torchao, its quantize_ or its convert_pt2e, in place of torch's quantised tensors"


@dataclass(frozen=True)
class OpSchema:
    """One overload: names, defaults, what it writes to, what its results alias, how it returns.

    `functional` is the op that computes what this one writes, without writing. An op that writes and has none stands
    in the graph itself, without writing: with `in_place`, a custom op that writes to one argument and returns that, its
    result is the new content; with `fresh`, the new contents follow its own results, in the order of the schema.
    `returns_self`: it writes to its first argument alone, and returns that (`add_`).
    `moves`: it changes where and how its argument lies, not what is there (`t_`, `set_`).
    """

    op: str
    overload: str
    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    floats: frozenset[str]
    tensors: frozenset[str]
    returns: str
    writes: tuple[str, ...]
    views: tuple[str, ...]
    functional: Twin | None
    fresh: bool = False
    in_place: bool = False
    moves: bool = False
    returns_self: bool = False

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument by name, defaults filled in."""
        bound = dict(zip(self.names, args, strict=False))
        return {n: bound[n] if n in bound else kwargs.get(n, self.defaults.get(n)) for n in self.names}


def no_dtype(dtype: torch.dtype) -> CaptureError:
    """What to raise for an element type that the IR has not."""
    quantised = str(dtype).startswith(("torch.qint", "torch.quint"))
    return CaptureError(f"dtype {dtype} has no form in the IR" + (f"; {INSTEAD_OF_QUANTISED}" if quantised else ""))


def plain(value: Any) -> Any:
    """A static argument in the IR's terms: dtypes as DType, devices, layouts and memory formats as text."""
    if isinstance(value, torch.dtype):
        if value not in DTYPES:
            raise no_dtype(value)
        return DTYPES[value]
    if isinstance(value, _PLAIN):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return tuple(plain(v) for v in value)
    return value


@cache
def op_schema(target: Any) -> OpSchema:
    """The schema of a torch OpOverload."""
    s = schema_of(target)
    names = tuple(a.name for a in s.arguments)
    defaults = {a.name: _default(a) for a in s.arguments if a.has_default_value()}
    writes = tuple(a.name for a in s.arguments if _is_write(a))
    views = tuple(a.name for a in s.arguments if a.alias_info is not None and not a.alias_info.is_write)
    custom = not s.name.startswith("aten::")
    quiet = all(r.alias_info is None for r in s.returns)
    functional = _functional(target) if writes and not (custom and quiet) else None
    in_place = custom and len(writes) == len(s.returns) == 1 and _is_write(s.returns[0])
    overload = "" if s.overload_name == "default" else s.overload_name
    return OpSchema(
        op=s.name,
        overload=overload,
        names=names,
        defaults=defaults,
        floats=frozenset(a.name for a in s.arguments if str(a.type) in ("float", "Optional[float]")),
        tensors=frozenset(a.name for a in s.arguments if str(a.type) == "Tensor"),
        returns=_returns(s),
        writes=writes,
        views=views,
        functional=functional,
        in_place=in_place,
        fresh=bool(writes) and functional is None and not in_place,
        moves=torch.Tag.inplace_view in target.tags,
        returns_self=functional is not None and writes == names[:1] and _returns_first(s),
    )


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _returns_first(schema: Any) -> bool:
    """True if the only result is the first argument, by position."""
    first, results = schema.arguments[0], schema.returns
    same = (
        len(results) == 1 and _is_write(results[0]) and results[0].alias_info.before_set == first.alias_info.before_set
    )
    return same and str(first.type) == "Tensor" and not first.kwarg_only


def _default(argument: Any) -> Any:
    """The default of an argument; schemas write element types as numbers."""
    value = plain(argument.default_value)
    return _NUMBERED.get(value, value) if "ScalarType" in str(argument.real_type) else value


def _returns(schema: Any) -> str:
    kinds = [str(r.type) for r in schema.returns]
    if not kinds:
        return "none"
    if len(kinds) > 1:
        return "tuple"
    return "list" if kinds[0] == "List[Tensor]" else "one"


@dataclass(frozen=True)
class Twin:
    """The op that computes what another writes: each of its arguments by the other's name for it."""

    target: Any
    schema: OpSchema
    names: Mapping[str, str]

    def bind(self, bound: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
        """Its arguments out of those of the op that writes; a factory makes the element type that is written."""
        own = {n: bound[self.names[n]] if n in self.names else self.schema.defaults[n] for n in self.schema.names}
        return own | {"dtype": dtype} if "dtype" in own and "dtype" not in self.names else own


def _functional(target: Any) -> Twin | None:
    """The op of torch's own naming (`add` of `add_` and of `add.out`, `__or__` of `__ior__`) with the same arguments.

    The first may have another name, dropout_(self) and dropout(input), and others another order. What is written to by
    keyword (out=) is no argument of it, and settings of a factory (dtype, layout) may be more. It returns the op's own
    results, and behind them the new contents.
    """
    namespace, name = schema_of(target).name.split("::")
    own = [a for a in schema_of(target).arguments if not (a.kwarg_only and _is_write(a))]
    kinds = {a.name: str(a.type) for a in own}
    for base in _bases(name, len(own) < len(schema_of(target).arguments)):
        packet = getattr(getattr(torch.ops, namespace), base, None)
        for overload in packet.overloads() if packet is not None else ():
            twin = getattr(packet, overload)
            given = schema_of(twin).arguments
            if any(map(_is_write, given)) or len(schema_of(twin).returns) != _results(target):
                continue
            more = {a.name for a in given if a.has_default_value() and a.kwarg_only and a.name not in kinds}
            asked = [a for a in given if a.name not in more]
            if {a.name: str(a.type) for a in asked} == kinds:
                return Twin(twin, op_schema(twin), {n: n for n in kinds})
            if [str(a.type) for a in asked] == list(kinds.values()) and [a.name for a in asked][1:] == list(kinds)[1:]:
                return Twin(twin, op_schema(twin), dict(zip([a.name for a in asked], kinds, strict=True)))
    return None


def _bases(name: str, out: bool) -> tuple[str, ...]:
    if out:
        return name, f"{name}_functional"
    if name.startswith("__i") and name.endswith("__"):
        return f"__{name[3:]}", name[3:-2]
    return (name[:-1], f"{name[:-1]}_functional") if name.endswith("_") else (f"{name}_functional",)


def _results(target: Any) -> int:
    """How many results the op has without writing: those that are nothing that it writes to, and the new contents."""
    schema = schema_of(target)
    return sum(not _is_write(r) for r in schema.returns) + sum(map(_is_write, schema.arguments))


def declared(fn: Callable[..., Any], mutates_args: Any = ()) -> str:
    """The schema that a function's annotations and defaults declare.

    By torch's own rules, and where torch has none: defaults that are lists of numbers, and `list[Tensor] | None`.

    Raises:
        ValueError: a parameter's type has no form in a schema.
    """
    try:
        signature = inspect.signature(fn, eval_str=True)
    except (NameError, AttributeError):  # names that exist for type checkers only
        signature = inspect.signature(fn)
    edits: list[tuple[str, str]] = []
    parameters = []
    for name, p in signature.parameters.items():
        if isinstance(p.default, (list, tuple)):
            edits.append((rf"\b{name}=None", f"{name}=[{', '.join(map(str, p.default))}]"))
            p = p.replace(default=None)
        choices = typing.get_args(p.annotation)
        lists = [c for c in choices if typing.get_args(c) == (torch.Tensor,)]
        if lists and len(choices) == 2 and type(None) in choices:
            edits.append((rf"\[\] {name}\b", f"[]? {name}"))
            p = p.replace(annotation=lists[0])
        parameters.append(p)
    if not edits:
        return torch.library.infer_schema(fn, mutates_args=mutates_args)

    def plain(*args: Any) -> Any: ...

    plain.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    schema = torch.library.infer_schema(plain, mutates_args=mutates_args)
    for pattern, text in edits:
        schema = re.sub(pattern, text, schema, count=1)
    return schema


def op_name(op: Any) -> str | None:
    """The name of an op that may be an object: of torch.ops, or what a decorator of custom ops returned; else None."""
    if isinstance(op, OpOverload):
        return f"{packet_name(op.overloadpacket)}.{overload_name(op)}"
    if isinstance(op, OpOverloadPacket):
        return packet_name(op)
    name = op if isinstance(op, str) else definition_name(op) or getattr(op, "name", None)
    return name if isinstance(name, str) else None


def packet_of(op: str) -> Any:
    """The OpOverloadPacket of "aten::add", or None."""
    namespace, _, name = op.partition("::")
    return getattr(getattr(torch.ops, namespace), name, None) if name else None


def overload_of(op: str, overload: str) -> Any:
    """The OpOverload of an op and its overload name ("" is the default one), or None."""
    packet = packet_of(op)
    return getattr(packet, overload or "default", None) if packet is not None else None
