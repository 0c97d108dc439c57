"""OnnxHelper: constants, weights, the finished model. The verbs stand in the files below it:
emission <- sizes <- verbs <- graphs <- helper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir

from ir import dims as d
from ir.errors import RefusedError
from ir.graph import Graph, Value, Weight
from ir.types import DType, TensorType
from onnx_backend.building.assemble import make_model
from onnx_backend.building.dtypes import FLOAT8, TO_ONNX, saturates
from onnx_backend.building.graphs import Graphs
from onnx_backend.building.made import Index, Made
from onnx_backend.building.told_shapes import told_shape
from onnx_backend.building.values import OnnxValue as OnnxValue
from onnx_backend.format.writer import INSIDE


class OnnxHelper(Graphs):
    """Builds one onnx_ir.Model."""

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.inputs: list[OnnxValue] = []
        self.initializers: dict[Any, onnx_ir.Value] = {}
        self._derived: dict[Any, OnnxValue] = {}

    # -- constants, inputs, weights --------------------------------------------------------------------------------

    def constant(self, array: np.ndarray, name: str = "") -> OnnxValue:
        """A constant: an initializer shared by all equal ones, or a Constant node inside a function."""
        array = np.asarray(array)
        dtype = DType[_ML_NAMES.get(array.dtype.name, array.dtype.name)]
        key = (dtype, array.shape, array.tobytes())
        found = self.home.constants.get(key)
        if found is None:
            tensor = onnx_ir.tensor(array, dtype=TO_ONNX[dtype])
            found = self._hold(tensor, TensorType(dtype, array.shape), name or "const", key)
            found.array = array
            self.home.constants[key] = found
        return found

    def weight(self, value: Value, weight: Weight) -> OnnxValue:
        """A weight by reference to the model's own tensor; weights that are the same memory are one."""
        held = self.home.constants.get(_memory(weight))
        if held is None:
            held = self._hold(_tensor(weight), value.type, weight.name, id(weight))
            self.home.constants[_memory(weight)] = held
        if weight.type.is_static and d.product(weight.type.shape) == 1:
            held.array = weight.numpy()
        return held

    def derived(
        self,
        what: Any,
        sources: Sequence[OnnxValue],
        make: Callable[..., np.ndarray],
        shape: Sequence[int],
        dtype: DType | None = None,
        stored: onnx_ir.DataType | None = None,
        within: Callable[[Index], Index] | None = None,
    ) -> OnnxValue | None:
        """A weight that is made from the model's own when it is written, and shared by all that ask for the same.

        None where one of the sources is computed at run time, or is to stay as it lies in a file; `make` gets their
        content as arrays. The element type is that of the first source unless given; `stored` is one that the file has
        and the IR has not, as int4. `within`, where the result is made number by number: the index of the sources that
        has the numbers of an index of the result.
        """
        held: list[Any] = [s.value.const_value for s in sources]
        if any(t is None for t in held):
            return None
        if self.target.keeps_weights and dtype is None and stored is None and any(t.nbytes >= INSIDE for t in held):
            return None
        key = (what, *(id(t) for t in held))
        if key not in self._derived:
            type = TensorType(dtype or sources[0].type.dtype, tuple(shape))
            kind = stored or TO_ONNX[type.dtype]
            tensor = Made(make, held, kind, _shape_of(type), within)
            self._derived[key] = self._hold(tensor, type, sources[0].name, key)
            self._derived[key].value.type = onnx_ir.TensorType(kind)
        return self._derived[key]

    def shaped(self, x: OnnxValue, shape: Sequence[int]) -> OnnxValue:
        """A parameter in another shape; a weight is written so."""
        if x.type.shape == tuple(shape):
            return x
        return self.derived(("shaped", tuple(shape)), [x], lambda a: a.reshape(shape), shape) or self.reshape(x, shape)

    def _hold(self, tensor: Any, type: TensorType, name: str, key: Any) -> OnnxValue:
        value = onnx_ir.Value(name=self.names.unique(name), type=onnx_ir.TensorType(TO_ONNX[type.dtype]))
        value.shape = _shape_of(type)
        if self.home.function:
            self.home.nodes.insert(0, self.node_of("", "Constant", [], [onnx_ir.AttrTensor("value", tensor)], [value]))
        else:
            tensor.name = value.name
            value.const_value = tensor
            self.initializers[key, len(self.initializers)] = value
        return OnnxValue(value, type)

    def input(self, value: Value) -> OnnxValue:
        """An input with its dynamic dimensions by name."""
        made = OnnxValue(onnx_ir.Value(name=value.name), value.type)
        made.describe()
        self.inputs.append(made)
        return made

    def convert(self, x: OnnxValue, dtype: DType) -> OnnxValue:
        if x.array is not None and not dtype.is_complex and not x.type.dtype.is_complex:
            if not (dtype.is_integer and x.type.dtype.is_float):
                return self.const(x.array, dtype)
            if (np.abs(x.array.astype(np.float64)) < 2**63).all():  # cut off, and not refused: a cast was asked for
                return self.const(np.trunc(x.array.astype(np.float64)).astype(np.int64), dtype)
        if dtype.is_complex or x.type.dtype.is_complex:
            self.refuse(f"ONNX's Cast knows no complex numbers ({x.type.dtype} to {dtype})")

        def make() -> OnnxValue:
            made = self.emit("Cast", x, to=dtype, saturate=0 if dtype in FLOAT8 and not saturates(dtype) else None)
            made.before = x
            return made

        return self._cached(("cast", id(x.value), dtype), make)

    def bind(self, result: OnnxValue, value: Value) -> OnnxValue:
        """The result under its name in the graph; the type is the graph's."""
        producer = result.value.producer()
        fresh = producer is not None and bool(result.name) and result.name.startswith(f"{self.node.name}.")
        if fresh and value.name not in self.names.taken:
            result.value.name = self.names.unique(value.name)
        result.type = value.type if result.type.dtype is value.type.dtype else result.type
        if self.target.metadata:
            result.describe()
        return result

    def told_shape(self, result: OnnxValue, operands: Sequence[OnnxValue]) -> Sequence[d.Dim] | None:
        return told_shape(result, operands, self.domains)

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self, results: dict[str, OnnxValue]) -> onnx_ir.Model:
        """The model: named outputs, unused nodes and initializers left out."""
        if not results:
            raise RefusedError(f"target {self.target.name!r}: the model gives numbers and no tensor; call it in Python")
        outputs: list[OnnxValue] = []
        taken: set[str] = {i.name for i in self.inputs}
        for name, result in results.items():
            producer = result.value.producer()
            if producer is None or result.name in taken or any(result.value is o.value for o in outputs):
                type = result.type
                result = self.emit("Identity", result)
                result.type = type
            result.value.name = name
            taken.add(name)
            result.describe()
            outputs.append(result)
        return make_model(self, outputs)


_ML_NAMES = {"float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2", "bool_": "bool"}


def _shape_of(type: TensorType) -> onnx_ir.Shape:
    """The shape of a weight, whose dimensions are numbers."""
    return onnx_ir.Shape([int(d) for d in type.shape if isinstance(d, int)])


def _tensor(weight: Weight) -> Any:
    """An onnx_ir tensor that reads the weight when it is written."""
    if weight.tensor is None:
        shape, dtype = _shape_of(weight.type), TO_ONNX[weight.type.dtype]
        return onnx_ir.LazyTensor(lambda: onnx_ir.tensor(weight.numpy()), dtype=dtype, shape=shape, name=weight.name)
    from onnx_ir.tensor_adapters import TorchTensor

    return TorchTensor(weight.tensor.detach(), name=weight.name)


def _memory(weight: Weight) -> Any:
    """What two weights share that are the same elements of the same memory."""
    t = weight.tensor
    return id(weight) if t is None or not t.numel() else (t.data_ptr(), t.dtype, tuple(t.shape), tuple(t.stride()))
