"""The one call: a model in, an artifact of a target out, checked against torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ir import plugins as _plugins
from ir.errors import MismatchError
from ir.files import staged
from ir.graph import Graph
from ir.importer.capture import arguments, capture
from ir.importer.complex.border import PackedRunner
from ir.lower import lower
from ir.target import Runner, Target
from ir.verify import Report, compare


class Exported:
    """An artifact with the graph it came from; call it to run it in its own runtime."""

    def __init__(self, target: Target, graph: Graph, artifact: Any, path: Path | None = None) -> None:
        self.target = target
        self.graph = graph
        self.artifact = artifact
        self.path = path
        self.report: Report | None = None

    @cached_property
    def runner(self) -> Runner:
        """The artifact loaded into its runtime."""
        return _runner(self.target, self.artifact, self.graph, self.path)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the artifact: the model's own arguments in, its own output structure out, as torch tensors."""
        structure = self.graph.structure
        return structure.restore(self.runner(*structure.flatten(args, kwargs)))

    def run(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """As a call, and beside the output the new contents of the buffers and inputs that the model mutates."""
        structure = self.graph.structure
        results = self.runner(*structure.flatten(args, kwargs))
        return structure.restore(results), dict(
            zip(self.graph.updates, results[len(self.graph.outputs) :], strict=True)
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact; a failure leaves no file behind and an older one untouched."""
        place = Path(path)
        with staged(place) as temporary:
            self.target.write(self.artifact, temporary)
        self.target.settle(place)
        self.path = place
        self.__dict__.pop("runner", None)
        return place

    def verify(
        self,
        args: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> Report:
        """Run the artifact and torch on the same arguments (the captured ones by default) and compare every result.

        Args:
            args: a tuple, as for `ir.export`, or a tensor that is the only argument.
            kwargs: keyword arguments.
            rtol, atol: see `ir.compare`.

        Raises:
            TypeError: `args` is no sequence, or `kwargs` no mapping.
            ExportError: they are nested otherwise than those that the model was captured with.
            MismatchError: a result differs in dtype, shape or value.
        """
        return self._verify(self.runner, args, kwargs, rtol, atol)

    def _verify(self, runner: Runner, args: Any, kwargs: Any, rtol: float | None, atol: float | None) -> Report:
        context = self.graph.context
        if args is None and kwargs is None:
            args, kwargs = context.example()
        args, kwargs = arguments(() if args is None else args, kwargs)
        inputs = context.private(self.graph.structure.flatten(args, kwargs))
        expected = context.reference(self.graph, args, kwargs, self.target.stored_weights(self.graph))
        # a runtime that keeps mutated buffers, as the module does, offers a call that does not
        actual = context.arrays(getattr(runner, "stateless", runner)(*inputs))
        self.report = compare(
            list(self.graph.results), actual, expected, rtol=rtol, atol=atol, values=not self.graph.random
        )
        if not self.report.ok and any("::quantize_" in n.op for n in self.graph.nodes):
            raise MismatchError(
                f"the artifact differs from torch:\n{self.report}\nThe program rounds to steps of its own, where the "
                "last digit of a sum decides: leave verify=True out and call program.verify(atol=...) with a few steps"
            )
        return self.report.check()

    def __repr__(self) -> str:
        return f"<{self.target.name} program of {len(self.graph.nodes)} nodes>"


def export(
    model: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target = "onnx",
    path: str | os.PathLike[str] | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    handlers: Mapping[str, Callable[..., Any]] | None = None,
    plugins: Sequence[str] = (),
    discover_plugins: bool = False,
    strict_plugins: bool = False,
    verify: bool = False,
    **options: Any,
) -> Exported:
    """Export a model to a target.

    Args:
        model: an nn.Module, a torch.export.ExportedProgram, the path of a .pt2 file, or an ir.Graph.
        args, kwargs: example arguments, as for torch.export.export; a tensor may stand for a tuple of it alone.
        target: "onnx", "nnef", "khronos", "eager", or a Target object.
        path: where to write the artifact; nothing is written without it.
        dynamic_shapes: torch.export's own argument; a string in place of a Dim names a dynamic dimension.
        input_names, output_names: names for the flat tensor inputs and outputs, in order.
        handlers: op name -> handler, for this call alone, before all others.
        plugins: modules that register handlers; IR_PLUGINS names more, `discover_plugins` asks for entry points.
        strict_plugins: a plugin that cannot be imported is an error, not a warning.
        verify: run the artifact (from its file, if there is one) on the example arguments and compare with torch.
        **options: the target's own options, such as opset=18.

    Raises:
        CaptureError, UnsupportedOpsError, RefusedError, MismatchError, PluginError: see ir.errors. No file is left
            behind by any of them, and an older file at `path` stays as it was.
    """
    chosen = _plugins.find_target(target, options)
    _plugins.load(plugins, discover=discover_plugins, strict=strict_plugins)
    args, kwargs = arguments(args, kwargs)
    graph = capture(
        model, args, kwargs, dynamic_shapes=dynamic_shapes, input_names=input_names, output_names=output_names
    )
    artifact = lower(graph, chosen, chosen.registry.with_handlers(handlers))
    program = Exported(chosen, graph, artifact)
    given = (args, kwargs) if args or kwargs else (None, None)
    if path is None:
        if verify:
            program.verify(*given)
        return program
    with staged(Path(path)) as temporary:
        chosen.write(artifact, temporary)
        if verify:
            runner = _runner(chosen, artifact, graph, temporary)
            program._verify(runner, given[0], given[1], None, None)
            close = getattr(runner, "close", None)
            if close is not None:
                close()
    chosen.settle(Path(path))
    program.path = Path(path)
    return program


def _runner(target: Target, artifact: Any, graph: Graph, path: Path | None) -> Runner:
    """The artifact in its runtime, with complex tensors packed and unpacked at the border where the target has none."""
    runner = target.runner(artifact, graph, path)
    border = (*graph.inputs, *graph.results.values())
    packed = not target.has_complex and any(v.type.dtype.is_complex for v in border)
    return PackedRunner(runner, graph) if packed else runner
