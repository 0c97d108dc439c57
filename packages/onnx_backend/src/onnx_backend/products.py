"""Products of matrices that turn out empty, in the forms in which onnxruntime computes them."""

from __future__ import annotations

from typing import Any

import onnx_ir

from ir import geometry


def of_perhaps_empty(h: Any, a: Any, b: Any) -> Any:
    """The product in such a form; None where MatMul of the operands as they are is one.

    onnxruntime broadcasts no empty batch, takes no vector beside an empty matrix, and ends the process where it has
    fused an empty product with a transposition of the batch.
    """
    shapes = (a.type.shape, b.type.shape)
    if None in shapes or not any(h.may_be_empty(s) for shape in shapes for s in shape):
        return None
    if b.type.rank == 1:
        return None if a.type.rank == 1 else h.squeeze(h.emit("MatMul", a, h.unsqueeze(b, [1])), [a.type.rank - 1])
    if a.type.rank == 1:
        return h.squeeze(h.emit("MatMul", h.unsqueeze(a, [0]), b), [b.type.rank - 2])
    batches = [s[:-2] for s in shapes]
    batch = tuple(geometry.broadcast(*batches))
    spread = b.type.rank > 2 and any(x != batch for x in batches) and any(map(h.may_be_empty, batch))
    new = [h.expand(x, (*batch, *x.type.shape[-2:])) for x in (a, b)] if spread else [a, b]
    if a.type.dtype.is_float:  # integers it does not fuse
        nothing = h.may_be_empty(a.type.shape[-1])  # to sum: what it has fused with any transposition is no 0 then
        new = [h.emit("Sum", x) if _moves_batch(x.value, nothing) else x for x in new]
    return h.emit("MatMul", *new) if new != [a, b] else None


def _moves_batch(value: onnx_ir.Value | None, any_axis: bool = False) -> bool:
    """True of a transposition that brings the batch (or any axis) among the last two, behind a factor or cast too."""
    node = value.producer() if value is not None else None
    if node is None:
        return False
    if node.op_type in ("Mul", "Div", "Cast"):
        return any(_moves_batch(v, any_axis) for v in node.inputs)
    if node.op_type != "Transpose":
        return False
    perm = node.attributes["perm"].as_ints()
    return any_axis or (len(perm) > 2 and 0 in perm[-2:])
