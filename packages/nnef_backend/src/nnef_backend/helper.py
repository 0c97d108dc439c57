"""NnefHelper: the verbs of an NNEF handler. A value is a name in the document and our type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, cast, overload

import numpy as np

from ir.dims import Dim, Expr
from ir.errors import RefusedError
from ir.graph import Graph, Value, Weight
from ir.helper import numpy_dtype
from ir.types import DType, TensorType
from nnef_backend.building import batches, library
from nnef_backend.building.data_dependent_sizes import DataDependentSizes
from nnef_backend.building.exact import instead
from nnef_backend.building.fragments import called
from nnef_backend.building.hiding import as_said, number, opaque, repeated, sized, solid
from nnef_backend.building.operators import (
    CONTRACTIONS,
    OPERATORS,
    REARRANGEMENTS,
    ROUNDINGS,
    SEEN_THROUGH,
    SHORT,
    STORED,
    Operator,
)
from nnef_backend.building.reshaping import settled
from nnef_backend.building.shapes import infer
from nnef_backend.building.sizes import computed, is_textual, size_text
from nnef_backend.building.steps import NnefValue, Step, leaves, live, map_values, number_text
from nnef_backend.format import document as doc
from nnef_backend.format.dat import MAX_BYTES
from nnef_backend.format.document import Document
from nnef_backend.format.q4_0 import PACKED_OPS, packed_source


class NnefHelper(DataDependentSizes):
    """Builds one Document."""

    value_class = NnefValue

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.inputs: list[NnefValue] = []
        self.labels: dict[str, Any] = {}
        self.constants: dict[Any, NnefValue] = {}
        target.check_assertions(self.symbols[s] for s in self.known)

    # -- emission --------------------------------------------------------------------------------------------------

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
        inputs = tuple(self._operands(operator, inputs)) if operator.broadcasts else inputs
        if operator.name in CONTRACTIONS:
            inputs = tuple(solid(self, op, map_values(list(inputs), lambda x: opaque(self, x)), attributes))
        elif operator.broadcasts and all(x.fixed for x in inputs):
            inputs = tuple(opaque(self, x) if op == "select" or x.repeated else x for x in inputs)
        inputs = tuple(sized(self, op, inputs))
        if op in ROUNDINGS:
            inputs = map_values(inputs, lambda x: number(self, x))
        inputs = tuple(self.anchored(inputs, attributes))
        values = list(leaves(inputs))
        if op not in PACKED_OPS and any(v.packed for v in values):
            self.refuse(f"{op} does not read weights in Q4_0; leave this one out of the filter")
        element = values[op == "select"].type.dtype if values else None
        work = self._work(operator, element)
        if op == "tract_core_einsum" and work is DType.int64 and len(values) > 1:
            self.refuse("tract has no product of matrices of i64")
        if work is not element and work is not None:
            assert element is not None
            inputs = map_values(inputs, lambda x: self._through(x, element, work))
            attributes = {k: work if a is element else a for k, a in attributes.items()}
        shapes = infer(operator.rule, [v.type.shape for v in values], attributes, inputs) if shape is None else shape
        count = outputs or 1
        several = count > 1 or listed
        shapes = list(shapes) if shapes is not None and (several or op == "tract_core_scan") else [shapes] * count
        dtypes = list(dtype) if isinstance(dtype, (list, tuple)) else [dtype] * count
        fixed = all(v.fixed for v in leaves((inputs, list(attributes.values()))))  # a scan's operands are attributes
        after = frozenset[str]().union(*(v.after for v in leaves((inputs, list(attributes.values())))))
        results = []
        for i, s in enumerate(shapes):
            t: Any = dtypes[min(i, len(dtypes) - 1)] or self._result(operator, i, element, attributes)
            made = work if work is not None and t is element else t
            name = self.unique(f"{self._node_name}_{suffix or op.removeprefix('tract_core_')}")
            made_type = TensorType(made, cast(Any, s if s is None else tuple(s)))
            results.append(NnefValue(name, made_type, fixed=fixed, after=after))
            if s is not None:
                results[-1].batches = batches.of(op, values, cast(Any, s), attributes)
            if s is not None and len(values) == 1 and op in SEEN_THROUGH:
                results[-1].repeated = repeated(op, values[0], s, attributes)
                results[-1].source = values[0] if op in REARRANGEMENTS else None
        given = {k: map_values(a, self.written) for k, a in attributes.items()}
        op = op if self.target.tract else STANDARD_NAMES.get(op, op)
        step = Step(results, op, tuple(map_values(list(inputs), self.written)), given, generic, listed)
        results = self.scope.add_once(step)
        if work is not element and element is not None:
            results = [self.convert(r, element) if r.type.dtype is work else r for r in results]
        if op in _WINDOWED and self.mixed:
            results = [as_said(self, r) for r in results]
        return results if several else results[0]

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

    def bind(self, result: NnefValue, value: Value) -> NnefValue:
        """The result under its name in the graph, if a step of this node made it.

        What is known to have no elements needs no operation; tract aborts on some of them.
        """
        self.understand(result, value)
        if 0 in value.type.shape and (value.type.is_static or self.target.tract):
            return self.expand(self.const(0, value.type.dtype), value.type.shape)
        result = settled(self, result, value.type.shape)
        fresh = any(r is result for s in self.scope.steps[-8:] for r in s.results)
        if fresh and result.name.startswith(doc.identifier(f"{self.node.name}_")):
            self.scope.names.discard(result.name)
            result.name = self.unique(value.name)
        if (fresh or result.type.shape is None) and result.type.dtype is value.type.dtype:
            known = result.type.shape or value.type.shape  # torch writes H//(H//4) where a handler knows of a 4
            exact = [k if isinstance(k, int) else d for k, d in zip(known, value.type.shape, strict=True)]
            result.type = value.type.with_shape(exact)
        return result

    # -- constants, inputs, weights --------------------------------------------------------------------------------

    def constant(self, array: np.ndarray, name: str = "") -> NnefValue:
        """A constant tensor, shared by all equal ones; a number is written where it is used."""
        array = np.asarray(array)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            type = TensorType(DType[array.dtype.name], array.shape)
            if array.ndim == 0 and type.dtype not in STORED:
                self.refuse(f"tract has no {type.dtype} tensors")
            text = number_text(array, type.dtype, self.target.tract) if array.ndim == 0 else None
            made = NnefValue(doc.Expr(text), type, fixed=True) if text else self.variable(name or "const", type, array)
            made.array = array
            self.constants[key] = made
        return self.constants[key]

    def weight(self, value: Value, weight: Weight) -> NnefValue:
        """A weight: a variable whose file is written from the model's own tensor."""
        if value.type.dtype not in STORED:
            reason = f"tract has no {value.type.dtype} tensors"
            raise RefusedError(f"target {self.target.name!r} refuses {weight.name}: {reason}")
        if value.type.dtype is DType.bool and not self.target.tract:
            raise RefusedError(f"target {self.target.name!r} refuses {weight.name}: {_NO_BITS}")
        if not self.target.packs(self.graph, value, weight):
            small = weight.tensor is None and math.prod(s for s in value.type.shape if isinstance(s, int)) <= _SMALL
            return self.shared(weight, value.type) if small else self.variable(weight.name, value.type, weight.numpy)
        made = self.variable(weight.name, value.type, packed_source(weight))
        made.packed = True
        return made

    def shared(self, weight: Weight, type: TensorType) -> NnefValue:
        """A weight that a pass computed, or an equal one: what reads equal ones is merged here, not by tract."""
        array = weight.numpy()
        key = ("weight", array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self.variable(weight.name, type, lambda: array)
        return self.constants[key]

    def content(self, x: NnefValue) -> np.ndarray | None:
        """The numbers of a constant or a weight, None where they are only known at run time."""
        source = self.source(x)
        return None if source is None else source()

    def source(self, x: NnefValue) -> Callable[[], np.ndarray] | None:
        """What gives the numbers of a constant or a weight when it is called, None for all else."""
        held = self.labels.get(x.name) if x.array is None else x.array
        return held if held is None or callable(held) else lambda: held

    def variable(self, name: str, type: TensorType, source: Any) -> NnefValue:
        """Variables stand in the graph, whichever scope asks; those that nothing reads are left out in the end."""
        top = self.scopes[0]
        if type.dtype is DType.bool and not self.target.tract:
            self.refuse(f"it needs {_NO_BITS}")
        size = type.dtype.bits // 8 * math.prod(s for s in type.shape if isinstance(s, int))
        if size > MAX_BYTES:
            raise RefusedError(
                f"target {self.target.name!r} refuses {name}: {type} takes {size} bytes, and a tensor file of NNEF "
                "holds less than 4 GiB; split it in the model, or store it in halves"
            )
        numeric = self.target.naming == "numeric"
        variable = doc.identifier(f"w{len(self.labels)}" if numeric else name.replace(".", "_"), top.names)
        top.names.add(variable)
        # the file bears the weight's own name, as in the model's state_dict, if that is good for a file
        label = name if not numeric and _FILE_NAME.fullmatch(name) and "." in name else variable
        made = NnefValue(variable, type, fixed=True)
        self.labels[variable] = source
        attributes = {"label": label, "shape": list(type.shape)}
        top.add(Step([made], "variable", (), attributes, _GENERIC.get(type.dtype.kind, "scalar")))
        return made

    def input(self, value: Value) -> NnefValue:
        """An input of the document."""
        if value.type.dtype not in STORED:
            reason = f"tract has no {value.type.dtype} tensors"
            raise RefusedError(f"target {self.target.name!r} refuses input {value.name!r}: {reason}")
        made = NnefValue(self.public[value.name], value.type)
        self.inputs.append(made)
        if not self.target.tract:
            return self._standard_input(made)
        shape = [self.size(s) for s in value.type.shape]
        attributes = {"shape": shape, "datum_type": value.type.dtype.short}
        self.scope.add(Step([made], "tract_core_external", (), attributes))
        self.extensions.add("tract_registry tract_core")
        return made

    def _standard_input(self, made: NnefValue) -> NnefValue:
        """An input in standard NNEF, which knows numbers and truth values, no widths and no symbols."""
        if not made.type.is_static:
            reason = (
                f"its shape is {made.type}, and standard NNEF has no symbols; tract's extension tract_symbol has them"
            )
            raise RefusedError(f"target {self.target.name!r} refuses input {made.name!r}: {reason}")
        step = Step([made], "external", (), {"shape": list(made.type.shape)}, _GENERIC[made.type.dtype.kind])
        self.scope.add(step)
        return made

    def convert(self, x: NnefValue, dtype: DType) -> NnefValue:
        """`x` in another element type, by torch's rules: floats are cut off, integers wrap."""
        if dtype not in STORED:
            self.refuse(f"tract has no {dtype} tensors")
        if x.array is not None:
            return self.constant(x.array.astype(numpy_dtype(dtype)))
        if x.type.dtype.is_float and dtype.is_integer and dtype not in (DType.int32, DType.int64):
            x = self.convert(x, DType.int64)  # tract's own cast would saturate
        return self.emit("tract_core_cast", x, to=dtype)

    # -- sizes -----------------------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> Any:
        """A dimension as it stands in arguments: an int, or an expression over the symbols of the inputs."""
        dim = self.settled(dim)
        if not isinstance(dim, Expr):
            return dim
        if not is_textual(dim):
            self.refuse(f"the size {dim} has no form in tract's expressions")
        unknown = dim.symbols - self.known - self.masks.keys()
        if unknown:
            self.refuse(f"the size {dim} depends on data: no input has {', '.join(sorted(unknown))} in its shape")
        return doc.Expr(size_text(dim, lambda name: self.symbols.get(name) or doc.identifier(name), self.mixed))

    def scalar(self, value: Any, dtype: DType) -> NnefValue:
        """A 0-d tensor that holds a number or a size expression."""
        if not isinstance(value, Expr):
            return self.const(value, dtype)
        if not is_textual(value) or value.symbols - self.known or dtype is DType.bool:
            return self.cast(computed(self, value), dtype)
        self.extensions.add("tract_registry tract_core")
        text = f"tract_core_cast({self.size(value)}, to='{dtype.short}')"
        return NnefValue(doc.Expr(text), TensorType(dtype, ()), fixed=True)

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self, results: dict[str, NnefValue]) -> Document:
        """The document: named outputs, unused operations left out."""
        outputs: list[NnefValue] = []
        for name, result in results.items():
            is_source = any(result is i for i in self.inputs) or result.name in self.labels
            if id(result) not in self.scope.made or is_source or any(result is o for o in outputs):
                result = self.copy(result)
            result.name = self.public[name]
            outputs.append(result)
        steps = live(self.scope.steps, outputs, keep=self.inputs)
        variables = [s for s in steps if s.op == "variable"]
        operations = [s.operation() for s in steps]
        return Document(
            extensions=self._extensions(),
            fragments=called(operations, self.fragments),
            inputs=[i.name for i in self.inputs],
            outputs=[o.name for o in outputs],
            operations=operations,
            tensors={str(s.attributes["label"]): self.labels[s.results[0].name] for s in variables},
            properties=self.target.metadata,
        )

    def _extensions(self) -> list[str]:
        symbols = [f"tract_symbol {name}" for s, name in sorted(self.symbols.items()) if s in self.known]
        # numbers of other types than f32 are casts of tract's, where they stand
        registries = {"tract_registry tract_core"} if self.target.tract else set()
        assertions = [f"tract_assert {a}" for a in self.target.assertions]
        return [*sorted(self.extensions | registries), *symbols, *assertions]


_WINDOWED = frozenset({"conv", "deconv", "max_pool", "avg_pool", "box"})
STANDARD_NAMES = {"recip": "rcp", "square": "sqr"}  # where tract spells an operation its own way
_GENERIC = {"bool": "logical", "int": "integer", "uint": "integer", "float": "scalar"}
_SMALL = 1 << 10  # elements of a computed weight of which equals are merged
_NO_BITS = "a constant of truth values, which the standard packs in bits and we do not"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{,200}")
