"""Emission: one operation at a time, its operands brought to a form and an element type that the target computes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

import numpy as np

from ir.dims import Dim, Expr
from ir.types import DType, TensorType
from nnef_backend.building import batches, library
from nnef_backend.building.alike import alike, may_choose_constant, product_alike, repeated, still_alike, together
from nnef_backend.building.data_dependent_sizes import DataDependentSizes
from nnef_backend.building.exact import instead
from nnef_backend.building.hiding import (
    as_said,
    bare,
    exchanged,
    number,
    opaque,
    sized,
    solid,
    stretched,
)
from nnef_backend.building.operators import (
    CONTRACTIONS,
    MULTIPLIED,
    OPERATORS,
    REARRANGEMENTS,
    ROUNDINGS,
    SEEN_THROUGH,
    SHORT,
    STORED,
    Operator,
)
from nnef_backend.building.shapes import infer
from nnef_backend.building.steps import NnefValue, leaves, map_values
from nnef_backend.format.q4_0 import PACKED_OPS

_WINDOWED = frozenset({"conv", "deconv", "max_pool", "max_pool_with_index", "avg_pool", "box"})
STANDARD_NAMES = {"recip": "rcp", "square": "sqr"}  # where tract spells an operation its own way


@dataclass(frozen=True)
class _Wanted:
    """What a call of `emit` says of its results."""

    outputs: int
    dtype: DType | Sequence[DType] | None
    shape: Sequence[Any] | None
    generic: str
    listed: bool
    suffix: str

    @property
    def several(self) -> bool:
        return self.outputs > 1 or self.listed

    def shapes(
        self, operator: Operator, values: Sequence[NnefValue], inputs: Sequence[Any], attributes: dict[str, Any]
    ) -> list[Any]:
        """A shape for each result, None where it is not known."""
        made: Any = self.shape
        if made is None:
            made = infer(operator.rule, [v.type.shape for v in values], attributes, inputs)
        listed = self.several or operator.name == "tract_core_scan"
        return list(made) if made is not None and listed else [made] * self.outputs

    def dtype_of(self, index: int) -> DType | None:
        """The element type asked for, None where it follows from the operation."""
        if isinstance(self.dtype, (list, tuple)):
            asked: DType | None = self.dtype[min(index, len(self.dtype) - 1)]
            return asked
        return cast(DType | None, self.dtype)


class Emitter(DataDependentSizes):
    """`emit`, and how it sees what it is given."""

    @overload
    def emit(self, op: str, *inputs: Any, outputs: None = None, **attributes: Any) -> NnefValue: ...
    @overload
    def emit(self, op: str, *inputs: Any, **attributes: Any) -> Any: ...
    def emit(
        self,
        op: str,
        *inputs: Any,
        outputs: int | None = None,
        dtype: DType | Sequence[DType] | None = None,
        shape: Sequence[Dim] | Sequence[Sequence[Dim]] | None = None,
        generic: str = "",
        listed: bool = False,
        suffix: str = "",
        **attributes: Any,
    ) -> Any:
        """Add one operation and return its result, or a list of its results.

        Operands of operations that broadcast are aligned, and numbers among them become tensors of the others' element
        type. Operands of a type that tract's operation does not take go through a wider one where that is exact.

        Args:
            op: an operation of NNEF or of tract, whose extension is declared in the document; or a hand-written
                fragment, which `apply` calls.
            inputs: values, lists of values, numbers or dimensions.
            outputs: how many results.
            dtype, shape: the type of the result(s), where it does not follow from the operation. Without either a
                result's rank must not be asked for. Of reshape and broadcast `shape` is the parameter, too.
            generic: the text in `op<...>`.
            listed: write the results in brackets.
            suffix: what the result is called after the node's name, instead of the operation's.
            attributes: by name (`shape_` for one called shape); None leaves one out; values, dimensions, lists and
                DTypes are written in NNEF's way.

        Raises:
            RefusedError: this target has no such operation, or not for this element type.
            TypeError: the operation has no such parameter, or operands do not agree: a mistake in the handler.
        """
        if op not in OPERATORS and (op in self.fragments or library.find(op, self.target.fragments)):
            return self.apply(op, *inputs, dtype=dtype, shape=shape, **attributes)
        attributes = {k.rstrip("_"): a for k, a in attributes.items() if a is not None}
        if shape is not None and op in ("reshape", "tract_core_broadcast"):
            attributes.setdefault("shape", list(shape))
        operator = self._operator(op, len(inputs), attributes)
        if (made := instead(self, op, inputs, attributes)) is not None:
            return made
        wanted = _Wanted(outputs or 1, dtype, shape, generic, listed, suffix)
        results = self._added(operator, self._readable(operator, inputs, attributes), attributes, wanted)
        return results if wanted.several else results[0]

    def _added(
        self, operator: Operator, inputs: tuple[Any, ...], attributes: dict[str, Any], wanted: _Wanted
    ) -> list[NnefValue]:
        """One step of the document, through a wider element type where the operation has not that of its operands."""
        op, values = operator.name, list(leaves(inputs))
        element = values[op == "select"].type.dtype if values else None
        work = self._work(operator, element)
        if op == "tract_core_einsum" and work is DType.int64 and len(values) > 1:
            self.refuse("tract has no product of matrices of i64")
        if work is not element and work is not None:
            assert element is not None
            inputs = map_values(inputs, lambda x: self._through(x, element, work))
            attributes = {k: work if a is element else a for k, a in attributes.items()}
        results, said = [], []
        for i, shape in enumerate(wanted.shapes(operator, values, inputs, attributes)):
            dtype = wanted.dtype_of(i) or self._result(operator, i, element, attributes)
            said.append(dtype)
            made_in = work if work is not None and dtype is element else dtype
            results.append(self._value(op, wanted.suffix, made_in, shape, values, (inputs, attributes)))
        given = {k: map_values(a, self.written) for k, a in attributes.items()}
        name = op if self.target.tract else STANDARD_NAMES.get(op, op)
        operands = tuple(map_values(list(inputs), self.written))
        results = self.scope.add_once(self.step(results, name, operands, given, wanted.generic, wanted.listed))
        if work is not element and element is not None:
            results = [self.convert(r, t) if t is element else r for r, t in zip(results, said, strict=True)]
        if name in _WINDOWED and self.target.tract:
            results = [as_said(self, name, r, values, attributes) for r in results]
        return results

    def _readable(self, operator: Operator, inputs: Sequence[Any], attributes: dict[str, Any]) -> tuple[Any, ...]:
        """The operands aligned, and made anew where tract would misread what they are made of."""
        op = operator.name
        inputs = tuple(self._operands(operator, inputs)) if operator.broadcasts else inputs
        if op in CONTRACTIONS:
            inputs = tuple(solid(self, op, map_values(list(inputs), lambda x: opaque(self, x)), attributes))
        elif operator.broadcasts and all(x.fixed for x in inputs):
            inputs = tuple(opaque(self, x) if op == "select" or x.repeated else x for x in inputs)
        inputs = tuple(sized(self, op, inputs))
        inputs = tuple(exchanged(self, op, inputs)) if operator.broadcasts else inputs
        if op in ROUNDINGS:
            inputs = map_values(inputs, lambda x: number(self, x))
        inputs = tuple(self.anchored(inputs, attributes))
        if op not in PACKED_OPS and any(v.packed for v in leaves(inputs)):
            self.refuse(f"{op} does not read weights in Q4_0; leave this one out of the filter")
        return inputs

    def _value(
        self, op: str, suffix: str, dtype: DType, shape: Any, values: Sequence[NnefValue],
        operands: tuple[Sequence[Any], dict[str, Any]],
    ) -> NnefValue:  # fmt: skip
        """A result of the operation on these values, and what is known of it from its operands."""
        inputs, attributes = operands
        read = list(leaves((inputs, list(attributes.values()))))  # a scan's operands are attributes
        name = self.unique(f"{self._node_name}_{suffix or op.removeprefix('tract_core_')}")
        type = TensorType(dtype, cast(Any, shape if shape is None else tuple(shape)))
        after = frozenset[str]().union(*(v.after for v in read))
        made = NnefValue(name, type, fixed=all(v.fixed for v in read), after=after)
        made.fixed |= op == "select" and may_choose_constant(*values)
        if shape is None:
            return made
        made.batches = batches.of(op, values, shape, attributes)
        if len(values) == 1 and op in SEEN_THROUGH:
            x = values[0]
            made.repeated = repeated(op, x.type.shape, x.repeated, shape, attributes)
            made.alike = still_alike(op, x.type.shape, x.alike, shape, attributes)
            made.source = x if op in REARRANGEMENTS else None
        elif op == "slice":
            made.alike = values[0].alike
        elif op in CONTRACTIONS:
            made.alike = product_alike(op, values, shape, attributes)
        elif values and OPERATORS[op].broadcasts:
            made.alike = alike(values, shape)
            if op in MULTIPLIED:
                made.repeated = together([(v.type.shape, v.repeated) for v in values], shape)
        return made

    @property
    def _node_name(self) -> str:
        node = getattr(self, "node", None)
        return node.name if node is not None else self.graph.name

    def has(self, op: str) -> bool:
        """True if the target has the operation."""
        operator = OPERATORS[op]
        return bool(self.target.has(operator))

    def _operator(self, op: str, count: int, attributes: dict[str, Any]) -> Operator:
        operator = OPERATORS.get(op)
        if operator is None:
            raise TypeError(f"{op} is no operation of nnef_backend.operators and no fragment that is known")
        unknown = attributes.keys() - set(operator.named)
        if unknown or count > len(operator.positional):
            raise TypeError(
                f"{op} takes {len(operator.positional)} positional parameters and {operator.named} by name, "
                f"got {count} and {sorted(attributes)}"
            )
        if not self.target.has(operator):
            self.refuse(f"it needs {op}: {self.target.lacks(operator)}")
        if operator.extension:
            self.extensions.add(operator.extension)
        return operator

    def _operands(self, operator: Operator, inputs: Sequence[Any]) -> list[NnefValue]:
        first = operator.name == "select"
        known = [x.type.dtype for x in inputs[first:] if isinstance(x, NnefValue)]
        if len(set(known)) != 1:
            raise TypeError(f"the operands of {operator.name} have element types {known}")
        made = self.align(*inputs[:first], *(self.tensor(x, known[0]) for x in inputs[first:]))
        made = stretched(self, bare(self, made))
        if operator.name == "mul" and known[0].is_integer and made[0].may_be(made[1]):
            # tract makes a square of what is one to it, which fails on i64 and i16 and saturates on u8
            made[1] = self.emit("max", made[1], int(np.iinfo(known[0].name).min))
        return made

    def _work(self, operator: Operator, element: DType | None) -> DType | None:
        """The element type to do it in; refused if neither the operands' own nor a wider one will do."""
        if element is None:
            return None
        if element not in STORED:
            self.refuse(f"tract has no {element} tensors")
        work: DType | None = self.target.work(operator, element)
        if work is None:
            self.refuse(f"{self.target.dialect} has no {operator.name} of {element}{self.way_out(element)}")
        return work

    def _through(self, x: Any, element: DType, work: DType) -> Any:
        return self.convert(x, work) if isinstance(x, NnefValue) and x.type.dtype is element else x

    def _result(self, operator: Operator, i: int, element: DType | None, attributes: dict[str, Any]) -> DType:
        words = operator.result.split()
        word = words[min(i, len(words) - 1)]
        if word == "to":
            made: DType = attributes["to"]
            return made
        if word != "=":
            return SHORT[word]
        return element or self.out.dtype

    def written(self, a: Any) -> Any:
        """An argument as it stands in the document: a size as an expression, an element type by its short name."""
        if isinstance(a, DType):
            return a.short
        if isinstance(a, Expr):
            return self.size(a)
        return self.reachable(a) if isinstance(a, NnefValue) else a
