"""Recurrent layers: one loop over the steps for each layer and direction, for any number of steps."""

from ir.types import DType
from stablehlo_backend.handlers.elementwise import tanh as tanh64
from stablehlo_backend.handlers.elementwise import unary
from stablehlo_backend.registry import register as op


def sigmoid(h, x):
    return h.emit("logistic", x)


def tanh(h, x):
    return tanh64(h, x) if x.type.dtype is DType.float64 else unary("tanh")(h, x)


def lstm_cell(h, x, states, weights):
    """Gates in the order input, forget, cell, output."""
    before, cell = states
    gates = h.emit("add", x, plain(h, before, *weights))
    i, f, g, o = (h.cut(gates, 1, k * before.type.shape[1], (k + 1) * before.type.shape[1]) for k in range(4))
    kept = h.emit("multiply", sigmoid(h, f), cell)
    cell = h.emit("add", kept, h.emit("multiply", sigmoid(h, i), tanh(h, g)))
    return [h.emit("multiply", sigmoid(h, o), tanh(h, cell)), cell]


def gru_cell(h, x, states, weights):
    """Gates in the order reset, update, new."""
    (before,) = states
    size, own = before.type.shape[1], plain(h, before, *weights)
    (r, z, n), (hr, hz, hn) = ([h.cut(t, 1, k * size, (k + 1) * size) for k in range(3)] for t in (x, own))
    r, z = sigmoid(h, h.emit("add", r, hr)), sigmoid(h, h.emit("add", z, hz))
    n = tanh(h, h.emit("add", n, h.emit("multiply", r, hn)))
    return [h.emit("add", n, h.emit("multiply", z, h.emit("subtract", before, n)))]


def simple_cell(activation):
    def cell(h, x, states, weights):
        return [activation(h, h.emit("add", x, plain(h, states[0], *weights)))]

    return cell


def plain(h, x, weight, bias=None):
    made = h.dot(x, weight, ((), ()), ((x.type.rank - 1,), (1,)))
    return made if bias is None else h.emit("add", made, bias)


def layer(h, xs, states, weights, cell, backward):
    """One layer in one direction: all its outputs, and the last states."""
    weights = [weights[0], *weights[2:3]], [weights[1], *weights[3:4]]
    projected = plain(h, xs, *weights[0])
    steps, batch = xs.type.shape[:2]
    hidden = states[0].type.shape[1]
    outputs = h.full(0, (steps, batch, hidden), xs.type.dtype)
    count = h.tensor(steps, DType.int64)
    start = [h.const(0, DType.int64), *states, outputs]
    types = [s.type for s in start]

    def going(i, *_):
        return [h.compare("LT", i, count)]

    def body(i, *now):
        *old, outputs = now
        last = h.emit("subtract", h.emit("subtract", count, 1), i)
        place = h.reshape(last if backward else i, (1,))
        x = h.squeeze(h.take(projected, place), 0)
        new = cell(h, x, old, weights[1])
        written = h.put(outputs, place, h.unsqueeze(new[0], 0))
        return h.typed([h.emit("add", i, 1), *new, written], types)

    regions = [h.builder.region(types, fn, False) for fn in (going, body)]
    made = h.emit("while", *start, regions=regions, type=types)
    return made[-1], made[1:-1]


def recurrent(h, input, states, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, cell):
    if dropout and train:
        h.refuse("it drops out at random")
    xs = h.transpose(input, [1, 0, 2]) if batch_first else input
    each, directions = (4 if has_biases else 2), 1 + bidirectional
    if len(params) != each * num_layers * directions:
        h.refuse("its hidden state is projected")
    last = []
    for number in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = number * directions + direction
            start = [h.squeeze(h.cut(s, 0, k, k + 1), 0) for s in states]
            made, end = layer(h, xs, start, params[k * each : (k + 1) * each], cell, direction == 1)
            outputs.append(made)
            last.append([h.unsqueeze(e, 0) for e in end])
        xs = h.concat(outputs, 2)
    return [h.transpose(xs, [1, 0, 2]) if batch_first else xs, *(h.concat(parts, 0) for parts in zip(*last))]


@op("aten::lstm.input")
def lstm(h, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    return recurrent(h, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first,
                     lstm_cell)  # fmt: skip


def of_one_state(cell):
    def handler(h, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
        return recurrent(h, input, [hx], params, has_biases, num_layers, dropout, train, bidirectional, batch_first,
                         cell)  # fmt: skip

    return handler


op("aten::gru.input")(of_one_state(gru_cell))
op("aten::rnn_tanh.input")(of_one_state(simple_cell(tanh)))
op("aten::rnn_relu.input")(of_one_state(simple_cell(lambda h, x: h.emit("maximum", x, 0))))
