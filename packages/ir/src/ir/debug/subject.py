"""What a call of the debugger is about: a graph with its arguments, and a target with its handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ir import plugins
from ir.errors import CaptureError, ExportError
from ir.graph import Graph
from ir.importer.capture import arguments, capture
from ir.importer.other_sizes import Sizes, plans, resized, sizes_of
from ir.passes.own_state import with_own_state
from ir.registry import Registry
from ir.target import Target


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
        if args is None and kwargs is None:
            args, kwargs = graph.context.example()
        found = arguments(() if args is None else args, kwargs)
        return cls(graph, chosen, chosen.registry.with_handlers(handlers), *found)

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
            ExportError: a name is none of its dynamic dimensions.
        """
        known = self.sizes
        for name in sizes:
            if name not in known:
                raise ExportError(f"no dynamic dimension is called {name!r:.60}: {', '.join(known) or 'none'}")
        args, kwargs = next(resized(self.graph, self.args, self.kwargs, known, known | dict(sizes)))
        return replace(self, args=args, kwargs=kwargs)

    def elsewhere(self) -> Iterator[Subject]:
        """The same at the sizes at which verify runs it, as far as torch takes them."""
        known = self.sizes
        for rounds in plans(self.graph, known):
            found = next((s for sizes in rounds for s in self._taken(known, sizes)), None)
            if found is not None:
                yield found

    def _taken(self, known: Sizes, choices: Sequence[Sizes]) -> Iterator[Subject]:
        for sizes in choices:
            for args, kwargs in resized(self.graph, self.args, self.kwargs, known, sizes):
                try:
                    self.graph.context.reference(self.graph, args, kwargs, guarded=True)
                except Exception:  # torch's own, of any kind: not a size of this model
                    continue
                yield replace(self, args=args, kwargs=kwargs)


def _of_a_file(program: Any, error: CaptureError) -> CaptureError:
    """The error of a capture; where an artifact was given in the place of its model, with the way out."""
    if isinstance(program, (str, Path)) and Path(program).exists() and not str(program).endswith(".pt2"):
        return CaptureError(
            f"{error}; a file has no torch beside it: give the model, or what ir.export returned "
            "(`ir profile` and `ir diff` take files)"
        )
    return error
