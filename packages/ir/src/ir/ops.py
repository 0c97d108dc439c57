"""What is true of an operator, for all who ask: the importer, passes, handlers.

torch says most of it. Schemas tell what is written to (`Tensor(a!)`) and what a result may be a view of (`(a)`),
tags tell what is element-wise or draws random numbers. The tables here hold the rest; tests/ir/test_ops.py compares
each with what torch does.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tag

from ir.graph import Node
from ir.importer.schema import OpSchema, op_schema, overload_of, packet_of
from ir.importer.torch_api import OpOverload, OpOverloadPacket, disable_current_modes, has_kernel, schema_of

_NUMBERS = ("number", "float", "Optional[number]", "Optional[float]")  # types of a schema


def _aten(*names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names)


# -- what torch does not say -------------------------------------------------------------------------------------------

# Their result may lie in the memory of their arguments although the schema does not say so.
UNANNOTATED_VIEWS = _aten(
    "alpha_dropout", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "cartesian_prod", "conj_physical",
    "data", "dropout", "einsum", "feature_alpha_dropout", "feature_dropout", "histogramdd", "lift", "meshgrid",
    "sum_to_size", "type_as", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "_unsafe_view",
)  # fmt: skip
# Their result has the elements of the first argument, in its order of rows, in another shape.
RESHAPES = _aten(
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "ravel", "view_as", "reshape_as", "squeeze", "unsqueeze",
    "_reshape_alias",
)  # fmt: skip
# Their result has the axes of the first argument in another order.
PERMUTATIONS = _aten("permute", "transpose", "t", "mT", "swapaxes", "numpy_T")
# As these, in other words; the elements of complex numbers are conjugated by some.
MOVES = PERMUTATIONS | _aten("swapdims", "movedim", "moveaxis", "adjoint", "mH", "matrix_H")
# Their result holds what their first argument holds if it has the same type, in memory of its own.
COPIES = _aten(
    "clone", "lift_fresh_copy", "_lazy_clone", "_to_copy", "repeat", "tile", "pin_memory", "_reshape_copy",
    "alias_copy", "detach_copy", "view_copy", "expand_copy", "squeeze_copy", "unsqueeze_copy", "native_dropout",
) | {"prims::convert_element_type"}  # fmt: skip
# Their result holds the numbers of their first argument in another element type.
CASTS = _aten("to", "_to_copy") | {"ir::cast", "prims::convert_element_type"}
# Views that read something else than what is there, where the elements are complex; and these in any case.
CONJUGATED = _aten("conj", "_conj", "conj_physical", "resolve_conj")
NEGATED = _aten("_neg_view", "resolve_neg")
# What they are told by this argument makes them return their first argument.
DROPOUTS = dict.fromkeys(
    _aten("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout"), "train"
)
# Norms whose schema does not say that they write to their running statistics, and what makes them do so.
TRAINING_FLAG = {"aten::batch_norm": "training", "aten::instance_norm": "use_input_stats"}
# They write to torch's notes about gradients only.
WRITE_NO_DATA = _aten("detach_", "requires_grad_", "retain_grad")
# Each element of the result is a sum of products, whose zeros may have either sign.
SUMS_OF_PRODUCTS = _aten(
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "linear",
    "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention", "batch_norm",
    "_native_batch_norm_legit_no_training",
)  # fmt: skip
OF_TORCH = ("aten::", "prims::", "quantized_decomposed::")  # how the names of its own ops begin
# torch refuses sizes below some number, and runtimes compute: the largest of no elements, a window wider than an image.
REFUSE_SMALL = _aten(
    "max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "median", "nanmedian", "mode", "quantile",
    "nanquantile", "norm", "linalg_vector_norm", "linalg_norm", "linalg_matrix_norm", "unique_dim", "gradient",
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool1d_with_indices", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "im2col",
    "unfold", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
    "replication_pad3d", "pad", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "stft", "_fft_r2c", "_fft_c2c",
    "_fft_c2r", *(f"fft_{i}{kind}fft{of}" for i in ("", "i") for kind in ("", "r", "h") for of in ("", "2", "n")),
)  # fmt: skip
# These refuse empty operands and images smaller than the kernel; onnxruntime does not end with a kernel of size 0.
CONVOLUTIONS = _aten(
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "_convolution",
)  # fmt: skip
# A network of no steps ends onnxruntime's process, or has a state of zeros there.
RECURRENT = _aten("lstm", "gru", "rnn_tanh", "rnn_relu")
# They compute nothing: they look at data and raise, or print.
CHECKS = _aten("_assert_async", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size", "_print")
# The number in every element of a new tensor; None: the argument `fill_value`.
FILLS: Mapping[str, int | None] = {
    **dict.fromkeys(_aten("zeros", "zeros_like", "new_zeros"), 0),
    **dict.fromkeys(_aten("ones", "ones_like", "new_ones"), 1),
    **dict.fromkeys(_aten("full", "full_like", "new_full"), None),
}
# New tensors of which nothing is known but the shape.
UNINITIALIZED = _aten(
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"
)  # fmt: skip


# -- questions about an overload ---------------------------------------------------------------------------------------


def may_be_view(schema: OpSchema) -> bool:
    """True if a result may lie in the memory of an argument."""
    return bool(schema.views or schema.writes) or schema.op in UNANNOTATED_VIEWS


def may_alias(target: Any) -> bool:
    """True if the op's result may lie in the memory of an argument; of somebody else's composition nothing is known."""
    schema = op_schema(target)
    if may_be_view(schema) or schema.op.startswith("aten::"):
        return may_be_view(schema)
    return has_kernel(target.name(), "CompositeImplicitAutograd")


def holds_the_same(schema: OpSchema, is_complex: bool) -> bool:
    """True if a result of the type and layout of the op's first argument holds what that one holds."""
    if schema.op in COPIES or schema.op in DROPOUTS:
        return True
    if schema.op in NEGATED or (is_complex and schema.op in CONJUGATED) or "storage_offset" in schema.names:
        return False
    return may_be_view(schema)


