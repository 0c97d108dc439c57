"""Recurrent networks and their cells."""

from eager_backend.registry import rows
from ir.importer.torch_api import VF

rows(VF, "gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell")
