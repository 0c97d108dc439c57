"""What an export gives: an artifact with the graph that it came from, to run, compare, save and pickle."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic

from ir.conditions import Conditions
from ir.debug.certificate import Certificate, cache_folder, certificate_path, certify
from ir.debug.explain import explained
from ir.errors import MismatchError, RuntimeFailure
from ir.files import identity, staged
from ir.graph import Graph
from ir.importer.autocasts import uncast
from ir.importer.capture import arguments
from ir.importer.input_strides import check_strides
from ir.importer.plain import refused_layout, refused_sharing, run_in_torch
from ir.index_bounds import IndexBounds
from ir.loading import loaded
from ir.target import A, Runner, Target
from ir.trial import Trial, notes_of
from ir.verify import Report
from ir.view.notebook import summary_of
from ir.words import counted


class Exported(Generic[A]):
    """An artifact with the graph it came from; call it to run it in its own runtime."""

    def __init__(
        self,
        target: Target[A],
        graph: Graph,
        artifact: A,
        path: Path | None = None,
        handlers: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.target = target
        self._handlers = dict(handlers or {})
        self.graph = graph
        self.artifact = artifact
        self.path = path
        self.report = Report((), (*notes_of(graph), *target.notes(artifact), "not compared with torch"))
        self.certificate: Certificate | None = None  # what `certify` made
        self.max_error: float | None = None  # of scale, that verification lets pass in place of its tolerances
        self.kept_float32: tuple[str, ...] = ()  # the nodes that stayed in float32, of a program in a narrower type

    def __reduce__(self) -> Any:
        """For pickle and copy: a file is opened again where it is found, without one the artifact goes along.

        Raises:
            TypeError: `handlers` of this program cannot be pickled.
            ExportError: torch cannot save the program that it was captured from.
        """
        try:
            pickle.dumps(self._handlers)
        except Exception as error:
            what = "a program is pickled and copied with its handlers=, and one of them is not known by a name"
            raise TypeError(f"{what}: define it at the top of a module ({error})") from error
        path = None if self.path is None else self.path.absolute()
        packed = self.target.packed(self.artifact)
        kept = self.report, self.max_error, self.kept_float32, self._written
        # at once: multiprocessing may move tensors to shared memory, and arrays would point to their old place
        return _reopened, (pickle.dumps((self.target, self.graph, packed, path, self._handlers, kept)),)

    @property
    def path(self) -> Path | None:
        """Where it was written, None if it was not."""
        return self._path

    @path.setter
    def path(self, place: Path | None) -> None:
        self._path, self._written = place, identity(place) if place else ""

    @property
    def file(self) -> Path | None:
        """Its file; None once another is in its place, for a later export to the same path is another model."""
        return self._path if self._path is not None and identity(self._path) == self._written else None

    @property
    def handlers(self) -> Mapping[str, Callable[..., Any]]:
        """The handlers that `ir.export` was given for this program."""
        return dict(self._handlers)

    @cached_property
    def runner(self) -> Runner:
        """The artifact loaded into its runtime."""
        return loaded(self.target, self.artifact, self.graph, self.file)

    @cached_property
    def _conditions(self) -> Conditions:
        return Conditions(self.graph)

    @cached_property
    def _index_bounds(self) -> IndexBounds:
        return IndexBounds(self.graph)

    @cached_property
    def _written_inputs(self) -> frozenset[int]:
        return frozenset(i for i, v in enumerate(self.graph.inputs) if v.name in self.graph.updates)

    def _results(self, args: Any, kwargs: Any) -> Any:
        inputs = self.graph.structure.flatten(args, kwargs)
        if self._written_inputs:
            refused_sharing(self.graph.inputs, self._written_inputs, inputs)
        if self.graph.strides:
            check_strides(self.graph.strides, self.graph.inputs, inputs, not self.target.has_strides)
        if self.target.has_ranks:
            return run_in_torch(self.runner, self.graph.inputs, inputs)
        if refused := refused_layout(self.graph.inputs, inputs):
            raise refused
        self._conditions.check(inputs)
        self._index_bounds.check(inputs)
        return self.runner(*inputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the artifact: the model's own arguments in, its own output structure out, as torch tensors."""
        return self.graph.structure.restore(self._results(args, kwargs))

    def run(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """As a call, and beside the output the new contents of the buffers and inputs that the model mutates."""
        results = self._results(args, kwargs)
        return self.graph.structure.restore(results), dict(
            zip(self.graph.updates, results[len(self.graph.outputs) :], strict=True)
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact; a failure leaves no file behind and an older one untouched."""
        place, target = Path(path), self.target
        with staged(place, target.check_path, target.side_files, target.is_side_file) as temporary:
            target.write(self.artifact, temporary)
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
        """Run the artifact and torch on the same arguments and compare every result.

        Args:
            args: a tuple, as for `ir.export`, or a tensor that is the only argument. By default those that the model
                was captured with, and what is made of them for other sizes of every dynamic dimension, 1 and 0 too
                where the range allows; sizes that torch's own module refuses are left out, and the report says so.
            kwargs: keyword arguments.
            rtol: see `ir.compare`.
            atol: see `ir.compare`.

        Raises:
            TypeError: `args` is no sequence, or `kwargs` no mapping.
            ExportError: they are nested otherwise than those that the model was captured with.
            MismatchError: a result differs in dtype, shape or value; or the model itself, where it was given and has
                not changed since, differs from the program that torch.export made of it.
            RuntimeFailure: the artifact fails where torch does not.
        """
        others = args is None and kwargs is None
        if others:
            args, kwargs = self.graph.context.example()
        return self.verify_by(self.runner, args, kwargs, others=others, rtol=rtol, atol=atol)

    @uncast
    def verify_by(
        self,
        runner: Runner,
        args: Any,
        kwargs: Any,
        *,
        others: bool,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> Report:
        """`verify` of what this runner gives; `others` adds sizes made from these arguments."""
        args, kwargs = arguments(() if args is None else args, kwargs)
        limit = self.max_error if rtol is None and atol is None else None
        trial = Trial(self.graph, self.target, runner, rtol, atol, limit)
        try:
            found = trial.run(args, kwargs, others=others)
            self.report = replace(found, notes=(*found.notes, *self.target.notes(self.artifact)))
        except RuntimeFailure as error:
            raise RuntimeFailure(f"{error}\n{self._explained(trial)}") from error
        if not self.report.ok and any("::quantize_" in n.op for n in self.graph.nodes):
            raise MismatchError(
                f"the artifact differs from torch:\n{self.report}\nThe program rounds to steps of its own, where the "
                "last digit of a sum decides: leave verify=True out and call program.verify(atol=...) with a few steps"
            )
        if not self.report.ok and rtol is None and atol is None and limit is None:
            self.report = replace(self.report, notes=(self._explained(trial), *self.report.notes))
        return self.report.check()

    def _explained(self, trial: Trial) -> str:
        """Which node it is that differs or fails."""
        with self.graph.context.verifying(fused=True):
            return explained(self.graph, self.target, self.target.registry.with_handlers(self._handlers), trial.inputs)

    @uncast
    def certify(self, args: Any = None, kwargs: Any = None, *, cached: bool = True) -> Certificate:
        """Try every operator signature of the program alone on its target, on random and adversarial inputs.

        Args:
            args: arguments that the program takes, by default those that it was captured with.
            kwargs: arguments by name.
            cached: what was tried before with these versions, in this program or another, is not tried again.

        Returns:
            The certificate, which is kept as `certificate` and written beside the file where there is one.

        Raises:
            MismatchError: a signature differs on random numbers, ties or zeros. What differs beyond them, `report` and
                the certificate say.
        """
        if args is None and kwargs is None:
            args, kwargs = self.graph.context.example()
        inputs = self.graph.structure.flatten(*arguments(() if args is None else args, kwargs))
        registry = self.target.registry.with_handlers(self._handlers)
        folder = cache_folder() if cached else None
        self.certificate = certify(self.graph, self.target, registry, inputs, cache=folder)
        self.report = replace(self.report, notes=(*self.report.notes, *self.certificate.notes))
        if self.path is not None:
            self.certificate.save(certificate_path(self.path))
        if not self.certificate.ok:
            raise MismatchError(f"an operator alone differs from torch:\n{self.certificate}")
        return self.certificate

    @property
    def exported_program(self) -> Any:
        """torch's ExportedProgram that it was made of, None where there is none."""
        return getattr(self.graph.context, "program", None)

    @property
    def model_proto(self) -> Any:
        """The onnx.ModelProto of target `onnx`, as torch.onnx's ONNXProgram has it.

        Raises:
            AttributeError: of another target.
        """
        proto = getattr(self.target, "proto", None)
        if proto is None:
            raise AttributeError(
                f"a program of target {self.target.name!r} has no model_proto; .artifact is what it is"
            )
        return proto(self.artifact)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return summary_of(self)

    def __repr__(self) -> str:
        return f"<{self.target.name} program of {counted(len(self.graph.nodes), 'node')}>"


def _reopened(parts: bytes) -> Exported:
    """What `Exported.__reduce__` took apart."""
    target, graph, packed, path, handlers, kept = pickle.loads(parts)
    found = path if path is not None and path.exists() else None
    program = Exported(target, graph, target.unpacked(packed, graph, handlers), found, handlers)
    program.report, program.max_error, program.kept_float32, program._written = kept
    return program
