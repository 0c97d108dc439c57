"""Control flow: loops over an axis are scans; a choice between two branches computes both and selects."""

from __future__ import annotations

import math

from ir.types import DType
from nnef_backend.registry import register as op

LONGEST = 64  # steps of a loop that are written out


@op("higher_order::cond")
def cond(h, pred, true_graph, false_graph, operands):
    """tract has no branches; both of them are free of effects, so that only time is lost."""
    pred = h.tensor(pred, DType.bool)
    results = list(zip(h.inline(true_graph, operands), h.inline(false_graph, operands), strict=True))
    if any(h.counted(x.type.shape) or h.counted(y.type.shape) for x, y in results):
        h.refuse("its branches have sizes that depend on data, which differ")
    return [h.emit("select", pred, x, y) for x, y in results]


@op("higher_order::scan")
def scan(h, combine_graph, init, xs, additional_inputs=()):
    def body(slices, states):
        results = h.inline(combine_graph, [*states, *_rows(h, slices), *additional_inputs])
        return results[: len(init)], results[len(init) :]

    last, stacks = h.scan("scan_body", xs, init, body)
    return [*last, *stacks]


@op("higher_order::map_impl")
def map_(h, graph, xs, pos_args=()):
    return h.scan("map_body", xs, [], lambda slices, _: ([], h.inline(graph, [*_rows(h, slices), *pos_args])))[1]


def _rows(h, slices):
    """The slices without their first axis; tract loads forever where a squeezed one meets a product of matrices."""
    return [h.take(x, h.const(0, DType.int64), 0) for x in slices]


@op("higher_order::while_loop")
def while_loop(h, cond_graph, body_graph, carried_inputs, additional_inputs=()):
    """A loop that counts from one constant to another is written out; tract loops over an axis alone."""
    steps = _steps(h, cond_graph, body_graph, carried_inputs)
    if steps is None or steps > LONGEST:
        h.refuse(f"tract has no loop whose end depends on data, and none is written out beyond {LONGEST} steps")
    states = list(carried_inputs)
    for _ in range(steps):
        states = h.inline(body_graph, [*states, *additional_inputs])
    return states


def _steps(h, cond_graph, body_graph, carried):
    """How often the loop runs, if its condition is `i < end` and its body says `i + step` of constants."""
    if len(cond_graph.nodes) != 1 or cond_graph.nodes[0].op not in ("aten::lt", "aten::le"):
        return None
    test = cond_graph.nodes[0]
    counter, end = test.args["self"], test.args["other"]
    if counter not in cond_graph.inputs[: len(carried)] or type(end) is not int:
        return None
    k = cond_graph.inputs.index(counter)
    grown, start = body_graph.producer.get(body_graph.outputs[k]), h.content(carried[k])
    if start is None or grown is None or grown.op != "aten::add" or grown.args["self"] is not body_graph.inputs[k]:
        return None
    step = grown.args["other"]
    if type(step) is not int or step <= 0 or grown.args.get("alpha", 1) != 1 or start.dtype.kind != "i":
        return None
    return max(0, math.ceil((end + (test.op == "aten::le") - int(start)) / step))