# -- questions about a node of the graph -------------------------------------------------------------------------------


def overloads_of(op: str, overload: str = "") -> tuple[Any, ...]:
    """torch's overloads behind a node: of one that a pass made, which names none, all that do not write."""
    found = overload_of(op, overload)
    if isinstance(found, OpOverload) and (overload or op_schema(found).tensors):  # add(Scalar, Scalar) is of scripts
        return (found,)
    packet = packet_of(op)
    every = [getattr(packet, name) for name in packet.overloads()] if isinstance(packet, OpOverloadPacket) else []
    return tuple(o for o in every if not schema_of(o).is_mutable)


@functools.cache
def reads_numbers_in_float32(op: str) -> bool:
    """True if torch's CPU kernel reads the Python number behind a bfloat16 tensor in float32, and not in bfloat16.

    torch says it nowhere, and a release may change it (softshrink, in 2.14): the kernel is run on a number both ways.
    """
    packet = packet_of(op) if op.startswith("aten::") else None
    overloads = packet.overloads() if isinstance(packet, OpOverloadPacket) else ()
    if packet is None or not any(_takes_a_number(getattr(packet, name)) for name in overloads):
        return False
    with disable_current_modes(), torch.no_grad():
        x = torch.linspace(-3, 3, 301, device="cpu").bfloat16()
        number = torch.tensor(1.3, device="cpu")
        try:
            for values in (x, x.abs()):
                exact, rounded = (packet(values, n.item()) for n in (number, number.bfloat16()))
                if not torch.equal(exact.nan_to_num(), rounded.nan_to_num()):
                    return True
        except Exception:  # a kernel may raise any for what it does not take
            return False
    return False


def _takes_a_number(overload: OpOverload) -> bool:
    """True if nothing else is needed but a tensor and a number."""
    if Tag.nondeterministic_seeded in overload.tags:
        return False
    first, *others = schema_of(overload).arguments or (None,)
    given = [str(a.type) for a in others[:1]] + [str(a.type) for a in others[1:] if not a.has_default_value()]
    return first is not None and str(first.type) == "Tensor" and given in [[kind] for kind in _NUMBERS]


def has_tag(node: Node, tag: Tag) -> bool:
    """True if torch puts the tag on the node's overload."""
    return any(tag in o.tags for o in overloads_of(node.op, node.origin.overload))


def is_pointwise(node: Node) -> bool:
    """True if each element of the results is computed of the elements in its place, operands broadcast."""
    return has_tag(node, Tag.pointwise)


def is_view(node: Node) -> bool:
    """True if a result may lie in the memory of an argument."""
    return any(may_be_view(op_schema(o)) for o in overloads_of(node.op, node.origin.overload))


def is_random(node: Node) -> bool:
    """True for a node that draws from torch's generator; dropout that is switched off does not."""
    if any(is_random(n) for g in node.graphs for n in g.nodes):
        return True
    if not has_tag(node, Tag.nondeterministic_seeded):
        return False
    off = any(node.args.get(flag) is False for flag in ("train", "training"))
    return not off and not any(node.args.get(name) == 0 for name in ("dropout", "dropout_p"))


def is_pure(node: Node) -> bool:
    """True for an op of torch whose result is decided by its arguments alone, and which changes none of them."""
    overloads = overloads_of(node.op, node.origin.overload)
    known = bool(overloads) and node.op not in UNINITIALIZED
    return known and not any(Tag.nondeterministic_seeded in o.tags or schema_of(o).is_mutable for o in overloads)
