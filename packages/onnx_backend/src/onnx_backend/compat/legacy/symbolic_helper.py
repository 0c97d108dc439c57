"""The functions that symbolic functions commonly import from torch.onnx.symbolic_helper, under the same names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import onnx_ir
import torch

from ir.importer.schema import DTYPES
from onnx_backend.building.dtypes import TO_ONNX
from onnx_backend.compat.legacy.graph import CURRENT, GraphContext
from onnx_backend.compat.legacy.values import NAMED_DTYPES, JitScalarType, Node, Value

_ONNX = {n: onnx_ir.DataType(int(TO_ONNX[DTYPES[d]])) for n, d in NAMED_DTYPES.items() if DTYPES.get(d) in TO_ONNX}
cast_pytorch_to_onnx = _ONNX
scalar_type_to_onnx = [_ONNX.get(name, onnx_ir.DataType.UNDEFINED) for name in NAMED_DTYPES]
scalar_type_to_pytorch_type = list(NAMED_DTYPES.values())
scalar_name_to_pytorch = {name: str(dtype).removeprefix("torch.") for name, dtype in NAMED_DTYPES.items()}
pytorch_name_to_type = dict(NAMED_DTYPES)
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "i": int, "f": float, "b": bool, "s": str, "t": torch.as_tensor,
    "is": lambda v: [int(x) for x in v], "fs": lambda v: [float(x) for x in v],
}  # fmt: skip


# -- arguments ---------------------------------------------------------------------------------------------------------


def parse_args(*arg_descriptors: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: unpack the arguments after `g`.

    "v" keeps a value; "i", "f", "b", "s", "t" make an int, a float, a bool, a string, a tensor; "is" and "fs" make
    lists; "none" is unused.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def unpacked(g: GraphContext, *args: Any, **kwargs: Any) -> Any:
            if len(args) > len(arg_descriptors):
                raise TypeError(f"{fn.__name__} declares {len(arg_descriptors)} arguments and gets {len(args)}")
            return fn(g, *(_parse_arg(a, d) for a, d in zip(args, arg_descriptors, strict=False)), **kwargs)

        return unpacked

    return decorate


def quantized_args(*descriptors: bool, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function as it is; graphs here hold no quantised tensors, only quantise and dequantise ops."""
    return lambda fn: fn


def _parse_arg(value: Any, desc: str, arg_name: str | None = None, node_name: str | None = None) -> Any:
    if desc in ("none", "v") or not _is_value(value):
        return value
    return _get_const(value, desc, arg_name or desc)


def _get_const(value: Any, desc: str, arg_name: str) -> Any:
    """The content of a constant, refused where it is computed when the model runs."""
    if not _is_value(value):
        return value
    try:
        found = value.constant()
    except LookupError as error:
        _refuse(f"its symbolic function wants the constant {arg_name!r}, which is {error}: only known at run time")
    return None if found is None else _MAKERS[desc](found)


def _maybe_get_const(value: Any, descriptor: str) -> Any:
    return _parse_arg(value, descriptor) if _is_value(value) and _is_onnx_constant(value) else value


def _maybe_get_scalar(value: Any) -> Any:
    found = _maybe_get_const(value, "t")
    return found if isinstance(found, torch.Tensor) and found.shape == () else value


def _scalar(x: Any) -> Any:
    return x.item() if isinstance(x, torch.Tensor) and x.shape == () else None


def _node_get(node: Node, key: str) -> Any:
    return node[key]


def _unpack_list(list_value: Value) -> list[Value]:
    if not _is_packed_list(list_value):
        _refuse(f"its symbolic function unpacks {list_value}, which is no list")
    return list(list_value.content)


_unpack_tuple = _unpack_list


# -- questions ---------------------------------------------------------------------------------------------------------


def _is_value(x: Any) -> bool:
    return isinstance(x, Value)


def _is_none(x: Any) -> bool:
    return x is None or (_is_value(x) and x.content is None)


