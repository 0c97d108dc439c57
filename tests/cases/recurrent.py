"""Recurrent networks, whole and cell by cell."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .base import f16, f32, family, inf, mod, nan

FIRST, LATER = f32("B", 5, 4), f32(5, "B", 4)  # where the batch is
# Time is dynamic in rows of their own: torch.export unrolls it, if only to learn the output's shape.
FIRST_ANY, LATER_ANY = f32("B", "S", 4), f32("S", "B", 4)


class WithState(nn.Module):
    """nn.LSTM wants its two states in a tuple; here every input is a tensor."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, **options)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> Any:
        return self.lstm(x, (hidden, cell))


class CellState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        return self.cell(x, (hidden, cell))


class OfMovedAxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 3)

    def forward(self, x: Tensor) -> Any:
        return self.gru(nn.functional.pixel_unshuffle(x, 2))


class Unrolled(nn.Module):
    """A cell stepped by Python over a fixed number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(x.shape[0], 5)
        outputs = []
        for step in x.unbind(1):
            hidden = self.cell(step, hidden)
            outputs.append(hidden)
        return torch.stack(outputs, 1)


class LastStep(nn.Module):
    """A classifier: the sequence is read, only its last state is used."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 4)
        self.lstm = nn.LSTM(4, 5, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embed((x > 0).sum(-1).clamp(max=3)))
        return self.head(torch.cat((hidden[0], hidden[1]), -1))


