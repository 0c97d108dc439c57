"""Recurrent networks: ONNX's LSTM, GRU and RNN, a layer each; a Scan where a state is projected."""

from __future__ import annotations

import numpy as np

from ir.dims import call
from ir.ops import FILLS
from ir.types import DType
from onnx_backend.registry import register as op

# The gates in ONNX's order, by their place in torch's: iofc of ifgo, zrh of rzn.
_ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
FATAL = ("aten::lstm", "aten::gru")  # onnxruntime ends the process at an empty batch: there is one row in it, then


@op("aten::lstm.input")
def lstm(h, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    states = list(zip(hx, h.node.args["hx"], strict=True))
    size = (4 if has_biases else 2) * num_layers * (1 + bidirectional)
    run = _projected if len(params) > size else _layer("LSTM")
    return _run(h, run, input, states, params, num_layers, dropout if train else 0, bidirectional, batch_first)


@op("aten::gru.input")
def gru(h, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    run, states = _layer("GRU", linear_before_reset=1), [(hx, h.node.args["hx"])]
    return _run(h, run, input, states, params, num_layers, dropout if train else 0, bidirectional, batch_first)


@op("aten::rnn_tanh.input")
def rnn_tanh(h, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    run, states = _layer("RNN", "Tanh"), [(hx, h.node.args["hx"])]
    return _run(h, run, input, states, params, num_layers, dropout if train else 0, bidirectional, batch_first)


@op("aten::rnn_relu.input")
def rnn_relu(h, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    run, states = _layer("RNN", "Relu"), [(hx, h.node.args["hx"])]
    return _run(h, run, input, states, params, num_layers, dropout if train else 0, bidirectional, batch_first)


def _run(h, layer, x, states, params, layers, dropout, bidirectional, batch_first):
    """Layer over layer, time first; the results as torch's: the last layer's output, then each state of all layers.

    A layer gives [time, directions, batch, width] and its last states, [directions, batch, width].
    """
    if 0 in x.type.shape[:2]:  # onnxruntime ends the process
        return [h.full(r.shape, 0, r.dtype) for r in h.results]
    directions = 1 + bidirectional
    each = len(params) // (layers * directions)
    x = h.transpose(x, [1, 0, 2]) if batch_first else x
    if h.may_be_empty(x.type.shape[0]):
        x = h.require(x, call("gt", x.type.shape[0], 0))
    batch, states = x.type.shape[1], [_initial_of(h, *s) for s in states]
    if h.node.op in FATAL and layer is not _projected:
        x, *states = (None if t is None else h.filled(t, 1) for t in (x, *states))
    lasts = []
    for n in range(layers):
        weights = [params[i * each : (i + 1) * each] for i in range(n * directions, (n + 1) * directions)]
        y, *last = layer(h, x, weights, [_state(h, s, n, layers, directions) for s in states])
        lasts.append(last)
        final = n == layers - 1
        width = y.type.shape[3]
        y = h.transpose(y, [2, 0, 1, 3] if final and batch_first else [0, 2, 1, 3]) if directions > 1 or final else y
        x = h.reshape(y, [*y.type.shape[:2], directions * width]) if directions > 1 or final else h.squeeze(y, [1])
        if dropout and not final:
            x = h.emit("Dropout", x, h.const(dropout, DType.float32), h.const(True))
    ends = [h.concat(list(state), 0) for state in zip(*lasts, strict=True)]
    return [h.cut(x, 0 if batch_first else 1, batch), *(h.cut(e, 1, batch) for e in ends)]


def _initial_of(h, given, value):
    """An initial state; None for zeros, ONNX's own default."""
    producer = h.driver.scopes[-1].producer.get(value)
    return None if producer is not None and FILLS.get(producer.op) == 0 else given


def _state(h, given, n, layers, directions):
    """A layer's share of an initial state."""
    if given is None or layers == 1:
        return given
    return h.slice(given, 0, n * directions, (n + 1) * directions, 1, directions)


def _layer(kind, *activations, **attributes):
    order = _ORDER[kind]

    def run(h, x, weights, states):
        directions, width = len(weights), weights[0][1].type.shape[1]
        w = _stacked(h, [[d[0]] for d in weights], order)
        r = _stacked(h, [[d[1]] for d in weights], order)
        b = _stacked(h, [d[2:] for d in weights], order) if len(weights[0]) > 2 else None
        batch = x.type.shape[1]
        y, *last = h.emit(
            kind, x, w, r, b, None, *states, outputs=len(states) + 1, hidden_size=width,
            direction="bidirectional" if directions > 1 else None, activations=list(activations) * directions or None,
            **attributes,
        )  # fmt: skip
        y.type = y.type.with_shape((x.type.shape[0], directions, batch, width))
        for state in last:
            state.type = state.type.with_shape((directions, batch, width))
        return y, *last

    return run


def _stacked(h, weights, order):
    """The weights of all directions, gates in ONNX's order; two biases of a direction lie one behind the other."""
    first = weights[0][0]
    rows = first.type.shape[0] // len(order)
    shape = (len(weights), first.type.shape[0] * len(weights[0]), *first.type.shape[1:])
    flat = [w for direction in weights for w in direction]
    index = np.concatenate([np.arange(g * rows, (g + 1) * rows) for g in order])

    def make(*arrays):
        return np.concatenate([a[index] for a in arrays]).reshape(shape)

    found = h.derived(("gates", order, len(weights)), flat, make, shape)
    if found is not None:
        return found
    parts = [w if len(order) == 1 else h.emit("Gather", w, h.constant(index), axis=0) for w in flat]
    return h.reshape(h.concat(parts, 0), shape)


# -- LSTM with projection, which ONNX's own lacks ----------------------------------------------------------------------


def _projected(h, x, weights, states):
    runs = []
    for i, (w, r, *biases, projection) in enumerate(weights):
        initial = [
            _initial(h, s, i, x, n) for s, n in zip(states, (r.type.shape[1], projection.type.shape[1]), strict=True)
        ]
        gates = _times(h, x, w)
        for b in biases:
            gates = h.emit("Add", gates, b)
        runs.append(h.scan(_cell(h, r, projection), initial, [gates], axis=0, reverse=i == 1))
    hidden, cell, y = (
        [h.unsqueeze(t, [at]) for t in ts] for ts, at in zip(zip(*runs, strict=True), (0, 0, 1), strict=True)
    )
    return h.concat(y, 1), h.concat(hidden, 0), h.concat(cell, 0)


def _initial(h, state, direction, x, width):
    """The state of one direction, [batch, width]."""
    shape = (x.type.shape[1], width)
    if state is None:
        return h.full(shape, 0, x.type.dtype)
    return h.emit("Gather", state, h.const(direction, DType.int64), axis=0, shape=shape)


def _times(h, x, w):
    return h.emit("MatMul", x, h.transpose(w, [1, 0]))


def _cell(h, r, projection):
    def step(hidden, cell, gates):
        gates = h.emit("Add", gates, _times(h, hidden, r))
        i, f, g, o = h.split(gates, [gates.type.shape[1] // 4] * 4, 1)
        i, f, o = (h.emit("Sigmoid", t) for t in (i, f, o))
        cell = h.emit("Add", h.emit("Mul", f, cell), h.emit("Mul", i, h.emit("Tanh", g)))
        hidden = _times(h, h.emit("Mul", o, h.emit("Tanh", cell)), projection)
        return [hidden, cell], [hidden]

    return step
