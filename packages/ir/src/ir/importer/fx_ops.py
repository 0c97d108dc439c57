"""The nodes of torch's graph: which write, what may be seen outside, and torch's operators over graphs."""

from __future__ import annotations

from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from ir.errors import CaptureError
from ir.importer.origins import origin_of
from ir.importer.schema import OpSchema, op_schema
from ir.importer.torch_api import OpOverload
from ir.ops import DROPOUTS, TRAINING_FLAG, WRITE_NO_DATA, may_be_view

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
_INSTEAD = {
    "flex_attention": "write it as torch.nn.functional.scaled_dot_product_attention, with what its functions and its "
    "block mask say as attn_mask="
}
CAPTURED = ("operands", "additional_inputs", "pos_args")  # what sub-graphs read from outside, after all else
VANISH = frozenset({
    "aten::_assert_tensor_metadata", "aten::_functional_assert_async", "aten::_functional_assert_scalar",
    "aten::_functional_sym_constrain_range", "aten::_functional_sym_constrain_range_for_size",
    "inductor::accumulate_grad_",
})  # fmt: skip


def no_operator(name: str, node: FxNode) -> CaptureError:
    """What to raise for a higher-order operator that is none of these."""
    lines = [f"the higher-order operator {name} has no form in the IR", f"at {origin_of(node)}", _INSTEAD.get(name, "")]
    return CaptureError("\n  ".join(filter(None, lines)))


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
    return schema.op not in WRITE_NO_DATA


def updates_statistics(schema: OpSchema, node: FxNode) -> bool:
    """Norms in training mode write to their running statistics although their schema does not say so."""
    flag = TRAINING_FLAG.get(schema.op)
    if flag is None:
        return False
    bound = schema.bind(node.args, node.kwargs)
    return bool(bound[flag]) and bound["running_mean"] is not None


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
