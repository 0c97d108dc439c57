"""Trial runs: an artifact beside torch, at the sizes of the example and at others that its users may run."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ir.conditions import Conditions
from ir.dims import Expr, evaluate
from ir.errors import ExportError, MismatchError, RefusedError, RuntimeFailure
from ir.graph import Graph, Node, Value, leaves
from ir.importer.nesting import keeps_keys, turned
from ir.importer.other_sizes import Sizes, plans, resized, sizes_of
from ir.importer.plain import refused_layout
from ir.importer.refusals import own_line
from ir.importer.torch_api import pytree
from ir.target import Runner, Target
from ir.verify import Report, Row, held_to_float64, rows

_ANOTHER_WAY = "the artifact agrees with torch.export's program, but the model itself gives other results:"
_WHY = (
    "The model's code takes another way while torch.export traces it. It asks {}whether it is exported, or it has "
    "state in Python."
)
_ASKS_SIZES = (
    "whether a dynamic size is 0 or 1, which torch.export takes to be 2 or more (give Dim(min=2), or branch by "
    "torch.cond), or "
)
_WHY_IN = {  # by the modules that there are, in the words of regular expressions
    r"\btorch\.nn\.modules\.(transformer\.|activation\.MultiheadAttention)": "torch.nn's encoder layers and attention "
    "have a fast path in evaluation, which torch.export does not take; rows of padding are 0 there. With "
    "torch.backends.mha.set_fastpath_enabled(False) the model gives what its program gives.",
    r"\btransformers\.": "transformers leaves out a mask of ones only where it is not exported: give every input that "
    "the processor gives.",
}
_RAISES = "at {} the model itself raises and the artifact does not (a Dim with a min keeps such sizes out): {}"
_ORDER = (
    "the model reads the order of a dict's keys, and gives other results where they come in another one; the artifact "
    "takes them by key, in the order of the example"
)
_NAMED = 3  # nodes in training mode that the report names


@dataclass
class Trial:
    """One artifact and what it is compared with."""

    graph: Graph
    target: Target
    runner: Runner
    rtol: float | None = None
    atol: float | None = None
    limit: float | None = None  # of scale, in place of the tolerances

    def __post_init__(self) -> None:
        self._weights = self.target.stored_weights(self.graph)
        self._drawn, self._unsized = undetermined(self.graph)
        self._conditions = Conditions(self.graph)
        self._differs = False
        self._model_runs = False  # on the example, as it is at hand with its weights
        self._of_model: list[str] = []  # what there is to say of it
        self._scales: dict[str, float] = {}  # of the example's results
        self.inputs: list[Any] = []  # of the first run that differs, else of the last

    def run(self, args: Any, kwargs: Any, *, others: bool) -> Report:
        """The comparison on these arguments, and if that went well on `others` that are made from them."""
        inputs = self.graph.structure.flatten(args, kwargs)
        if refused := refused_layout(self.graph.inputs, inputs):
            raise refused
        known = sizes_of(self.graph, inputs)
        expected = self._reference(args, kwargs, inputs)
        found = self._compared(args, kwargs, expected, known)
        if all(r.ok for r in found):
            self._hold_to_model(args, kwargs, expected, known)
            self._turn_keys(args, kwargs, expected)
        notes = notes_of(self.graph)
        if others and all(r.ok for r in found):
            for sizes, result in self._elsewhere(args, kwargs, known):
                if isinstance(result, str):
                    notes = (*notes, f"not run at {_text(sizes)}: {result}")
                else:
                    found = (*found, *result)
        return Report(found, (*notes, *self._of_model))

    def _reference(self, args: Any, kwargs: Any, inputs: list[Any]) -> list[Any]:
        """What torch gives.

        Raises:
            RefusedError: it takes no such arguments, or no such sizes.
        """
        try:
            return self._expected(args, kwargs, guarded=False)
        except ExportError:
            raise
        except Exception as error:
            self._conditions.check(inputs)  # in the words of the graph, where it knows the reason
            raise RefusedError(f"torch's own program does not run on these arguments: {_line(error)}") from error

    def _elsewhere(
        self, args: Any, kwargs: Any, known: Sizes
    ) -> Iterator[tuple[Mapping[str, int], tuple[Row, ...] | str]]:
        """The rows at other sizes, or why they were not run."""
        ran: list[Sizes] = []  # an end of a range may have been another size's turn
        for planned in plans(self.graph, known):
            rounds = [fresh for choices in planned if (fresh := [s for s in choices if s not in ran])]
            if not rounds:
                continue
            found = self._round(args, kwargs, rounds)
            ran += [sizes for sizes, _ in found]
            yield from found

    def _round(self, args: Any, kwargs: Any, rounds: list[list[Sizes]]) -> list[tuple[Sizes, tuple[Row, ...] | str]]:
        """All dimensions together, or each alone where torch refuses that."""
        together, *alone = rounds
        done = self._first(args, kwargs, together)
        if not isinstance(done[1], str) or not alone:
            return [done]
        tried = [self._first(args, kwargs, sizes) for sizes in alone]
        return [t for t in tried if not isinstance(t[1], str)] or [done]

    def _first(self, args: Any, kwargs: Any, choices: list[Sizes]) -> tuple[Sizes, tuple[Row, ...] | str]:
        """The rows at the first of these sizes that torch's own program takes."""
        refused: list[tuple[Sizes, str]] = []
        for sizes in choices:
            for given in resized(self.graph, args, kwargs, sizes):
                try:
                    expected = self._expected(*given, guarded=True)
                except Exception as error:  # torch's own, of any kind
                    refused.append((sizes, f"torch refuses it: {_line(error)}"))
                    continue
                try:
                    self._conditions.check(self.graph.structure.flatten(*given))
                except RefusedError as error:
                    refused.append((sizes, _line(error)))
                    continue
                return sizes, self._at(given, expected, sizes)
        return refused[0]

    def _at(self, given: Any, expected: list[Any], sizes: Sizes) -> tuple[Row, ...] | str:
        try:
            args, kwargs = given
            found = self._compared(args, kwargs, expected, sizes)
            self._hold_to_model(args, kwargs, expected, sizes)
            return found
        except MismatchError:
            raise
        except Exception as error:
            if isinstance(error, ExportError) and 0 in sizes.values():  # said aloud by a runtime without empty tensors
                return _line(error)
            raise RuntimeFailure(f"the artifact fails at {_text(sizes)}, where torch does not: {error}") from error

    def _hold_to_model(self, args: Any, kwargs: Any, expected: list[Any], sizes: Sizes) -> None:
        """Compare the program that torch.export made with the model itself.

        Raises:
            MismatchError: the model gives something else.
        """
        try:
            made = self.graph.context.of_model(self.graph, args, kwargs, self._weights)
        except MismatchError as error:
            raise MismatchError("\n".join([_ANOTHER_WAY, str(error), _why(self.graph, sizes)])) from error
        except Exception as error:  # of any kind: it refuses what its program takes, or its weights are elsewhere
            if self._model_runs:
                what = ": ".join(dict.fromkeys((type(error).__name__, _line(error))))
                self._of_model.append(_RAISES.format(_text(sizes), " ".join([what, *own_line(error)])))
            return
        self._model_runs = self._model_runs or made is not None
        if wrong := self._unlike(made or [], expected, sizes):
            raise MismatchError("\n".join([_ANOTHER_WAY, *wrong, _why(self.graph, sizes)]))

    def _unlike(self, made: list[Any], expected: list[Any], sizes: Sizes) -> list[str]:
        """The rows of the model's results that differ from those of its program."""
        names = list(self.graph.results)[: len(made)]
        found = rows(
            names, expected[: len(names)], made, self.rtol, self.atol, self._drawn, self._unsized, _text(sizes)
        )
        return [str(r) for r in found if not r.ok]

    def _turn_keys(self, args: Any, kwargs: Any, expected: list[Any]) -> None:
        """Note a model that reads the order of the keys of a dict, which its program takes by key."""
        given = tuple(args), dict(kwargs)
        other = turned(given[0]), {name: turned(value) for name, value in kwargs.items()}
        same_order = str(pytree.tree_structure(given)) == str(pytree.tree_structure(other))
        if same_order or not self._model_runs or keeps_keys(self.graph.structure.out_spec):
            return
        with contextlib.suppress(Exception):  # the model's own, of any kind: the program is no worse
            made = self.graph.context.of_model(self.graph, *other, self._weights)
            if made is not None and self._unlike(made, expected, {}):
                self._of_model.append(_ORDER)

    def _expected(self, args: Any, kwargs: Any, *, guarded: bool) -> list[Any]:
        expected: list[Any] = self.graph.context.reference(self.graph, args, kwargs, self._weights, guarded=guarded)
        return expected

    def _compared(self, args: Any, kwargs: Any, expected: list[Any], sizes: Sizes) -> tuple[Row, ...]:
        context = self.graph.context
        given = self.graph.structure.flatten(args, kwargs)
        self.inputs = given if not self._differs else self.inputs
        inputs = context.private(given)
        # a runtime that keeps mutated buffers, as the module does, offers a call that does not
        with context.verifying(fused=True):
            actual = context.arrays(getattr(self.runner, "stateless", self.runner)(*inputs))
        names = list(self.graph.results)
        found = rows(
            names, actual, expected, self.rtol, self.atol, self._drawn, self._unsized, _text(sizes), self._scales,
            self.limit,
        )  # fmt: skip
        found = tuple(self._of_nothing(r, a, sizes) for r, a in zip(found, actual, strict=True))
        found = self._held_to_float64(found, actual, expected, args, kwargs)
        self._differs = self._differs or not all(r.ok for r in found)
        self._scales = self._scales or {r.name: r.scale for r in found if not r.skipped}
        return found

    def _of_nothing(self, row: Row, made: Any, sizes: Sizes) -> Row:
        """The row, at a size of 0 a note where the artifact has the shape of torch's rules and its kernel has not.

        Some kernels return their input as it is where it has no elements.
        """
        dims, shape = self.graph.results[row.name].type.shape, tuple(made.shape)
        if row.ok or shape == row.shape or str(made.dtype) != row.dtype or 0 not in sizes.values():
            return row
        if any(isinstance(d, Expr) and not d.symbols <= sizes.keys() for d in dims):
            return row
        if shape != tuple(evaluate(d, sizes) for d in dims):
            return row
        why = f"torch's kernel gives {list(row.shape)} here, its own rules for shapes what the artifact gives"
        return replace(row, shape=shape, error=math.nan, scale=math.nan, reason="", skipped=why)

    def _held_to_float64(
        self, found: tuple[Row, ...], actual: list[Any], expected: list[Any], args: Any, kwargs: Any
    ) -> tuple[Row, ...]:
        """The rows, those of float32 that differ judged by torch's own rounding; not where a tolerance was given."""
        asked = (self.rtol, self.atol, self.limit) != (None, None, None)
        doubted = [r.dtype == "float32" and not r.ok and math.isfinite(r.error) for r in found]
        if asked or not any(doubted):
            return found
        try:
            exact = self.graph.context.exact(self.graph, args, kwargs, self._weights)
        except Exception:  # an op without a kernel in float64, of any kind: float32 is all there is to compare with
            return found
        both = zip(found, doubted, actual, expected, exact, strict=True)
        return tuple(held_to_float64(r, a, e, x) if doubt else r for r, doubt, a, e, x in both)


