"""Control flow that stays in the module: cond is if; while_loop, scan and map are while."""

from ir.dims import Expr
from ir.types import DType
from stablehlo_backend.registry import register as op


def values(h, operands):
    """The operands that a sub-graph has formal inputs for; a size it reads by its symbol."""
    return [x for x in operands if h.is_value(x)]


@op("higher_order::cond")
def cond(h, pred, true_graph, false_graph, operands):
    def branch(graph):
        return h.region([], lambda: h.typed(h.inline(graph, values(h, operands)), h.results), False)

    regions = [branch(g) for g in (true_graph, false_graph)]
    return h.emit("if", h.tensor(pred, DType.bool), regions=regions, type=h.results)


@op("ir::require")
def require(h, self, condition, message):
    h.require(condition if isinstance(condition, Expr) else h.tensor(condition, DType.bool), message)
    return self


def loop(h, start, types, going, step):
    """The values after `step` was called as long as `going` says."""
    start = h.typed([h.apart(h.tensor(s, t.dtype)) for s, t in zip(start, types, strict=True)], types)
    regions = [h.region(types, going, False), h.region(types, lambda *now: h.typed(step(*now), types), False)]
    return h.emit("while", *start, regions=regions, type=types)


@op("higher_order::while_loop")
def while_loop(h, cond_graph, body_graph, carried_inputs, additional_inputs):
    more = values(h, additional_inputs)
    graphs = (lambda *now, g=g: h.inline(g, [*now, *more]) for g in (cond_graph, body_graph))
    return loop(h, carried_inputs, h.results, *graphs)


def looped(h, graph, init, xs, more):
    """The graph called with what it carries and a row of each of `xs`, for each row; its other results are stacked."""
    count = h.tensor(xs[0].type.shape[0], DType.int64)
    types, n = h.results, len(init)
    mixed = [d for t in types[n:] for d in t.shape if isinstance(d, Expr) and len(d.symbols) > 1]
    if mixed:
        h.refuse(f"IREE writes the rows of a loop to wrong places where their size is of several: {mixed[0]}")
    zero = h.const(0, DType.int64)
    start = [zero, *init, *(h.full(t.shape, 0, t.dtype) for t in types[n:])]

    def step(i, *now):
        place = h.reshape(i, (1,))
        rows = [h.reshape(h.take(x, place), x.type.shape[1:]) for x in xs]
        new = h.inline(graph, [*now[:n], *rows, *values(h, more)])
        stacked = [h.put(y, place, h.unsqueeze(x, [0])) for y, x in zip(now[n:], new[n:], strict=True)]
        return [h.emit("add", i, 1), *new[:n], *stacked]

    return loop(h, start, [zero.type, *types], lambda i, *_: [h.compare("LT", i, count)], step)[1:]


@op("higher_order::scan")
def scan(h, combine_graph, init, xs, additional_inputs):
    return looped(h, combine_graph, init, xs, additional_inputs)


@op("higher_order::map_impl")
def map_impl(h, graph, xs, pos_args):
    return looped(h, graph, [], xs, pos_args)
