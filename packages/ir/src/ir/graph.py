"""The graph: frozen nodes over named values, compared by identity. A pass builds a new graph, nothing changes one."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol, Union

from ir.bounds import Range
from ir.dims import Dim, Expr, solve
from ir.types import DType, TensorType

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n\s*(.*))?')


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One tensor of the graph."""

    name: str
    type: TensorType

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


Scalar = Union[None, bool, int, float, complex, str, DType, Expr]
Arg = Any  # Value | Scalar | Graph | tuple[Arg, ...]; a recursive alias would help nobody


class Weight(Protocol):
    """A parameter, buffer or constant: a reference to the model's own tensor, which is not copied."""

    @property
    def name(self) -> str:
        """The qualified name in the model."""

    @property
    def type(self) -> TensorType:
        """The tensor's type."""

    @property
    def tensor(self) -> Any:
        """The torch tensor."""

    def numpy(self) -> Any:
        """The tensor's data as a numpy array, sharing memory where it can; bfloat16 through ml_dtypes."""

    def over(self, tensor: Any) -> Weight:
        """The weight with another tensor."""


@dataclass(frozen=True, eq=False)
class ComputedWeight:
    """A weight that a pass makes of others; `compute` runs when the artifact is written, and keeps nothing."""

    name: str
    type: TensorType
    compute: Callable[[], Any]
    tensor: Any = None  # there is no tensor of the model behind it

    def numpy(self) -> Any:
        """The data, computed anew."""
        return self.compute()

    def over(self, tensor: Any) -> ComputedWeight:
        """The weight with another tensor."""
        return replace(self, tensor=tensor)


class Specialized(NamedTuple):
    """What the model's code asked of dynamic sizes, answered for 2 and more by torch.export's 0/1 specialization."""

    asked: str  # "b == 1", "max(b, 1)"
    answer: str  # that the graph was made with: "False", "b"
    place: str  # "model.py:12"
    name: str  # of the dimension
    size: int  # 0 or 1, where the answer is another


