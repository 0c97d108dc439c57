"""Writes that nobody else sees: an op in place on fresh memory that no other name leads to is its functional twin.

Most writes of models are so (`relu_` behind a convolution), and a graph that has no others is read like one that does
not write: nothing need be observed of its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from ir.importer.fx_ops import is_writer
from ir.importer.pt2.expressions import Size
from ir.importer.schema import Twin, op_schema
from ir.importer.tensor_meta import Tensors, graphs_of
from ir.importer.torch_api import OpOverload, schema_of
from ir.ops import may_alias

_META = torch.device("meta")


def writes(module: torch.nn.Module) -> bool:
    """True if the module's graph, or one that it calls, writes to memory that something else may read."""
    return any(map(_writes, graphs_of(module)))


def _writes(graph: FxGraph) -> bool:
    writers = {n for n in graph.nodes if n.op == "call_function" and is_writer(n)}
    place = {n: i for i, n in enumerate(graph.nodes)} if writers else {}
    return not all(_is_unshared(n, place, writers) and keeps_type(n) for n in writers)


def _is_unshared(node: FxNode, place: Mapping[FxNode, int], writers: set[FxNode]) -> bool:
    """True if what it writes to is fresh, none has a view of it, and only its own result is read from here on."""
    schema = op_schema(node.target)
    target = node.args[0] if node.args else None
    if not schema.returns_self or schema.moves or not isinstance(target, FxNode):
        return False
    if schema.functional is None or schema.functional.schema.op == "aten::copy":
        return False
    fresh = _is_operator(target) and isinstance(target.meta.get("val"), Tensors)
    if not fresh or (may_alias(target.target) and target not in writers):  # or of one that is itself unshared
        return False
    return all(
        place[u] < place[node] and _is_operator(u) and not may_alias(u.target) for u in target.users if u != node
    )


def _is_operator(node: FxNode) -> bool:
    return node.op == "call_function" and isinstance(node.target, OpOverload)


def written_buffers(program: torch.export.ExportedProgram) -> set[str]:
    """The names of the buffers that a program writes to, through views too; torch notes it in functional ones only."""
    signature = program.graph_signature
    names: dict[FxNode, str] = {}
    written = set(signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in signature.inputs_to_buffers:
            names[node] = signature.inputs_to_buffers[node.name]
        elif _is_operator(node):
            schema = op_schema(node.target)
            bound = schema.bind(node.args, node.kwargs)
            written |= {names[bound[a]] for a in schema.writes if isinstance(bound[a], FxNode) and bound[a] in names}
            if may_alias(node.target):
                names.update((node, names[source]) for source in node.all_input_nodes if source in names)
    return written


# -- types -------------------------------------------------------------------------------------------------------------


class _Like(NamedTuple):
    """A tensor at the sizes of the example."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _lies(tensor: _Like) -> Any:
    """The sizes, and the strides of the axes that have any."""
    return tensor.shape, [s for s, n in zip(tensor.strides, tensor.shape, strict=True) if n != 1]


class _Unknown(Exception):
    """A size that the example does not tell, or an argument that no tensor without data stands for."""


def keeps_type(node: FxNode) -> bool:
    """True if the functional twin of an op in place gives the type and the strides of what that one writes to.

    It is run on tensors without data, of the sizes of the example; False where it cannot.
    """
    schema = op_schema(node.target)
    assert schema.functional is not None
    try:
        bound = schema.bind(node.args, node.kwargs)
        target = _like(bound[schema.names[0]])
        given = schema.functional.bind(bound, None)
        made = _made(schema.functional, tuple((k, _like(v)) for k, v in given.items()))
    except (_Unknown, TypeError):
        return False
    return made is not None and (made.dtype, *_lies(made)) == (target.dtype, *_lies(target))


def _like(arg: Any) -> Any:
    """An argument that can be a key, and be made a tensor of again; numbers with their types, for 1 is True."""
    if isinstance(arg, FxNode):
        arg = arg.meta.get("val")
    if isinstance(arg, Tensors):
        if arg.layout is not torch.strided:
            raise _Unknown
        return _Like(arg.dtype, tuple(map(_number, arg.shape)), tuple(map(_number, arg.stride())))
    if isinstance(arg, list | tuple):
        return list, tuple(map(_like, arg))
    if isinstance(arg, torch.SymFloat | torch.SymBool):
        raise _Unknown
    if isinstance(arg, torch.SymInt | Size):
        arg = _number(arg)
    return type(arg), arg


def _number(size: Any) -> int:
    """A size of the example. A symbol that is 0 or 1 there does not tell how a tensor of other sizes lies."""
    if isinstance(size, int):
        return size
    hint = size.hint if isinstance(size, Size) else size.node.hint if size.node.has_hint() else None
    if type(hint) is not int or hint < 2:
        raise _Unknown
    return hint


@lru_cache(maxsize=4096)
def _run(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> _Like | None:
    try:
        with torch.no_grad():
            made = target(*map(_without_data, args), **{k: _without_data(v) for k, v in kwargs})
    except Exception:  # of whatever a kernel raises: it has none for this device, asks for data, refuses the sizes
        return None
    return _Like(made.dtype, tuple(made.shape), made.stride()) if isinstance(made, torch.Tensor) else None


def _made(twin: Twin, given: tuple[tuple[str, Any], ...]) -> _Like | None:
    keyword = {a.name for a in schema_of(twin.target).arguments if a.kwarg_only}
    args = tuple(v for k, v in given if k not in keyword)
    kwargs = tuple((k, v) for k, v in given if k in keyword and v != (type(None), None))
    return _run(twin.target, args, kwargs)


def _without_data(like: Any) -> Any:
    if isinstance(like, _Like):
        return torch.empty_strided(like.shape, like.strides, dtype=like.dtype, device=_META)
    kind, value = like
    return list(map(_without_data, value)) if kind is list else value
