"""conv, then batch norm with fixed statistics -> one conv with other weights, computed when they are written.

`norm(conv(x, w) + b) = conv(x, w * s) + (b - mean) * s + beta` with `s = gamma / sqrt(var + eps)`
(Ioffe and Szegedy, "Batch Normalization", section 3.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ir.graph import ComputedWeight, Graph, Node, Value, Weight
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor
from ir.types import TensorType

CONVOLUTIONS = ("aten::conv1d", "aten::conv2d", "aten::conv3d")
NORMS = ("aten::batch_norm", "aten::_native_batch_norm_legit_no_training")  # the second after functionalization


@contract(requires=("functional", "flat"), settles="with folded norms")
def fold_batch_norm(graph: Graph) -> Graph:
    """Fold every batch norm in evaluation mode into the convolution that alone feeds it."""
    edit = GraphEditor(graph)
    for node in graph.nodes:
        conv = edit.producer(node.args["input"], *CONVOLUTIONS, alone=True) if node.op in NORMS else None
        more = any(v in graph.uses for v in node.outputs[1:])
        if conv is not None and not more and _fixed(node, conv, edit.weights):
            edit.release(conv)
            edit.replace(node, _folded(node, conv, edit))
    return edit.graph()


def _fixed(norm: Node, conv: Node, weights: dict[Value, Weight]) -> bool:
    operands = [norm.args[k] for k in ("weight", "bias", "running_mean", "running_var")]
    operands += [conv.args["weight"], conv.args["bias"]]
    known = all(o is None or o in weights for o in operands)
    same = len({o.type.dtype for o in operands if o is not None}) == 1
    return same and not norm.args.get("training") and norm.args["running_mean"] is not None and known


def _folded(norm: Node, conv: Node, edit: GraphEditor) -> Node:
    # mixed precision (statistics in f32 under an f16 conv) keeps the norm as it is: see _fixed
    names = {**{k: norm.args[k] for k in ("weight", "bias", "running_mean", "running_var")},
             "kernel": conv.args["weight"], "offset": conv.args["bias"]}  # fmt: skip
    parts = {k: edit.weights[v] for k, v in names.items() if v is not None}
    kernel_type = conv.args["weight"].type
    channels = kernel_type.shape[0]

    def scale() -> Any:
        gamma = _wide(parts.get("weight"), 1.0)
        return gamma / np.sqrt(_wide(parts["running_var"], 0.0) + norm.args["eps"])

    def kernel() -> Any:
        given = parts["kernel"].numpy()
        by_channel = scale().reshape((-1,) + (1,) * (kernel_type.rank - 1))
        # computed in float64 a buffer at a time: a whole kernel in float64 is memory that the system hands out page by
        # page, which takes three times as long as the product
        return np.multiply(given, by_channel, out=np.empty(given.shape, given.dtype), dtype=float, casting="unsafe")

    def offset() -> Any:
        shift = _wide(parts.get("offset"), 0.0) - _wide(parts["running_mean"], 0.0)
        return _like(parts["running_mean"], shift * scale() + _wide(parts.get("bias"), 0.0))

    offset_type = TensorType(norm.args["running_mean"].type.dtype, (channels,))
    base = parts["kernel"].name.removesuffix(".weight")
    made = {}
    for key, type, compute in (("weight", kernel_type, kernel), ("bias", offset_type, offset)):
        value = edit.value(f"{norm.outputs[0].name}_{key}", type)
        edit.weights[value] = ComputedWeight(f"{base}.{key}", type, compute)
        made[key] = value
    return Node(conv.op, {**conv.args, **made}, norm.outputs[:1], conv.origin, conv.returns, conv.defaults)


def _wide(weight: Weight | None, default: float) -> Any:
    return np.float64(default) if weight is None else weight.numpy().astype(np.float64)


def _like(weight: Weight, array: Any) -> Any:
    return array.astype(weight.numpy().dtype)
