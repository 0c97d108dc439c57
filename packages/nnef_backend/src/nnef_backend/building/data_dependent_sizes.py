"""Sizes that data decides: how many elements are not zero, as symbols that tract binds while it runs.

tract binds such a symbol when the operation that counts has run. An operation that names the symbol and reads nothing
that follows from the count might run before: `anchored` gives it an operand that does follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ir import dims
from ir.dims import Dim, Expr, product, substitute
from ir.graph import Body, Graph, Value
from ir.types import DType, TensorType
from nnef_backend.building.fragments import Scoped
from nnef_backend.building.hiding import hide
from nnef_backend.building.operators import OPERATORS
from nnef_backend.building.sizes import computed, mixed_quotients
from nnef_backend.building.steps import NnefValue, leaves
from nnef_backend.format import document as doc

COUNT = "tract_onnx_non_zero"


class DataDependentSizes(Scoped):
    """The part of the helper that counts."""

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.known = {s for v in graph.inputs for s in _symbols(v.type.shape)}
        shapes = [v.type.shape for node in graph.nodes for v in node.outputs]
        self.mixed = mixed_quotients([*shapes, *(list(_dims(node.args)) for node in graph.nodes)])
        self._found: dict[int, tuple[NnefValue, NnefValue]] = {}  # by id of what is counted: that, and the places
        self.masks: dict[str, NnefValue] = {}  # what a symbol of the document counts
        self._zeros: dict[str, NnefValue] = {}  # `false`, known when the symbol is
        self._meant: dict[str, Dim] = {}  # a graph's symbol in those of the document

    def nonzero(self, x: NnefValue) -> NnefValue:
        """Where `x` is not zero, in the order of its elements: i64 [rank, count], for a rank of 1 at least.

        Raises:
            Refusal: the target cannot count, or this stands in a loop, where tract keeps the first round's count.
        """
        if product(x.type.shape) == 0:
            return self.constant(np.zeros((x.type.rank, 0), np.int64))
        known = self.content(x)  # tract counts a constant while it loads, and has no such symbol when it runs
        if known is not None:
            return self.constant(np.stack(np.nonzero(known)))
        self.must_count()
        if self.scope is not self.scopes[0]:
            self.refuse("a size that depends on data inside of a loop: tract would keep that of the first round")
        mask = self.cast(x, DType.bool)
        if id(mask) not in self._found:
            name = self._count_name()
            symbol = f"={name}"  # no graph has a symbol of this name
            self.symbols[symbol] = name
            shape = x.type.rank, dims.symbol(symbol)
            if mask.fixed and not self.inputs:
                self.refuse("the size of its result depends on constants only; compute it once in the model's __init__")
            seen = hide(self, mask) if mask.fixed else mask
            found = self.emit(COUNT, seen, count_symbol=name, shape=shape)
            found.after |= {symbol}
            self._found[id(mask)] = mask, found
            self.masks[symbol] = mask
            self._zeros[symbol] = self.reduce("any_reduce", self.emit("lt", found, 0), None)
        return self._found[id(mask)][1]

    def must_count(self) -> None:
        """Refuse the node where the target has no sizes that depend on data."""
        if not self.has(COUNT):
            self.refuse(f"the size of the result depends on data: {self.target.lacks(OPERATORS[COUNT])}")

    def _count_name(self) -> str:
        """What torch calls the count, if that is free."""
        for symbol in (s for r in self.results for s in _symbols(r.shape)):
            name = self.symbols.get(symbol)
            if name and symbol not in self.known and f"={name}" not in self.masks:
                return name
        return self.unique("count")

    def understand(self, result: NnefValue, value: Value) -> None:
        """Note what the sizes of a result mean."""
        for size, made in zip(value.type.shape, result.type.shape or (), strict=False):
            if not isinstance(size, Expr) or not size.as_symbol or size.as_symbol in {*self.known, *_symbols([made])}:
                continue
            self._meant[size.as_symbol] = self.settled(made)

    def settled(self, dim: Dim) -> Dim:
        """The dimension in the document's symbols."""
        meant: Dim = substitute(dim, self._meant)
        return meant

    def counted(self, x: Any) -> frozenset[str]:
        """The document's symbols in these dimensions that data decides."""
        return frozenset(s for d in _dims(x) for s in _symbols([self.settled(d)]) if s in self.masks)

    def anchored(self, inputs: Sequence[Any], attributes: Any) -> Sequence[Any]:
        """The operands, one of which follows from every count that is named."""
        missing = self.counted((inputs, attributes)) if self.masks else frozenset()
        missing = missing.difference(*(x.after for x in leaves((inputs, list(attributes.values())))))
        if not missing:
            return inputs
        made = list(inputs)
        places = [i for i, x in enumerate(inputs) if isinstance(x, NnefValue)]
        if not places:
            self.refuse("a size that depends on data is used where no tensor is an operand")
        first = places[0]
        for symbol in sorted(missing):
            x, zero = made[first], self._zeros[symbol]
            op = "ne" if x.type.dtype is DType.bool else "add"  # tract knows what `or` of true is, and counts nothing
            made[first] = self.emit(op, x, self.cast(zero, x.type.dtype))
        return made

    def symbol_value(self, name: str) -> NnefValue:
        """A symbol as a 0-d tensor: a size of an input, a count, or a number that was read out of a tensor."""
        if name in self.known:
            text = f"tract_core_cast({self.symbols.get(name) or name}, to='i64')"
            return NnefValue(doc.Expr(text), TensorType(DType.int64, ()), fixed=True)
        if name in self._meant:
            return computed(self, self._meant[name])
        if name in self.masks:
            mask = self.cast(self.masks[name], DType.int64)
            return self.reduce("sum_reduce", self.reshape(mask, [product(mask.type.shape)]), 0)
        value, source = self.driver.symbol(name)
        if source.axis is not None:
            self.refuse(f"the size {name} depends on data")
        return (
            value
            if value.type.dtype in (DType.float64, DType.bool)
            else self.cast(value, DType.float64 if value.type.dtype.is_float else DType.int64)
        )

    def call(self, body: Body, inputs: Sequence[NnefValue]) -> list[NnefValue]:
        """A call of a fragment; in place where sizes depend on data, for these have one meaning in a document."""
        made = {n for n, s in body.graph.sources.items() if s.axis is not None and s.value not in body.graph.inputs}
        given = {s for x in inputs for s in _symbols(x.type.shape or ())}
        if (made | given) - self.known:
            return self.inline(body.graph, inputs)
        return super().call(body, inputs)


def _symbols(shape: Iterable[Dim]) -> list[str]:
    return [s for dim in shape if isinstance(dim, Expr) for s in sorted(dim.symbols)]


def _dims(x: Any) -> Iterable[Expr]:
    """The dimensions in nested lists and mappings."""
    if isinstance(x, Expr):
        yield x
    elif isinstance(x, (list, tuple, dict)):
        for item in x.values() if isinstance(x, dict) else x:
            yield from _dims(item)
