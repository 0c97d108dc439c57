"""Modules of torch.nn itself: recurrent layers and an encoder layer, over batch and time."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .entry import Entry, Inputs, Sizes, Variant, entry, floats

_SIZES = {"batch": 3, "sequence": 24}
_OTHERS = ({"batch": 1, "sequence": 40}, {"batch": 5, "sequence": 7})


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Callable[[int], nn.Module]:
    """Two layers in both directions; the module returns its output and its last state."""
    return lambda width: kind(width, width, num_layers=2, batch_first=True, bidirectional=True)


def _encoder_layer(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, batch_first=True)


def _sequence_entry(name: str, argument: str, build: Callable[[int], nn.Module], width: int) -> Entry:
    def variant(small: bool) -> Variant:
        features = 16 if small else width

        def inputs(sizes: Sizes) -> Inputs:
            return (floats(sizes["batch"], sizes["sequence"], features),), {}

        return Variant(lambda: build(features), inputs, _SIZES, _OTHERS)

    return entry(name, {argument: {0: "batch", 1: "sequence"}}, variant)


ENTRIES: dict[str, Entry] = {
    "lstm": _sequence_entry("lstm", "input", _recurrent(nn.LSTM), 128),
    "gru": _sequence_entry("gru", "input", _recurrent(nn.GRU), 128),
    "encoder_layer": _sequence_entry("encoder_layer", "src", _encoder_layer, 256),
}
