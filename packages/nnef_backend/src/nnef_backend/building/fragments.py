"""Scopes and fragments: names, bodies of custom ops and loops as fragments, hand-written ones by name."""

from __future__ import annotations

import abc
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ir.errors import RefusedError
from ir.graph import Body, Graph
from ir.helper import refusal_text
from ir.types import DType, TensorType
from nnef_backend.building import library
from nnef_backend.building.operators import OPERATORS
from nnef_backend.building.steps import NnefValue, Scope, Step, live, map_values
from nnef_backend.building.verbs import Verbs
from nnef_backend.errors import DocumentError
from nnef_backend.format import document as doc
from nnef_backend.format.document import Fragment, Operation, Parameter
from nnef_backend.format.grammar import Definition


class Scoped(Verbs):
    """The part of the helper that knows where a name is valid."""

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.fragments: dict[str, Fragment | Definition] = {}
        self.extensions: set[str] = set()
        self.public = doc.identifiers([*(v.name for v in graph.inputs), *graph.results])
        self.symbols = {s: doc.identifier(s, self.public.values()) for s in graph.symbols}
        self._bodies: dict[tuple[Graph, tuple[tuple[bool, bool], ...], bool], tuple[str, list[NnefValue]]] = {}
        self._numbers = itertools.count()
        self.scopes = [Scope(names={*self.public.values(), *self.symbols.values()})]

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    @property
    def in_loop(self) -> bool:
        """True where what is emitted runs once a step."""
        return self.scope.loop

    def unique(self, name: str) -> str:
        """A legal identifier, free in this scope: close to `name`, or a number by the target's naming."""
        if self.target.naming == "numeric":
            name = f"v{next(self._numbers)}"
        made = doc.identifier(name, self.scope.names)
        self.scope.names.add(made)
        return made

    def reachable(self, x: NnefValue) -> NnefValue:
        """The value as this scope can name it: a fragment takes what lies outside as a parameter."""
        scope = self.scope
        if scope is self.scopes[0] or x.is_literal or id(x) in scope.made:
            return x
        if id(x) not in scope.captured:
            inner = NnefValue(self.unique(x.name), x.type, x.array, x.fixed, x.packed, x.after)
            scope.captured[id(x)] = (x, inner)
            scope.made[id(inner)] = inner
        return scope.captured[id(x)][1]

    # -- hand-written fragments ------------------------------------------------------------------------------------

    def fragment(self, name: str) -> str:
        """Ship a hand-written fragment, and those that it calls, with the document; gives its name, for `emit`.

        Raises:
            RefusedError: no fragment has this name, it is not right, or it needs what this target lacks.
        """
        if name in self.fragments:
            return name
        definition = library.find(name, self.target.fragments)
        if definition is None:
            reason = f"there is no fragment {name!r}: give it to the target (fragments=[..]) or to add_fragments"
            raise RefusedError(refusal_text(self.target.name, self.node, reason))
        try:
            order = library.needed(definition, self.target.fragments)
        except DocumentError as error:  # a mistake in the text, for which no decomposition makes up
            raise RefusedError(refusal_text(self.target.name, self.node, str(error))) from error
        for shipped in order:
            for call, operator in library.operators_of(shipped):
                if not self.target.has(operator):
                    where = f"{shipped.place.rpartition(':')[0]}:{call.line}"
                    self.refuse(
                        f"the fragment {shipped.name} ({where}) needs {call.name}: {self.target.lacks(operator)}"
                    )
            self.extensions |= self.target.extensions_of(shipped)
            self.fragments[shipped.name] = shipped
        return name

    def apply(
        self,
        name: str,
        *inputs: Any,
        dtype: DType | Sequence[DType] | None = None,
        shape: Sequence[Any] | None = None,
        **attributes: Any,
    ) -> Any:
        """A call of a hand-written fragment; its result, or a list of them. `emit` does the same.

        Without `dtype` and `shape` the results have the types of the node's; with one result these are one type, with
        several a list each. Operands are not converted or aligned: a fragment's text says what it wants.

        Raises:
            RefusedError: as `fragment`.
            TypeError: an argument that the fragment has not, or results whose types are not said.
        """
        definition = self.fragments[self.fragment(name)]
        assert isinstance(definition, Definition)
        formals = [p[0] for p in definition.parameters]
        attributes = {k.rstrip("_"): a for k, a in attributes.items() if a is not None}
        given = {*formals[: len(inputs)], *attributes}
        missing = [p for p, _, has_default in definition.parameters if p not in given and not has_default]
        if len(inputs) > len(formals) or attributes.keys() - set(formals[len(inputs) :]) or missing:
            raise TypeError(f"the fragment {name} takes {formals}, got {len(inputs)} and {sorted(attributes)}")
        types = self._types(name, len(definition.results), dtype, shape)
        results = [NnefValue(self.unique(f"{self.node.name}_{r}"), t) for r, t in zip(definition.results, types)]
        given_inputs = tuple(map_values(list(inputs), self.written))
        step = self.step(results, name, given_inputs, {k: map_values(a, self.written) for k, a in attributes.items()})
        results = self.scope.add_once(step)
        return results if len(results) > 1 else results[0]

    def _types(self, name: str, count: int, dtype: Any, shape: Any) -> list[TensorType]:
        if dtype is None and shape is None and len(self.results) == count:
            return list(self.results)
        dtypes = list(dtype) if isinstance(dtype, (list, tuple)) else [dtype or self.out.dtype] * count
        shapes = list(shape or ()) if count > 1 else [shape]
        if len(dtypes) != count or len(shapes) != count or None in shapes:
            raise TypeError(f"the fragment {name} has {count} results: say dtype and shape of each")
        return [TensorType(d, tuple(s)) for d, s in zip(dtypes, shapes, strict=True)]

    # -- fragments made of handlers --------------------------------------------------------------------------------

    def step(self, *parts: Any) -> Step:
        """A step for the node that is lowered."""
        made = Step(*parts)
        made.node = self.driver.root_node if hasattr(self, "node") else None
        return made

    @contextlib.contextmanager
    def nested(self, loop: bool = False) -> Iterator[Scope]:
        """A fragment's scope."""
        self.scopes.append(Scope(names=set(self.symbols.values()), loop=loop or self.in_loop))
        try:
            yield self.scope
        finally:
            self.scopes.pop()

    def call(self, body: Body, inputs: Sequence[NnefValue]) -> list[NnefValue]:
        """A call of a fragment that holds the custom op's body."""
        if not self.target.tract:  # nnef-tools infers no shapes for fragments of one's own
            return self.inline(body.graph, inputs)
        assert body.name is not None
        known = tuple((x.fixed, x.packed) for x in inputs)  # tract expands the call, and sees then what is constant

        def inlined(formals: list[NnefValue]) -> Sequence[NnefValue]:
            for formal, (constant, packed) in zip(formals, known, strict=True):
                formal.fixed, formal.packed = constant, packed
            return self.inline(body.graph, formals)

        signature = body.graph, known, self.in_loop
        if signature not in self._bodies:
            name = str(body.name).replace("::", "_")
            made = self.define(name, [(v.name, v.type) for v in body.graph.inputs], inlined)
            self._bodies[signature] = made[0], [outer for outer, _ in made[2]]
        name, captured = self._bodies[signature]
        outputs = [(f"{self.node.name}_{name}", v.type) for v in body.graph.outputs]
        results = [NnefValue(self.unique(n), t, fixed=all(x.fixed for x in (*inputs, *captured))) for n, t in outputs]
        arguments = tuple(self.reachable(x) for x in (*inputs, *captured))
        self.scope.add(self.step(results, name, arguments, {}))
        return results

    def define(
        self,
        name: str,
        formals: Sequence[tuple[str, TensorType]],
        body: Callable[[list[NnefValue]], Sequence[NnefValue]],
        loop: bool = False,
    ) -> tuple[str, Fragment, list[tuple[NnefValue, NnefValue]]]:
        """A new fragment, the body of a loop perhaps: its name, itself, and what it takes from outside.

        The latter as (outer value, parameter).
        """
        with self.nested(loop) as scope:
            scope.formals = [NnefValue(self.unique(n), t) for n, t in formals]
            scope.made.update((id(f), f) for f in scope.formals)
            results: list[NnefValue] = []
            for r in body(list(scope.formals)):
                fresh = id(r) in scope.made and not any(r is x for x in (*results, *scope.formals))
                results.append(r if fresh and not any(r is i for _, i in scope.captured.values()) else self.copy(r))
        captured = list(scope.captured.values())
        parameters = [Parameter(f.name) for f in (*scope.formals, *(inner for _, inner in captured))]
        taken = {*self.fragments, *OPERATORS, *library.names(self.target.fragments)}
        unique = doc.identifier(name, taken)
        steps = tuple(s.operation() for s in live(scope.steps, results))
        made = Fragment(unique, tuple(parameters), tuple(Parameter(r.name) for r in results), steps)
        self.fragments[unique] = made
        return unique, made, captured

    def copy(self, x: NnefValue) -> NnefValue:
        """The same numbers under a name of their own."""
        made: NnefValue = self.emit("copy", x, shape=x.type.shape)
        return made

    @abc.abstractmethod
    def written(self, a: Any) -> Any:
        """An argument as it stands in the document."""


def called(
    operations: Sequence[Operation], fragments: Mapping[str, Fragment | Definition]
) -> list[Fragment | Definition]:
    """The fragments that these operations call, and those that they call in turn, in the order of `fragments`."""
    found: set[str] = set()
    open_ = {name for o in operations for name in (o.name, o.attributes.get("body"))}
    while open_:
        fresh = {str(name) for name in open_ if name in fragments} - found
        found |= fresh
        inner = (fragments[name] for name in fresh)
        open_ = {name for f in inner for name in _calls(f)}
    return [f for name, f in fragments.items() if name in found]


def _calls(fragment: Fragment | Definition) -> set[Any]:
    if isinstance(fragment, Definition):
        return {c.name for c in fragment.calls}
    return {name for o in fragment.operations for name in (o.name, o.attributes.get("body"))}
