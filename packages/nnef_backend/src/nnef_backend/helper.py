"""NnefHelper: the verbs of an NNEF handler. A value is a name in the document and our type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ir.dims import Dim, Expr
from ir.errors import RefusedError
from ir.graph import Graph, Value, Weight
from ir.helper import numpy_dtype
from ir.types import DType, TensorType
from nnef_backend.building.alike import uniform
from nnef_backend.building.emission import Emitter
from nnef_backend.building.fragments import called
from nnef_backend.building.hiding import hide, maker, unfused
from nnef_backend.building.operators import STORED
from nnef_backend.building.reshaping import settled
from nnef_backend.building.sizes import computed, is_textual, opaque_size, product_text, size_text
from nnef_backend.building.steps import NnefValue, Scope, Step, live, number_text
from nnef_backend.format import document as doc
from nnef_backend.format.dat import MAX_BYTES
from nnef_backend.format.document import Document
from nnef_backend.format.q4_0 import packed_source


class NnefHelper(Emitter):
    """Builds one Document."""

    value_class = NnefValue

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.inputs: list[NnefValue] = []
        self.variables: dict[int, tuple[NnefValue, Any]] = {}  # by id, with what they hold: names are a scope's own
        self.files: set[str] = set()  # of variables, without their suffix
        self.constants: dict[Any, NnefValue] = {}
        self.signs: dict[Any, tuple[NnefValue, np.ndarray]] = {}  # of small variables the first with these numbers
        self.taken: list[tuple[Scope, NnefValue]] = []  # where a branch is written, and whether it is the one taken
        target.check_assertions(self.symbols[s] for s in self.known)

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
            made.array, made.alike = array, uniform(array)
            self.constants[key] = self._with_signs_of_zeros(made, array)
        return self.constants[key]

    def weight(self, value: Value, weight: Weight) -> NnefValue:
        """A weight: a variable whose file is written from the model's own tensor."""
        if value.type.dtype not in STORED:
            reason = f"tract has no {value.type.dtype} tensors"
            raise RefusedError(f"target {self.target.name!r} refuses {weight.name}: {reason}")
        if value.type.dtype is DType.bool and not self.target.tract:
            raise RefusedError(f"target {self.target.name!r} refuses {weight.name}: {_NO_BITS}")
        if not self.target.packs(self.graph, value, weight):
            small = math.prod(s for s in value.type.shape if isinstance(s, int)) <= _SMALL
            if small and weight.tensor is None:
                return self.shared(weight, value.type)
            made = self.variable(weight.name, value.type, weight.numpy)
            if not small:
                return made
            made.alike = uniform(weight.numpy())
            return self._with_signs_of_zeros(made, weight.numpy())
        made = self.variable(weight.name, value.type, packed_source(weight))
        made.packed = True
        return made

    def shared(self, weight: Weight, type: TensorType) -> NnefValue:
        """A weight that a pass computed, or an equal one: what reads equal ones is merged here, not by tract."""
        array = weight.numpy()
        key = ("weight", array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            made = self.variable(weight.name, type, lambda: array)
            made.alike = uniform(array)
            self.constants[key] = self._with_signs_of_zeros(made, array)
        return self.constants[key]

    def _with_signs_of_zeros(self, made: NnefValue, array: np.ndarray) -> NnefValue:
        """A constant whose zeros keep their signs, which tract loses: it merges constants that compare equal.

        One that equals an earlier constant but for these signs is written as that constant times 1 and -1, which tract
        cannot compute while it loads. One of zeros alone is so in any case: tract may compute an equal one of others.
        """
        if not made.type.dtype.is_float or not self.target.tract or not self.inputs or array.all():
            return made
        plain = array + array.dtype.type(0)  # -0.0 + 0.0 is 0.0
        if not array.any() and np.signbit(array).any():
            first, known = self.constant(plain), plain
        else:
            first, known = self.signs.setdefault((made.type, plain.tobytes()), (made, array))
        if not (other := np.signbit(array) != np.signbit(known)).any():
            return made
        inner, self.scopes[1:] = self.scopes[1:], []  # it stands where a variable stands, for whatever reads it
        try:
            return self.emit("mul", first, hide(self, self.constant(np.where(other, -1, 1).astype(array.dtype))))
        finally:
            self.scopes[1:] = inner

    def content(self, x: NnefValue) -> np.ndarray | None:
        """The numbers of a constant or a weight, None where they are only known at run time."""
        source = self.source(x)
        return None if source is None else source()

    def source(self, x: NnefValue) -> Callable[[], np.ndarray] | None:
        """What gives the numbers of a constant or a weight when it is called, None for all else."""
        held = self.variables.get(id(x), (x, None))[1] if x.array is None else x.array
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
        variable = doc.identifier(f"w{len(self.variables)}" if numeric else name.replace(".", "_"), top.names)
        top.names.add(variable)
        # the file bears the weight's own name, as in the model's state_dict, if that is good for a file and still free:
        # a weight is stored twice if a batch norm stands behind one of its two calls
        named = not numeric and _FILE_NAME.fullmatch(name) and "." in name and name not in self.files
        label = name if named else variable
        self.files.add(label)
        made = NnefValue(variable, type, fixed=True)
        self.variables[id(made)] = made, source
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
        """`x` in another element type, by torch's rules: floats are cut off, integers wrap.

        What has axes of size 1 more or less is cast before: tract makes one of both orders itself, and may fail on it.
        So is a constant that fills a shape: of a `false` all over tract keeps its products in another shape.
        """
        if dtype not in STORED:
            self.refuse(f"tract has no {dtype} tensors")
        if x.array is not None:
            return self.constant(x.array.astype(numpy_dtype(dtype)))
        step = maker(self, x)
        if self.target.tract and step is not None and step.op in ("unsqueeze", "squeeze"):
            return self.emit(step.op, self.convert(step.inputs[0], dtype), axes=step.attributes["axes"])
        if step is not None and step.op == "tract_core_broadcast" and step.inputs[0].array is not None:
            return self.expand(self.convert(step.inputs[0], dtype), x.type.shape)
        if dtype.is_float and x.is_literal and x.type.dtype.is_integer and self.target.tract:
            x = opaque_size(self, x)  # tract reduces `H / (2*H)` to 1 / 2, and computes it as sizes are: to 0
        if x.type.dtype.is_float and dtype.is_integer and dtype not in (DType.int32, DType.int64):
            x = self.convert(x, DType.int64)  # tract's own cast would saturate
        if self.target.tract and dtype.is_float and x.type.dtype is DType.float64:
            x = unfused(self, x)
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
        return doc.Expr(size_text(dim, self._symbol_text, self.mixed))

    def product(self, sizes: Sequence[Dim]) -> Any:
        """Sizes multiplied by tract; those of a shape that `size` has taken."""
        return doc.Expr(product_text([self.settled(s) for s in sizes], self._symbol_text, self.mixed))

    def _symbol_text(self, name: str) -> str:
        return self.symbols.get(name) or doc.identifier(name)

    def scalar(self, value: Any, dtype: DType) -> NnefValue:
        """A 0-d tensor that holds a number or a size expression."""
        if not isinstance(value, Expr):
            return self.const(value, dtype)
        if not is_textual(value) or value.symbols - self.known or dtype is DType.bool:
            return self.cast(computed(self, value), dtype)
        if dtype.is_float:
            return self.convert(self.scalar(value, DType.int64), dtype)
        self.extensions.add("tract_registry tract_core")
        text = f"tract_core_cast({self.size(value)}, to='{dtype.short}')"
        return NnefValue(doc.Expr(text), TensorType(dtype, ()), fixed=True)

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self, results: dict[str, NnefValue]) -> Document:
        """The document: named outputs, unused operations left out."""
        outputs: list[NnefValue] = []
        for name, result in results.items():
            is_source = any(result is i for i in self.inputs) or id(result) in self.variables
            if id(result) not in self.scope.made or is_source or any(result is o for o in outputs):
                result = self.copy(result)
            result.name = self.public[name]
            outputs.append(result)
        steps = live(self.scope.steps, outputs, keep=self.inputs)
        variables = [s for s in steps if s.op == "variable"]
        operations = [s.operation(self.target.noted) for s in steps]
        return Document(
            extensions=self._extensions(),
            fragments=called(operations, self.fragments),
            inputs=[i.name for i in self.inputs],
            outputs=[o.name for o in outputs],
            operations=operations,
            tensors={str(s.attributes["label"]): self.variables[id(s.results[0])][1] for s in variables},
            properties=self.target.metadata,
        )

    def _extensions(self) -> list[str]:
        symbols = [f"tract_symbol {name}" for s, name in sorted(self.symbols.items()) if s in self.known]
        # numbers of other types than f32 are casts of tract's, where they stand
        registries = {"tract_registry tract_core"} if self.target.tract else set()
        assertions = [f"tract_assert {a}" for a in self.target.assertions]
        return [*sorted(self.extensions | registries), *symbols, *assertions]


_GENERIC = {"bool": "logical", "int": "integer", "uint": "integer", "float": "scalar"}
_SMALL = 1 << 10  # elements of a weight whose numbers are looked at: computed ones that are equal are merged
_NO_BITS = "a constant of truth values, which the standard packs in bits and we do not"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{,200}")
