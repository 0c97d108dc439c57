"""What a graph demands of the sizes of its inputs (`ir::require`), looked at before a program runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ir.bounds import Range, bounds, within
from ir.dims import Dim, Expr, call, evaluate
from ir.errors import RefusedError
from ir.graph import Context, Graph, Node, SymbolSource, Value, leaves, symbols_in
from ir.ops import CONVOLUTIONS, RECURRENT, REFUSE_SMALL
from ir.types import DType

# the ops that look at sizes, and what their condition and message are called
TEXTS = {"ir::require": ("condition", "message"), "aten::_assert_scalar": ("self", "assert_msg")}
# what makes a fixed size of a dynamic one: slices, and a diagonal that has one element of any size but 0
SHORTER = frozenset({"aten::slice", "aten::tensor_split", "aten::diagonal"})


class Conditions:
    """The types of the inputs, and those conditions that follow from their shapes and from integers among them.

    The rest is the runtime's.
    """

    def __init__(self, graph: Graph) -> None:
        places = {v: i for i, v in enumerate(graph.inputs)}
        carried = {n: s for n, s in graph.sources.items() if s.value in places and s.axis is not None}
        found = [(n, n.args[TEXTS[n.op][0]], n.args[TEXTS[n.op][1]]) for n in graph.nodes if n.op in TEXTS]
        asked = symbols_in([c for _, c, _ in found])
        read = {n: places[s.value] for n, s in graph.sources.items() if s.value in places and s.axis is None}
        self._numbers = {n: i for n, i in read.items() if n in asked and graph.inputs[i].type.dtype is DType.int64}
        known = {*carried, *self._numbers}
        self._held = [(n, c, m) for n, c, m in found if isinstance(c, Expr) and c.symbols <= known]
        self._sources = [(n, places[s.value], s) for n, s in sorted(carried.items())]
        self._inputs = graph.inputs
        self._accepted: list[Any] = []  # the types of the last inputs that were looked at, and those numbers
        self._ranges = {n: graph.symbols.get(n, Range()) for n in carried}

    def check(self, inputs: Sequence[Any]) -> None:
        """Look at tensors that a program is given.

        Raises:
            RefusedError: an input has another element type or other sizes than the program was made for.
        """
        numbers = {n: int(inputs[i]) for n, i in self._numbers.items() if not inputs[i].shape}
        given = [*((x.dtype, x.shape) for x in inputs), *numbers.values()]
        if given == self._accepted:
            return
        shapes = {v: tuple(x.shape) for v, x in zip(self._inputs, inputs, strict=True)}
        sources = {n: s for n, _, s in self._sources}
        for value, x in zip(self._inputs, inputs, strict=True):
            if len(x.shape) != value.type.rank or str(x.dtype) != f"torch.{value.type.dtype.name}":
                raise misfit(value, self._ranges, x)
        sizes = {n: (inputs[i].shape[s.axis] - s.offset) // s.scale for n, i, s in self._sources}
        for value, x in zip(self._inputs, inputs, strict=True):
            for d, size in zip(value.type.shape, x.shape, strict=True):
                if not isinstance(d, Expr):
                    fits = d == size
                elif d.as_symbol in sizes:
                    r = self._ranges[d.as_symbol]
                    fits = size == sizes[d.as_symbol] and size >= (r.min or 0) and (r.max is None or size <= r.max)
                else:
                    fits = not d.symbols <= sizes.keys() or evaluate(d, sizes) == size
                if not fits:
                    raise misfit(value, self._ranges, x, sources, shapes)
        sizes |= numbers
        for node, condition, message in self._held:
            if not holds(condition, sizes):
                at = ", ".join(f"{n}={sizes[n]}" for n in sorted(condition.symbols))
                line = f"\n  at {node.origin}" if node.origin.source else ""
                raise RefusedError(f"the program was not captured for {at}: {message}{line}")
        self._accepted = given


def unmet(graph: Graph, sizes: Mapping[str, int]) -> str:
    """What the first check of the importer's says that does not hold at these sizes, with its line; "" where all do."""
    for node in graph.nodes:
        condition = node.args["self"] if node.op == "aten::_assert_scalar" and not node.origin.overload else None
        if isinstance(condition, Expr) and condition.symbols <= sizes.keys() and not holds(condition, sizes):
            return f"{node.args['assert_msg']}" + (f"\n  at {node.origin}" if node.origin.source else "")
    return ""


def holds(condition: Any, sizes: Mapping[str, int]) -> bool:
    """Whether a condition holds; the model's own code divides by zero where it does."""
    return bool(_size(condition, sizes))


def _size(dim: Any, sizes: Mapping[str, int]) -> Any:
    """The value of an expression; None where it has none: it divides by zero, or is beyond all numbers."""
    try:
        return evaluate(dim, sizes)
    except ZeroDivisionError:
        return None


