"""A program for a file, in which no result's element type is that of the process's default dtype.

A process with another default would refuse the file, for its nodes give other types there than the file says, or get
other results out of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode

from ir.importer.default_dtype import SIZE, Kind, arguments_in_default
from ir.importer.schema import op_schema
from ir.importer.torch_api import OpOverload, detect_fake_mode, put, pytree, schema_of

_Told = tuple[torch.dtype, list[str]]


def with_dtypes(program: ExportedProgram) -> ExportedProgram:
    """The program with these types said by its nodes; itself, where none asks for the default."""
    module = _told(program.graph_module)
    if module is program.graph_module:
        return program
    other = copy.copy(program)
    put(other, graph_module=module)
    return other


def _told(module: GraphModule) -> GraphModule:
    """A graph, and those that it calls; itself, where nothing in it changes."""
    inner = {n: _told(m) for n, m in module.named_children() if isinstance(m, GraphModule)}
    changed = any(m is not getattr(module, n) for n, m in inner.items())
    if not changed and not any(_questions(module.graph)):
        return module
    made = GraphModule(module, copy.deepcopy(module.graph))
    made.meta.update(module.meta)
    for name, part in inner.items():
        setattr(made, name, part)
    for node, (dtype, names) in list(_questions(made.graph)):
        if names == ["dtype"]:
            node.kwargs = {**node.kwargs, "dtype": dtype}
        else:
            _convert(node, dtype, names)
    made.recompile()
    return made


def _questions(graph: Graph) -> Iterator[tuple[FxNode, _Told]]:
    """The nodes that ask for the default, what it was, and the arguments that say so."""
    for node in graph.nodes:
        target = node.target
        if node.op != "call_function" or not isinstance(target, OpOverload) or target.namespace != "aten":
            continue
        made = [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]
        given = pytree.tree_map(_plain, op_schema(target).bind(node.args, node.kwargs))
        unknown = any(isinstance(a, FxNode) for a in pytree.tree_leaves(given))
        if made and not unknown:
            dtype, names = arguments_in_default(target, given, [t.dtype for t in made])
            if dtype is not None:
                yield node, (dtype, names)


def _plain(arg: Any) -> Any:
    """The argument with a Kind for a tensor and a number for a size; a node of which neither is known as it is."""
    value = arg.meta.get("val") if isinstance(arg, FxNode) else None
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return Kind(value.dtype, value.dim())
    if isinstance(value, torch.SymFloat | float):
        return float(SIZE)
    return SIZE if isinstance(value, torch.SymInt | int) else arg


def _convert(node: FxNode, dtype: torch.dtype, names: list[str]) -> None:
    """The node with these arguments in this type: operands by a cast, numbers as tensors."""
    target: Any = node.target
    order = op_schema(target).names[: len(node.args)]
    given = {**dict(zip(order, node.args, strict=True)), **node.kwargs}
    names = [n for n in names if n in given]  # the others are defaults, such as alpha=1
    mode: Any = detect_fake_mode([n.meta.get("val") for n in node.all_input_nodes])
    if not all(_is_tensor(a) for n in names for a in pytree.tree_leaves(given[n])):
        node.target = _of_tensors(target, names)
    with node.graph.inserting_before(node), mode:
        given |= {n: pytree.tree_map(lambda a: _in_type(node, a, dtype), given[n]) for n in names}
    node.args = tuple(given[n] for n in order)
    node.kwargs = {n: given[n] for n in node.kwargs}


def _is_tensor(arg: Any) -> bool:
    return isinstance(arg, FxNode) and isinstance(arg.meta["val"], torch.Tensor)


def _in_type(node: FxNode, arg: Any, dtype: torch.dtype) -> FxNode:
    value = arg.meta["val"] if isinstance(arg, FxNode) else arg
    if _is_tensor(arg):
        made, value = node.graph.call_function(torch.ops.aten.to.dtype, (arg, dtype)), value.to(dtype)
    else:
        made = node.graph.call_function(torch.ops.aten.scalar_tensor.default, (arg,), {"dtype": dtype})
        value = torch.scalar_tensor(value, dtype=dtype)
    made.meta = {**node.meta, "val": value}
    return made


def _of_tensors(target: Any, names: list[str]) -> Any:
    """The overload that has tensors in the place of these numbers."""
    packet = target.overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        kinds = {a.name: str(a.type) for a in schema_of(overload).arguments}
        if list(kinds) == list(op_schema(target).names) and all(kinds[n] == "Tensor" for n in names):
            return overload
    return target
