"""What is wrong with a call of `ir.capture`, in a sentence: torch.export says it late, in pages, or not at all."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ir.errors import CaptureError
from ir.graph import Graph, Node
from ir.importer.schema import op_name
from ir.importer.torch_api import operator_names, pytree


def check_model(model: Any) -> None:
    """Raises CaptureError for what is no model, though it may hold one."""
    if isinstance(model, type):
        raise CaptureError(f"{model.__name__} is a class: give an instance of it, {model.__name__}(...)")
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError("a ScriptModule is compiled already: give the nn.Module that torch.jit.script was given")
    if isinstance(model, Mapping):
        held = "a state dict holds weights and no code: load it by model.load_state_dict(...) and give the model"
        raise CaptureError(held if all(map(torch.is_tensor, model.values())) else f"cannot capture {_a(model)}")
    if not callable(model):
        raise CaptureError(f"cannot capture {_a(model)}: give an nn.Module, an ExportedProgram or a .pt2")


def _a(model: Any) -> str:
    name = type(model).__name__
    return f"an {name}" if name[0] in "aeiouAEIO" else f"a {name}"


def check_call(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises CaptureError for arguments that the model does not take, and for arrays in the place of tensors."""
    call = getattr(model, "forward", model)
    what = "the model" if isinstance(model, torch.nn.Module) else "the function"
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # of a builtin
        return
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        near = difflib.get_close_matches(unknown[1], signature.parameters, 1) if unknown else []
        hint = f"; did you mean {near[0]}?" if near else ""
        raise CaptureError(f"{what} takes {_shown(signature)}: {error}{hint}") from error
    for name, value in bound.arguments.items():
        if any(isinstance(leaf, np.ndarray) for leaf in pytree.tree_leaves(value)):
            raise CaptureError(f"the example of {name} is a numpy array: give torch.from_numpy({name})")


def _shown(signature: inspect.Signature) -> str:
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


def check_shapes(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any) -> None:
    """Raises CaptureError for dynamic shapes of arguments that there are not, or in torch.onnx's own old form, and for
    ranges up to 2: torch.export takes a dynamic size for 2 at least, and would find that it is always 2."""
    if shapes is None:
        return
    for size in pytree.tree_leaves(shapes):
        most, name = getattr(size, "max", None), getattr(size, "__name__", "a size")
        if isinstance(most, int) and most <= 2 and not hasattr(size, "root"):  # of a derived one the root decides
            raise CaptureError(
                f"dynamic_shapes has {name} up to {most}, which torch.export takes to be {most} always: give a max of "
                "3 or more, or None for a size that is fixed"
            )
    try:
        signature = inspect.signature(getattr(model, "forward", model))
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return
    if isinstance(shapes, Mapping):
        others = [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
        _check_keys(list(bound), {key for name in others for key in bound.get(name, ())}, shapes)
        pairs = [(name, bound[name], shape) for name, shape in shapes.items() if name in bound]
    elif isinstance(shapes, (list, tuple)):
        pairs = list(zip(bound, bound.values(), shapes, strict=False))
    else:
        raise CaptureError(f"dynamic_shapes is {shapes!r:.60}: give a dict by argument, {{'x': {{0: 'batch'}}}}")
    for name, value, shape in pairs:
        if isinstance(shape, Mapping) and isinstance(value, torch.Tensor):
            _check_axes(name, shape)
        axes = isinstance(shape, (list, tuple)) and bool(shape) and all(type(axis) is int for axis in shape)
        if axes and isinstance(value, torch.Tensor) and list(shape) != list(value.shape):
            said = ", ".join(f"{axis}: '{name}_{axis}'" for axis in shape)
            raise CaptureError(f"dynamic_shapes of {name} is a list of axes: name them, {name}={{{said}}}")


def _check_axes(argument: str, shape: Mapping[Any, Any]) -> None:
    what = f"dynamic_shapes of {argument}"
    for axis, size in shape.items():
        if isinstance(axis, str):
            raise CaptureError(f"{what} calls an axis {axis!r:.40}: give its number, {{0: 'batch'}}")
        if isinstance(size, str) and not size.isidentifier():  # files compute with the names of sizes
            plain = re.sub(r"\W", "_", size).strip("_") or f"{argument}_{axis}"
            plain = plain if plain.isidentifier() else f"{argument}_{plain}"
            raise CaptureError(f"{what} names a size {size!r:.40}: write a word, {plain!r:.40}")


def _check_keys(names: list[str], unnamed: set[str], shapes: Mapping[Any, Any]) -> None:
    """`unnamed` are the arguments that forward takes by `**kwargs`."""
    known = [*names, "args", "kwargs"]
    for key in shapes:
        if isinstance(key, int):
            raise CaptureError(
                f"dynamic_shapes names axes and no argument: give {{{names[0]!r}: {dict(shapes)!r:.80}}}"
            )
        if isinstance(key, str) and key not in known:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            if key in unnamed:
                hint = ": forward takes it by **kwargs, where torch.export allows no dynamic sizes; pass it as a named "
                hint += "parameter of forward"
            if names[:1] == ["args"]:  # of a builtin
                hint = ": give a tuple with an entry for each argument, in their order"
            raise CaptureError(f"dynamic_shapes names {key!r:.60}, and the example has {', '.join(names)}{hint}")


def named_handlers(handlers: Any) -> dict[str, Any] | None:
    """The handlers of a call by the names of their ops, all of which there are.

    Raises:
        ValueError: torch knows no op of that name; the message has the nearest.
        TypeError: a handler is no function, a key is no op, or this is no mapping.
    """
    if handlers is None:
        return None
    if not isinstance(handlers, Mapping):
        raise TypeError(f"handlers is {_a(handlers)}: give a dict of op and handler, {{'aten::relu': handler}}")
    named = {}
    for op, handler in handlers.items():
        if not callable(handler):
            raise TypeError(f"handlers[{op!r:.80}] is {_a(handler)}: give a function (h, *arguments) -> result")
        if (full := op_name(op)) is None:
            raise TypeError(f"handlers has the key {op!r:.80}: give an op of torch.ops, or its name as 'aten::relu'")
        named[full] = handler
        namespace, colons, name = full.partition("::")
        if not colons or namespace not in ("aten", "prims"):
            continue  # an op of somebody's, who may define it later
        if not hasattr(getattr(torch.ops, namespace), name.partition(".")[0]):
            near = difflib.get_close_matches(full.partition(".")[0], operator_names(), 3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ValueError(f"handlers: torch has no op {full!r:.80}{hint}")
    return named


def unused_handlers(handlers: Mapping[str, Any] | None, used: Collection[str], graph: Graph) -> Iterator[str]:
    """What to say of each handler of a call that no node of the model or of a decomposition in use is of."""
    for key in handlers or {}:
        if key in used:
            continue
        names = sorted({n.overload for n in _nodes(graph) if not n.op.startswith("ir::")})
        own = key.partition(".")[0].removesuffix("_")
        near = [n for n in names if n.partition(".")[0] == own] or difflib.get_close_matches(key, names, 3)
        hint = f"; the model has {', '.join(near)}" if near else ""
        yield f"handlers[{key!r:.80}] was not used: no node of the model is of this op{hint}"


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for inner in node.graphs:
            yield from _nodes(inner)