def _why(graph: Graph, sizes: Sizes) -> str:
    """What may make a model differ from the program that torch.export made of it; `sizes` are the dynamic ones."""
    kinds = {str(kind) for n in graph.nodes for _, kind in (n.origin.modules or {}).values()}
    known = [text for pattern, text in _WHY_IN.items() if any(re.search(pattern, k) for k in kinds)]
    return " ".join([_WHY.format(_ASKS_SIZES if sizes else ""), *known])


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n}={s}" for n, s in sizes.items())


def _line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# -- what is not compared, and what is said of a capture ---------------------------------------------------------------


def undetermined(graph: Graph) -> tuple[dict[str, str], set[str]]:
    """The results that random numbers decide, each with the op that drew them; those whose sizes they decide."""
    if not graph.random:
        return {}, set()
    why: dict[Value, str] = {}
    sizes: dict[str, str] = {}  # by symbol
    for node in graph.nodes:
        read = [a for a in leaves(node.args.values()) if isinstance(a, (Value, Expr))]
        reason = next((r for a in read if (r := _reason(a, why, sizes))), "")
        if not reason and graph.context.draws(node):
            reason = f"{described(node)} draws random numbers"
        if reason:
            why.update(dict.fromkeys(node.outputs, reason))
            made = {*node.outputs, *((node.args["self"],) if node.op == "ir::item" else ())}
            sizes.update({n: reason for n, s in graph.sources.items() if s.value in made})
    drawn = {name: reason for name, v in graph.results.items() if (reason := _reason(v, why, sizes))}
    return drawn, {n for n in drawn if any(_reason(d, why, sizes) for d in graph.results[n].type.shape)}


def _reason(a: Any, why: Mapping[Value, str], sizes: Mapping[str, str]) -> str:
    if isinstance(a, Value):
        return why.get(a, "")
    return next((sizes[s] for s in sorted(a.symbols) if s in sizes), "") if isinstance(a, Expr) else ""


def described(node: Node) -> str:
    """ "dropout at encoder.layers.0 (model.py:12)"."""
    line = f"{node.origin.file}:{node.origin.line}" if node.origin.file else ""
    place = f"{node.origin.module} ({line})" if node.origin.module and line else node.origin.module or line
    name = node.op.removeprefix("aten::")
    return f"{name} at {place}" if place else name


def notes_of(graph: Graph) -> tuple[str, ...]:
    """How the graph was captured, and that it was in training mode."""
    rung = getattr(graph.context, "rung", None)
    training = [n for n in graph.nodes if any(n.args.get(flag) is True for flag in ("train", "training"))]
    notes = [] if rung is None else [str(rung), *rung.narrowed]
    if training:
        named = list(dict.fromkeys(described(n) for n in training))
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        notes.append(f"captured in training mode: {', '.join(named[:_NAMED])}{more}")
    return tuple(notes)
