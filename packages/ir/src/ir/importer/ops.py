"""What is true of an operator beyond its schema, in one place; tests/ir/test_ops.py compares it with torch.

A schema says of an op what it writes to (`Tensor(a!)`) and what its result may be a view of (`Tensor(a)`), except for
the ops in these tables.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from ir.importer.schema import OpSchema, op_schema
from ir.importer.torch_api import OpOverload, has_kernel

# Their result may lie in the memory of their arguments although the schema does not say so.
UNANNOTATED_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "alpha_dropout", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "cartesian_prod",
        "conj_physical", "data", "dropout", "einsum", "feature_alpha_dropout", "feature_dropout", "histogramdd", "lift",
        "meshgrid", "sum_to_size", "type_as", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "_unsafe_view",
    )
)  # fmt: skip
# Their result holds what their first argument holds if it has the same type, in memory of its own.
COPIES = frozenset(
    f"aten::{name}"
    for name in (
        "clone", "lift_fresh_copy", "_lazy_clone", "_to_copy", "repeat", "tile", "pin_memory", "_reshape_copy",
        "alias_copy", "detach_copy", "view_copy", "expand_copy", "squeeze_copy", "unsqueeze_copy", "native_dropout",
    )
) | {"prims::convert_element_type"}  # fmt: skip
# Views that read something else than what is there, where the elements are complex; and these in any case.
CONJUGATED = frozenset({"aten::conj", "aten::_conj", "aten::conj_physical", "aten::resolve_conj"})
NEGATED = frozenset({"aten::_neg_view", "aten::resolve_neg"})
# What they are told by this argument makes them return their first argument.
DROPOUTS = {
    f"aten::{name}": "train" for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
} | {"aten::native_dropout": "train"}
# Norms whose schema does not say that they write to their running statistics, and what makes them do so.
TRAINING_FLAG = {"aten::batch_norm": "training", "aten::instance_norm": "use_input_stats"}
# They write to torch's notes about gradients only.
_AUTOGRAD = frozenset({"aten::detach_", "aten::requires_grad_", "aten::retain_grad"})

# Higher-order operators that only wrap a sub-graph: (index of the graph, index of its first operand).
WRAPPERS: dict[str, tuple[int, int]] = {
    "wrap_with_set_grad_enabled": (1, 2),
    "wrap_with_autocast": (4, 5),
    "wrap": (0, 1),
    "invoke_subgraph": (0, 2),
    "tag_activation_checkpoint": (0, 1),
    "hints_wrapper": (0, 1),
}

# Higher-order operators that become nodes; "*" takes the rest.
HIGHER_ORDER: dict[str, tuple[str, ...]] = {
    "cond": ("pred", "true_graph", "false_graph", "operands"),
    "while_loop": ("cond_graph", "body_graph", "carried_inputs", "additional_inputs"),
    "scan": ("combine_graph", "init", "xs", "additional_inputs"),
    "associative_scan": ("combine_graph", "xs", "additional_inputs"),
    "map_impl": ("graph", "xs", "pos_args"),
}
CAPTURED = ("operands", "additional_inputs", "pos_args")  # what sub-graphs read from outside, after all else
VANISH = frozenset({
    "aten::_assert_tensor_metadata", "aten::_functional_assert_async", "aten::_functional_assert_scalar",
    "aten::_functional_sym_constrain_range", "aten::_functional_sym_constrain_range_for_size",
    "inductor::accumulate_grad_", "aten::_nested_tensor_storage",
})  # fmt: skip


def writers(graph: FxGraph) -> list[FxNode]:
    """The nodes that write to memory, those of batch norms in training mode included."""
    return [n for n in graph.nodes if n.op == "call_function" and is_writer(n)]


def is_writer(node: FxNode) -> bool:
    """True if the node writes to one of its arguments."""
    if not isinstance(node.target, OpOverload):
        return False
    schema = op_schema(node.target)
    if not schema.writes:
        return updates_statistics(schema, node)
    flag = DROPOUTS.get(schema.functional.schema.op) if schema.functional is not None else None
    if flag is not None and schema.bind(node.args, node.kwargs)[flag] is False:  # of `dropout_`, say
        return False
    return schema.op not in _AUTOGRAD


def updates_statistics(schema: OpSchema, node: FxNode) -> bool:
    """Norms in training mode write to their running statistics although their schema does not say so."""
    flag = TRAINING_FLAG.get(schema.op)
    if flag is None:
        return False
    bound = schema.bind(node.args, node.kwargs)
    return bool(bound[flag]) and bound["running_mean"] is not None


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


def handed_out(graph: FxGraph) -> set[FxNode]:
    """The graph's results, and what they may be views of."""
    found: set[FxNode] = set()
    left = list(graph.output_node().all_input_nodes)
    while left:
        node = left.pop()
        if node in found:
            continue
        found.add(node)
        if node.op == "call_function" and (
            not isinstance(node.target, OpOverload) or may_be_view(op_schema(node.target))
        ):
            left += node.all_input_nodes
    return found
