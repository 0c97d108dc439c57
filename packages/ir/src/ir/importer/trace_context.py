"""A place to trace one body in: symbols of its own, so that what a trace assumes of a size is seen, and stays there."""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ir.bounds import Range
from ir.dim_functions import FUNCTIONS
from ir.dims import Dim, Expr, call, evaluate, substitute, symbol, visit
from ir.errors import CaptureError
from ir.importer.decisions import NOT_THE_MODEL, Decision, recorded, specialized
from ir.importer.schema import TORCH_DTYPES
from ir.importer.symbols import Symbols
from ir.importer.torch_api import (
    FakeTensorMode,
    check_size,
    conv_backend_unnoted,
    dynamic_symbol,
    expression,
    hints,
    pytree,
    shape_env,
    size_source,
    sym_functions,
)
from ir.passes.checks import follows
from ir.types import TensorType

# Of torch's symbolic numbers: those of Python's functions that would ask for their value have a twin in torch.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    **{fn: sym_functions[f"_sym_{fn}"] for fn in FUNCTIONS if f"_sym_{fn}" in sym_functions},
    "max": torch.sym_max, "min": torch.sym_min, "float": torch.sym_float, "not": torch.sym_not,
    "and": operator.and_, "or": operator.or_, "where": torch.sym_ite,
}  # fmt: skip


_TRACERS = str(Path(torch.__file__).parent), str(Path(__file__).parent)  # torch calls a function from either of them
_ROUND = 48  # a multiple of what sizes are divided by in most models


class SizeSpecific(NotImplementedError):
    """A trace took a branch that other sizes do not take."""


