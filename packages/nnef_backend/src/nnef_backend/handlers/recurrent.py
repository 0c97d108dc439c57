"""Recurrent networks: a scan over time for each layer and direction, and their cells one step at a time.

The input's share of the gates is one product for all steps; only the state's share is left to the loop.
"""

from __future__ import annotations

import math

from ir.types import DType
from nnef_backend.building.loops import rows_with_a_symbol
from nnef_backend.handlers.activation import tanh
from nnef_backend.handlers.create import refuse_chance
from nnef_backend.handlers.matmul import linear
from nnef_backend.registry import REGISTRY
from nnef_backend.registry import register as op


def _sigmoid(h, x):
    return h.emit("recip", h.emit("add", h.emit("exp", h.emit("neg", x)), 1.0))


def _gates(h, x, count):
    axis = x.type.rank - 1
    size = x.type.shape[axis] // count
    return [h.slice(x, axis, i * size, (i + 1) * size) for i in range(count)]


# -- one step: the input's share of the gates and the states before -> the states after --------------------------------


def _lstm_step(h, x, states, w_hh, b_hh, w_hr=None):
    before, cell = states
    gates = h.emit("add", x, linear(h, before, w_hh, b_hh))
    if _is_fused(h, gates):
        after, cell = _fused_lstm_step(h, gates, cell)
        return [after if w_hr is None else linear(h, after, w_hr), cell]
    i, f, _, o = _gates(h, _sigmoid(h, gates), 4)
    new = tanh(h, _gates(h, gates, 4)[2])
    cell = h.emit("add", h.emit("mul", f, cell), h.emit("mul", i, new))
    after = h.emit("mul", o, tanh(h, cell))
    return [after if w_hr is None else linear(h, after, w_hr), cell]


def _is_fused(h, x):
    """True for networks whose step is tract's own kernel; a cell alone would reorder its weights in vain."""
    return h.node.op == "aten::lstm" and x.type.dtype is DType.float32 and h.has("tract_core_lstm_epilogue")


def _fused_lstm_step(h, gates, cell):
    """All after the products in one kernel; it drops NaN, which therefore goes into the cell, and from there on."""
    i, o, f, g = _gates(h, h.is_nan(gates), 4)
    unknown = h.emit("or", h.emit("or", i, o), h.emit("or", f, g))
    cell, size = h.emit("select", unknown, math.nan, cell), cell.type.shape[1]
    after, new = h.emit("tract_core_lstm_epilogue", gates, cell, hidden=size, outputs=2, shape=[cell.type.shape] * 2)
    return h.emit("select", h.is_nan(new), new, after), new


def _in_fused_order(h, v):
    """The gates of a weight or a bias, of which torch has i, f, g, o, as i, o, f, g."""
    size = v.type.shape[0] // 4
    return h.concat([h.slice(v, 0, k * size, (k + 1) * size) for k in (0, 3, 1, 2)], 0)


def _gru_step(h, x, states, w_hh, b_hh):
    (before,) = states
    share = linear(h, before, w_hh, b_hh)
    r, z, _ = _gates(h, _sigmoid(h, h.emit("add", x, share)), 3)
    new = tanh(h, h.emit("add", _gates(h, x, 3)[2], h.emit("mul", r, _gates(h, share, 3)[2])))
    return [h.emit("add", new, h.emit("mul", z, h.emit("sub", before, new)))]


def _tanh_step(h, x, states, w_hh, b_hh):
    return [tanh(h, h.emit("add", x, linear(h, states[0], w_hh, b_hh)))]


def _relu_step(h, x, states, w_hh, b_hh):
    x = h.emit("add", x, linear(h, states[0], w_hh, b_hh))
    return [h.emit("select", h.emit("lt", x, 0.0), 0.0, x)]


_STEPS = {"lstm": _lstm_step, "gru": _gru_step, "rnn_tanh": _tanh_step, "rnn_relu": _relu_step}


# -- whole networks --------------------------------------------------------------------------------------------------


@op("aten::lstm.input", "aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input")
def network(h, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    if train and dropout and num_layers > 1:
        refuse_chance(h, "export the model after model.eval()")
    kind = h.node.op.removeprefix("aten::")
    starts = hx if isinstance(hx, list) else [hx]
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    x = h.transpose(input, [1, 0, 2]) if batch_first else input
    batch = x.type.shape[1]
    if (rows := rows_with_a_symbol(h, batch)) is not None:
        x, *starts = (h.take(v, rows, 1) for v in (x, *starts))
    ends: list[list[object]] = [[] for _ in starts]
    for layer in range(num_layers):
        outs = []
        for direction in range(directions):
            k = layer * directions + direction
            weights = _weights(h, params[k * each : (k + 1) * each], has_biases)
            states = [h.squeeze(h.slice(s, 0, k, k + 1), [0]) for s in starts]
            last, out = _run(h, kind, x, states, weights, direction == 1)
            outs.append(out)
            for end, s in zip(ends, last, strict=True):
                end.append(h.unsqueeze(s, [0]))
        x = h.concat(outs, 2)
    x, *ends = (h.slice(v, 1, 0, batch) for v in (x, *(h.concat(end, 0) for end in ends)))
    return [h.transpose(x, [1, 0, 2]) if batch_first else x, *ends]


def _weights(h, params, has_biases):
    """(w_ih, b_ih), (w_hh, b_hh) and the projection, where there is one, by name."""
    w_ih, w_hh, *rest = params
    b_ih, b_hh = rest[:2] if has_biases else (None, None)
    projection = rest[2:] if has_biases else rest
    if _is_fused(h, w_hh):
        w_ih, b_ih, w_hh, b_hh = (v if v is None else _in_fused_order(h, v) for v in (w_ih, b_ih, w_hh, b_hh))
    return (w_ih, b_ih), {"w_hh": w_hh, "b_hh": b_hh, **({"w_hr": projection[0]} if projection else {})}


def _run(h, kind, x, states, weights, reverse):
    """One layer in one direction: the last states and the output of every step."""
    (w_ih, b_ih), inner = weights
    shares = linear(h, x, w_ih, b_ih)

    def body(slices, before):
        after = _STEPS[kind](h, h.squeeze(slices[0], [0]), before, **inner)
        return after, after[:1]

    last, (out,) = h.scan(f"{kind}_cell", [shares], states, body, reverse=reverse)
    return last, out


@op("aten::lstm.data", "aten::gru.data", "aten::rnn_tanh.data", "aten::rnn_relu.data")
def packed(h, **arguments):
    h.refuse("a packed sequence has another batch size at each step")


# -- cells -----------------------------------------------------------------------------------------------------------


def _cell(kind):
    def cell(h, input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
        states = hx if isinstance(hx, list) else [hx]
        if input.type.dtype not in (DType.float16, DType.float32, DType.float64):
            h.refuse(f"tract has no recurrent cell of {input.type.dtype}")
        return _STEPS[kind](h, linear(h, input, w_ih, b_ih), states, w_hh, b_hh)

    return cell


for _kind in _STEPS:
    REGISTRY.add(f"aten::{_kind}_cell", _cell(_kind))
