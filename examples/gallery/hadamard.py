"""The fast Walsh-Hadamard transform, as quantised models apply it to activations to spread their outliers.

    y = x H / sqrt(n)        H = [[1, 1], [1, -1]] (x) ... (x) [[1, 1], [1, -1]], log2(n) factors

in n log2(n) additions. Source: B. J. Fino and V. R. Algazi, "Unified Matrix Treatment of the Fast Walsh-Hadamard
Transform", 1976; its use: S. Ashkboos et al., "QuaRot", 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ir


@ir.custom_op("gallery::hadamard")
def hadamard(x: Tensor) -> Tensor:
    """The orthonormal transform of the last axis: float32 [rows, n] to the same, n a power of two.

    Raises:
        ValueError: n is no power of two.
    """
    rows, size = x.shape
    if size & (size - 1):
        raise ValueError(f"the last axis has {size} elements, which is no power of two")
    step = 1
    while step < size:
        low, high = x.reshape(rows, size // (2 * step), 2, step).unbind(2)
        x = torch.stack([low + high, low - high], 2).reshape(rows, size)
        step *= 2
    return x * size**-0.5
