"""`ir.debug.reduce`: the smallest program that still fails the same way, as a script."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ir.debug.child import Trials
from ir.debug.errors import check_limit
from ir.debug.inside import programs_inside
from ir.debug.nodes import table_of
from ir.debug.parts import Part, connected
from ir.debug.reduced import Reduced, check_path
from ir.debug.refused import reduce_refused
from ir.debug.running import running
from ir.debug.script import write_scripts
from ir.debug.search import OK, Verdict, compared, failure, smallest, tried
from ir.debug.shrink import Sample, fixed, in_float32, plainer, smaller
from ir.debug.subject import Subject
from ir.debug.values import Values
from ir.errors import CaptureError, ExportError
from ir.graph import Graph, Node
from ir.importer import wrong_calls
from ir.importer.capture import arguments, capture
from ir.lower import lower
from ir.registry import Registry
from ir.target import Target

_TRIAL = 60.0  # seconds that one trial may take before it counts as a hang
_PATIENCE = 1 / 12  # of these seconds: what one trial may take once it is a hang that is looked for
_IMPORTS = 30.0  # seconds that a script may take to import torch
_FIRST = 3  # nodes of the table that are tried alone


def reduce(
    program: Any,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target | None = None,
    handlers: Mapping[str, Callable[..., Any]] | None = None,
    dynamic_shapes: Any = None,
    sizes: Mapping[str, int] | None = None,
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
        sizes: as for `ir.debug.nodes`; without them the example's, and where it does not fail those that verify runs.
        path: where the script goes that needs torch and the runtime alone; the one with `ir.export` is `<name>_ir.py`
            beside it. Nothing is written without it.
        seconds: when to stop looking for a smaller one. A trial of half of them counts as a hang, at most of a minute;
            once one is looked for, of a twelfth. A capture has all of them.
        max_error: the error that still passes, in units of each result's largest magnitude; verify's tolerances unless
            it is given.
        code: lines of Python that make `model`, for the script of a model that torch.export refuses; without them the
            module is saved beside the script.
        **options: the target's options, where it is named.

    Raises:
        ExportError: the program does not fail on these arguments, nor at the other sizes that verify runs; the model
            does not take them, or fails on them in torch itself; or handlers cannot be sent to a child process, where
            the system starts each anew.
        OutputError: `path` is no place for a script, or what lies there is none of these.
        ValueError: `max_error` is no number from 0 on.

    >>> print(ir.debug.reduce(program, path="reduced.py"))  # doctest: +SKIP
    """
    check_limit(max_error)
    if path is not None:
        check_path(path)
    if callable(program) and not hasattr(program, "artifact"):
        given = arguments(() if args is None else args, kwargs)
        wrong_calls.check_model(program)
        wrong_calls.check_call(program, *given)
        wrong_calls.check_shapes(program, *given, dynamic_shapes)
        trials = Trials(program)
        ended = trials.run(seconds, _captured, program, *given, dynamic_shapes)
        trials.close()
        if isinstance(ended, Verdict) and ended.kind in ("crash", "hang"):
            error = CaptureError(f"torch.export: {ended.text}")
            return reduce_refused(error, program, *given, dynamic_shapes, path, seconds, code)
    try:
        about = Subject.of(program, args, kwargs, target, handlers, dynamic_shapes, options)
    except CaptureError as error:
        if not callable(program):  # a file, which torch took once
            raise
        return reduce_refused(error, program, *given, dynamic_shapes, path, seconds, code)
    if not sizes:
        return _reduced(about, seconds, max_error, path)
    about = about.at(sizes)
    found = _reduced(about, seconds, max_error, path)
    return found if found.sizes else replace(found, sizes=_text(about))


def _captured(model: Any, args: Any, kwargs: Any, dynamic_shapes: Any) -> None:
    capture(model, args, kwargs, dynamic_shapes=dynamic_shapes)


def _reduced(about: Subject, seconds: float, limit: float | None, path: str | Path | None) -> Reduced:
    """The search on these arguments; at other sizes where it is these that fail."""
    search = _Reduction(about, seconds, limit)
    try:
        if search.fails():
            return search.run(path)
    finally:
        search.trials.close()
    for other in about.elsewhere() if search.left > 0 else ():
        search = _Reduction(other, search.left, limit)
        try:
            if search.fails():
                return replace(search.run(path), sizes=_text(other))
        finally:
            search.trials.close()
    beside = " or at the other sizes that verify runs" if about.sizes else ""
    raise ExportError(f"the program does not fail on these arguments{beside}, nor does a node of it alone")


def _text(about: Subject) -> str:
    return ", ".join(f"{n}={s}" for n, s in about.sizes.items())


