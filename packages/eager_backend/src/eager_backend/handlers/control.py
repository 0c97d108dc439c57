"""Branches and loops: Python's own, over functions made from the sub-graphs. Checks of data: torch's own."""

import torch

from eager_backend.registry import register, rows
from eager_backend.runtime import captured
from ir.importer.torch_api import VF, generic_associative_scan
from ir.importer.torch_api import assert_scalar as raise_unless

rows(
    VF,
    "_assert_async sym_constrain_range sym_constrain_range_for_size _print",
)


@register("aten::_assert_scalar")
def assert_scalar(h, self, assert_msg):
    """The model's own raises what torch raises; one that the importer made, which has no overload, refuses."""
    h.emit(raise_unless if h.node.origin.overload else captured.hold, self, _placed(h, assert_msg), type=())


@register("ir::require")
def require(h, self, condition, message):
    """For sizes at which it does not hold torch's own program takes over, before a step meets them where it can."""
    h.emit(captured.require, condition, _placed(h, message), type=())
    h.block.first(h.block.steps[-1])
    return self


def _placed(h, message):
    return f"{message}\n  at {h.node.origin}" if h.node.origin.file else message


def _tensors(h, operands):
    """A size among the operands is known to the sub-graph already."""
    return [o for o in operands if h.is_value(o)]


@register("higher_order::cond")
def cond(h, pred, true_graph, false_graph, operands):
    return h.emit(branch, pred, h.function(true_graph), h.function(false_graph), _tensors(h, operands))


@register("higher_order::while_loop")
def while_loop(h, cond_graph, body_graph, carried_inputs, additional_inputs):
    additional = _tensors(h, additional_inputs)
    return h.emit(loop, h.function(cond_graph), h.function(body_graph), carried_inputs, additional)


@register("higher_order::scan")
def scan(h, combine_graph, init, xs, additional_inputs):
    return h.emit(fold, h.function(combine_graph), init, xs, _tensors(h, additional_inputs))


@register("higher_order::associative_scan")
def associative_scan(h, combine_graph, xs, additional_inputs):
    return h.emit(generic_associative_scan, h.function(combine_graph), xs, 0, _tensors(h, additional_inputs))


@register("higher_order::map_impl")
def map_impl(h, graph, xs, pos_args):
    return h.emit(each, h.function(graph), xs, _tensors(h, pos_args))


def branch(pred, yes, no, operands):
    return yes(*operands) if pred else no(*operands)


def loop(condition, body, carried, additional):
    first = carried
    while condition(*carried, *additional)[0]:
        carried = body(*carried, *additional)
    # a loop that never ran hands out copies: its results are not its inputs
    return tuple(c.clone() for c in carried) if carried is first else carried


def fold(combine, init, xs, additional):
    rows, carry = [], init
    for i in range(xs[0].shape[0]):
        results = combine(*carry, *(x.select(0, i) for x in xs), *additional)
        carry, row = results[: len(init)], results[len(init) :]
        rows.append(row)
    if not rows:  # torch takes that since 2.14; the shapes of a row are those that the function gives
        row = combine(*init, *(x.new_zeros(x.shape[1:]) for x in xs), *additional)[len(init) :]
        return (*(c.clone() for c in init), *(r.new_empty((0, *r.shape)) for r in row))
    return (*carry, *map(torch.stack, zip(*rows, strict=True)))


def each(fn, xs, additional):
    rows = [fn(*row, *additional) for row in zip(*(x.unbind(0) for x in xs), strict=True)]
    return tuple(map(torch.stack, zip(*rows, strict=True)))
