"""The names that the user wrote for dimensions, given to torch's symbols."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ir.errors import CaptureError, warn
from ir.importer import cache_shapes, caches
from ir.importer.derived_dims import name_root, otherwise
from ir.importer.pt2.program import SavedProgram
from ir.importer.symbols import Symbols
from ir.importer.tensor_meta import Tensors
from ir.importer.torch_api import pytree

_ONLY_NAMES = "only names what is dynamic in a program that exists already; give it to torch.export.export"


def name_symbols(
    program: ExportedProgram | SavedProgram,
    symbols: Symbols,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    saved: SavedProgram | None = None,
    existed: bool = True,
) -> None:
    """Give the symbols of the inputs' sizes the names that the user wrote.

    Args:
        program: the program that has the inputs.
        symbols: its symbols.
        args: example arguments, or none: those of the program.
        kwargs: example arguments by name.
        dynamic_shapes: what the user wrote.
        saved: the file that the program was made of.
        existed: whether there was a program before the user wrote that, which has its own dynamic sizes.

    Raises:
        CaptureError: a tensor does not have an axis that `dynamic_shapes` tells of; torch.export passes over it. Or a
            program that existed has it fixed, or in another range.
    """
    if dynamic_shapes is None:
        return
    sizes = [d for d in pytree.tree_leaves(dynamic_shapes) if getattr(d, "min", None) == 2 and not hasattr(d, "root")]
    symbols.from_two.update(d.__name__ for d in sizes if hasattr(d, "__name__"))
    origin = saved or program
    if not args and not kwargs:
        args, kwargs = origin.stand_ins if isinstance(origin, SavedProgram) else origin.example_inputs or ((), {})
    named = _named(signature_names(origin), args, kwargs, dynamic_shapes)
    flat = pytree.tree_leaves((args, kwargs))
    _hold_to_one(flat, named)
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    users = [
        n for n, s in zip(nodes, program.graph_signature.input_specs, strict=True) if s.kind == InputKind.USER_INPUT
    ]
    said: list[tuple[Any, Any, str]] = []
    for leaf, node in zip(flat, users, strict=False):
        fake = node.meta.get("val")
        for axis, dim in named.get(id(leaf), {}).items() if isinstance(fake, Tensors) else ():
            if not 0 <= axis < len(fake.shape):
                raise CaptureError(f"dynamic_shapes tells of the axis {axis} of {node.name}, {_axes(len(fake.shape))}")
            said.append((fake.shape[axis], dim, f"the axis {axis} of {node.name}"))
    for size, dim, _ in said:
        if name := _name(dim):
            symbols.name_user_symbol(size, name)
    _warn_of_merged(said)
    taken = {*map(_name, pytree.tree_leaves(dynamic_shapes)), *symbols.names.values()}
    for size, dim, place in said:
        name_root(symbols, size, dim, taken)
        if existed and (other := otherwise(symbols, size, dim)):
            raise CaptureError(f"{place} {other}: dynamic_shapes {_ONLY_NAMES}")


def _warn_of_merged(said: Sequence[tuple[Any, Any, str]]) -> None:
    """Of names that are one size in the program, since the model's code or an op takes them to be equal."""
    names: dict[Any, dict[str, None]] = {}
    for size, dim, _ in said:
        if isinstance(dim, str) and isinstance(size, torch.SymInt):
            names.setdefault(size.node.expr, {})[dim] = None
    for merged in names.values():
        if len(merged) > 1:
            one = next(iter(merged))
            warn(
                f"dynamic_shapes has the names {' and '.join(merged)} for what the model's code or an op takes to be "
                f"one size: it is {one} in the program, which refuses inputs in which they differ"
            )


