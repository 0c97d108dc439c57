"""Quantising, dequantising and what chooses the steps: the ops that converted models hold."""

from __future__ import annotations

from typing import Any

import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn

from .base import f16, f32, family, i8, inf, mod, row, u8

Q = torch.ops.quantized_decomposed
X = f32("B", 3, 4, low=-4, high=4)
INT8 = (-128, 127, torch.int8)
UINT8 = (0, 255, torch.uint8)


def there_and_back(x: Tensor, scale: float, zero: int, *kind: Any) -> tuple[Tensor, Tensor]:
    whole = Q.quantize_per_tensor(x, scale, zero, *kind)
    return whole, Q.dequantize_per_tensor(whole, scale, zero, *kind)


def by_channel(x: Tensor, axis: int, count: int, *kind: Any) -> tuple[Tensor, Tensor]:
    scale = torch.arange(1, count + 1) * 0.03
    zero = torch.arange(count) - 1 if kind[2] == torch.int8 else torch.arange(count) + 100
    whole = Q.quantize_per_channel(x, scale, zero, axis, *kind)
    return whole, Q.dequantize_per_channel(whole, scale, zero, axis, *kind)


def chosen(x: Tensor, op: Any = Q.choose_qparams.tensor, kind: Any = INT8) -> Tensor:
    scale, zero = op(x, kind[0], kind[1], 2.0**-12, kind[2])
    whole = Q.quantize_per_tensor.tensor(x, scale, zero, *kind)
    return Q.dequantize_per_tensor.tensor(whole, scale, zero, *kind)


def by_token(x: Tensor) -> Tensor:
    scale, zero = Q.choose_qparams_per_token_asymmetric(x, torch.int8)
    whole = Q.quantize_per_token(x, scale, zero, *INT8)
    return Q.dequantize_per_token(whole, scale, zero, *INT8, torch.float32)


class IntegerWeight(nn.Module):
    """A linear layer over stored integers, as convert_pt2e leaves it: by tensor, by channel or by group."""

    whole: Tensor

    def __init__(self, bits: int, kind: str) -> None:
        super().__init__()
        self.bits, self.kind = bits, kind
        self.low, self.high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        self.register_buffer("whole", torch.randint(self.low, self.high + 1, (6, 32)).to(torch.int8))
        shape = (6, 2) if kind == "group" else (6,)
        self.register_buffer("scale", torch.rand(shape) * 0.1 + 0.01)
        self.register_buffer("zero", torch.randint(-3, 3, shape))
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        kind = (self.low, self.high, torch.int8)
        if self.kind == "tensor":
            weight = Q.dequantize_per_tensor(self.whole, 0.07, 1, *kind)
        elif self.kind == "channel":
            weight = Q.dequantize_per_channel(self.whole, self.scale, self.zero, 0, *kind)
        elif self.kind == "channel_no_zero":
            weight = Q.dequantize_per_channel(self.whole, self.scale, None, 0, *kind)
        else:
            weight = Q.dequantize_per_channel_group(self.whole, self.scale, self.zero, *kind, 16, torch.float32)
        return nn.functional.linear(x, weight, self.bias)


