"""Quantisation with steps that are tensors: what an observer chooses, and the arithmetic of torch's own kernels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ir.decompositions.registry import decomposition


def _quotient(x: Tensor, y: Any) -> Tensor:
    """The quotient of float32 as IEEE rounds it, out of float64: a runtime may multiply by the reciprocal."""
    return torch.div(x.to(torch.float64), y).to(torch.float32)


def _extremes(input: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest number, zero among them."""
    x = input.to(torch.float32)
    return x.amin().clamp(max=0.0), x.amax().clamp(min=0.0)


@decomposition("quantized_decomposed::choose_qparams.tensor")
def _choose_qparams(input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: Any) -> tuple[Tensor, Tensor]:
    """torch/ao/quantization/utils.py, determine_qparams."""
    least, most = _extremes(input)
    scale = _quotient(most - least, quant_max - quant_min).clamp(min=eps)
    zero = (quant_min - _quotient(least, scale.to(torch.float64)).round()).clamp(quant_min, quant_max)
    return scale.reshape(1).to(torch.float64), zero.reshape(1).to(torch.int64)


@decomposition("quantized_decomposed::choose_qparams_symmetric.tensor")
def _choose_symmetric(input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: Any) -> tuple[Tensor, Tensor]:
    least, most = _extremes(input)
    scale = _quotient(torch.maximum(-least, most), (quant_max - quant_min) / 2).clamp(min=eps)
    zero = torch.full([1], 128 if dtype is torch.uint8 else 0, dtype=torch.int64)
    return scale.reshape(1).to(torch.float64), zero


def _steps(x: Tensor, scale: Tensor, zero_point: Tensor, low: float, high: float) -> Tensor:
    """The step that each number lies on, still a float."""
    return ((x * scale.reciprocal()).round() + zero_point).clamp(low, high)


@decomposition("quantized_decomposed::quantize_per_tensor.tensor")
def _quantize(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    step, zero = (t.reshape([]).to(torch.float32) for t in (scale, zero_point))
    return _steps(input.to(torch.float32), step, zero, quant_min, quant_max).to(dtype)


@decomposition("quantized_decomposed::dequantize_per_tensor.tensor")
def _dequantize(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, dtype: torch.dtype,
    *, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    x, step, zero = (t.to(out_dtype or torch.float32) for t in (input, scale.reshape([]), zero_point.reshape([])))
    return (x - zero) * step


@decomposition("fake_quantize_per_tensor_affine")
def _fake_quantize(self: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Tensor:
    given = (v if isinstance(v, Tensor) else torch.scalar_tensor(v, dtype=torch.float32) for v in (scale, zero_point))
    step, zero = (t.reshape([]).to(torch.float32) for t in given)
    return _there_and_back(self, step, zero, quant_min, quant_max, math.inf)


@decomposition("fake_quantize_per_channel_affine")
def _fake_quantize_channels(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    sizes = [-1 if a == axis % self.dim() else 1 for a in range(self.dim())]
    step, zero = (t.to(torch.float32).reshape(sizes) for t in (scale, zero_point))
    return _there_and_back(self, step, zero, quant_min, quant_max, 2.0**63)


def _there_and_back(x: Tensor, scale: Tensor, zero_point: Tensor, low: float, high: float, limit: float) -> Tensor:
    """NaN, and steps beyond the integers that torch's kernel counts them in, become the lowest step."""
    wide = x.to(torch.float32)
    steps = wide * scale.reciprocal()
    lost = steps.isnan() if limit == math.inf else (steps.abs() < limit).logical_not()
    place = torch.where(lost, float(low), _steps(wide, scale, zero_point, low, high))
    return ((place - zero_point) * scale).to(x.dtype)