def _is_constant(value: Any) -> bool:
    return not _is_value(value) or value.node().kind().endswith("::Constant")


def _is_onnx_constant(value: Value) -> bool:
    return value.node().kind() == "onnx::Constant"


def _is_packed_list(list_value: Any) -> bool:
    return _is_value(list_value) and isinstance(list_value.content, list)


def _is_tensor(x: Value) -> bool:
    return bool(x.type().kind() == "TensorType")


def _is_list(x: Value) -> bool:
    return bool(x.type().kind() == "ListType")


def _is_tensor_list(x: Value) -> bool:
    return _is_packed_list(x) and all(_is_tensor(v) for v in x.content)


def _is_scalar_list(x: Value) -> bool:
    return _is_packed_list(x) and not _is_tensor_list(x)


def _is_fp(value: Any) -> bool:
    dtype = _dtype(value)
    return dtype is not None and dtype.is_floating_point


def _is_bool(value: Any) -> bool:
    return _dtype(value) == torch.bool


def is_complex_value(x: Value) -> bool:
    """True for a complex tensor."""
    dtype = _dtype(x)
    return dtype is not None and dtype.is_complex


def args_have_same_dtype(args: Sequence[Any]) -> bool:
    """True if all have one element type."""
    return len({_dtype(a) for a in args}) == 1


def _dtype(value: Any) -> torch.dtype | None:
    found = JitScalarType.from_value(value, JitScalarType.UNDEFINED)
    return None if found is JitScalarType.UNDEFINED else found.dtype()


def _try_get_scalar_type(*args: Any) -> JitScalarType | None:
    known = (JitScalarType.from_dtype(d) for a in args if (d := _dtype(a)) is not None)
    return next(known, None)


def _get_tensor_rank(x: Value) -> int | None:
    return x.type().dim() if _is_value(x) else None


def _get_tensor_sizes(x: Value, allow_nonstatic: bool = True) -> list[int | None] | None:
    found: list[int | None] | None = x.type().varyingSizes() if allow_nonstatic else x.type().sizes()
    return found


def _get_tensor_dim_size(x: Value, dim: int) -> int | None:
    sizes = _get_tensor_sizes(x)
    return sizes[dim] if sizes else None


def check_training_mode(op_train_mode: int, op_name: str) -> None:
    """Nothing: what is captured says its own mode."""


# -- errors ------------------------------------------------------------------------------------------------------------


def _refuse(reason: str) -> NoReturn:
    g = CURRENT.get()
    if g is None:
        raise RuntimeError(reason)
    g.helper.refuse(reason)
    raise AssertionError


def _unimplemented(op: str, msg: str, value: Any = None) -> NoReturn:
    _refuse(f"its symbolic function does not implement {op}: {msg}")


def _onnx_unsupported(op_name: str, value: Any = None) -> NoReturn:
    _refuse(f"its symbolic function says that ONNX has no {op_name}")


def _onnx_opset_unsupported(op_name: str, current_opset: int, supported_opset: int, value: Any = None) -> NoReturn:
    _refuse(f"its symbolic function wants opset {supported_opset} for {op_name}, not {current_opset}")


def _onnx_opset_unsupported_detailed(
    op_name: str, current_opset: int, supported_opset: int, reason: str, value: Any = None
) -> NoReturn:
    _refuse(f"its symbolic function wants opset {supported_opset} for {op_name}, not {current_opset}: {reason}")


# -- ops whose form depends on the opset -------------------------------------------------------------------------------


def _ints(g: GraphContext, values: Any) -> Any:
    return values if _is_value(values) and values.held is not None else g.constant(_get_const(values, "is", "axes"))


def _unsqueeze_helper(g: GraphContext, input: Any, axes_i: Sequence[Any]) -> Any:
    if not len(axes_i):
        return input
    return g.op("Unsqueeze", input, _ints(g, axes_i if _is_constant(axes_i[0]) else axes_i[0]))