class TraceContext:
    """Fake tensors and sizes for one trace; `symbols` gives its sizes the names that the graph knows them by.

    `min(1, n)` is 1 to torch, for which sizes are 2 at least. If it is kept `apart`, a symbol of its own stands for it.
    """

    def __init__(self, outer: Symbols, apart: bool = False) -> None:
        self._outer = outer
        self._apart = apart
        self._own: dict[str, Expr] = {}  # what stands for a size that is 1 to torch and may be 0
        self._env = shape_env(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self._env, allow_non_fake_inputs=True)
        self.symbols = outer.fork()
        self._source = size_source()
        self._met: list[Decision] = []

    def fake(self, type: TensorType) -> torch.Tensor:
        """A fake tensor of this type."""
        with self.mode:
            return torch.empty([self.size(self._told(d)) for d in type.shape], dtype=TORCH_DTYPES[type.dtype])

    def _told(self, dim: Dim) -> Dim:
        """The dimension with symbols in the place of what torch would take for 1."""

        def apply(fn: str, args: list[Any]) -> Any:
            made = call(fn, *args)
            if fn != "min" or 1 not in args or not isinstance(made, Expr):
                return made
            name = f"of {made}"  # no graph has a symbol of this name
            self._own[name] = substitute(made, self._own)
            return symbol(name)

        return visit(dim, lambda n: n, lambda s: symbol(s.name, s.kind), apply) if self._apart else dim

    @property
    def apart(self) -> bool:
        """True if a size of an operand has a symbol of its own."""
        return bool(self._own)

    def size(self, dim: Any, known: Mapping[str, Any] | None = None) -> Any:
        """torch's form of a dimension; `known` gives the tracer's own values of some symbols."""
        if not isinstance(dim, Expr):
            return dim
        for name in sorted(dim.symbols - self.symbols.nodes.keys()):
            self._create(name)
        return evaluate(dim, {**self.symbols.nodes, **(known or {})}, _FUNCTIONS)

    def _create(self, name: str) -> None:
        hint = 5 if name in self._own else self._outer.hint(name)
        if hint is None:
            made: Any = self._env.create_unbacked_symint()
            self._env.pending_fresh_unbacked_symbols.clear()  # the size of an input: no operation of the trace makes it
            check_size(made >= 0)
        else:
            hint = hint if hint > 1 else 5
            source = self._source(f"__size_{name}")
            free = dynamic_symbol(self._env, hint, source)
            made = self._env.create_symintnode(free, hint=hint, source=source)
        self.symbols.adopt(name, made, self._own.get(name))

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace inside of this block: that a convolution's kernel depends on its sizes is noted nowhere.

        The fake convolution asks which kernel would run (NNPACK's from a batch of 16 on) for its memory format alone.
        """
        with conv_backend_unnoted(self._env.suppress_guards), recorded(self._met):
            yield

    def check(self, traced: torch.fx.GraphModule) -> None:
        """That the trace holds for other sizes as well.

        torch notes every branch on a size as a guard; each must hold for sizes drawn at random, out of the range that
        the program has them in. Sizes under 8 are left out: there, what a window or a slice needs is torch.export's
        own concern. So is what torch asks for at sizes that make one of the trace 0 or 1: it lays out memory by that.
        What is one size in every run of the program is so in the draws. What the function's own code asks is a
        condition of the graph (`conditions`).

        Raises:
            SizeSpecific: a guard fails for some sizes, or a size was fixed.
        """
        symbols = {n: expression(s) for n, s in self.symbols.nodes.items()}
        for name, own in symbols.items():
            if own in self._env.replacements:
                raise SizeSpecific(f"it fixes the size {name} to {self.symbols.text(self._env.replacements[own])}")
        tensors = (t for n in traced.graph.nodes for t in pytree.tree_leaves(n.meta.get("val")))
        shapes = (t.shape for t in tensors if isinstance(t, torch.Tensor))
        sizes = {expression(s) for shape in shapes for s in shape if isinstance(s, torch.SymInt)}
        draw = random.Random(0)
        known = {**self._outer.ranges, **dict.fromkeys(self._own, Range(0))}
        bounds = {s: _to_draw_from(known.get(n, Range())) for n, s in symbols.items()}
        guards = [g for g in self._env.guards if not _asked_by_model(g)]
        for _ in range(32):
            values = {s: draw.randint(*ends) for s, ends in bounds.items()}
            if not self._are_equal(values, symbols):
                values = {s: _ROUND * (n // _ROUND) or n for s, n in values.items()}
                if not self._are_equal(values, symbols):
                    continue
            small = any(size.free_symbols <= values.keys() and size.xreplace(values) < 2 for size in sizes)
            for guard in guards:
                if small and _asked_by_torch(guard):
                    continue
                if guard.expr.free_symbols <= values.keys() and guard.expr.xreplace(values) == False:  # noqa: E712
                    raise SizeSpecific(f"it holds only where {self.symbols.text(guard.expr)}")

    def conditions(self, alike: Callable[[Mapping[str, int]], bool]) -> dict[Expr, str]:
        """What the traced function's own code found to hold of sizes, each with its place, where others are in range.

        Args:
            alike: whether the trace gives what the function gives at these sizes, 0 or 1 among them.

        Raises:
            SizeSpecific: one of them cannot be said in the IR.
        """
        found: dict[Expr, str] = {}
        guards = list(filter(_asked_by_model, self._env.guards))
        asked = [self._env.replace(g.expr) for g in guards]
        for guard, expr in zip(guards, asked, strict=True):
            try:
                condition = self.symbols.expression(expr)
            except CaptureError as error:
                raise SizeSpecific(f"it holds only where {self.symbols.text(guard.expr)}") from error
            if isinstance(condition, Expr) and not follows(condition, self._outer.ranges):
                frame = guard.sloc.framework_loc
                found.setdefault(condition, f"{frame.filename}:{frame.lineno}")
        example = {n: int(hints(self._env).get(expression(s), 5)) for n, s in self.symbols.nodes.items()}
        for s in specialized(self._met, asked, self._env, self.symbols):
            if alike({**example, s.name: s.size}):
                continue
            found.setdefault(call("ne", symbol(s.name), s.size), f"{s.asked} is asked at {s.place}")
        return found

    def _are_equal(self, values: Mapping[Any, int], symbols: Mapping[str, Any]) -> bool:
        """Whether the sizes that are one in every run of the program are one at these values."""
        sizes = {n: values[s] for n, s in symbols.items()}
        known = (p for p in self._outer.equal if all(getattr(d, "symbols", frozenset()) <= sizes.keys() for d in p))
        try:
            return all(evaluate(a, sizes) == evaluate(b, sizes) for a, b in known)
        except ZeroDivisionError:
            return False


def _asked_by_torch(guard: Any) -> bool:
    """True of a condition that torch's own code asked for, not the code of a model or decomposition."""
    frame: Any = getattr(guard.sloc, "framework_loc", None)
    return hasattr(frame, "filename") and frame.filename.startswith(_TRACERS)


def _asked_by_model(guard: Any) -> bool:
    """True of a condition that code outside of torch and this package asked for."""
    frame: Any = getattr(guard.sloc, "framework_loc", None)
    return hasattr(frame, "filename") and not frame.filename.startswith(NOT_THE_MODEL)


def _to_draw_from(known: Range) -> tuple[int, int]:
    """The least and the greatest size to try of a symbol in this range."""
    low = -200 if known.min is None else max(8, known.min)
    high = max(200, low + 192)
    return (low, high) if known.max is None else (min(low, known.max), min(high, known.max))