class FloatWeight(nn.Module):
    """The same before its weights are folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("scale", torch.rand(4) * 0.01 + 0.001)
        self.register_buffer("zero", torch.zeros(4, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        kind = (-127, 127, torch.int8)
        whole = Q.quantize_per_channel(self.conv.weight, self.scale, self.zero, 0, *kind)
        weight = Q.dequantize_per_channel(whole, self.scale, self.zero, 0, *kind)
        return nn.functional.conv2d(there_and_back(x, 0.05, 3, *UINT8)[1], weight, self.conv.bias)


def fake_by_channel(x: Tensor) -> Tensor:
    zero = torch.tensor([0, 2, -1], dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(x, torch.tensor([0.02, 0.03, 0.1]), zero, 1, -128, 127)


WRAPPED = f32(8, value=[0.0, 254.6, -1.0, -0.5, 300.0, -129.0, 200.0, 3.99])

CASES = family(
    __name__,
    row("floats_to_u8", lambda x: (x.to(torch.uint8), x.to(torch.int8), x.to(torch.int16)), WRAPPED),
    row("per_tensor_int8", lambda x: there_and_back(x, 0.04, -7, *INT8), X),
    row("per_tensor_uint8", lambda x: there_and_back(x, 0.025, 130, *UINT8), X),
    row("per_tensor_int16", lambda x: there_and_back(x, 0.001, -30, -32768, 32767, torch.int16), X),
    row("per_tensor_uint16", lambda x: there_and_back(x, 0.001, 30, 0, 65535, torch.uint16), f32("B", 3)),
    row("per_tensor_int32", lambda x: there_and_back(x, 0.001, 5, -(2**31), 2**31 - 1, torch.int32), X),
    row("per_tensor_narrow", lambda x: there_and_back(x, 0.04, -7, -64, 63, torch.int8), X),
    row("per_tensor_7_bits", lambda x: there_and_back(x, 0.025, 60, 0, 127, torch.uint8), X),
    row("per_tensor_f16", lambda x: there_and_back(x, 0.04, -7, *INT8), f16("B", 3)),
    # half a step goes to the even neighbour; what lies beyond the limits stays at them
    row(
        "ties",
        lambda x: there_and_back(x, 0.5, 1, *INT8),
        f32(value=[0.25, 0.75, 1.25, -0.25, -0.75, 1e9, -1e9, inf, -inf, 0.0]),
    ),
    row("int8_read_twice", lambda x: (lambda q: (q[1].relu(), q[1] + 1))(there_and_back(x, 0.04, -7, *INT8)), X),
    row("per_tensor_given", lambda x: chosen(x, kind=UINT8), X),
    row("per_tensor_given_int8", chosen, X),
    row("per_tensor_given_symmetric", lambda x: chosen(x, Q.choose_qparams_symmetric.tensor, INT8), X),
    row("per_tensor_given_tiny", lambda x: chosen(x * 1e-4, kind=UINT8), X),
    row("choose_qparams", lambda x: Q.choose_qparams.tensor(x, 0, 255, 2.0**-12, torch.uint8), X),
    row("per_channel", lambda x: by_channel(x, 1, 3, *INT8), X),
    row("per_channel_uint8", lambda x: by_channel(x, 2, 4, *UINT8), X),
    row("per_channel_last", lambda x: by_channel(x, 2, 4, -127, 127, torch.int8), X),
    row("per_token", by_token, X),
    row("dequantize_int8", lambda q: Q.dequantize_per_tensor(q, 0.1, 3, *INT8), i8("B", 3)),
    row("dequantize_uint8_limits", lambda q: Q.dequantize_per_tensor(q, 0.1, 255, *UINT8), u8(value=[0, 255, 128])),
    mod("weight_per_tensor", lambda: IntegerWeight(8, "tensor"), f32("B", 5, 32)),
    mod("weight_per_channel", lambda: IntegerWeight(8, "channel"), f32("B", 5, 32)),
    mod("weight_no_zero", lambda: IntegerWeight(8, "channel_no_zero"), f32("B", 32)),
    mod("weight_group", lambda: IntegerWeight(8, "group"), f32("B", 5, 32)),
    mod("weight_4_bits", lambda: IntegerWeight(4, "channel"), f32("B", 5, 32)),
    mod("weight_4_bits_tensor", lambda: IntegerWeight(4, "tensor"), f32("B", 32)),
    mod("weight_4_bits_group", lambda: IntegerWeight(4, "group"), f32("B", 5, 32)),
    mod("weight_4_bits_group_matrix", lambda: IntegerWeight(4, "group"), f32("B", 32)),
    mod("weight_unfolded", FloatWeight, f32("B", 3, 6, 6)),
    row("fake_per_tensor", lambda x: torch.fake_quantize_per_tensor_affine(x, 0.03, 4, -128, 127), X),
    row("fake_per_tensor_4_bits", lambda x: torch.fake_quantize_per_tensor_affine(x, 0.3, 4, 0, 15), X),
    row("fake_per_channel", fake_by_channel, X),
)
