"""NnefHelper: the verbs of an NNEF handler. A value is a name in the document and our type."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from ir import dims as d
from ir.dims import Dim, Expr
from ir.geometry import broadcast
from ir.graph import Body, Graph, Value, Weight
from ir.helper import OpHelper, numpy_dtype
from ir.types import DType, TensorType
from nnef_backend import document as doc
from nnef_backend.document import Document, Fragment, FragmentText, Operation, Parameter
from nnef_backend.operators import check_operation, result_dtype


class NnefValue:
    """A tensor of the document under construction; `array` is its content where it is a constant."""

    __slots__ = ("array", "name", "type")

    def __init__(self, name: str, type: TensorType, array: np.ndarray | None = None) -> None:
        self.name = name
        self.type = type
        self.array = array

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(eq=False)
class Step:
    """An operation whose names may still change."""

    results: list[NnefValue]
    op: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    dtype: str = ""
    listed: bool = False

    def operation(self) -> Operation:
        """The document's form."""
        return Operation(
            tuple(r.name for r in self.results),
            self.op,
            tuple(_literal(i) for i in self.inputs),
            {k: _literal(a) for k, a in self.attributes.items()},
            self.dtype,
            self.listed,
        )

    def reads(self) -> Iterator[NnefValue]:
        """The values among inputs and attributes."""
        yield from _values((self.inputs, tuple(self.attributes.values())))


@dataclass
class Scope:
    """Where operations go: the graph, or the body of a fragment, whose constants come in as parameters."""

    steps: list[Step] = field(default_factory=list)
    fragment: bool = False
    captured: dict[int, tuple[NnefValue, NnefValue]] = field(default_factory=dict)  # outer value, parameter
    names: set[str] = field(default_factory=set)