def check_names(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> None:
    """Before torch.export, which says of two sizes with one name that the model's code fixes them.

    Raises:
        CaptureError: two sizes of the example that have one name differ.
    """
    if dynamic_shapes is not None:
        positional = list(inspect.signature(model.forward).parameters)
        _hold_to_one(pytree.tree_leaves((args, kwargs)), _named(positional, args, kwargs, dynamic_shapes))


def dynamic_axes(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> dict[int, Mapping[int, str]]:
    """By id of a tensor among the arguments: its axes that `dynamic_shapes` tells of."""
    if dynamic_shapes is None:
        return {}
    named = _named(list(inspect.signature(model.forward).parameters), args, kwargs, dynamic_shapes)
    return {tensor: {axis: _name(d) for axis, d in axes.items()} for tensor, axes in named.items()}


def _named(
    positional: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any
) -> dict[int, Mapping[int, Any]]:
    """By id of a tensor among the arguments: what is said of its axes, names and Dims."""
    named: dict[int, Mapping[int, Any]] = {}
    if isinstance(shapes, Mapping):
        for position, arg in enumerate(args):
            key = positional[position] if position < len(positional) else None
            if key in shapes:
                _collect_names(arg, shapes[key], named)
            elif "args" in shapes:
                _collect_names(arg, shapes["args"][position], named)
        for key, arg in kwargs.items():
            if key in shapes:
                _collect_names(arg, shapes[key], named)
            elif "kwargs" in shapes:
                _collect_names(arg, shapes["kwargs"][key], named)
    elif isinstance(shapes, (list, tuple)):
        values = [*args, *kwargs.values()]
        if len(shapes) == 1 and len(values) != 1 and isinstance(shapes[0], (list, tuple)):
            shapes = shapes[0]  # a model with *args
        for arg, shape in zip(values, shapes, strict=False):
            _collect_names(arg, shape, named)
    return named


def _name(dim: Any) -> str:
    """What the user calls a size; "" of one without a name, or that is computed from another."""
    name = dim if isinstance(dim, str) else getattr(dim, "__name__", "")
    return name if name.isidentifier() and not name.startswith("_") else ""


def _hold_to_one(tensors: Sequence[Any], named: Mapping[int, Mapping[int, Any]]) -> None:
    """One name is one size, as one Dim is to torch.export.

    Raises:
        CaptureError: two sizes of the example that have one name differ.
    """
    sizes: dict[str, tuple[int, Any, int]] = {}
    for tensor in tensors:
        for axis, dim in named.get(id(tensor), {}).items():
            if not (name := _name(dim)) or not 0 <= axis < tensor.dim():
                continue
            size, first, before = sizes.setdefault(name, (tensor.shape[axis], tensor, axis))
            if size != tensor.shape[axis]:
                raise CaptureError(
                    f"dynamic_shapes has one name, {name}, for the axis {before} of an input {list(first.shape)} and "
                    f"the axis {axis} of an input {list(tensor.shape)}: one name is one size; give them two names"
                )


def _axes(rank: int) -> str:
    return f"whose axes are 0 to {rank - 1}" if rank else "a number without axes"


def signature_names(program: ExportedProgram | SavedProgram) -> list[str]:
    """The names of the model's arguments, in order; none where they cannot be found out."""
    if isinstance(program, SavedProgram):
        return list(program.argument_names)
    module = program.module_call_graph[0] if program.module_call_graph else None
    names = getattr(getattr(module, "signature", None), "forward_arg_names", None)
    if names:
        return list(names)
    try:
        return list(inspect.signature(program.module(check_guards=False).forward).parameters)
    except (TypeError, ValueError):
        return []


def _collect_names(value: Any, shape: Any, named: dict[int, Mapping[int, Any]]) -> None:
    """Walk an argument and its dynamic shapes side by side, down to {axis: name or Dim} for each tensor."""
    if shape is None or not isinstance(shape, (Mapping, list, tuple)):
        return
    if isinstance(value, torch.Tensor):
        entries = shape.items() if isinstance(shape, Mapping) else enumerate(shape)
        named[id(value)] = {a: d for a, d in entries if d is not None}
    elif caches.is_cache(value):
        for item, s in zip(pytree.tree_leaves(value), cache_shapes.of_cache(value, shape), strict=True):
            _collect_names(item, s, named)
    elif isinstance(value, Mapping):
        by_key = shape if isinstance(shape, Mapping) else dict(zip(value, shape, strict=False))
        for key, item in value.items():
            _collect_names(item, by_key.get(key), named)
    elif isinstance(value, (list, tuple)):
        for item, s in zip(value, shape, strict=False):
            _collect_names(item, s, named)
    else:
        children, spec = pytree.tree_flatten(value)
        if spec.is_leaf():  # a Python number
            return
        for item, s in zip(children, pytree.tree_leaves(shape, is_leaf=_is_axes), strict=False):
            _collect_names(item, s, named)


def _is_axes(x: Any) -> bool:
    return x is None or (isinstance(x, Mapping) and all(isinstance(k, int) for k in x))
