"""Recurrent networks and their cells."""

import torch

from eager_backend.registry import rows

rows(torch._C._VariableFunctions, "gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell")
