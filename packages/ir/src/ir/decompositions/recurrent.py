"""Recurrent layers: one loop over the steps for each layer and direction, for any number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ir.decompositions.loops import by_rows
from ir.decompositions.registry import decomposition
from ir.importer.torch_api import scan_op

linear = torch.nn.functional.linear


def _lstm_cell(x: Tensor, own: Tensor, before: Tensor, cell: Tensor) -> list[Tensor]:
    """Gates in the order input, forget, cell, output."""
    i, f, g, o = (x + own).chunk(4, 1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(cell), cell]


def _gru_cell(x: Tensor, own: Tensor, before: Tensor) -> list[Tensor]:
    """Gates in the order reset, update, new."""
    (r, z, n), (hr, hz, hn) = x.chunk(3, 1), own.chunk(3, 1)
    n = torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return [n + torch.sigmoid(z + hz) * (before - n)]


def _layer(
    xs: Tensor, start: Sequence[Tensor], params: Sequence[Tensor], cell: Callable[..., Sequence[Tensor]], back: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    """One layer in one direction: all its outputs, and the last states.

    Its weights for the input and for the state, the biases of both if it has any, and what projects the state if it is.
    """
    size, pairs = len(start), len(params) // 2
    of_input, of_state, projection = params[: 2 * pairs : 2], params[1 : 2 * pairs : 2], params[2 * pairs :]
    given = linear(xs, *of_input)
    given = given.flip(0) if back else given

    def step(*operands: Tensor) -> list[Tensor]:
        state, x, weights = operands[:size], operands[size], operands[size + 1 :]
        first, *others = cell(x, linear(state[0], *weights[: len(of_state)]), *state)
        first = linear(first, *weights[len(of_state) :]) if projection else first
        return [*by_rows([first, *others]), first.clone()]

    *last, outputs = scan_op(step, by_rows(start), [given], (*of_state, *projection))
    return outputs.flip(0) if back else outputs, last


def _recurrent(cell: Callable[..., Sequence[Tensor]]) -> Callable[..., tuple[Tensor, ...]]:
    def layers(
        input: Tensor, hx: Sequence[Tensor] | Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if dropout and train:
            raise NotImplementedError("it drops out at random")
        directions = 1 + bidirectional
        each = len(params) // (num_layers * directions)
        states = [hx] if isinstance(hx, Tensor) else hx
        xs, last = input.transpose(0, 1) if batch_first else input, []
        for number in range(num_layers):
            outputs = []
            for k in range(number * directions, (number + 1) * directions):
                start = [s.select(0, k) for s in states]
                made, end = _layer(xs, start, params[k * each : (k + 1) * each], cell, k % directions == 1)
                outputs.append(made)
                last.append(end)
            xs = torch.cat(outputs, 2)
        ends = (torch.stack(list(parts)) for parts in zip(*last, strict=True))
        return xs.transpose(0, 1) if batch_first else xs, *ends

    return layers


decomposition("lstm.input")(_recurrent(_lstm_cell))
decomposition("gru.input")(_recurrent(_gru_cell))
decomposition("rnn_tanh.input")(_recurrent(lambda x, own, before: [torch.tanh(x + own)]))
decomposition("rnn_relu.input")(_recurrent(lambda x, own, before: [torch.relu(x + own)]))
