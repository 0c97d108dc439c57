"""Norms in training mode: they compute statistics, and write them to the model's buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node as FxNode

from ir import dims
from ir.bounds import bounds
from ir.graph import Node, Value
from ir.importer.node_builder import NodeBuilder
from ir.importer.origins import origin_of
from ir.importer.schema import op_schema
from ir.types import TensorType


def training_norm(importer: NodeBuilder, node: FxNode, args: dict[str, Any], fake: Any) -> Value:
    """A batch norm in training mode: its functional form, and the new statistics written to the old ones.

    An instance norm is one over a batch of one, all instances' channels beside each other; the statistics that it
    keeps are the means over the instances (aten/src/ATen/native/Normalization.cpp, instance_norm).
    """
    if "training" in args:
        return _batch_norm(importer, node, args, importer.type_of(fake))
    shape = args["input"].type.shape
    batch, channels, name = shape[0], shape[1], node.name
    joined = (1, batch * channels, *shape[2:])
    inner = dict(args) | {"training": True}

    def one(overload: Any, x: Value, new: Sequence[Any], **given: Any) -> Value:
        return importer.emit(overload, x.type.with_shape(tuple(new)), f"{name}_part", {"self": x, **given})

    view, repeat = torch.ops.aten.reshape.default, torch.ops.aten.repeat.default
    for key in ("weight", "bias", "running_mean", "running_var"):
        if args[key] is not None:
            inner[key] = one(repeat, args[key], [batch * channels], repeats=[batch])
    inner["input"] = one(view, args["input"], joined, shape=joined)
    mean = torch.ops.aten.mean.dim

    def averaged(new: Value) -> Value:
        rows = one(view, new, [batch, channels], shape=[batch, channels])
        return one(mean, rows, [channels], dim=[0])

    return one(view, _batch_norm(importer, node, inner, inner["input"].type, averaged), shape, shape=shape)


def _batch_norm(
    importer: NodeBuilder,
    node: FxNode,
    args: dict[str, Any],
    type: TensorType,
    change: Callable[[Value], Value] | None = None,
) -> Value:
    schema = op_schema(torch.ops.aten._native_batch_norm_legit_functional.default)
    statistics = args["running_mean"].type
    names = ("", "_mean", "_invstd", "_running_mean", "_running_var")
    types = (type, *(statistics,) * 4)
    outputs = tuple(Value(node.name + n, t) for n, t in zip(names, types, strict=True))
    kept = {n: args[n] for n in schema.names}
    importer.nodes.append(Node(schema.op, kept, outputs, origin_of(node), "tuple", schema.defaults))
    bound = op_schema(node.target).bind(node.args, node.kwargs)
    assert importer.memory is not None
    count = dims.product((type.shape[0], *type.shape[2:]))
    some = None  # an empty batch changes no statistics
    if bounds(count, importer.symbols.ranges)[0] <= 0:
        some = importer.scalar_tensor(dims.call("gt", count, 0), f"{node.name}_some")
    for name, value in (("running_mean", outputs[3]), ("running_var", outputs[4])):
        if some is not None:
            given = {"condition": some, "self": value, "other": args[name]}
            value = importer.emit(torch.ops.aten.where.self, statistics, f"{node.name}_{name}", given)
        importer.memory.write(importer.raw(bound[name]), change(value) if change else value, node)
    return outputs[0]