class Context(Protocol):
    """What the importer keeps of a capture for later: bodies, the reference and the example inputs."""

    @property
    def specialized(self) -> tuple[Specialized, ...]:
        """What the model's code asked of sizes that has another answer at sizes of 0 or 1."""

    @property
    def knows_decisions(self) -> bool:
        """Whether `specialized` is all that the code asked: torch.export's strict mode does not tell."""

    of_file: bool  # whether the numbers in it are those of a .pt2 file, which may be anyone's
    verifying: Callable[..., Any]  # a block in which torch runs what the program calls, as far as that is safe

    def refusing(self, decisions: Iterable[Specialized]) -> Context:
        """The same, where files of the program refuse the sizes at which these decisions are others."""

    def body(self, node: Node) -> Body | None:
        """The graph that computes this node, or None."""

    def parts(self, node: Node) -> Graph | None:
        """The graph that computes a complex node on real and imaginary parts by a rule of its own, or None."""

    def body_error(self, node: Node) -> str:
        """Why the node's decomposition could not be used, empty if it has none."""

    def skeleton(self, node: Node, target: str) -> str:
        """The lines a user may write to add this op."""

    def draws(self, node: Node) -> bool:
        """True if the node draws random numbers."""

    def evaluate(self, nodes: Iterable[Node], weights: Mapping[Value, Weight], value: Value) -> Any:
        """What the nodes make of the weights, as a numpy array."""

    def is_doubtful(self, node: Node) -> bool:
        """Whether the node's kernel may do harm with some numbers, so that `evaluate` may not run it."""

    def computes(self, nodes: Sequence[Node], weights: Mapping[Value, Weight]) -> bool:
        """Whether `evaluate` computes the last of these nodes; it is tried."""

    def result_types(self, node: Node, dtypes: Mapping[DType, DType]) -> tuple[DType, ...] | None:
        """What torch makes of the node with its operands cast; None where it refuses."""

    def largest(self, dtype: DType) -> float:
        """The largest finite number of a floating type."""

    def result_shapes(self, node: Node, sizes: Mapping[str, int]) -> list[tuple[int, ...]] | None:
        """The shapes of the node's results where the symbols have these values; None where torch refuses."""

    def refusal(self, node: Node, sizes: Mapping[str, int]) -> str:
        """torch's words where its kernel refuses operands of these sizes; "" where it takes them."""

    def flops(self, node: Node, sizes: Mapping[str, int]) -> int:
        """The floating-point operations of the node where the symbols have these values, as torch counts them."""

    def example(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that the model was captured with."""

    def reference(
        self, graph: Graph, args: Any, kwargs: Any, weights: Any = None, *, guarded: bool = False
    ) -> list[Any]:
        """torch's own values for `graph.results`, in order, as numpy arrays."""

    def of_model(self, graph: Graph, args: Any, kwargs: Any, weights: Any = None) -> list[Any] | None:
        """What the model itself returns, as `reference` without updates; None where there is none to ask."""


@dataclass(frozen=True)
class Body:
    """What computes a node without a handler; a named one is kept as a call, an anonymous one is inlined."""

    graph: Graph
    name: str | None = None


@dataclass(frozen=True)
class Origin:
    """Where a node comes from: the overload as torch names it, the model's source line, the module's path."""

    overload: str = ""
    stack: str = ""
    modules: Mapping[str, Any] | None = None

    @cached_property
    def _frame(self) -> tuple[str, int, str, str] | None:
        # torch.cond traces into code of its own, which lies in no file
        frames = [f for f in _FRAME.findall(self.stack) if not f[0].startswith("<eval_with_key>")]
        if not frames:
            return None
        # torch's own modules call their functional forms: the model's line is the last one outside of them
        own = [f for f in frames if "/torch/" not in f[0]]
        file, line, function, code = (own or frames)[-1]
        return file, int(line), function, code.strip()

    @property
    def file(self) -> str | None:
        return self._frame[0] if self._frame else None

    @property
    def line(self) -> int | None:
        return self._frame[1] if self._frame else None

    @property
    def source(self) -> str:
        """ "package/model.py:12", the file below the folder that it is imported from; empty if unknown."""
        return f"{_importable(self.file)}:{self.line}" if self.file else ""

    @property
    def place(self) -> str:
        """ "model.py:12", empty if unknown."""
        return os.path.basename(self.source)

    @property
    def code(self) -> str:
        """The source line's own text, empty if unknown."""
        return self._frame[3] if self._frame else ""

    @cached_property
    def module(self) -> str:
        """The path of the nn.Module that ran the op, such as `encoder.layer.0`; empty at the top."""
        entries = list(self.modules.values()) if self.modules else []
        return str(entries[-1][0]) if entries else ""

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The nn.Modules that the op lies in, outermost first, each named below the one before: `layers.0`, `attn`."""
        entries = [str(path) for path, _ in self.modules.values()] if self.modules else []
        pairs = itertools.pairwise(entries)
        return tuple(e.removeprefix(f"{outer}.") if outer else e for outer, e in pairs)

    @cached_property
    def module_class(self) -> str:
        """The class of that module, empty if unknown."""
        entries = list(self.modules.values()) if self.modules else []
        cls = entries[-1][1] if entries else ""
        return cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self._frame else "unknown source line"
        code = f"  `{self.code}`" if self.code else ""
        return place + code + (f"  in {self.module}" if self.module else "")


@lru_cache(maxsize=1024)
def _importable(file: str) -> str:
    """The file below the folder that it is imported from, so that a model does not tell where it was exported."""
    roots = sorted((os.path.join(p, "") for p in sys.path if p), key=len, reverse=True)
    return next((file[len(r) :] for r in roots if file.startswith(r)), os.path.basename(file))


@dataclass(frozen=True, eq=False)
class Node:
    """One op: `op` is the overload packet's name ("aten::add"), `args` are bound by schema name, defaults filled in.

    `returns` tells a handler's result apart: "one" tensor, a "tuple" of fixed length, a "list", or "none".
    `defaults` are the schema's own defaults: what an argument must equal for a handler not to need to know it.
    `packed`: its complex operands are real ones with a trailing dimension of 2, which its body does not know.
    """

    op: str
    args: Mapping[str, Arg]
    outputs: tuple[Value, ...]
    origin: Origin = Origin()
    returns: str = "one"
    defaults: Mapping[str, Arg] = field(default_factory=dict)
    packed: bool = False

    @property
    def name(self) -> str:
        return self.outputs[0].name if self.outputs else self.op

    @property
    def short_op(self) -> str:
        """ "add" for the op "aten::add", in messages; other namespaces stay."""
        return self.op.removeprefix("aten::")

    @property
    def overload(self) -> str:
        """ "aten::add.Tensor" for op "aten::add" of overload "Tensor"."""
        return f"{self.op}.{self.origin.overload}" if self.origin.overload else self.op

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """The values among the arguments, in order, lists flattened."""
        return tuple(a for a in leaves(self.args.values()) if isinstance(a, Value))

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The sub-graphs among the arguments."""
        return tuple(a for a in leaves(self.args.values()) if isinstance(a, Graph))


def leaves(arg: Arg) -> Iterator[Arg]:
    """All leaves of an argument, or of an iterable of arguments."""
    if isinstance(arg, (str, Value, Expr)) or not hasattr(arg, "__iter__"):
        yield arg
    else:
        for a in arg:
            yield from leaves(a)


def symbols_in(args: Iterable[Arg]) -> frozenset[str]:
    """The symbols in the numbers among arguments, or in a shape."""
    return frozenset().union(*(a.symbols for a in leaves(args) if isinstance(a, Expr)))


def map_arg(arg: Arg, fn: Callable[[Any], Any]) -> Arg:
    """The argument with `fn` applied to every leaf; itself where each stays the same object."""
    if isinstance(arg, tuple):
        made = tuple(map_arg(a, fn) for a in arg)
        return arg if all(a is b for a, b in zip(made, arg, strict=True)) else made
    return fn(arg)


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs, nodes in execution order, named outputs, referenced weights, and `updates`.

    `updates` maps the name of each buffer or input that the model mutates to the value that holds its new content.
    """

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...]
    weights: Mapping[Value, Weight] = field(default_factory=dict)
    updates: Mapping[str, Value] = field(default_factory=dict)
    symbols: Mapping[str, Range] = field(default_factory=dict)
    equal: tuple[tuple[Dim, Dim], ...] = ()  # sizes that are one wherever the graph holds, though not as polynomials
    random: bool = False  # draws random numbers: two runs of it differ
    strides: Mapping[str, Any] = field(default_factory=dict)  # input_strides.Strides of inputs of which they matter
    name: str = "graph"
    structure: Any = None  # ir.importer.calling_convention.Structure: the model's own calling convention
    context: Any = None  # Context

    def replace(self, **changes: Any) -> Graph:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    @cached_property
    def producer(self) -> Mapping[Value, Node]:
        """The node that makes each value."""
        return {v: n for n in self.nodes for v in n.outputs}

    @cached_property
    def uses(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes that read each value, in order, each once."""
        found: dict[Value, dict[Node, None]] = {}
        for node in self.nodes:
            for v in node.inputs:
                found.setdefault(v, {})[node] = None
        return {v: tuple(ns) for v, ns in found.items()}

    @cached_property
    def results(self) -> Mapping[str, Value]:
        """Every named result: the outputs, then the updates, `<name>_updated`; none bears the name of an input."""
        named = dict(zip(self.output_names, self.outputs, strict=True))
        taken = {*named, *(v.name for v in self.inputs)}
        for name, value in self.updates.items():
            made = f"{name}_updated"
            while made in taken:
                made += "_1"
            taken.add(made)
            named[made] = value
        return named

    @cached_property
    def sources(self) -> Mapping[str, SymbolSource]:
        """Where the value of each symbol can be read at run time."""
        found: dict[str, SymbolSource] = {}
        made = [v for n in self.nodes for v in n.outputs]
        for values in (self.inputs, made):  # inputs first: they are known from the start
            for exact in (True, False):
                for value in values:
                    for axis, dim in enumerate(value.type.shape):
                        source = _source(value, axis, dim, exact)
                        if source is not None:
                            found.setdefault(source[0], source[1])
        for node in self.nodes:
            if node.op == "ir::item":
                found[node.args["symbol"].as_symbol] = SymbolSource(node.args["self"], None)
        return found

    def _repr_html_(self) -> str:
        """For notebooks."""
        from ir.view.notebook import graph_table

        return graph_table(self)

    def __str__(self) -> str:
        from ir.text import to_text

        return to_text(self)


@dataclass(frozen=True)
class SymbolSource:
    """A symbol's value is `(size - offset) / scale` of this axis, or the value of a 0-d tensor where axis is None."""

    value: Value
    axis: int | None
    scale: int = 1
    offset: int = 0


def _source(value: Value, axis: int, dim: Dim, exact: bool) -> tuple[str, SymbolSource] | None:
    if not isinstance(dim, Expr):
        return None
    if dim.as_symbol is not None:
        return dim.as_symbol, SymbolSource(value, axis)
    if exact or len(dim.symbols) != 1:
        return None
    line = solve(dim, name := next(iter(dim.symbols)))
    return None if line is None else (name, SymbolSource(value, axis, *line))
