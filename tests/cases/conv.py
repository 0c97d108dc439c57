"""Convolutions, straight and transposed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import bf16, f16, f32, f64, family, inf, mod, nan, row

IMAGE = f32("B", 4, "H", "W")
SOUND = f32("B", 4, "T")


class Crossed(nn.Module):
    """Bounds of which torch takes the upper one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(1, 0)


CASES = family(
    __name__,
    mod("conv1d", lambda: nn.Conv1d(4, 6, 3), SOUND),
    mod("conv1d_stride_padding", lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), SOUND),
    mod("conv1d_dilation", lambda: nn.Conv1d(4, 6, 2, dilation=3), SOUND),
    mod("conv1d_same", lambda: nn.Conv1d(4, 6, 3, padding="same"), SOUND),
    mod("conv1d_same_even_kernel", lambda: nn.Conv1d(4, 6, 4, padding="same"), SOUND),
    mod("conv1d_depthwise", lambda: nn.Conv1d(4, 8, 3, groups=4), SOUND),
    mod("conv1d_no_batch", lambda: nn.Conv1d(4, 6, 3), f32(4, "T")),
    mod("conv1d_circular", lambda: nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), SOUND),
    row(
        "spread_product",
        lambda x: F.conv_transpose1d(torch.einsum("...i,...i->...", x, x), torch.full((1, 2, 2), 0.25), stride=2),
        f32(3, 1, 2, 4),
    ),
    row("conv1d_causal", lambda x, w: F.conv1d(F.pad(x, (2, 0)), w), SOUND, f32(6, 4, 3)),
    row("conv1d_of_no_channels", lambda x, w: F.conv1d(x[:, :0], w[:, :0], padding=3), SOUND, f32(2, 4, 3)),
    mod("conv2d", lambda: nn.Conv2d(4, 6, 3), IMAGE),
    mod("conv2d_crossed_bounds", lambda: nn.Sequential(nn.Conv2d(4, 6, 3), Crossed()), f32(2, 4, 8, 8)),
    mod("conv2d_no_bias", lambda: nn.Conv2d(4, 6, 3, bias=False), IMAGE),
    mod("conv2d_pointwise", lambda: nn.Conv2d(4, 6, 1), IMAGE),
    mod("conv2d_stride", lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), IMAGE),
    mod(
        "conv2d_uneven",
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(1, 2)),
        IMAGE,
    ),
    mod("conv2d_dilation", lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2), IMAGE),
    mod("conv2d_same", lambda: nn.Conv2d(4, 6, 3, padding="same"), IMAGE),
    mod("conv2d_same_dilation", lambda: nn.Conv2d(4, 6, (2, 3), padding="same", dilation=2), IMAGE),
    mod("conv2d_valid", lambda: nn.Conv2d(4, 6, 3, padding="valid"), IMAGE),
    mod("conv2d_groups", lambda: nn.Conv2d(4, 6, 3, groups=2), IMAGE),
    mod("conv2d_depthwise", lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), IMAGE),
    mod("conv2d_depthwise_multiplier", lambda: nn.Conv2d(4, 8, 3, groups=4), IMAGE),
    mod("conv2d_no_batch", lambda: nn.Conv2d(4, 6, 3), f32(4, "H", "W")),
    mod("conv2d_static", lambda: nn.Conv2d(4, 6, 3), f32(2, 4, 8, 8)),
    mod("conv2d_reflect", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMAGE),
    mod("conv2d_replicate", lambda: nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="replicate"), IMAGE),
    mod("conv2d_circular", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), IMAGE),
    row("conv2d_weight_given", lambda x, w: F.conv2d(x, w, stride=2), IMAGE, f32(6, 4, 3, 3)),
    row("conv2d_all_given", lambda x, w, b: F.conv2d(x, w, b, padding=1), IMAGE, f32(6, 4, 3, 3), f32(6)),
    mod("conv2d_f16", lambda: nn.Conv2d(4, 6, 3).half(), f16("B", 4, "H", "W")),
    mod("conv2d_bf16", lambda: nn.Conv2d(4, 6, 3).bfloat16(), bf16("B", 4, "H", "W")),
    mod("conv2d_f64", lambda: nn.Conv2d(4, 6, 3).double(), f64("B", 4, "H", "W")),
    mod("conv3d", lambda: nn.Conv3d(2, 3, 3, padding=1), f32("B", 2, 5, "H", "W")),
    mod(
        "conv3d_stride_groups",
        lambda: nn.Conv3d(2, 4, (1, 2, 3), stride=(1, 2, 2), groups=2),
        f32("B", 2, 3, 6, 7),
    ),
    mod("transpose1d", lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), SOUND),
    mod("transpose1d_output_padding", lambda: nn.ConvTranspose1d(4, 6, 3, 3, 1, output_padding=2), SOUND),
    mod("transpose2d", lambda: nn.ConvTranspose2d(4, 6, 3), IMAGE),
    mod("transpose2d_no_bias", lambda: nn.ConvTranspose2d(4, 6, 2, stride=2, bias=False), IMAGE),
    mod(
        "transpose2d_stride",
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
        IMAGE,
    ),
    mod("transpose2d_groups", lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), IMAGE),
    mod("transpose2d_depthwise", lambda: nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1, groups=4), IMAGE),
    mod("transpose2d_dilation", lambda: nn.ConvTranspose2d(4, 6, 3, padding=2, dilation=2), IMAGE),
    mod(
        "transpose2d_uneven",
        lambda: nn.ConvTranspose2d(4, 6, (2, 3), stride=(3, 2), padding=(0, 1), output_padding=(2, 0)),
        IMAGE,
    ),
    mod("transpose2d_no_batch", lambda: nn.ConvTranspose2d(4, 6, 3), f32(4, "H", "W")),
    mod("transpose3d", lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), f32("B", 2, 3, 4, 5)),
    mod(
        "residual_block",
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        IMAGE,
    ),
    # nan, infinities, signed zeros; tensors without elements, without axes, with axes of one
    row(
        "odd_conv1d",
        lambda x, w: F.conv1d(x, w, padding=1),
        f32(value=[[[1.0, nan, 0.0, 2.0, -0.0, inf, 1.0]]]),
        f32(2, 1, 3),
    ),
    row("empty_conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), f32(0, 4, 5, 6), f32(6, 4, 3, 3), f32(6)),
    row("empty_conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w, stride=2), f32(0, 4, 5), f32(4, 6, 3)),
    row("size_one_image", lambda x, w: F.conv2d(x, w, padding=1), f32("B", 4, 1, 1), f32(6, 4, 3, 3)),
    row("size_one_batch", lambda x, w: F.conv1d(x, w), f32(1, 4, "T"), f32(6, 4, 1)),
    row("size_one_depthwise", lambda x, w: F.conv2d(x, w), f32("B", 1, "H", "W"), f32(1, 1, 2, 2)),
)