def _sizes_at(values: Sequence[Value], sizes: Mapping[str, int]) -> list[int]:
    """The sizes of all axes, 0 where an expression divides by zero."""
    return [_size(d, sizes) or 0 for v in values for d in v.type.shape]


def misfit(
    value: Value,
    ranges: Mapping[str, Range],
    given: Any,
    sources: Mapping[str, SymbolSource] = MappingProxyType({}),
    shapes: Mapping[Value, tuple[int, ...]] = MappingProxyType({}),
) -> RefusedError:
    """What to raise for an input that is no tensor of the type `value` has.

    `shapes` are those of other inputs, which decide sizes of this one where `sources` says so.
    """
    names = [d.as_symbol for d in value.type.shape if isinstance(d, Expr) and d.as_symbol in ranges]
    known = [(n, ranges[n]) for n in dict.fromkeys(names) if n is not None]
    ends = [f"{r.min or 0} <= {n}" + ("" if r.max is None else f" <= {r.max}") for n, r in known if r != Range()]
    wanted = f"{value.type}" + (f" with {' and '.join(ends)}" if ends else "")
    is_tensor = hasattr(given, "dtype") and hasattr(given, "shape")
    what = f"{given.dtype}{list(given.shape)}".removeprefix("torch.") if is_tensor else f"a {type(given).__name__}"
    decided = _decided(value, given.shape, sources, shapes) if is_tensor else ""
    return RefusedError(
        f"the input {value.name} is {what}, the program was made for {wanted}{decided}; capture the model anew with "
        "dynamic_shapes for other sizes, cast it for another element type"
    )


def _decided(
    value: Value,
    given: Sequence[int],
    sources: Mapping[str, SymbolSource],
    shapes: Mapping[Value, tuple[int, ...]],
) -> str:
    """ ", where h is 6, axis 2 of the input x" of the sizes that differ because another input has them."""
    places: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for n, s in sources.items():
        shape = shapes.get(s.value, ())
        if s.axis is not None and s.axis < len(shape) and s.value is not value:
            sizes[n] = (shape[s.axis] - s.offset) // s.scale
            places[n] = f"{n} is {sizes[n]}, by axis {s.axis} of the input {s.value.name}"
    pairs = zip(value.type.shape, given, strict=True) if len(given) == value.type.rank else ()
    wrong = [d for d, n in pairs if isinstance(d, Expr) and d.symbols <= sizes.keys() and evaluate(d, sizes) != n]
    told = dict.fromkeys(places[n] for d in wrong for n in sorted(d.symbols))
    return f", where {' and '.join(told)}" if told else ""


class SharedSizes:
    """The names that several sizes of the inputs have, for runtimes that do not hold them to one size."""

    def __init__(self, graph: Graph) -> None:
        found: dict[str, list[tuple[int, int]]] = {}
        for place, value in enumerate(graph.inputs):
            for axis, d in enumerate(value.type.shape):
                if isinstance(d, Expr) and d.as_symbol:
                    found.setdefault(d.as_symbol, []).append((place, axis))
        self._places = {name: places for name, places in found.items() if len(places) > 1}
        self._names = [v.name for v in graph.inputs]

    def check(self, inputs: Sequence[Any]) -> None:
        """Hold each to one size.

        Raises:
            RefusedError: two sizes of one name differ.
        """
        for name, ((first, axis), *others) in self._places.items():
            size = inputs[first].shape[axis]
            for place, other in others:
                if inputs[place].shape[other] != size:
                    raise RefusedError(
                        f"{name} is {size} in the input {self._names[first]} and {inputs[place].shape[other]} in "
                        f"{self._names[place]}; the program was made for one size, since the two have one name"
                    )


