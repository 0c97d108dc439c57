"""Products of matrices in the forms in which onnxruntime computes them: of what turns out empty, of what is scaled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir

from ir import geometry
from ir.types import DType
from onnx_backend.building.kernels import work_type


def unfused(h: Any, x: Any) -> Any:
    """An operand of a product; halves of rank 3 whose batch axis was moved are kept out of the fusion of Transpose and
    MatMul, of which onnxruntime's kernel for float16 ends the process.
    """
    turned = x.made_by("Transpose")
    if turned is None or x.type.dtype is not DType.float16 or x.type.shape is None or x.type.rank != 3:
        return x
    return x if turned.attributes["perm"].as_ints()[0] == 0 else h.emit("Sum", x)


def scaled_once(h: Any, x: Any) -> Any:
    """An operand of a product; one that is multiplied by two numbers in turn is multiplied by both at once.

    onnxruntime takes the outer factor into the product. The inner one, which it takes into another product, it then
    removes, although the first still reads it, and does not load the model.
    """
    turned = x.made_by("Transpose")
    if turned is not None and x.before is not None:
        inside = scaled_once(h, x.before)
        return x if inside is x.before else h.transpose(inside, turned.attributes["perm"].as_ints())
    if not x.type.dtype.is_float or x.type.shape is None or x.type.rank < 2:
        return x
    value, factor, count = x.value, 1.0, 0
    while (inner := _factor(value)) is not None:
        value, factor, count = inner[0], factor * inner[1], count + 1
    if x.type.dtype.bits < 32:  # a half is rounded between the two
        return x if count < 2 else h.emit("Sum", x)
    if count and not float(np.finfo(np.float32).tiny) <= abs(factor) <= float(np.finfo(np.float32).max):
        return h.emit("Sum", x)  # the factor is not to be taken in: 0 and infinity after the sum tell nothing of it
    if count < 2:
        return x
    return h.emit("Mul", h.value_class(value, x.type), factor)


def _factor(value: onnx_ir.Value) -> tuple[onnx_ir.Value, float] | None:
    """What a value is a multiple of and the factor, where that is one number that the file holds."""
    node = value.producer()
    if node is None or node.op_type not in ("Mul", "Div"):
        return None
    first, second = node.inputs
    assert first is not None
    assert second is not None
    number = _number(second)
    if node.op_type == "Div":
        return None if number is None else (first, 1 / number if number else math.inf)
    if number is not None:
        return first, number
    number = _number(first)
    return None if number is None else (second, number)


def _number(value: onnx_ir.Value) -> float | None:
    node = value.producer()
    held = (
        node.attributes["value"].as_tensor() if node is not None and node.op_type == "Constant" else value.const_value
    )
    return float(held.numpy().item()) if held is not None and held.size == 1 and len(held.shape) < 2 else None


def by_column(h: Any, a: Any, b: Any) -> Any:
    """A matrix, or a batch of them, by a vector as by a matrix of one column; None where MatMul of the two is right.

    onnxruntime takes a transposition of the matrix into the product and then multiplies the matrix as it was.
    """
    if b.type.shape is None or b.type.rank != 1 or a.type.shape is None or a.type.rank < 2 or not b.type.dtype.is_float:
        return None
    return _by_column(h, a, b) if _turned(h, a.value, any_axis=True) else None


def _by_column(h: Any, a: Any, b: Any) -> Any:
    return h.squeeze(h.emit("MatMul", a, h.unsqueeze(b, [1])), [a.type.rank - 1])


def of_perhaps_empty(h: Any, a: Any, b: Any) -> Any:
    """The product in such a form; None where MatMul of the operands as they are is one.

    onnxruntime broadcasts no empty batch, takes no vector beside an empty matrix, and ends the process where it has
    fused an empty product with a transposition of the batch.
    """
    shapes = (a.type.shape, b.type.shape)
    if None in shapes or not any(h.may_be_empty(s) for shape in shapes for s in shape):
        return None
    element = a.type.dtype
    work = work_type("MatMul", h.opset, "T", element, h.target.allow_narrowing)
    if work is not element:  # here, so that no cast comes between the product and what stops a transposition
        return h.cast(h.emit("MatMul", h.cast(a, work), h.cast(b, work)), element)
    if b.type.rank == 1:
        return None if a.type.rank == 1 else _by_column(h, a, b)
    if a.type.rank == 1:
        return h.squeeze(h.emit("MatMul", h.unsqueeze(a, [0]), b), [b.type.rank - 2])
    batches = [s[:-2] for s in shapes]
    batch = tuple(geometry.broadcast(*batches))
    spread = b.type.rank > 2 and any(x != batch for x in batches) and any(map(h.may_be_empty, batch))
    new = [h.expand(x, (*batch, *x.type.shape[-2:])) for x in (a, b)] if spread else [a, b]
    if a.type.dtype.is_float:  # integers it does not fuse
        # to sum, or no batch: what it has fused with any transposition is no 0 then, or fails
        nothing = h.may_be_empty(a.type.shape[-1]) or any(s == 0 for s in batch)
        batched = a.type.rank > 2 and b.type.rank > 2
        new = [h.emit("Sum", x) if (nothing or batched) and _turned(h, x.value, nothing) else x for x in new]
    return h.emit("MatMul", *new) if new != [a, b] else None


def of_turned_before_cast(h: Any, a: Any, b: Any) -> Any:
    """The product kept apart from a transposition of the batch behind which is a Cast; None where there is none.

    onnxruntime takes both into the product, and ends the process. It puts casts around products of bfloat16 itself.
    """
    work = work_type("MatMul", h.opset, "T", a.type.dtype, h.target.allow_narrowing)
    turned = [work.is_float and x.type.shape is not None and x.type.rank > 2
              and _turned(h, x.value, False, cast=x.type.dtype is not work) for x in (a, b)]  # fmt: skip
    if not any(turned):
        return None
    cast = (h.cast(x, work) for x in (a, b))
    return h.cast(
        h.emit("MatMul", *(h.emit("Sum", x) if t else x for x, t in zip(cast, turned, strict=True))), a.type.dtype
    )


# What stops a transposition on its way to a product. onnxruntime pushes it through most others, or removes them.
_STOPS = frozenset({"MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "Reshape", "LayerNormalization",
                    "InstanceNormalization", "RMSNormalization", "Attention", "RNN", "LSTM", "GRU"})  # fmt: skip


def _turned(h: Any, operand: onnx_ir.Value, any_axis: bool, cast: bool = True) -> bool:
    """True of what may become a transposition of the batch into the last two axes (or any, where asked for).

    Without `cast`, of what may become one before a Cast.

    onnxruntime moves transpositions towards the product, through what stands between, and makes one of several. Not
    through a sum of one operand that stands last: behind it is none to make one with.
    """
    seen: set[Any] = set()
    todo: list[tuple[onnx_ir.Value | None, tuple[int, ...] | None, bool]] = [(operand, None, cast)]
    while todo:
        value, perm, cast = todo.pop()
        if value is None or (value, perm, cast) in seen:
            continue
        seen.add((value, perm, cast))
        node = value.producer()
        if node is None:
            if cast and h.home.function and value.const_value is None:  # what a call hands over may be turned outside
                return True
            continue
        if node.op_type in _STOPS or (value is operand and node.op_type == "Sum" and len(node.inputs) == 1):
            continue
        if node.op_type == "Transpose":
            perm = _after(tuple(node.attributes["perm"].as_ints()), perm)
            if cast and (any_axis or _moves_batch(perm)):
                return True
        todo += [(v, perm, cast or node.op_type == "Cast") for v in node.inputs]
    return False


def _after(first: tuple[int, ...], second: tuple[int, ...] | None) -> tuple[int, ...]:
    """Two transpositions as one; of different ranks, with something between them that adds or removes axes, ()."""
    if second is None:
        return first
    return tuple(first[i] for i in second) if len(first) == len(second) else ()


def _moves_batch(perm: tuple[int, ...]) -> bool:
    """True where the axes before the last two are those that follow the first, and of what is not known."""
    return not perm or (len(perm) > 2 and perm[:-2] == tuple(range(1, len(perm) - 1)))
