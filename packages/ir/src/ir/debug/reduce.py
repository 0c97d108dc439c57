"""`ir.debug.reduce`: the smallest program that still fails the same way, as a script."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ir.debug.child import in_child
from ir.debug.inside import programs_inside
from ir.debug.nodes import asked, table_of
from ir.debug.parts import Part, connected
from ir.debug.reduced import Reduced
from ir.debug.refused import reduce_refused
from ir.debug.running import running
from ir.debug.script import write_scripts
from ir.debug.search import OK, Verdict, compared, failure, smallest, tried
from ir.debug.shrink import Sample, fixed, in_float32, plainer, smaller
from ir.debug.values import Values
from ir.errors import CaptureError, ExportError
from ir.graph import Graph, Node
from ir.importer.capture import arguments, capture
from ir.lower import lower
from ir.registry import Registry
from ir.target import Target

_TRIAL = 60.0  # seconds that one trial may take before it counts as a hang
_CAPTURE = 300.0  # seconds that torch.export may take
_FIRST = 3  # nodes of the table that are tried alone


def reduce(
    program: Any,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target | None = None,
    handlers: Mapping[str, Callable[..., Any]] | None = None,
    dynamic_shapes: Any = None,
    path: str | Path | None = None,
    seconds: float = 120.0,
    max_error: float | None = None,
    code: Sequence[str] = (),
    **options: Any,
) -> Reduced:
    """Make a failing program as small as it gets while it fails in the same way, and write it as scripts.

    Nodes are left out, sizes fixed and cut, types made plain and weights random. Of a model that torch.export refuses
    there is no program: modules are left out then, until the smallest that is refused in the same way. Each trial runs
    in a child process, so that a crash or a hang is a failure like any other.

    Args:
        program: as for `ir.debug.nodes`.
        args: as for `ir.debug.nodes`.
        kwargs: as for `ir.debug.nodes`.
        target: as for `ir.debug.nodes`.
        handlers: as for `ir.debug.nodes`.
        dynamic_shapes: as for `ir.debug.nodes`.
        path: where the script goes that needs torch and the runtime alone; the one with `ir.export` is `<name>_ir.py`
            beside it. Nothing is written without it.
        seconds: when to stop looking for a smaller one.
        max_error: the error that still passes, in units of each result's largest magnitude; verify's tolerances unless
            it is given.
        code: lines of Python that make `model`, for the script of a model that torch.export refuses; without them the
            module is saved beside the script.
        **options: the target's options, where it is named.

    Raises:
        ExportError: the program does not fail on these arguments.

    >>> print(ir.debug.reduce(program, path="reduced.py"))  # doctest: +SKIP
    """
    if callable(program):
        given = arguments(() if args is None else args, kwargs)
        ended = in_child(partial(_captured, program, *given, dynamic_shapes), _CAPTURE)
        if isinstance(ended, Verdict) and ended.kind in ("crash", "hang"):
            error = CaptureError(f"torch.export: {ended.text}")
            return reduce_refused(error, program, *given, dynamic_shapes, path, seconds, code)
    try:
        graph, chosen, registry, inputs = asked(program, args, kwargs, target, handlers, dynamic_shapes, options)
    except CaptureError as error:
        if not callable(program):  # a file, which torch took once
            raise
        return reduce_refused(error, program, *given, dynamic_shapes, path, seconds, code)
    return _Reduction(graph, chosen, registry, inputs, seconds, max_error).run(path)


def _captured(model: Any, args: Any, kwargs: Any, dynamic_shapes: Any) -> None:
    capture(model, args, kwargs, dynamic_shapes=dynamic_shapes)


class _Reduction:
    """One search."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        registry: Registry,
        inputs: Sequence[Any],
        seconds: float,
        limit: float | None,
    ) -> None:
        self.limit = limit
        self.graph, self.target, self.registry, self.inputs = graph, target, registry, inputs
        self.start = time.monotonic()
        self.deadline = self.start + seconds
        self.trials = 0
        torch.manual_seed(0)
        self.expected = Values(graph).run(inputs)
        self.wanted = OK
        self.steps: list[Sample] = []  # samples that fail, each smaller than the one before

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def run(self, path: str | Path | None) -> Reduced:
        """The whole way down."""
        self.wanted = self._tried(self.graph.nodes)
        nodes = self._fewest()
        inner = self._inside(nodes)
        if inner is not None:
            found = inner.run(path)
            return replace(found, trials=found.trials + self.trials, seconds=time.monotonic() - self.start)
        part = connected(self.graph, nodes)
        sample = self._shrunk(self._fixed(part))
        if sample is None:  # it needs its dynamic sizes: the part as it is
            sample = Sample(part.graph, tuple(self.expected.of[v].detach() for v in part.feeds))
            self.steps = [sample]
        sample = self._confirmed()
        script, ir_script, paths = write_scripts(sample, self.target, self.registry, self.wanted, path, self.limit)
        ops = tuple(n.overload for n in sample.graph.nodes)
        return Reduced(self.wanted, script, ir_script, ops, paths, self.trials, time.monotonic() - self.start)

    def _inside(self, nodes: Sequence[Node]) -> _Reduction | None:
        """The search in the branch or the loop that is left, where it fails in the same way by itself."""
        held = [p for n in nodes if n.graphs for p in programs_inside(self.graph, n, self.expected)]
        for graph, operands in held:
            search = _Reduction(graph, self.target, self.registry, operands, self.left, self.limit)
            if search._tried(graph.nodes).same(self.wanted):
                return search
        return None

    def _confirmed(self) -> Sample:
        """The smallest sample whose script fails in a process of its own: a kernel that torch gives operands that do
        not go together, without a word, may read what happens to lie in memory here."""
        back = 1
        while back < len(self.steps) and not self._script_fails(self.steps[-back]):
            back *= 2
        return self.steps[-min(back, len(self.steps))]

    def _script_fails(self, sample: Sample) -> bool:
        self.trials += 1
        with tempfile.TemporaryDirectory(prefix="ir-reduce-") as folder:
            path = Path(folder, "reduced.py")
            script, *_ = write_scripts(sample, self.target, self.registry, self.wanted, path, self.limit)
            if not script:
                return True
            try:
                done = subprocess.run([sys.executable, path.name], cwd=folder, capture_output=True, timeout=_TRIAL)
            except subprocess.TimeoutExpired:
                return self.wanted.kind == "hang"
        return done.returncode != 0

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _tried(self, nodes: Sequence[Node]) -> Verdict:
        self.trials += 1
        found: Verdict = in_child(
            lambda: tried(self.graph, self.target, self.registry, self.expected, nodes, self.limit), _TRIAL
        )
        return found

    def _fails(self, nodes: Sequence[Node]) -> bool:
        return self._tried(nodes).same(self.wanted)

    def _fewest(self) -> list[Node]:
        passes = self.wanted.kind == "ok"  # a fault may still show in a node that the whole program has no use for
        for node in self._suspects():
            found = self._tried([node])
            if found.kind != "ok" and (passes or found.same(self.wanted)):
                self.wanted = found
                return [node]
        if passes:
            raise ExportError("the program does not fail on these arguments, nor does a node of it alone")
        return smallest(self.graph.nodes, self._fails, self.left / 2)

    def _suspects(self) -> list[Node]:
        """The nodes that differ by themselves, the worst first; those of a refusal are found by bisection."""
        if self.wanted.kind not in ("ok", "mismatch", "runtime"):
            return []

        def names() -> list[str]:
            table = table_of(self.graph, self.target, self.registry, self.inputs, whole=False)
            return [r.name for r in table.ranked[:_FIRST]]

        found = in_child(names, max(1.0, self.left / 2))
        nodes = {n.name: n for n in self.graph.nodes}
        return [nodes[n] for n in found] if isinstance(found, list) else []

    # -- sizes, types, values --------------------------------------------------------------------------------------

    def _fixed(self, part: Part) -> Sample | None:
        try:
            sample = fixed(part, self.expected)
        except Exception:  # torch makes something else of the fixed sizes
            return None
        return sample if self._sample_fails(sample) else None

    def _shrunk(self, sample: Sample | None) -> Sample | None:
        """Smaller and plainer while that fails in the same way, to a point where no step does."""
        changed = sample is not None
        while changed and sample is not None and self.left > 0:
            changed = False
            for step in (in_float32, smaller):
                better = self._first(step(sample))
                if better is not None:
                    sample, changed = better, True
        while sample is not None and (better := self._first(plainer(sample))) is not None:
            sample = better
        return sample

    def _first(self, samples: Iterable[Sample]) -> Sample | None:
        for sample in samples:
            if self.left <= 0:
                return None
            if self._sample_fails(sample):
                return sample
        return None

    def _sample_fails(self, sample: Sample) -> bool:
        self.trials += 1
        found = in_child(lambda: sample_verdict(sample, self.target, self.registry, self.limit), _TRIAL)
        fails = isinstance(found, Verdict) and found.same(self.wanted)
        if fails:
            self.steps.append(sample)
        return fails


def sample_verdict(sample: Sample, target: Target, registry: Registry, limit: float | None = None) -> Verdict:
    """How a sample does on a target."""
    expected = Values(sample.graph).run(sample.inputs)
    try:
        artifact = lower(sample.graph, target, registry)
        with running(target, artifact, sample.graph) as runner:
            made = list(runner(*[t.clone() for t in sample.inputs]))
    except Exception as error:
        return failure(error)
    return compared(sample.graph.outputs, made, expected, limit)