class NnefHelper(OpHelper[NnefValue]):
    """Builds one Document."""

    value_class = NnefValue

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.scopes = [Scope()]
        self.inputs: list[NnefValue] = []
        self.labels: dict[str, Any] = {}
        self.constants: dict[Any, NnefValue] = {}
        self.fragments: dict[Any, Fragment | FragmentText] = {}
        self.extensions: set[str] = set()
        self._reserved = {doc.identifier(n) for n in (*(v.name for v in graph.inputs), *graph.results)}
        self.scopes[0].names |= self._reserved | set(graph.symbols)

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def unique(self, name: str) -> str:
        """A legal identifier close to `name`, free in this scope."""
        made = doc.identifier(name, self.scope.names)
        self.scope.names.add(made)
        return made

    # -- emission --------------------------------------------------------------------------------------------------

    def emit(
        self,
        op: str,
        *inputs: Any,
        outputs: int = 1,
        dtype: DType | Sequence[DType] | None = None,
        shape: Sequence[Dim] | Sequence[Sequence[Dim]] | None = None,
        generic: str = "",
        listed: bool = False,
        **attributes: Any,
    ) -> Any:
        """Add one operation and return its result, or a list of its results.

        Args:
            op: an operation of NNEF or of tract; its extension is declared in the document.
            inputs: values, lists of values, numbers or dimensions (written as literals as they are).
            outputs: how many results.
            dtype, shape: the type of the result(s); by default the first input's element type and, for the element-wise
                operations, the broadcast shape. Without either a result's rank must not be asked for.
            generic: the text in `op<...>`.
            attributes: by name (`shape_` for one called shape); None leaves one out; values, dimensions, lists and
                DTypes are written in NNEF's way.

        Raises:
            RefusedError: this target's version has no such operation.
            TypeError: the operation has no such parameter: a mistake in the handler.
        """
        attributes = {name.rstrip("_"): a for name, a in attributes.items()}
        extension = check_operation(self, op, inputs, attributes)
        if extension:
            self.extensions.add(extension)
        values = [self.reachable(v) for v in _values(inputs)]
        inputs = _map(inputs, self._attribute)
        given = {k: _map(a, self._attribute) for k, a in attributes.items() if a is not None}
        dtypes = list(dtype) if isinstance(dtype, (list, tuple)) else [dtype] * outputs
        shapes = self._shapes(op, values, shape, outputs)
        results = []
        for t, s in zip(dtypes, shapes, strict=True):
            element = t or result_dtype(op) or (values[0].type.dtype if values else self.out.dtype)
            results.append(NnefValue(self.unique(f"{self.node.name}_{op}"), TensorType(element, s)))
        self.scope.steps.append(Step(results, op, tuple(inputs), given, generic, listed))
        return results if outputs > 1 or listed else results[0]

    def _shapes(self, op: str, values: list[NnefValue], shape: Any, outputs: int) -> list[Any]:
        if shape is None:
            known = [v.type.shape for v in values]
            return [broadcast(*known) if known and None not in known else None] * outputs
        if outputs > 1:
            return [tuple(s) for s in shape]
        return [tuple(shape)]

    def _attribute(self, a: Any) -> Any:
        if isinstance(a, DType):
            return a.short
        if isinstance(a, Expr):
            return self.size(a)
        return self.reachable(a) if isinstance(a, NnefValue) else a

    def reachable(self, x: NnefValue) -> NnefValue:
        """The value as this scope can name it: a fragment takes what lies outside as a parameter."""
        for scope in self.scopes[1:]:
            if scope.fragment and scope is self.scope and self._is_outer(x, scope):
                if id(x) not in scope.captured:
                    inner = NnefValue(self.unique(x.name), x.type, x.array)
                    scope.captured[id(x)] = (x, inner)
                return scope.captured[id(x)][1]
        return x

    def _is_outer(self, x: NnefValue, scope: Scope) -> bool:
        return not any(x is r for s in scope.steps for r in s.results) and not any(
            x is inner for _, inner in scope.captured.values()
        ) and not any(x is f for f in getattr(scope, "formals", ()))

    def bind(self, result: NnefValue, value: Value) -> NnefValue:
        """The result under its name in the graph, if a step of this node made it."""
        fresh = any(r is result for s in self.scope.steps[-8:] for r in s.results)
        if fresh and result.name.startswith(doc.identifier(f"{self.node.name}_")):
            self.scope.names.discard(result.name)
            result.name = self.unique(value.name)
        if result.type.dtype is value.type.dtype:
            result.type = value.type
        return result

    # -- constants, inputs, weights --------------------------------------------------------------------------------

    def constant(self, array: np.ndarray, name: str = "") -> NnefValue:
        """A constant tensor, shared by all equal ones; handlers write float literals straight into `emit`."""
        array = np.asarray(array)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            type = TensorType(DType[array.dtype.name], array.shape)
            self.constants[key] = self._variable(name or "const", type, array)
            self.constants[key].array = array
        return self.constants[key]

    def weight(self, value: Value, weight: Weight) -> NnefValue:
        """A weight: a variable whose file is written from the model's own tensor."""
        return self._variable(weight.name, value.type, weight.numpy)

    def _variable(self, name: str, type: TensorType, source: Any) -> NnefValue:
        """Variables stand in the graph, whichever scope asks."""
        if type.dtype is DType.bfloat16 or type.dtype.is_complex:
            self.refuse(f"tract has no {type.dtype} tensors")
        top = self.scopes[0]
        label = doc.identifier(name.replace(".", "_"), top.names)
        top.names.add(label)
        made = NnefValue(label, type)
        attributes = {"label": label, "shape": list(type.shape)}
        self.labels[label] = source
        top.steps.append(Step([made], "variable", (), attributes, _GENERIC.get(type.dtype.kind, "scalar")))
        return made

    def input(self, value: Value) -> NnefValue:
        """An input of the document."""
        made = NnefValue(doc.identifier(value.name), value.type)
        self.inputs.append(made)
        shape = [self.size(s) for s in value.type.shape]
        attributes = {"shape": shape, "datum_type": value.type.dtype.short}
        self.scope.steps.append(Step([made], "tract_core_external", (), attributes))
        self.extensions.add("tract_registry tract_core")
        return made

    def convert(self, x: NnefValue, dtype: DType) -> NnefValue:
        if x.array is not None:
            return self.constant(x.array.astype(numpy_dtype(dtype)))
        return self.emit("tract_core_cast", x, to=dtype, dtype=dtype, shape=x.type.shape)

    # -- sizes -----------------------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> Any:
        """A dimension as it stands in arguments: an int, or an expression over symbols."""
        if not isinstance(dim, Expr):
            return dim
        return doc.Expr(dim_text(dim, self))

    def scalar(self, value: Any, dtype: DType) -> NnefValue:
        """A 0-d tensor that holds a number or a size expression."""
        if not isinstance(value, Expr):
            return self.const(value, dtype)
        return self.emit("tract_core_cast", self.size(value), to=dtype, dtype=dtype, shape=())

    # -- verbs of shape --------------------------------------------------------------------------------------------

    def align(self, *xs: NnefValue) -> list[NnefValue]:
        """The values with leading axes of size 1 put in until all have one rank: NNEF aligns shapes on the left."""
        rank = max(x.type.rank for x in xs)
        return [self.unsqueeze(x, list(range(rank - x.type.rank))) for x in xs]

    def unsqueeze(self, x: NnefValue, axes: Sequence[int]) -> NnefValue:
        """`x` with axes of size 1 put in; the axes count in the result and are not negative."""
        if not axes:
            return x
        shape = list(x.type.shape)
        for a in sorted(axes):
            shape.insert(a, 1)
        if x.array is not None:
            return self.constant(x.array.reshape(shape))
        return self.emit("unsqueeze", x, axes=list(axes), shape=shape)

    def squeeze(self, x: NnefValue, axes: Sequence[int]) -> NnefValue:
        """`x` without these axes of size 1."""
        if not axes:
            return x
        shape = [s for i, s in enumerate(x.type.shape) if i not in axes]
        return self.emit("squeeze", x, axes=list(axes), shape=shape)

    def transpose(self, x: NnefValue, perm: Sequence[int]) -> NnefValue:
        """`x` with its axes permuted."""
        if list(perm) == list(range(len(perm))):
            return x
        return self.emit("transpose", x, axes=list(perm), shape=[x.type.shape[p] for p in perm])

    def reshape(self, x: NnefValue, shape: Sequence[Dim]) -> NnefValue:
        """`x` in another shape.

        Axes that both shapes share stay out of it: tract accepts only what it can prove, and proves less than we do.
        """
        old, new = x.type.shape, tuple(shape)
        if old == new:
            return x
        if x.array is not None:
            return self.constant(x.array.reshape([int(s) for s in new]))
        if 0 in old or 0 in new:  # a 0 in tract's `shape` copies an extent, and there is nothing to move
            empty = self.constant(np.zeros([0 if isinstance(s, Expr) else s for s in new], numpy_dtype(x.type.dtype)))
            return empty if not any(isinstance(s, Expr) for s in new) else self.expand(self.scalar(0, x.type.dtype), new)
        first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        rest = min(len(old), len(new)) - first
        last = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
        before, after = old[first : len(old) - last], new[first : len(new) - last]
        if not before:
            return self.unsqueeze(x, list(range(first, first + len(after))))
        if not after:
            return self.squeeze(x, list(range(first, first + len(before))))
        part = {} if len(before) == len(old) else {"axis_start": first, "axis_count": len(before)}
        return self.emit("reshape", x, shape_=list(after), shape=new, **part)

    def slice(self, x: NnefValue, axis: int, begin: Dim, end: Dim) -> NnefValue:
        """`x[begin:end]` along an axis; both are in range and count from the front."""
        if begin == 0 and end == x.type.shape[axis]:
            return x
        shape = [end - begin if i == axis else s for i, s in enumerate(x.type.shape)]
        return self.emit("slice", x, axes=[axis], begin=[begin], end=[end], shape=shape)

    def concat(self, xs: Sequence[NnefValue], axis: int) -> NnefValue:
        """The values one after the other along an axis."""
        if len(xs) == 1:
            return xs[0]
        shape = list(xs[0].type.shape)
        shape[axis] = sum((x.type.shape[axis] for x in xs[1:]), start=shape[axis])
        return self.emit("concat", list(xs), axis=axis, shape=shape)

    def expand(self, x: NnefValue, shape: Sequence[Dim]) -> NnefValue:
        """`x` repeated along its axes of size 1, and along new leading ones, to fill `shape`."""
        if x.type.shape == tuple(shape):
            return x
        return self.emit("tract_core_broadcast", x, shape_=list(shape), shape=shape)

    def take(self, x: NnefValue, index: NnefValue, axis: int) -> NnefValue:
        """`x` at the places along an axis that an integer tensor names."""
        shape = (*x.type.shape[:axis], *index.type.shape, *x.type.shape[axis + 1 :])
        return self.emit("tract_core_gather", x, index, axis=axis, shape=shape)

    def range(self, begin: Dim, end: Dim, step: int, count: Dim) -> NnefValue:
        """The integers from `begin` towards `end`, `count` of them; good as an index, for numbers cast the bounds."""
        return self.emit("tract_core_range", begin, end, step, dtype=DType.int64, shape=[count])

    # -- fragments -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def nested(self) -> Iterator[Scope]:
        """A fragment's scope."""
        self.scopes.append(Scope(fragment=True))
        try:
            yield self.scope
        finally:
            self.scopes.pop()

    def call(self, body: Body, inputs: Sequence[NnefValue]) -> list[NnefValue]:
        """A call of a fragment that holds the custom op's body."""
        assert body.name is not None
        name, captured = self.fragment_of(body.graph, str(body.name).replace("::", "_"), inputs)
        outputs = body.graph.outputs
        made = [NnefValue(self.unique(f"{self.node.name}_{name}"), v.type) for v in outputs]
        arguments = tuple(self.reachable(x) for x in (*inputs, *captured))
        self.scope.steps.append(Step(made, name, arguments, {}))
        return made

    def fragment_of(
        self, graph: Graph, name: str, inputs: Sequence[NnefValue]
    ) -> tuple[str, list[NnefValue]]:
        """The fragment that holds a graph, and the outer values that it takes after the graph's own inputs."""
        if graph in self._bodies:
            return self._bodies[graph]
        outer = self.node
        with self.nested() as scope:
            formals = [NnefValue(self.unique(v.name), v.type) for v in graph.inputs]
            scope.formals = formals  # type: ignore[attr-defined]
            results = self.inline(graph, formals)
            results = [self._fresh(r, scope) for r in results]
        self.node = outer
        captured = list(scope.captured.values())
        parameters = [Parameter(f.name) for f in (*formals, *(inner for _, inner in captured))]
        used = {f.name for f in self.fragments.values()}
        unique = doc.identifier(name, used)
        steps = live(scope.steps, results)
        fragment = Fragment(
            unique, tuple(parameters), tuple(Parameter(r.name) for r in results), tuple(s.operation() for s in steps)
        )
        self.fragments[graph] = fragment
        self._bodies[graph] = unique, [x for x, _ in captured]
        return self._bodies[graph]

    @property
    def _bodies(self) -> dict[Graph, tuple[str, list[NnefValue]]]:
        return self.__dict__.setdefault("_made_bodies", {})

    def _fresh(self, result: NnefValue, scope: Scope) -> NnefValue:
        """A fragment's result must be made inside of it."""
        if any(result is r for s in scope.steps for r in s.results):
            return result
        return self.emit("copy", result, shape=result.type.shape)

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self, results: dict[str, NnefValue]) -> Document:
        """The document: named outputs, unused operations left out."""
        outputs: list[NnefValue] = []
        for name, result in results.items():
            made_here = any(result is r for s in self.scope.steps for r in s.results)
            is_source = any(result is i for i in self.inputs) or result.name in self.labels
            if not made_here or is_source or any(result is o for o in outputs):
                result = self.emit("copy", result, shape=result.type.shape)
            result.name = doc.identifier(name)
            outputs.append(result)
        steps = live(self.scope.steps, outputs, keep=self.inputs)
        return Document(
            extensions=self._extensions(),
            fragments=list(self.fragments.values()),
            inputs=[i.name for i in self.inputs],
            outputs=[o.name for o in outputs],
            operations=[s.operation() for s in steps],
            tensors={s.results[0].name: self.labels[s.results[0].name] for s in steps if s.op == "variable"},
        )

    def _extensions(self) -> list[str]:
        symbols = [f"tract_symbol {s}" for s in sorted(self.graph.symbols)]
        assertions = [f"tract_assert {a}" for a in self.target.assertions]
        return [*sorted(self.extensions), *symbols, *assertions]


