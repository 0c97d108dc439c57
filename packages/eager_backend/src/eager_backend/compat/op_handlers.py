"""Handlers in the shape of ExTorch's OpHandler: an object that names its ops and compiles a node to a closure.

    class VisionOps:
        def ops(self):
            return ["torchvision::nms"]

        def compile(self, node, initial_values, device):
            boxes, scores, threshold = (i.arg for i in node.inputs)
            return lambda values: my_nms(values[boxes.name], values[scores.name], threshold)

    op_handlers.register(VisionOps())

The class itself, or a module with functions `ops` and `compile`, will do as well. A module that registers when it is
imported is a plugin as any other: `ir.export(..., plugins=[...])`, IR_PLUGINS, or an entry point of "ir.handlers".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union

import torch

from eager_backend.building.steps import Slot
from eager_backend.registry import REGISTRY
from ir.dims import Dim, Expr
from ir.errors import ExportError
from ir.graph import Graph, Node, Value
from ir.registry import layer, put

Closure = Callable[[Mapping[str, Any]], Union[torch.Tensor, "list[torch.Tensor]", "tuple[torch.Tensor, ...]"]]


@dataclass(frozen=True)
class Ref:
    """A tensor, or a size that is known at run time only: `values[ref.name]`."""

    name: str


@dataclass(frozen=True)
class Input:
    """An argument of the node by its schema name: a Ref, a list of them, or plain Python."""

    name: str
    arg: Any


@dataclass(frozen=True)
class OpNode:
    """One node of the exported program.

    Attributes:
        target: the op, "namespace::name".
        inputs: its arguments in the schema's order, defaults included.
        outputs: the names of its results.
        metadata: "overload", "module" (path of the nn.Module), "file" and "line" of the model's source.
    """

    target: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    metadata: Mapping[str, Any]


class OpHandler(Protocol):
    """What may be registered."""

    def ops(self) -> Iterable[str]:
        """The ops, as "namespace::name"; read once, when the handler is registered."""

    def compile(self, node: OpNode, initial_values: Mapping[str, torch.Tensor], device: torch.device) -> Closure:
        """Called once for each such node when a program is made.

        Args:
            node: what is called.
            initial_values: the parameters and buffers that the node reads, by the names that its Refs have.
            device: where the program runs.

        Returns:
            `closure(values)`, called at each run with a mapping from Ref names to tensors and sizes, which returns a
            tensor, or a list with one for each result.
        """


_TABLE: dict[str, OpHandler] = {}


def register(handler: Any) -> OpHandler:
    """Use this handler for its ops from now on; of two handlers of an op the newest wins.

    A class whose `ops` is a method stands for an instance of it. While plugins are loaded, the first one wins, as for
    every handler of a plugin.

    Raises:
        TypeError: it has no `ops` or no `compile`, or `ops` returns one text.
        ValueError: one of its ops is no "namespace::name".
    """
    for wanted in ("ops", "compile"):
        if not callable(getattr(handler, wanted, None)):
            raise TypeError(f"{handler!r} has no {wanted}(): an op handler has ops() and compile(node, values, device)")
    if inspect.isclass(handler) and inspect.isfunction(inspect.getattr_static(handler, "ops")):
        handler = handler()
    at_run_time = layer() == "runtime"
    made: OpHandler = handler
    names = made.ops()
    if isinstance(names, str):
        raise TypeError(f"ops() of {made!r} returned the text {names!r}: a list of names is wanted")
    ops = list(names)
    for op in ops:  # before any is registered
        if "::" not in op:
            raise ValueError(f"ops() of {made!r} names {op!r}, which is no op: write 'namespace::name'")
    for op in ops:
        REGISTRY.add(op, _Adapter(made), override=at_run_time)
        if at_run_time or op not in _TABLE:
            put(_TABLE, op, made)
    return made


def lookup(op: str) -> OpHandler | None:
    """The handler of an op, or None."""
    return _TABLE.get(op)


def table() -> dict[str, OpHandler]:
    """Every op with a handler of this shape."""
    return dict(_TABLE)


def reset() -> None:
    """Forget all of them."""
    for op in _TABLE:
        for entry in list(REGISTRY.entries.get(op, ())):
            if isinstance(entry.fn, _Adapter):
                REGISTRY.remove(op, layer=entry.layer)
    _TABLE.clear()


class _Adapter:
    """An ordinary handler that records one step: the closure, called with a mapping of what the node reads."""

    def __init__(self, handler: OpHandler) -> None:
        self.handler = handler

    def __call__(self, h: Any, /, **arguments: Any) -> Any:
        node: Node = h.node
        operands: dict[str, Any] = {}
        inputs = tuple(Input(name, _described(h, arg, operands)) for name, arg in node.args.items())
        weights = h.constants.weights
        initial = {n: weights[s.name] for n, s in operands.items() if isinstance(s, Slot) and s.name in weights}
        origin = node.origin
        metadata = {"overload": node.overload, "module": origin.module, "file": origin.file, "line": origin.line}
        described = OpNode(node.op, inputs, tuple(v.name for v in node.outputs), metadata)
        closure = self.handler.compile(described, initial, h.target.device)
        if not callable(closure):
            what = f"compile() of {self.handler!r} returned {closure!r} for {node.op}, which cannot be called"
            raise ExportError(f"{what}\n  at {origin}")
        return h.emit(_step(closure, tuple(operands), self._asserted(h, node)), *operands.values())

    def _asserted(self, h: Any, node: Node) -> Callable[[Any], Any]:
        """What a closure returned, if that is what the node has; torch's own kernels need no such check."""
        dtypes = [h.dtype(v.type.dtype) for v in node.outputs]
        shapes = [v.type.shape for v in node.outputs]
        single = node.returns == "one"

        def wrong(found: str) -> ExportError:
            wanted = ", ".join(f"%{v.name}: {v.type}" for v in node.outputs)
            place = f"the closure of {self.handler!r} for {node.op}"
            return ExportError(f"{place} returned {found}, the node has {wanted}\n  at {node.origin}")

        def checked(result: Any) -> Any:
            results = result if isinstance(result, (list, tuple)) else (result,)
            if len(results) != len(dtypes):
                raise wrong(f"{len(results)} results")
            for i, r in enumerate(results):
                if not isinstance(r, torch.Tensor):
                    raise wrong(f"a {type(r).__name__}")
                if r.dtype is not dtypes[i] or not _fits(r.shape, shapes[i]):
                    raise wrong(f"{str(r.dtype).removeprefix('torch.')}{list(r.shape)}")
            return results[0] if single else results

        return checked


def _described(h: Any, arg: Any, operands: dict[str, Any]) -> Any:
    """An argument as an OpNode has it; tensors and sizes are noted as operands of the step."""
    if isinstance(arg, Value):
        operands[arg.name] = h.driver.resolve(arg)
        return Ref(arg.name)
    if isinstance(arg, Expr):
        operands[str(arg)] = arg
        return Ref(str(arg))
    if isinstance(arg, Graph):
        h.refuse("it has a sub-graph, which a handler with ops() and compile() cannot be given; register a function")
    if isinstance(arg, tuple):
        return [_described(h, a, operands) for a in arg]
    return arg


def _fits(shape: Sequence[int], wanted: Sequence[Dim]) -> bool:
    """True if the sizes are those wanted, as far as these are numbers."""
    return len(shape) == len(wanted) and all(s == w or isinstance(w, Expr) for s, w in zip(shape, wanted, strict=True))


def _step(closure: Closure, names: tuple[str, ...], checked: Callable[[Any], Any]) -> Callable[..., Any]:
    """The closure over positional operands."""

    def step(*operands: Any) -> Any:
        return checked(closure(dict(zip(names, operands, strict=True))))

    return step
