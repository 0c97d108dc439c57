"""Control flow: loops over an axis are scans; a choice between two branches computes both and selects."""

from __future__ import annotations

from ir.dims import Expr, floordiv, maximum
from ir.types import DType
from nnef_backend.building.loops import zeros_at_run_time
from nnef_backend.building.reshaping import at_least, cut, where_holds
from nnef_backend.building.sizes import is_textual, opaque_size
from nnef_backend.registry import register as op

LONGEST = 64  # steps of a loop that are written out


@op("ir::same_size")
def same_size(h, self):
    for axis, size in enumerate(h.out.shape):
        self = self if self.type.shape[axis] == size else cut(h, self, axis, self.type.shape[axis], size)
    return self


@op("ir::require")
def require(h, self, condition, message):
    return self if h.in_loop else where_holds(h, self, condition, message)


@op("higher_order::cond")
def cond(h, pred, true_graph, false_graph, operands):
    """tract has no branches; both of them are free of effects, so that only time is lost."""
    pred = h.tensor(pred, DType.bool)
    one = _branch(h, true_graph, operands, pred)
    other = _branch(h, false_graph, operands, h.emit("not", pred))
    results = list(zip(one, other, strict=True))
    if any(h.counted(x.type.shape) or h.counted(y.type.shape) for x, y in results):
        h.refuse("its branches give results whose sizes depend on data, and tract needs one size")
    return [h.emit("select", pred, x, y) for x, y in results]


def _branch(h, graph, operands, taken):
    """The results of one, whose conditions are asked where it is taken."""
    h.taken.append((h.scope, h.reshape(taken, [])))
    try:
        return h.inline(graph, operands)
    finally:
        h.taken.pop()


@op("higher_order::scan")
def scan(h, combine_graph, init, xs, additional_inputs=()):
    def body(slices, states):
        results = h.inline(combine_graph, [*states, *_rows(h, slices), *additional_inputs])
        return results[: len(init)], results[len(init) :]

    last, stacks = h.scan("scan_body", xs, init, body)
    if not h.in_loop:  # of no steps torch makes nothing
        last = [at_least(h, x, xs[0].type.shape[0], 1) for x in last]
    return [*last, *stacks]


@op("higher_order::map_impl")
def map_(h, graph, xs, pos_args=()):
    return h.scan("map_body", xs, [], lambda slices, _: ([], h.inline(graph, [*_rows(h, slices), *pos_args])))[1]


def _rows(h, slices):
    """The slices without their first axis; tract loads forever where a squeezed one meets a product of matrices."""
    return [h.take(x, h.const(0, DType.int64), 0) for x in slices]


_NO_LOOP = (
    "tract has no loop whose end depends on data; write a for loop with a fixed number of steps, and torch.where for "
    "what no longer changes, or export to onnx, which has such loops"
)


@op("higher_order::while_loop")
def while_loop(h, cond_graph, body_graph, carried_inputs, additional_inputs=()):
    """A loop that counts from one size to another: written out where it is short, else a scan over what it counts."""
    found = _steps(h, cond_graph, body_graph, carried_inputs)
    if found is None:
        h.refuse(_NO_LOOP)
    k, start, step, steps = found

    def body(slices, states):
        before = [*states[:k], *(h.cast(row, states[k].type.dtype) for row in _rows(h, slices)), *states[k + 1 :]]
        return h.inline(body_graph, [*before, *additional_inputs]), []

    states = [h.tensor(c, r.dtype) for c, r in zip(carried_inputs, h.results, strict=True)]
    if not isinstance(steps, int) or steps > LONGEST:
        ones = h.emit("add", zeros_at_run_time(h, maximum(steps, 1)), 1)
        places = h.emit("tract_core_cumsum", ones, axis=0, exclusive=True, reverse=False)
        counter = h.emit("add", h.emit("mul", places, step), h.tensor(start, DType.int64))
        last = h.scan("while_body", [counter], states, body)[0]
        runs = h.emit("gt", opaque_size(h, h.scalar(steps, DType.int64)), 0)  # tract's scan has a step at least
        return [h.emit("select", runs, after, before) for after, before in zip(last, states, strict=True)]
    for _ in range(steps):
        states = h.inline(body_graph, [*states, *additional_inputs])
    return states


def _steps(h, cond_graph, body_graph, carried):
    """Which of the states counts, from where and by what, and how often: `i < end` and `i + step`, or `>` and `-`."""
    if len(cond_graph.nodes) != 1 or cond_graph.nodes[0].op not in _TESTS:
        return None
    test = cond_graph.nodes[0]
    counter, end, (sign, closed) = test.args["self"], test.args["other"], _TESTS[test.op]
    if counter not in cond_graph.inputs[: len(carried)] or not _is_size(h, end):
        return None
    k = cond_graph.inputs.index(counter)
    grown, start = body_graph.producer.get(body_graph.outputs[k]), _start(h, carried[k], k)
    if start is None or grown is None or grown.op not in _GROWS or grown.args["self"] is not body_graph.inputs[k]:
        return None
    step = grown.args["other"]
    if type(step) is not int or grown.args.get("alpha", 1) != 1 or sign * _GROWS[grown.op] * step <= 0:
        return None
    steps = floordiv(sign * (end - start) + closed + abs(step) - 1, abs(step))
    return k, start, _GROWS[grown.op] * step, max(0, steps) if isinstance(steps, int) else steps


_TESTS = {"aten::lt": (1, 0), "aten::le": (1, 1), "aten::gt": (-1, 0), "aten::ge": (-1, 1)}  # direction, end included
_GROWS = {"aten::add": 1, "aten::sub": -1}


def _start(h, counter, k):
    """What the counter begins with: a constant, or a size that was made a tensor."""
    known = h.content(counter)
    if known is not None:
        return int(known) if known.dtype.kind == "i" else None
    made = h.graph.producer.get(h.node.args["carried_inputs"][k])
    size = made.args["s"] if made is not None and made.op == "aten::scalar_tensor" else None
    return size if _is_size(h, size) and counter.type.dtype.kind == "int" else None


def _is_size(h, x):
    """An integer, or one that follows from the sizes of the inputs."""
    return type(x) is int or (isinstance(x, Expr) and x.symbols <= h.known and is_textual(x))