class SmallSizes:
    """The nodes of a graph that may not hold at 0 and 1, sizes that torch.export does not trace for.

    Where `computes`, the target computes what is dynamic in the trace, and fixed sizes alone count.
    """

    def __init__(self, graph: Graph, computes: bool = False) -> None:
        self.graph, self._computes = graph, computes
        nodes = graph.nodes if graph.context else ()
        self._cuts = [n for n in nodes if n.op in SHORTER and symbols_of(n)]
        self._refusing = [n for n in nodes if n.op in REFUSE_SMALL and symbols_of(n)]
        self._refusing += [n for n in nodes if n.op in CONVOLUTIONS | RECURRENT and symbols_of(n)]
        equal = graph.equal if graph.context else ()
        self._equal = [(a, b) for a, b in equal if may_differ(a, b, graph.symbols)]
        sizes = {n: set(_counted(n)) for n in nodes}
        self._below = below = [d for d in set().union(*sizes.values()) if bounds(d, graph.symbols)[0] < 0]
        self._below_zero = [n for n in nodes if not sizes[n].isdisjoint(below)]
        self._last: tuple[Any, str] = ((), "")  # the sizes of the last run, and what is refused of those
        self._found: dict[Any, str] = {}  # by the question and the sizes

    def refused(self, inputs: Sequence[Any]) -> str:
        """Which op torch refuses to compute at these sizes, why, and where it was written; "" where there is none."""
        found = self._first(self._refusing, self._refused, inputs) or self._refused_as_unequal(inputs)
        return found or self._refused_below_zero(inputs)

    def shorter(self, inputs: Sequence[Any]) -> str:
        """Which slice does not have the size of the trace, and where it was written; "" where all have."""
        return self._first(self._cuts, self._shorter, inputs)

    def refused_behind_slices(self, inputs: Sequence[Any]) -> str:
        """As `refused`, asked of all nodes: for a graph whose sizes hold where slices are shorter than in the trace."""
        sizes = sizes_of(self.graph, inputs)
        key = "behind slices", tuple(sizes.items())
        if key not in self._found:
            self._found[key] = self._first_refused(sizes)
        return self._found[key]

    def likely_cause(self, inputs: Sequence[Any]) -> str:
        """What of a run that failed may be why: the first node that at sizes below 2 torch gives other sizes than the
        trace, or refuses, with its line; a tensor without elements, at which runtimes fail by themselves; else ""."""
        inner = (i for node in self.graph.nodes for i in (node, *(n for g in node.graphs for n in g.nodes)))
        nodes = [n for n in inner if n.op not in TEXTS] if self.graph.context else []
        return self._first(nodes, self._not_as_traced, inputs) or self._empty(nodes, sizes_of(self.graph, inputs))

    def _empty(self, nodes: Sequence[Node], sizes: Mapping[str, int]) -> str:
        """Which tensors have no elements at these sizes: an input, or else what a node makes of one; "" where none."""
        if at := ", ".join(f"{name}=0" for name, n in sizes.items() if n == 0):
            return f"the runtime fails at {at}"
        for node in nodes:
            dims = symbols_in(d for v in node.outputs for d in v.type.shape)
            if dims and dims <= sizes.keys() and any(_size(d, sizes) == 0 for v in node.outputs for d in v.type.shape):
                at = ", ".join(f"{name}={sizes[name]}" for name in sorted(dims))
                return f"the runtime fails at {at}, where {node.short_op} gives no elements\n  at {node.origin}"
        return ""

    def _first(
        self, nodes: Sequence[Node], reason: Callable[[Node, Mapping[str, int], str], str], inputs: Sequence[Any]
    ) -> str:
        if not nodes or not (at := small(sizes := sizes_of(self.graph, inputs))):
            return ""
        key = reason, tuple(sizes.items())
        if key not in self._found:
            self._found[key] = next((f"{r}\n  at {n.origin}" for n in nodes if (r := reason(n, sizes, at))), "")
        return self._found[key]

    def _refused(self, node: Node, sizes: Mapping[str, int], at: str) -> str:
        if not _taken(node) <= sizes.keys() or (node.op not in REFUSE_SMALL and not _is_nearly_empty(node, sizes)):
            return ""
        why = self.graph.context.refusal(node, sizes)
        return why and f"torch does not compute {node.short_op} at {at}: {why}"

    def _refused_as_unequal(self, inputs: Sequence[Any]) -> str:
        """As `refused`, where sizes that torch.export found to be equal differ: runtimes broadcast some of these."""
        if not self._equal:
            return ""
        sizes = sizes_of(self.graph, inputs)
        if sizes != self._last[0]:
            known = [(a, b) for a, b in self._equal if symbols_in((a, b)) <= sizes.keys()]
            equal = all(holds(call("eq", a, b), sizes) for a, b in known)
            self._last = sizes, "" if equal else self._first_refused(sizes)
        return self._last[1]

    def _first_refused(self, sizes: Mapping[str, int]) -> str:
        """The first node that torch refuses, up to one with other sizes than the trace's."""
        at = ", ".join(f"{name}={n}" for name, n in sizes.items())
        for node in self.graph.nodes:
            if node.op in TEXTS or node.graphs or not _taken(node) <= sizes.keys():
                continue
            if why := self.graph.context.refusal(node, sizes):
                return f"torch does not compute {node.short_op} at {at}: {why}\n  at {node.origin}"
            if symbols_of(node) <= sizes.keys() and not holds_at(node, sizes, self.graph.context):
                return ""
        return ""

    def _refused_below_zero(self, inputs: Sequence[Any]) -> str:
        """As `refused`, where a size of the trace is less than 0: torch gives it a meaning of its own, as the -1 of
        `expand`, or refuses it; a slice has no elements there."""
        sizes = sizes_of(self.graph, inputs) if self._below else {}
        key = "below zero", tuple(sizes.items())
        if key not in self._found:
            self._found[key] = self._first_below_zero(sizes)
        return self._found[key]

    def _first_below_zero(self, sizes: Mapping[str, int]) -> str:
        fine = all((_size(d, sizes) or 0) >= 0 for d in self._below if d.symbols <= sizes.keys())
        for node in () if fine else self._below_zero:
            if not symbols_of(node) <= sizes.keys() or any(d < 0 for d in _sizes_at(node.inputs, sizes)):
                continue
            traced = _sizes_at(node.outputs, sizes)
            if all((_size(d, sizes) or 0) >= 0 for d in _counted(node)):
                continue
            at = ", ".join(f"{name}={sizes[name]}" for name in sorted(symbols_of(node)))
            if why := self.graph.context.refusal(node, sizes):
                return f"torch does not compute {node.short_op} at {at}: {why}\n  at {node.origin}"
            true = None if node.op in SHORTER else self.graph.context.result_shapes(node, sizes)
            if true is not None and [d for shape in true for d in shape] != [max(d, 0) for d in traced]:
                return f"{node.short_op} does not hold at {at}, where a size is less than 0\n  at {node.origin}"
        return ""

    def _shorter(self, node: Node, sizes: Mapping[str, int], at: str) -> str:
        if not symbols_of(node) <= sizes.keys():
            return ""
        true = self.graph.context.result_shapes(node, sizes)
        pairs = [p for v, t in zip(node.outputs, true or (), strict=False) for p in zip(v.type.shape, t, strict=False)]
        differ = any(_size(d, sizes) != n for d, n in pairs if isinstance(d, int) or not self._computes)
        return f"{node.short_op} does not hold at {at}, {SINCE}" if differ else ""

    def _not_as_traced(self, node: Node, sizes: Mapping[str, int], at: str) -> str:
        if node.graphs or not symbols_of(node) <= sizes.keys() or holds_at(node, sizes, self.graph.context):
            return ""
        return f"{node.short_op} may not hold at {at}, {SINCE}"


