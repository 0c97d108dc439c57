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

from ir.graph import Node
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

# Composite operators whose result may be their own input although their schema does not say so.
UNANNOTATED_ALIASES = frozenset(
    f"aten::{name}"
    for name in (
        "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "meshgrid", "broadcast_tensors",
        "atleast_1d", "atleast_2d", "atleast_3d", "rrelu", "pad", "resolve_conj", "resolve_neg", "type_as",
        "combinations",
    )
)  # fmt: skip


@dataclass(frozen=True)
class OpSchema:
    """One overload: names, defaults, what it writes to, what its results alias, how it returns.

    `fresh` says that it writes and returns nothing of what it writes: a custom op with `mutates_args`. In the graph
    such an op is functional: after its own results it returns the new contents of what it writes, in schema order.
    `in_place` says that a custom op writes to one argument and returns that: its node's result is the new content.
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
    functional: OpSchema | None
    fresh: bool = False
    in_place: bool = False

    @property
    def mutates(self) -> bool:
        return bool(self.writes)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument by name, defaults filled in."""
        bound = dict(zip(self.names, args, strict=False))
        return {n: bound[n] if n in bound else kwargs.get(n, self.defaults.get(n)) for n in self.names}


def plain(value: Any) -> Any:
    """A static argument in the IR's terms: dtypes as DType, devices, layouts and memory formats as text."""
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, _PLAIN):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return tuple(plain(v) for v in value)
    return value


@cache
def op_schema(target: Any) -> OpSchema:
    """The schema of a torch OpOverload."""
    s = target._schema
    names = tuple(a.name for a in s.arguments)
    defaults = {a.name: _default(a) for a in s.arguments if a.has_default_value()}
    writes = tuple(a.name for a in s.arguments if _is_write(a))
    views = tuple(a.name for a in s.arguments if a.alias_info is not None and not a.alias_info.is_write)
    if s.name in UNANNOTATED_ALIASES:
        views = tuple(a.name for a in s.arguments if "Tensor" in str(a.type))
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
        functional=_functional(target) if writes else None,
        in_place=len(writes) == len(s.returns) == 1 and _is_write(s.returns[0]) and not s.name.startswith("aten::"),
        fresh=bool(writes) and all(r.alias_info is None for r in s.returns) and not s.name.startswith("aten::"),
    )


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


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


def _functional(target: Any) -> OpSchema | None:
    """The schema of the twin without a trailing underscore, where it takes the same arguments.

    The first, which torch.export always gives by position, may have another name: dropout_(self) and dropout(input).
    """
    namespace, name = target._schema.name.split("::")
    if not name.endswith("_") or name.endswith("__"):
        return None
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None)
    twin = getattr(packet, target._overloadname, None) if packet is not None else None
    if twin is None:
        return None
    schema = op_schema(twin)
    names = tuple(a.name for a in target._schema.arguments)
    same = len(schema.names) == len(names) and schema.names[1:] == names[1:]
    return schema if same and not schema.writes else None


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


def packet_of(op: str) -> Any:
    """The OpOverloadPacket of "aten::add", or None."""
    namespace, _, name = op.partition("::")
    return getattr(getattr(torch.ops, namespace), name, None) if name else None


def overload_of(op: str, overload: str) -> Any:
    """The OpOverload of an op and its overload name ("" is the default one), or None."""
    packet = packet_of(op)
    return getattr(packet, overload or "default", None) if packet is not None else None


def is_random(node: Node) -> bool:
    """True for a node that draws from torch's generator; dropout that is switched off does not."""
    if any(is_random(n) for g in node.graphs for n in g.nodes):
        return True
    target = overload_of(node.op, node.origin.overload) if "::" in node.op else None
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    off = any(node.args.get(flag) is False for flag in ("train", "training"))
    return not off and not any(node.args.get(name) == 0 for name in ("dropout", "dropout_p"))
