"""Which ops give less than the trace says where a size is 0 or 1 (ir.conditions.SHORTER), beside what torch gives."""

from __future__ import annotations

import ir
from ir.conditions import SHORTER, symbols_of
from ir.dims import evaluate
from ir.importer.conditions import SQUEEZES
from ir.ops import REFUSE_SMALL
from tests.cases import FAMILIES, TRACED

CASES = [c for c in FAMILIES["shape"] if c.dynamic_shapes]
OTHERWISE = SQUEEZES | {"aten::split"}  # whose condition the graph holds (`ir::require`)


def test_what_is_shorter_at_sizes_that_torch_does_not_trace():
    found = set()
    for case in CASES:
        graph = ir.capture(case.module(), case.args(TRACED), dynamic_shapes=case.dynamic_shapes)
        symbols = {d.as_symbol for v in graph.inputs for d in v.type.shape if not isinstance(d, int)}
        for size in (0, 1):
            sizes = dict.fromkeys(symbols, size)
            ops = {n.op for n in graph.nodes if symbols_of(n) <= symbols and differs(graph, n, sizes)}
            found |= {(op, size) for op in ops}
    assert {("aten::slice", 0), ("aten::slice", 1)} <= found
    assert {op for op, _ in found} <= SHORTER | OTHERWISE


def differs(graph: ir.Graph, node: ir.Node, sizes: dict[str, int]) -> bool:
    if not symbols_of(node):
        return False
    traced = [tuple(evaluate(d, sizes) for d in v.type.shape) for v in node.outputs]
    true = graph.context.result_shapes(node, sizes)
    return true is not None and true != traced and min(n for s in traced for n in s) >= 0


# Runtimes refuse these themselves; zeros, which torch is asked with, have no mean weighted by them.
ELSEWHERE = {"aten::topk", "aten::kthvalue", "aten::select", "aten::cov"}


def test_what_torch_refuses_at_sizes_that_it_does_not_trace():
    found = set()
    for case in (c for family in ("reduce", "pool") for c in FAMILIES[family] if c.dynamic_shapes):
        graph = ir.capture(case.module(), case.args(TRACED), dynamic_shapes=case.dynamic_shapes)
        symbols = {d.as_symbol for v in graph.inputs for d in v.type.shape if not isinstance(d, int)}
        for size in (0, 1):
            sizes = dict.fromkeys(symbols, size)
            found |= {
                n.op for n in graph.nodes
                if symbols_of(n) and symbols_of(n) <= symbols and min(map(min, shapes(n, sizes)), default=0) >= 0
                and graph.context.refusal(n, sizes)
            }  # fmt: skip
    assert {"aten::max", "aten::amax", "aten::max_pool2d", "aten::adaptive_avg_pool2d"} <= found
    assert found <= REFUSE_SMALL | ELSEWHERE


def shapes(node: ir.Node, sizes: dict[str, int]) -> list[list[int]]:
    return [[evaluate(d, sizes) for d in v.type.shape] for v in node.inputs if v.type.shape]