def may_differ(a: Dim, b: Dim, ranges: Mapping[str, Range]) -> bool:
    """Whether two sizes differ at some small values of their symbols, from 2 on: torch notes `min(n, 2*n) == n` too,
    and that `min(m*n, n)` is `n` where `m` is not 0."""
    names = sorted(symbols_in((a, b)))
    tried = ({n: within(size + i * step, ranges.get(n, Range())) for i, n in enumerate(names)}
             for size in range(2, 14) for step in (0, 1, 5))  # fmt: skip
    return any(not holds(call("eq", a, b), sizes) for sizes in tried)


SINCE = "since torch.export traces a model for sizes from 2 on"


def _counted(node: Node) -> list[Expr]:
    """The dynamic sizes of a node's results, and numbers that it is given; a slice may count places from the end."""
    given = leaves(node.args.values()) if node.op not in SHORTER else []
    sizes = (d for v in node.outputs for d in v.type.shape)
    return [d for d in (*sizes, *given) if isinstance(d, Expr) and d.kind == "int"]


def sizes_of(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    """The values of those symbols that are sizes of inputs."""
    return {
        d.as_symbol: n
        for v, x in zip(graph.inputs, inputs, strict=True)
        for d, n in zip(v.type.shape, x.shape, strict=False)
        if isinstance(d, Expr) and d.as_symbol
    }


def small(sizes: Mapping[str, int]) -> str:
    """Those below 2, as text: "batch=1"."""
    return ", ".join(f"{name}={n}" for name, n in sizes.items() if n < 2)


def _is_nearly_empty(node: Node, sizes: Mapping[str, int]) -> bool:
    """True where an operand is empty, or an axis that a convolution's kernel moves along has one place."""
    shapes = [[_size(d, sizes) for d in v.type.shape] for v in node.inputs[:2]]
    return any(0 in s for s in shapes) or (node.op in CONVOLUTIONS and 1 in shapes[0][-(len(shapes[1]) - 2) :])


def holds_at(node: Node, sizes: Mapping[str, int], context: Context) -> bool:
    """Whether torch computes a node at these sizes, and gives the sizes of the trace; True where data decides them."""
    if not symbols_in([d for v in node.outputs for d in v.type.shape]) <= _taken(node):
        return True
    true = context.result_shapes(node, sizes)
    return true is not None and true == [tuple(_size(d, sizes) for d in v.type.shape) for v in node.outputs]


def symbols_of(node: Node) -> frozenset[str]:
    """The symbols in the shapes of what a node takes and gives, and in the numbers that it is given."""
    return _taken(node) | symbols_in([d for v in node.outputs for d in v.type.shape])


def _taken(node: Node) -> frozenset[str]:
    return symbols_in([d for v in node.inputs for d in v.type.shape]) | symbols_in(node.args.values())
