"""What is said of a model that torch.export refuses: the reason, a line of the model and the way out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import ir

X = torch.ones(6, 2)


@dataclasses.dataclass
class Unregistered:
    kept: torch.Tensor


REFUSED = {
    "numpy reads a tensor": (lambda x: torch.tensor(x.numpy().tolist()), (X,), "ir.custom_op"),
    "not a known type\n": (lambda x: Unregistered(x + 1), (X,), "torch.export.register_dataclass(Unregistered)"),
    "narrow begins where a tensor says": (lambda x, n: x.narrow(0, n, 2), (X, torch.tensor(1)), "start.item()"),
}

LAYER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
MASK = nn.Transformer.generate_square_subsequent_mask(3)
REFUSED |= {
    "whether a mask is the causal one": (nn.TransformerEncoder(LAYER, 1), (torch.ones(2, 3, 8), MASK), "is_causal=Fal"),
    r"a torch.Generator, which has no form in the IR\n  at .*generator=": (
        lambda x: x + torch.rand(2, generator=torch.Generator()), (X,), "draw without generator="
    ),
    "operator flex_attention has no": (lambda x: flex_attention(x, x, x), (torch.ones(1, 1, 8, 16),), "attn_mask="),
    "torch.quint8 has no form": (
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize(), (X,), "convert_pt2e"
    ),
}  # fmt: skip


if torch.__version__ < "2.12":  # where torch.export fails of such a result with an error of its own
    del REFUSED["not a known type\n"]
    REFUSED["a quantised tensor, which has no form"] = REFUSED.pop("torch.quint8 has no form")


@pytest.mark.parametrize("said", REFUSED)
def test_the_way_out_is_named(said):
    model, args, way = REFUSED[said]
    with pytest.raises(ir.CaptureError, match=said) as caught:
        ir.capture(model, args)
    assert way in str(caught.value) and "functorch/issues" not in str(caught.value)


def test_a_line_of_pythons_own_library_is_no_line_of_the_model():
    packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ir.CaptureError) as caught:
        ir.capture(packed, (torch.ones(2, 4),))
    assert "contextlib.py" not in str(caught.value)