_GENERIC = {"bool": "logical", "int": "integer", "uint": "integer", "float": "scalar"}


def dim_text(dim: Any, h: NnefHelper) -> str:
    """A dimension in the expression language of the document."""
    infix = {"add": "+", "sub": "-", "mul": "*", "floordiv": "/"}

    def apply(fn: str, args: list[str]) -> str:
        if fn in ("min", "max"):
            return reduce(lambda a, b: f"{fn}({a},{b})", args)
        if fn == "mod":  # the parser has no %
            return f"({args[0]}-{args[0]}/{args[1]}*{args[1]})"
        if fn not in infix:
            h.refuse(f"the size {dim} uses {fn}, which tract's expressions do not have")
        return f"({infix[fn].join(args)})"

    text = d.visit(dim, str, lambda s: s.name, apply)
    return text[1:-1] if text.startswith("(") and text.endswith(")") and text.count("(") == 1 else text


def live(steps: Sequence[Step], outputs: Sequence[NnefValue], keep: Sequence[NnefValue] = ()) -> list[Step]:
    """The steps whose results are read, in order; those that make `keep` stay in any case."""
    needed = {id(v) for v in (*outputs, *keep)}
    kept = []
    for step in reversed(steps):
        if any(id(r) in needed for r in step.results):
            kept.append(step)
            needed.update(id(v) for v in step.reads())
    return kept[::-1]


def _values(x: Any) -> Iterator[NnefValue]:
    if isinstance(x, NnefValue):
        yield x
    elif isinstance(x, (list, tuple)):
        for item in x:
            yield from _values(item)


def _map(x: Any, fn: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return type(x)(_map(item, fn) for item in x)
    return fn(x)


def _literal(x: Any) -> Any:
    if isinstance(x, NnefValue):
        return doc.Ref(x.name)
    if isinstance(x, (list, tuple)):
        return type(x)(_literal(item) for item in x)
    return x
