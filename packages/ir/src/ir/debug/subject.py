"""What a call of the debugger is about: a graph with its arguments, and a target with its handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ir import plugins
from ir.bounds import Range
from ir.conditions import SharedSizes
from ir.dims import Dim, Expr, evaluate
from ir.errors import CaptureError, ExportError
from ir.graph import Graph, Value
from ir.importer.capture import arguments, capture
from ir.importer.other_sizes import Sizes, plans, resized, sizes_of
from ir.importer.schema import TORCH_DTYPES
from ir.passes.own_state import with_own_state
from ir.registry import Registry
from ir.target import Target
from ir.types import TensorType


@dataclass(frozen=True, eq=False)
class Subject:
    """A graph with arguments, on a target whose handlers are `registry`."""

    graph: Graph
    target: Target
    registry: Registry
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        program: Any,
        args: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        target: str | Target | None = None,
        handlers: Mapping[str, Callable[..., Any]] | None = None,
        dynamic_shapes: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> Subject:
        """What the arguments of `ir.debug.nodes` stand for.

        Raises:
            ExportError: there are no arguments, or the model is not captured.
        """
        own = getattr(program, "target", None) if hasattr(program, "artifact") else None
        given = target if target is not None else own if own is not None else "onnx"
        chosen = plugins.find_target(given, dict(options or {}))
        if own is not None:
            graph: Graph = program.graph
            handlers = program.handlers if handlers is None else handlers
        else:
            captured = arguments(() if args is None else args, kwargs) if not isinstance(program, Graph) else ((), {})
            try:
                graph = with_own_state(capture(program, *captured, dynamic_shapes=dynamic_shapes))
            except CaptureError as error:
                raise _of_a_file(program, error) from error
        by_default = args is None and kwargs is None
        if by_default:
            args, kwargs = _example(graph)
        found = arguments(() if args is None else args, kwargs)
        about = cls(graph, chosen, chosen.registry.with_handlers(handlers), *found)
        if not by_default:
            check_inputs(graph, about.inputs)
        return about

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors of the graph's inputs.

        Raises:
            ExportError: the arguments are none of this program.
        """
        found: list[Tensor] = self.graph.structure.flatten(self.args, self.kwargs)
        return found

    @property
    def sizes(self) -> Sizes:
        """The dynamic dimensions of these arguments."""
        return sizes_of(self.graph, self.inputs)

    def at(self, sizes: Mapping[str, int]) -> Subject:
        """The same with other sizes, its arguments cut or stretched.

        Raises:
            ExportError: a name is none of its dynamic dimensions, or a size is none that it may have.
        """
        known = self.sizes
        for name, size in sizes.items():
            if name not in known:
                raise ExportError(f"no dynamic dimension is called {name!r:.60}: {', '.join(known) or 'none'}")
            _check_size(self.graph, name, size)
        args, kwargs = next(resized(self.graph, self.args, self.kwargs, known | dict(sizes)))
        return replace(self, args=args, kwargs=kwargs)

    def elsewhere(self) -> Iterator[Subject]:
        """The same at the sizes at which verify runs it, as far as torch takes them."""
        for rounds in plans(self.graph, self.sizes):
            found = next((s for sizes in rounds for s in self._taken(sizes)), None)
            if found is not None:
                yield found

    def _taken(self, choices: Sequence[Sizes]) -> Iterator[Subject]:
        for sizes in choices:
            for args, kwargs in resized(self.graph, self.args, self.kwargs, sizes):
                try:
                    self.graph.context.reference(self.graph, args, kwargs, guarded=True)
                except Exception:  # torch's own, of any kind: not a size of this model
                    continue
                yield replace(self, args=args, kwargs=kwargs)


def _example(graph: Graph) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """What the model was captured with.

    Raises:
        ExportError: its file does not hold that.
    """
    try:
        found: tuple[tuple[Any, ...], Mapping[str, Any]] = graph.context.example()
    except ExportError as error:
        takes = ", ".join(f"{v.name}={_typed(v)}" for v in graph.inputs)
        raise ExportError(
            f"the program has no example inputs with it: give args (--input NAME=...): {takes}"
        ) from error
    return found


def _typed(value: Value) -> str:
    return f"{value.type.dtype.name}[{', '.join(map(str, value.type.shape))}]"


def check_inputs(graph: Graph, inputs: Sequence[Tensor]) -> None:
    """Hold tensors to what the program takes, before a runtime's refusal of them is taken for a fault of a node.

    Raises:
        ExportError: one has another type, rank or size.
    """
    pairs = list(zip(graph.inputs, inputs, strict=True))
    sizes = sizes_of(graph, inputs) if all(_fits(v.type, t, {}) for v, t in pairs) else {}
    for value, tensor in pairs:
        if not _fits(value.type, tensor, sizes):
            given = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            raise ExportError(f"the program takes {value.name} as {_typed(value)}, and is given {given}")
    SharedSizes(graph).check(inputs)
    for name, size in sizes.items():
        _check_size(graph, name, size)


def _fits(wanted: TensorType, tensor: Tensor, sizes: Sizes) -> bool:
    """Whether a tensor is one of this type, with these numbers for the names in it."""

    def fits(dim: Dim, size: int) -> bool:
        if not isinstance(dim, Expr):
            return dim == size
        return not dim.symbols <= sizes.keys() or evaluate(dim, sizes) == size

    shape = tuple(tensor.shape)
    if TORCH_DTYPES[wanted.dtype] != tensor.dtype or len(shape) != len(wanted.shape):
        return False
    return all(map(fits, wanted.shape, shape))


def _check_size(graph: Graph, name: str, size: Any) -> None:
    if not isinstance(size, int) or isinstance(size, bool):
        raise ExportError(f"the size of {name} is {size!r:.60}: give an integer")
    allowed = graph.symbols.get(name, Range())
    least, most = allowed.min or 0, allowed.max
    if size < least or (most is not None and size > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ExportError(f"{name}={size} is no size of this program: {name} is {bounds}")


def _of_a_file(program: Any, error: CaptureError) -> CaptureError:
    """The error of a capture; where an artifact was given in the place of its model, with the way out."""
    if isinstance(program, (str, Path)) and Path(program).exists() and not str(program).endswith(".pt2"):
        return CaptureError(
            f"{error}; a file has no torch beside it: give the model, or what ir.export returned "
            "(`ir profile` and `ir diff` take files)"
        )
    return error
