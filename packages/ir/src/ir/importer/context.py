"""What stays of a capture beside its graph."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from ir.errors import CaptureError, MismatchError, RefusedError
from ir.graph import Body, Graph, Node, Specialized, Value, Weight
from ir.importer import calling_convention as st
from ir.importer.autocasts import uncast
from ir.importer.bodies import Bodies
from ir.importer.checked import Checked, UncheckedError, is_checked, verifying
from ir.importer.evaluate import evaluate, flops, refusal, result_shapes, result_types
from ir.importer.float64 import InFloat64, widened
from ir.importer.guards import Branch
from ir.importer.ladder import RUNGS, Rung
from ir.importer.live import Live
from ir.importer.pt2.program import SavedProgram
from ir.importer.pt2.recorded_conditions import with_branches
from ir.importer.schema import TORCH_DTYPES, overload_of
from ir.importer.torch_api import pytree
from ir.importer.unchecked_numbers import has_limits, is_division
from ir.importer.weights import TorchWeight
from ir.locks import one_at_a_time
from ir.types import DType


@dataclass(eq=False)
class Capture:
    """What stays of a capture beside its graph: bodies for nodes, the reference and the example arguments."""

    program: ExportedProgram | SavedProgram
    bodies: Bodies
    live: Live | None = None
    rung: Rung | None = None  # None for a program that existed already
    records: Mapping[str, str] = field(default_factory=dict, repr=False)  # beside torch's own, in a .pt2 file of it
    of_file: bool = False  # the numbers in it are anyone's; see ir.importer.checked
    _references: dict[bool, Any] = field(default_factory=dict, repr=False)

    @property
    def specialized(self) -> tuple[Specialized, ...]:
        """What the model's code asked of sizes that has another answer at sizes of 0 or 1."""
        return self.rung.specialized if self.rung is not None else ()

    @property
    def knows_decisions(self) -> bool:
        """False of torch.export's strict mode, which reads byte code: what is asked of sizes is not recorded there."""
        return self.rung is None or not RUNGS[self.rung.name]["strict"]

    def refusing(self, decisions: Iterable[Specialized]) -> Capture:
        """The same, where files of the program refuse the sizes at which these decisions are others."""
        import sympy

        symbols = {name: symbol for symbol, name in self.bodies.symbols.names.items()}
        branches = [Branch(sympy.Ne(symbols[d.name], d.size, evaluate=False), d.place) for d in decisions]
        return replace(self, records=with_branches(self.records, branches))

    def body(self, node: Node) -> Body | None:
        return self.bodies.body(node)

    def parts(self, node: Node) -> Graph | None:
        return self.bodies.parts(node)

    def body_error(self, node: Node) -> str:
        """Why the node's decomposition could not be used, empty if it has none."""
        return self.bodies.errors.get(node.overload, "")

    def skeleton(self, node: Node, target: str) -> str:
        from ir.importer.custom_ops import skeleton

        return skeleton(node, target)

    def draws(self, node: Node) -> bool:
        """True if the node draws random numbers."""
        return self.bodies.draws(node)

    def evaluate(self, nodes: Iterable[Node], weights: Mapping[Value, Weight], value: Value) -> Any:
        with self._checked():
            return evaluate(nodes, weights, value)

    def is_doubtful(self, node: Node) -> bool:
        overload = overload_of(node.op, node.origin.overload)
        if overload is None or not self.of_file:
            return is_division(overload)
        return has_limits(overload) or not is_checked(overload)

    def computes(self, nodes: Sequence[Node], weights: Mapping[Value, Weight]) -> bool:
        value = nodes[-1].outputs[0]
        try:
            made = self.evaluate(nodes, weights, value)
        except UncheckedError:
            return False
        except RefusedError:  # torch's own words, for where the artifact is written
            return True
        except Exception:  # of any kind: a decomposition of torch's that fails where its kernel does not
            return False
        return (*made.shape,) == value.type.shape and str(made.dtype) == value.type.dtype.name

    def _checked(self) -> contextlib.AbstractContextManager[Any]:
        return Checked() if self.of_file else contextlib.nullcontext()

    def verifying(self, fused: bool = False) -> contextlib.AbstractContextManager[None]:
        return verifying(fused) if self.of_file else contextlib.nullcontext()

    def result_types(self, node: Node, dtypes: Mapping[DType, DType]) -> tuple[DType, ...] | None:
        return result_types(node, dtypes)

    def largest(self, dtype: DType) -> float:
        return torch.finfo(TORCH_DTYPES[dtype]).max

    def result_shapes(self, node: Node, sizes: Mapping[str, int]) -> list[tuple[int, ...]] | None:
        return result_shapes(node, sizes)

    def refusal(self, node: Node, sizes: Mapping[str, int]) -> str:
        with self._checked():
            return refusal(node, sizes)

    def flops(self, node: Node, sizes: Mapping[str, int]) -> int:
        return flops(node, sizes)

    def example(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that the model was captured with.

        Raises:
            CaptureError: the program carries none (a .pt2 file saved without them).
        """
        inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = self.program.example_inputs
        if inputs is None:
            raise CaptureError("this program carries no example inputs; give args= to verify")
        return inputs

    @one_at_a_time
    @uncast
    def reference(
        self,
        graph: Graph,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        weights: Mapping[str, Any] | None = None,
        *,
        guarded: bool = False,
    ) -> list[Any]:
        """torch's own values of `graph.results`, from the state that the graph holds; neither the model nor its
        arguments are changed by asking.

        `weights` stand in for the model's own of these names. `guarded` has torch check sizes as its own module does.
        """
        module = self._module(guarded)
        state = {k: v.detach().clone() for k, v in self._mutated(module, graph)}
        start = {w.name: w.tensor for w in graph.weights.values() if w.name in state}
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (tuple(args), dict(kwargs)))
        try:
            with torch.no_grad():
                for k, v in self._mutated(module, graph):  # the model may have run since the graph took its state
                    v.copy_(start.get(k, v))
                given = dict(weights or {})
                with self.verifying():
                    made = (
                        torch.func.functional_call(module, given, args, dict(kwargs))
                        if given
                        else module(*args, **kwargs)
                    )
                return self._results(graph, made, dict(self._mutated(module, graph)), args, kwargs)
        finally:
            with torch.no_grad():
                for k, v in self._mutated(module, graph):
                    v.copy_(state[k])

    @one_at_a_time
    @uncast
    def of_model(
        self, graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any], weights: Mapping[str, Any] | None = None
    ) -> list[Any] | None:
        """What the model itself gives for the results that are no updates, as `reference`; None where it is not at
        hand, has changed since it was captured, or returns another tree.

        Raises:
            MismatchError: the model returns another number where its program has one of its example.
            Exception: the model's own, of any kind.
        """
        if self.live is None:
            return None
        start = {w.name: w.tensor for w in graph.weights.values() if w.name in graph.updates and w.tensor is not None}
        with self._own_constants(start):
            made = self.live.results(args, kwargs, {**start, **(weights or {})})
        kinds = graph.structure.outputs
        if made is None or len(made) != len(kinds):
            return None
        for leaf, kind in zip(made, kinds, strict=True):
            if isinstance(kind, st.Fixed) and type(leaf) in (bool, int) and leaf != kind.value:
                raise MismatchError(f"the model returns {leaf} where its program has {kind.value}, as in the example")
        return self.arrays([leaf for leaf, kind in zip(made, kinds, strict=True) if not isinstance(kind, st.Fixed)])

    @one_at_a_time
    @uncast
    def exact(
        self, graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any], weights: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """What `reference` gives, computed by torch in float64 where the model says float32.

        Raises:
            Exception: torch's own, of any kind, where an op has no kernel in float64.
        """
        module = self._module(guarded=False)
        stored = {w.name: w.tensor for w in graph.weights.values() if w.name in graph.updates}
        state = {k: stored.get(k, v).detach().clone() for k, v in _state(module)}
        given = widened(state | dict(weights or {}))
        args, kwargs = widened(pytree.tree_map_only(torch.Tensor, torch.clone, (tuple(args), dict(kwargs))))
        with torch.no_grad(), self.verifying(), InFloat64():  # type: ignore[no-untyped-call]
            made = torch.func.functional_call(module, given, args, dict(kwargs))
        return self._results(graph, made, given, args, kwargs)

    @contextlib.contextmanager
    def _own_constants(self, start: Mapping[str, Any]) -> Iterator[None]:
        """Inside of the block the model's tensors that are neither buffers nor parameters have these contents, by name;
        after it their own."""
        kept = [(c, c.clone(), start[k]) for k, c in getattr(self.program, "constants", {}).items() if k in start]
        try:
            with torch.no_grad():
                for constant, _, contents in kept:
                    constant.copy_(contents)
            yield
        finally:
            with torch.no_grad():
                for constant, before, _ in kept:
                    constant.copy_(before)

    def _module(self, guarded: bool) -> Any:
        """torch's own module of the program, made once."""
        if guarded not in self._references:
            self._references[guarded] = _module(self.program, guarded)
        return self._references[guarded]

    def _results(
        self, graph: Graph, made: Any, state: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """A call's outputs and what it wrote to buffers and inputs, as arrays."""
        leaves = zip(pytree.tree_leaves(made), graph.structure.outputs, strict=True)
        given = zip(graph.structure.input_names, graph.structure.flatten(args, kwargs), strict=True)
        after = {**state, **dict(given)}
        outputs = [leaf for leaf, o in leaves if not isinstance(o, st.Fixed)]
        return self.arrays([*outputs, *(after[name] for name in graph.updates)])

    @staticmethod
    def _mutated(module: torch.nn.Module, graph: Graph) -> list[tuple[str, torch.Tensor]]:
        """The buffers, parameters and other tensors that the model writes to."""
        return [(k, v) for k, v in _state(module) if k in graph.updates]

    @staticmethod
    def arrays(values: Sequence[Any]) -> list[Any]:
        """Tensors and numbers as numpy arrays."""
        return [TorchWeight("", v.clone() if isinstance(v, torch.Tensor) else _number(v)).numpy() for v in values]

    @staticmethod
    def private(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of the inputs, for runtimes that write to them as the model does."""
        return [t.clone() for t in tensors]


def _state(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers and parameters under all of their names, and tensors that are plain attributes."""
    yield from module.named_buffers(remove_duplicate=False)
    yield from module.named_parameters(remove_duplicate=False)
    for path, part in module.named_modules():
        yield from ((f"{path}.{k}".lstrip("."), v) for k, v in vars(part).items() if isinstance(v, torch.Tensor))


def _module(program: Any, guarded: bool) -> Any:
    """torch's own module of a program.

    Raises:
        CaptureError: torch makes none, since it writes the parameters' names into source.
    """
    # what is no identifier stands in quotes there ("block1-0"); `self` would hide the module in its own source
    plain = re.compile(r"(?!self$)[^\"'\\\x00-\x1f\x7f-\x9f\u2028\u2029]+")
    odd = next((name for name in program.state_dict if not plain.fullmatch(name)), "")
    try:
        if not odd:
            made = program.module(check_guards=guarded)
            for part in made.modules():
                if isinstance(part, torch.fx.GraphModule):
                    # that of fx prints the errors that it raises
                    type(part).__call__ = torch.nn.Module.__call__  # type: ignore[method-assign]
            return made
    except CaptureError:
        raise
    except Exception as error:
        odd = f"{type(error).__name__}: {error}"
    what = f"torch makes no module of this program to compare with ({odd!r:.200})"
    raise CaptureError(
        f"{what}: rename parameters that have quotes in their names or one of torch's own, or do not verify it"
    )


def _number(value: Any) -> torch.Tensor:
    """A Python number as the 0-d tensor that a graph returns for it."""
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
