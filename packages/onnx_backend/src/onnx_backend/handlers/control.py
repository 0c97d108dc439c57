"""Control flow that stays in the graph: cond is If, while_loop is Loop, scan and map are Scan.

The operands of torch's higher-order operators are values of the outer graph; ONNX's bodies read those directly.
"""

from __future__ import annotations

from ir.dims import Expr
from ir.types import DType
from onnx_backend.registry import register as op


@op("higher_order::cond")
def cond(h, pred, true_graph, false_graph, operands):
    branches = {"then_branch": true_graph, "else_branch": false_graph}
    bodies = {k: h.graph_of(k, [], lambda g=g: h.inline(g, _tensors(h, operands))) for k, g in branches.items()}
    made = h.emit("If", h.tensor(pred, DType.bool), outputs=len(h.results), dtype=_dtypes(h), **bodies)
    return made if isinstance(made, list) else [made]


@op("higher_order::while_loop")
def while_loop(h, cond_graph, body_graph, carried_inputs, additional_inputs):
    additional_inputs = _tensors(h, additional_inputs)
    carried = [h.tensor(c, r.dtype) for c, r in zip(carried_inputs, h.results, strict=True)]
    formals = [h.formal("iteration", _scalar(DType.int64)), h.formal("go", _scalar(DType.bool))]
    formals += [h.formal(f"carried_{i}", r) for i, r in enumerate(h.results)]

    def body(iteration, go, *values):
        values = h.inline(body_graph, [*values, *additional_inputs])
        return [*h.inline(cond_graph, [*values, *additional_inputs]), *values]

    go = h.inline(cond_graph, [*carried, *additional_inputs])[0]
    loop = h.graph_of("loop", formals, body)
    made = h.emit("Loop", None, go, *carried, body=loop, outputs=len(h.results), dtype=_dtypes(h))
    return made if isinstance(made, list) else [made]


@op("higher_order::scan")
def scan(h, combine_graph, init, xs, additional_inputs):
    def step(*values):
        made = h.inline(combine_graph, [*values, *_tensors(h, additional_inputs)])
        return made[: len(init)], made[len(init) :]

    return h.scan(step, init, xs, axis=0)


@op("higher_order::map_impl")
def map_impl(h, graph, xs, pos_args):
    return h.scan(lambda *slices: ([], h.inline(graph, [*slices, *_tensors(h, pos_args)])), [], xs, axis=0)


def _tensors(h, operands):
    """The operands that a sub-graph has formal inputs for; a size it reads by its symbol."""
    return [x for x in operands if h.is_value(x)]


def _dtypes(h):
    return [r.dtype for r in h.results]


def _scalar(dtype):
    from ir.types import TensorType

    return TensorType(dtype, ())


@op("ir::require")
def require(h, self, condition, message):
    sources = [h.graph.sources.get(s) for s in condition.symbols] if isinstance(condition, Expr) else [None]
    of_sizes = all(s and s.axis is not None and s.value in h.graph.inputs for s in sources)
    return h.require(self, condition, "" if of_sizes else message)
