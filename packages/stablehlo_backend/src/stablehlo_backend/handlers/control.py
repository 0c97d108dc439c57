"""Control flow that stays in the module: cond is if; while_loop, scan and map are while."""

from ir.types import DType
from stablehlo_backend.registry import register as op


def values(h, operands):
    """The operands that a sub-graph has formal inputs for; a size it reads by its symbol."""
    return [x for x in operands if h.is_value(x)]


@op("higher_order::cond")
def cond(h, pred, true_graph, false_graph, operands):
    def branch(graph):
        return h.builder.region([], lambda: h.typed(h.inline(graph, values(h, operands)), h.results), False)

    regions = [branch(g) for g in (true_graph, false_graph)]
    return h.emit("if", h.tensor(pred, DType.bool), regions=regions, type=h.results)


@op("higher_order::while_loop")
def while_loop(h, cond_graph, body_graph, carried_inputs, additional_inputs):
    more, types = values(h, additional_inputs), h.results
    carried = h.typed([h.tensor(c, r.dtype) for c, r in zip(carried_inputs, types, strict=True)], types)
    going = h.builder.region(types, lambda *now: h.inline(cond_graph, [*now, *more]), False)
    step = h.builder.region(types, lambda *now: h.typed(h.inline(body_graph, [*now, *more]), types), False)
    return h.emit("while", *carried, regions=[going, step], type=types)


def looped(h, step, init, xs):
    """A function of the carried tensors and a row of each of `xs`, once for each row; its other results are stacked."""
    count = h.tensor(xs[0].type.shape[0], DType.int64)
    made = h.results[len(init) :]
    stacked = [h.full(0, t.shape, t.dtype) for t in made]
    carried = h.typed(init, h.results[: len(init)])
    start = [h.const(0, DType.int64), *carried, *stacked]
    types = [s.type for s in start]

    def going(i, *_):
        return [h.compare("LT", i, count)]

    def body(i, *now):
        place = h.reshape(i, (1,))
        rows = [h.squeeze(h.take(x, place), 0) for x in xs]
        new = step(*now[: len(init)], *rows)
        written = [h.put(y, place, h.unsqueeze(n, 0)) for y, n in zip(now[len(init) :], new[len(init) :], strict=True)]
        return h.typed([h.emit("add", i, 1), *new[: len(init)], *written], types)

    regions = [h.builder.region(types, fn, False) for fn in (going, body)]
    return h.emit("while", *start, regions=regions, type=types)[1:]


@op("higher_order::scan")
def scan(h, combine_graph, init, xs, additional_inputs):
    more = values(h, additional_inputs)
    return looped(h, lambda *now: h.inline(combine_graph, [*now, *more]), init, xs)


@op("higher_order::map_impl")
def map_impl(h, graph, xs, pos_args):
    more = values(h, pos_args)
    return looped(h, lambda *rows: h.inline(graph, [*rows, *more]), [], xs)