class _Reduction:
    """One search."""

    def __init__(self, about: Subject, seconds: float, limit: float | None) -> None:
        self.about, self.limit = about, limit
        self.graph, self.target, self.registry = about.graph, about.target, about.registry
        self.start = time.monotonic()
        self.seconds, self.deadline = seconds, self.start + seconds
        self.patience = min(_TRIAL, seconds / 2)
        torch.manual_seed(0)
        self.expected = Values(self.graph).run(about.inputs)
        shared = (self.graph.context, self.graph, self.target, self.registry, self.expected)
        self.trials = Trials(*shared)
        self.wanted, self.suspect = OK, ""
        self.steps: list[Sample] = []  # samples that fail, each smaller than the one before

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def fails(self) -> bool:
        """Whether there is something to look for: the program fails, or a node of it alone."""
        self.wanted = self._tried(self.graph.nodes)
        if self.wanted.kind == "hang":
            self.patience = min(_TRIAL, self.seconds * _PATIENCE)
            self.wanted = Verdict.hang(self.patience)
        passes = self.wanted.kind == "ok"  # a fault may still show in a node that the whole program has no use for
        for node in self._suspects():
            found = self._tried([node])
            if found.kind != "ok" and (passes or found.same(self.wanted)):
                self.wanted, self.suspect = found, node.name
                break
        return self.wanted.kind != "ok"

    def run(self, path: str | Path | None) -> Reduced:
        """The whole way down, of what fails."""
        nodes = self._fewest()
        inner = self._inside(nodes)
        if inner is not None:
            found = inner.run(path)
            inner.trials.close()
            return replace(found, trials=found.trials + self.trials.count, seconds=time.monotonic() - self.start)
        part = connected(self.graph, nodes)
        sample = self._shrunk(self._fixed(part))
        if sample is None:  # it needs its dynamic sizes: the part as it is
            sample = Sample(part.graph, tuple(self.expected.of[v].detach() for v in part.feeds))
            self.steps = [sample]
        sample, note = self._confirmed()
        script, ir_script, paths = self._scripts(sample, path)
        ops = tuple(n.overload for n in sample.graph.nodes)
        took = time.monotonic() - self.start
        return Reduced(self.wanted, script, ir_script, ops, paths, self.trials.count, took, note=note)

    def _scripts(self, sample: Sample, path: str | Path | None) -> tuple[str, str, tuple[Path, ...]]:
        """The scripts as text and files. They hold what handlers emit, and one that ends the process may be theirs."""
        given = sample, self.target, self.registry, self.wanted, path, self.limit
        if self.wanted.kind not in ("crash", "hang"):
            return write_scripts(*given)
        written = self.trials.run(self.patience, write_scripts, *given)
        return write_scripts(*given, runtime=False) if isinstance(written, Verdict) else written

    def _inside(self, nodes: Sequence[Node]) -> _Reduction | None:
        """The search in the branch or the loop that is left, where it fails in the same way by itself."""
        held = [p for n in nodes if n.graphs for p in programs_inside(self.graph, n, self.expected)]
        for graph, operands in held:
            about = replace(self.about, graph=graph, args=tuple(operands), kwargs={})
            search = _Reduction(about, self.left, self.limit)
            if search.fails() and search.wanted.same(self.wanted):
                return search
            search.trials.close()
        return None

    def _confirmed(self) -> tuple[Sample, str]:
        """The smallest sample whose script fails in a process of its own, and what there is to say where none does.

        A kernel that torch gives operands that do not go together, without a word, may read what lies in memory here.
        """
        back = 1
        while not (shown := self._script_fails(self.steps[-back])) and back < len(self.steps):
            back = min(2 * back, len(self.steps))
        return self.steps[-back], "" if shown else "the script does not fail in this way in a process of its own"

    def _script_fails(self, sample: Sample) -> bool:
        self.trials.count += 1
        with tempfile.TemporaryDirectory(prefix="ir-reduce-") as folder:
            path = Path(folder, "reduced.py")
            script, *_ = self._scripts(sample, path)
            if not script:
                return True
            command = [sys.executable, path.name]
            try:
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=self.patience + _IMPORTS
                )
            except subprocess.TimeoutExpired:
                return self.wanted.kind == "hang"
        return self.wanted.shows_in(done.returncode, done.stderr)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _tried(self, nodes: Sequence[Node]) -> Verdict:
        places = {n: i for i, n in enumerate(self.graph.nodes)}
        given = self.graph, self.target, self.registry, self.expected, [places[n] for n in nodes], self.limit
        found: Verdict = self.trials.run(self.patience, tried_at, *given)
        return found

    def _fails(self, nodes: Sequence[Node]) -> bool:
        return self._tried(nodes).same(self.wanted)

    def _fewest(self) -> list[Node]:
        suspects = [n for n in self.graph.nodes if n.name == self.suspect]
        return suspects or smallest(self.graph.nodes, self._fails, self.left / 2)

    def _suspects(self) -> list[Node]:
        """The nodes that differ by themselves, the worst first; those of a refusal are found by bisection."""
        if self.wanted.kind not in ("ok", "mismatch", "runtime"):
            return []
        given = self.graph, self.target, self.registry, self.about.inputs
        found = self.trials.run(max(1.0, self.left / 2), worst_names, *given)
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
        found = self.trials.run(self.patience, sample_verdict, sample, self.target, self.registry, self.limit)
        fails = isinstance(found, Verdict) and found.same(self.wanted)
        if fails:
            self.steps.append(sample)
        return fails


def worst_names(graph: Graph, target: Target, registry: Registry, inputs: Sequence[Any]) -> list[str]:
    """The nodes with the largest errors of their own."""
    return [r.name for r in table_of(graph, target, registry, inputs, whole=False, inner=False).ranked[:_FIRST]]


def tried_at(
    graph: Graph, target: Target, registry: Registry, expected: Values, places: Sequence[int], limit: float | None
) -> Verdict:
    """How the nodes at these places do together."""
    return tried(graph, target, registry, expected, [graph.nodes[i] for i in places], limit)


def sample_verdict(sample: Sample, target: Target, registry: Registry, limit: float | None = None) -> Verdict:
    """How a sample does on a target."""
    expected = Values(sample.graph).run(sample.inputs)
    try:
        artifact = lower(sample.graph, target, registry)
        with running(target, artifact, sample.graph) as runner:
            made = list(runner(*[t.clone() for t in sample.inputs]))
    except Exception as error:
        return failure(error)
    return compared(sample.graph, made, expected, limit)
