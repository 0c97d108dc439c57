"""StyleGAN's fused bias and activation: what its CUDA kernel `fused_bias_act` does in one pass over memory.

    y = scale leaky_relu(x + bias)        scale = sqrt(2) keeps the variance

Source: T. Karras et al., "Analyzing and Improving the Image Quality of StyleGAN", 2020, and its reference code.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ir


@ir.custom_op("gallery::fused_bias_act")
def fused_bias_act(x: Tensor, bias: Tensor | None = None, slope: float = 0.2, scale: float = 2**0.5) -> Tensor:
    """An activated tensor.

    Args:
        x: float32 [batch, channels, ...].
        bias: of the channels, float32 [channels], or None.
        slope: of the activation below zero.
        scale: of the result.

    Returns:
        As x.
    """
    if bias is not None:
        x = x + bias.reshape(1, -1, *[1] * (x.ndim - 2))
    return torch.nn.functional.leaky_relu(x, slope) * scale