class OfPairs(nn.Module):
    """One network over sequences of sequences, as taggers have one over the letters of words."""

    def __init__(self, network: type[nn.RNNBase]) -> None:
        super().__init__()
        self.network = network(4, 5, 2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        out, state = self.network(x.flatten(0, 1))
        last = state[0] if isinstance(state, tuple) else state
        return out.unflatten(0, x.shape[:2]) + last.sum()


class EverySecond(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, proj_size=3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, (_, cell) = self.lstm(x[:, 1::2])
        return out, cell


ODD = [[[1.0, nan, 0.0], [0.0, 1.0, 2.0]], [[inf, 0.0, 1.0], [1.0, -0.0, 2.0]]]

CASES = family(
    __name__,
    mod("lstm", lambda: nn.LSTM(4, 5), LATER),
    mod("gru_of_moved_axes", OfMovedAxes, f32(5, 4, 4)),
    mod("lstm_batch_first", lambda: nn.LSTM(4, 5, batch_first=True), FIRST),
    mod("lstm_layers", lambda: nn.LSTM(4, 5, 2, batch_first=True), FIRST),
    mod("lstm_bidirectional", lambda: nn.LSTM(4, 5, bidirectional=True, batch_first=True), FIRST),
    mod("lstm_bidirectional_layers", lambda: nn.LSTM(4, 5, 2, bidirectional=True), LATER),
    mod("lstm_no_bias", lambda: nn.LSTM(4, 5, bias=False), LATER),
    mod("lstm_projected", lambda: nn.LSTM(4, 5, proj_size=3, batch_first=True), FIRST),
    mod("lstm_projected_bidirectional", lambda: nn.LSTM(4, 5, 2, proj_size=3, bidirectional=True), LATER),
    mod("lstm_state", WithState, LATER, f32(1, "B", 5), f32(1, "B", 5)),
    mod(
        "lstm_state_layers",
        lambda: WithState(num_layers=2, bidirectional=True, batch_first=True),
        *(FIRST, f32(4, "B", 5), f32(4, "B", 5)),
    ),
    mod("lstm_no_batch", lambda: nn.LSTM(4, 5), f32(5, 4)),
    mod("lstm_dropout_eval", lambda: nn.LSTM(4, 5, 2, dropout=0.5), LATER),
    mod("lstm_static", lambda: nn.LSTM(4, 5, batch_first=True), f32(2, 3, 4)),
    mod("lstm_one_step", lambda: nn.LSTM(4, 5, batch_first=True), f32("B", 1, 4)),
    mod("lstm_f16", lambda: nn.LSTM(4, 5).half(), f16(3, "B", 4)),
    mod("lstm_last_step", LastStep, FIRST),
    mod("lstm_of_pairs", lambda: OfPairs(nn.LSTM), f32("B", "W", 3, 4)),
    mod("lstm_every_second", EverySecond, LATER),
    mod("gru_of_pairs", lambda: OfPairs(nn.GRU), f32("B", "W", 3, 4)),
    mod("rnn_of_pairs", lambda: OfPairs(nn.RNN), f32("B", "W", 3, 4)),
    mod("gru", lambda: nn.GRU(4, 5), LATER),
    mod("gru_batch_first", lambda: nn.GRU(4, 5, batch_first=True), FIRST),
    mod("gru_layers", lambda: nn.GRU(4, 5, 2, batch_first=True), FIRST),
    mod("gru_bidirectional", lambda: nn.GRU(4, 5, 2, bidirectional=True, batch_first=True), FIRST),
    mod("gru_state", lambda: nn.GRU(4, 5, 2), LATER, f32(2, "B", 5)),
    mod("gru_no_bias", lambda: nn.GRU(4, 5, bias=False), LATER),
    mod("gru_no_batch_state", lambda: nn.GRU(4, 5), f32(5, 4), f32(1, 5)),
    mod("rnn_tanh", lambda: nn.RNN(4, 5), LATER),
    mod("rnn_relu", lambda: nn.RNN(4, 5, nonlinearity="relu", batch_first=True), FIRST),
    mod("rnn_bidirectional", lambda: nn.RNN(4, 5, 2, bidirectional=True), LATER),
    mod("rnn_state", lambda: nn.RNN(4, 5), LATER, f32(1, "B", 5)),
    mod("lstm_time", lambda: nn.LSTM(4, 5), LATER_ANY, beyond_export=True),
    mod(
        "lstm_time_bidirectional",
        lambda: nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True),
        FIRST_ANY,
        beyond_export=True,
    ),
    mod("lstm_time_projected", lambda: nn.LSTM(4, 5, proj_size=3), LATER_ANY, beyond_export=True),
    mod("lstm_time_state", WithState, LATER_ANY, f32(1, "B", 5), f32(1, "B", 5), beyond_export=True),
    mod("lstm_time_last_step", LastStep, FIRST_ANY, beyond_export=True),
    mod("lstm_time_no_batch", lambda: nn.LSTM(4, 5), f32("S", 4), beyond_export=True),
    mod("gru_time", lambda: nn.GRU(4, 5, batch_first=True), FIRST_ANY, beyond_export=True),
    mod("gru_time_bidirectional", lambda: nn.GRU(4, 5, 2, bidirectional=True), LATER_ANY, beyond_export=True),
    mod("rnn_time", lambda: nn.RNN(4, 5), LATER_ANY, beyond_export=True),
    mod("lstm_cell", lambda: nn.LSTMCell(4, 5), f32("B", 4)),
    mod("lstm_cell_state", CellState, f32("B", 4), f32("B", 5), f32("B", 5)),
    mod("gru_cell", lambda: nn.GRUCell(4, 5), f32("B", 4), f32("B", 5)),
    mod("gru_cell_no_bias", lambda: nn.GRUCell(4, 5, bias=False), f32("B", 4), f32("B", 5)),
    mod("rnn_cell", lambda: nn.RNNCell(4, 5), f32("B", 4), f32("B", 5)),
    mod("rnn_cell_relu", lambda: nn.RNNCell(4, 5, nonlinearity="relu"), f32("B", 4)),
    mod("unrolled_cell", Unrolled, f32("B", 3, 4)),
    # nan, infinities, signed zeros; tensors without elements, without axes, with axes of one
    mod("lstm_odd", lambda: nn.LSTM(3, 5, batch_first=True), f32(value=ODD)),
    mod("gru_odd", lambda: nn.GRU(3, 5, batch_first=True), f32(value=ODD)),
    mod("lstm_empty_batch", lambda: nn.LSTM(4, 5, batch_first=True), f32(0, 5, 4)),
    mod("gru_empty_batch", lambda: nn.GRU(4, 5, batch_first=True), f32(0, 5, 4)),
    mod("lstm_size_one", lambda: nn.LSTM(1, 1, bidirectional=True), f32("S", 1, 1)),
    mod("rnn_size_one", lambda: nn.RNN(1, 1, batch_first=True), f32("B", 1, 1)),
)
