"""Keys and values that a model repeats for each group of query heads -> attention that shares them.

Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints" (2023). Models
write the repetition out (`x[:, :, None].expand(...).reshape(...)`, or repeat_interleave), which copies the whole cache
at each step; `scaled_dot_product_attention(..., enable_gqa=True)` means the same without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ir.graph import Graph, Node, Value
from ir.ops import RESHAPES
from ir.passes.contract import contract
from ir.passes.graph_editor import GraphEditor

ATTENTION = "aten::scaled_dot_product_attention"


@contract(requires=("functional", "flat"), settles="with shared heads")
def group_heads(graph: Graph) -> Graph:
    """Every attention over heads repeated next to each other, keys and values alike, reads those that there are."""
    edit = GraphEditor(graph)
    for node in graph.nodes:
        if node.op != ATTENTION or node.args["enable_gqa"]:
            continue
        key, value = (_repeated(edit, node.args[name]) for name in ("key", "value"))
        if key is None or value is None or key[0].type.shape[1] != value[0].type.shape[1]:
            continue
        if node.args["query"].type.shape[1] != node.args["key"].type.shape[1]:  # one head meets all of them
            continue
        args = {**node.args, "key": key[0], "value": value[0], "enable_gqa": True}
        edit.replace(node, replace(node, args=args))
        edit.release(*key[1], *value[1])
    return edit.graph()


def _repeated(edit: GraphEditor, value: Any) -> tuple[Value, list[Node]] | None:
    """What [B, H, S, D] has each head of several times in a row, and the nodes between."""
    node = edit.producer(value)
    if node is None or value.type.rank != 4:
        return None
    if node.op == "aten::repeat_interleave" and node.overload.endswith("self_int") and node.args["dim"] in (1, -3):
        return node.args["self"], [node]
    wide = edit.producer(node.args["self"], "aten::expand") if node.op in RESHAPES else None
    thin = edit.producer(wide.args["self"], "aten::unsqueeze") if wide is not None else None
    if wide is None or thin is None or thin.args["dim"] not in (2, -3):
        return None
    source = thin.args["self"]
    batch, heads, *rest = source.type.shape
    spread = wide.outputs[0].type.shape
    if len(spread) != 5 or spread != (batch, heads, spread[2], *rest):
        return None
    whole = value.type.shape == (batch, heads * spread[2], *rest)
    return (source, [node, wide, thin]) if whole else None