def _squeeze_helper(g: GraphContext, input: Any, axes_i: Sequence[Any]) -> Any:
    return g.op("Squeeze", input, _ints(g, axes_i if _is_constant(axes_i[0]) else axes_i[0]))


def _reducesum_helper(
    g: GraphContext, input: Any, axes_i: Any = None, keepdims_i: int = 1, noop_with_empty_axes_i: int = 0
) -> Any:
    axes = () if axes_i is None or (not _is_value(axes_i) and not len(axes_i)) else (_ints(g, axes_i),)
    return g.op("ReduceSum", input, *axes, keepdims_i=keepdims_i, noop_with_empty_axes_i=noop_with_empty_axes_i)


def _reshape_helper(g: GraphContext, input: Any, shape: Any, allowzero: int = 0) -> Any:
    """Reshape to sizes that are constant, a tensor, or a list of both."""
    if _is_packed_list(shape) and not all(map(_is_constant, shape.content)):
        parts = [v if v.held is not None else g.constant(v.content) for v in map(_tensor_of(g), shape.content)]
        shape = g.op("Concat", *(g.op("Reshape", p, g.constant([1])) for p in parts), axis_i=0)
    elif not (_is_value(shape) and shape.held is not None):
        shape = _ints(g, shape)
    return g.op("Reshape", input, shape, allowzero_i=allowzero if allowzero and g.opset >= 14 else None)


def _tensor_of(g: GraphContext) -> Callable[[Any], Value]:
    return lambda v: v if _is_constant(v) else Value(g.operand(v))


def _size_helper(g: GraphContext, self: Any, dim: Any) -> Any:
    return g.op("Gather", g.op("Shape", self), g.operand(dim), axis_i=0)


def _numel_helper(g: GraphContext, self: Any) -> Any:
    return g.op("ReduceProd", g.op("Shape", self), keepdims_i=0)


def _slice_helper(g: GraphContext, input: Any, axes: Any, starts: Any, ends: Any, steps: Any = None) -> Any:
    steps = () if steps is None else (_ints(g, steps),)
    return g.op("Slice", input, _ints(g, starts), _ints(g, ends), _ints(g, axes), *steps)


def _select_helper(g: GraphContext, self: Any, dim: int, index: Any, apply_reshape: bool = True) -> Any:
    found = _maybe_get_const(index, "i")
    if not _is_value(found):
        return g.op("Gather", self, g.constant([int(found)]), axis_i=dim)
    index = _reshape_helper(g, index, [1]) if apply_reshape and _get_tensor_rank(index) == 0 else index
    return g.op("Gather", self, _maybe_cast_to_type(g, index, JitScalarType.INT64), axis_i=dim)


def _topk_helper(
    g: GraphContext, input: Any, k: Any, dim: int, largest: bool = True, sorted: bool = False, out: Any = None
) -> Any:
    if out is not None:
        _unimplemented("TopK", "the argument out")
    k = g.constant([int(k)]) if not _is_value(k) else _reshape_helper(g, k, [1])
    return g.op("TopK", input, k, axis_i=dim, largest_i=largest, sorted_i=sorted, outputs=2)


def _maybe_cast_to_type(g: GraphContext, value: Any, jit_type: JitScalarType) -> Any:
    same = JitScalarType.from_value(value, JitScalarType.UNDEFINED) == jit_type
    return value if same else g.op("Cast", value, to_i=jit_type.onnx_type())


def _if_scalar_type_as(self: Any, tensor: Any) -> Any:
    return self if _is_value(self) else torch.as_tensor(self).to(_dtype(tensor) or torch.float32)


def _generate_wrapped_number(g: GraphContext, scalar: Any) -> Value:
    number = torch.tensor(scalar, dtype=torch.double) if isinstance(scalar, float) else torch.tensor(scalar)
    return g.constant(number)


def _optional_input_placeholder_tensor(g: GraphContext) -> Value:
    return Value(None)
