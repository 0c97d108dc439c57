"""Pooling over windows, fixed and adaptive."""

from __future__ import annotations

import torch.nn.functional as F

from .base import f16, f32, f64, family, i64, inf, nan, row

IMAGE = f32("B", 3, "H", "W")
SOUND, FIXED = f32("B", 3, "T"), f32("B", 3, 6)
VOLUME = f32("B", 2, 5, 6, 7)

ODD_SOUND = [[[1.0, nan, 0.0, 2.0, -0.0, inf, 1.0, -inf]]]

CASES = family(
    __name__,
    row("max1d", lambda x: F.max_pool1d(x, 2), FIXED),
    row("max1d_padding", lambda x: F.max_pool1d(x, 3, stride=2, padding=1), FIXED),
    row("max1d_no_batch", lambda x: F.max_pool1d(x, 2), f32(3, 6)),
    row("max1d_dynamic", lambda x: F.max_pool1d(x, 2), SOUND, beyond_export=True),
    row("max1d_indices_dynamic", lambda x: F.max_pool1d(x, 2, return_indices=True), SOUND),
    row("max2d", lambda x: F.max_pool2d(x, 2), IMAGE),
    row(
        "whole_maps",
        lambda x: (F.avg_pool2d(x, x.shape[2:]), F.max_pool2d(x, x.size()[2:]), F.max_pool1d(x[0], x.size(3))),
        IMAGE,
    ),
    row("max2d_stride_padding", lambda x: F.max_pool2d(x, 3, stride=2, padding=1), IMAGE),
    row("max2d_uneven", lambda x: F.max_pool2d(x, (2, 3), stride=(1, 2), padding=(1, 0)), IMAGE),
    row("max2d_dilation", lambda x: F.max_pool2d(x, 2, stride=1, dilation=2), IMAGE),
    row("max2d_ceil", lambda x: F.max_pool2d(x, 2, ceil_mode=True), IMAGE),
    # The last window would start in the padding, and is dropped: the rule that ceil() alone gets wrong.
    row(
        "max2d_ceil_padding",
        lambda x: F.max_pool2d(x, 2, stride=3, padding=1, ceil_mode=True),
        f32("B", 3, 6, 9),
    ),
    row(
        "max2d_ceil_dynamic",
        lambda x: [
            F.max_pool2d(x, k, s, p, ceil_mode=True) for k, s, p in ((3, 2, 1), (3, 2, 0), (2, 2, 0), (3, 1, 1))
        ],
        f32("B", 3, "H", 9),
    ),
    row(
        "pools_ceil_that_drop_a_window",
        lambda x: [
            f(x, k, s, p, ceil_mode=True)
            for f in (F.max_pool2d, F.avg_pool2d)
            for k, s, p in ((1, 2, 0), (2, 3, 0), (3, 3, 1), (2, 3, 1), (3, 4, 1), (2, 2, 1))
        ],
        f32("B", 3, "H", 9),
    ),
    row("max2d_negative_input", lambda x: F.max_pool2d(x, 3, padding=1), f32("B", 3, 6, 6, low=-3, high=-1)),
    row(
        "zeros_before_max_behind_what_goes",
        lambda x: (
            F.max_pool2d(F.pad(x, (1, 1, 1, 1)).float(), 2),
            F.max_pool2d(F.pad(x.float(), (1, 1, 1, 1)) + 0.0, 2),
        ),
        i64(value=[[[[-5, -2, -3], [-1, -4, -6]]]]),
    ),
    row(
        "zeros_before_max",
        lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2),
        f32("B", 3, 6, 6, low=-3, high=-1),
    ),
    row("max2d_no_batch", lambda x: F.max_pool2d(x, 2), f32(3, "H", "W")),
    row("max2d_indices", lambda x: F.max_pool2d(x, 2, return_indices=True), f32("B", 3, 6, 8)),
    row("max2d_indices_padding", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), f32("B", 3, 7, 9)),
    row(
        "averages_of_large_f16",
        lambda x: (F.avg_pool2d(x, 3, 1, 1), F.adaptive_avg_pool2d(x, (2, 1)), F.avg_pool2d(x, 2, divisor_override=5)),
        f16("B", 3, 4, 6, low=2e4, high=6e4),
    ),
    row("max2d_f16", lambda x: F.max_pool2d(x, 2), f16("B", 3, "H", "W")),
    row("max3d", lambda x: F.max_pool3d(x, 2), VOLUME),
    row("max3d_padding", lambda x: F.max_pool3d(x, 3, stride=(1, 2, 2), padding=1), VOLUME),
    row(
        "max_unpool2d",
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        f32("B", 3, 6, 8),
    ),
    row("avg1d", lambda x: F.avg_pool1d(x, 3, stride=2, padding=1), SOUND),
    row("avg1d_excludes_pad", lambda x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False), SOUND),
    row("avg2d", lambda x: F.avg_pool2d(x, 2), IMAGE),
    row("avg2d_padding", lambda x: F.avg_pool2d(x, 3, stride=2, padding=1), IMAGE),
    row("avg2d_wide_pad", lambda x: F.avg_pool2d(F.pad(x, (1, 3)), 2), IMAGE),
    row("avg2d_excludes_pad", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE),
    row("avg2d_ceil", lambda x: F.avg_pool2d(x, 2, ceil_mode=True), IMAGE),
    row("avg2d_ceil_padding", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), f32("B", 3, 6, 8)),
    row(
        "avg2d_ceil_excludes_pad",
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        f32("B", 3, 6, 8),
    ),
    row("avg2d_divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), IMAGE),
    row("avg2d_divisor_padding", lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), IMAGE),
    row("avg2d_uneven", lambda x: F.avg_pool2d(x, (2, 3), stride=(2, 1), padding=(1, 0)), IMAGE),
    row("avg2d_no_batch", lambda x: F.avg_pool2d(x, 2), f32(3, "H", "W")),
    row("avg3d", lambda x: F.avg_pool3d(x, 2), VOLUME),
    row("avg3d_divisor", lambda x: F.avg_pool3d(x, 2, 1, 1, divisor_override=2), VOLUME),
    row("adaptive_avg1d", lambda x: F.adaptive_avg_pool1d(x, 1), SOUND),
    row("adaptive_avg1d_dividing", lambda x: F.adaptive_avg_pool1d(x, 3), f32("B", 3, 6)),
    row("adaptive_avg2d_one", lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    row("adaptive_avg2d_far", lambda x: F.adaptive_avg_pool2d(x, 1), f64(value=[[[[1.25, 1.25], [1.7e308, 1.7e308]]]])),
    row("adaptive_avg2d_dividing", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), f32("B", 3, 8, 6)),
    row("adaptive_avg2d_overlapping", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), f32("B", 3, 7, 10)),
    row("adaptive_avg2d_keeps_an_axis", lambda x: F.adaptive_avg_pool2d(x, (None, 1)), IMAGE),
    row("adaptive_avg2d_grows", lambda x: F.adaptive_avg_pool2d(x, 5), f32("B", 3, 3, 4)),
    row("adaptive_avg2d_dynamic", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), IMAGE),
    row("adaptive_avg3d", lambda x: F.adaptive_avg_pool3d(x, (1, 2, 3)), VOLUME),
    row("adaptive_max1d", lambda x: F.adaptive_max_pool1d(x, 1), SOUND),
    row("adaptive_max2d_one", lambda x: F.adaptive_max_pool2d(x, 1), IMAGE),
    row("adaptive_max2d_overlapping", lambda x: F.adaptive_max_pool2d(x, (3, 4)), f32("B", 3, 7, 10)),
    row(
        "adaptive_max2d_indices",
        lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True),
        f32("B", 3, 6, 8),
    ),
    row("adaptive_max2d_many", lambda x: F.adaptive_max_pool2d(x, (8, 9), return_indices=True), f32("B", 2, 11, 10)),
    row("adaptive_max1d_indices_dynamic", lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True), SOUND),
    row(
        "fractional_max2d",
        lambda x, s: F.fractional_max_pool2d(x, 2, (3, 4), return_indices=True, _random_samples=s),
        *(f32("B", 3, 7, 9), f32("B", 3, 2, low=0)),
    ),
    row(
        "fractional_max3d",
        lambda x, s: F.fractional_max_pool3d(x, (2, 1, 2), (3, 1, 4), return_indices=True, _random_samples=s),
        *(f32(2, 3, 5, 6, 7), f32(2, 3, 3, low=0)),
    ),
    row("adaptive_max3d", lambda x: F.adaptive_max_pool3d(x, 1), VOLUME),
    row("lp1d", lambda x: F.lp_pool1d(x, 2, 3, stride=2), f32("B", 3, "T", positive=True)),
    row("lp2d", lambda x: F.lp_pool2d(x, 3, 2), f32("B", 3, "H", "W", positive=True)),
    # nan, infinities, signed zeros; tensors without elements, without axes, with axes of one
    row("odd_max1d", lambda x: F.max_pool1d(x, 3, 1, padding=1), f32(value=ODD_SOUND)),
    row("odd_avg1d", lambda x: F.avg_pool1d(x, 3, 1, padding=1), f32(value=ODD_SOUND)),
    row("odd_adaptive_max1d", lambda x: F.adaptive_max_pool1d(x, 3), f32(value=ODD_SOUND)),
    row(
        "odd_adaptive_avg1d", lambda x: (F.adaptive_avg_pool1d(x, 3), F.adaptive_avg_pool1d(x, 1)), f32(value=ODD_SOUND)
    ),
    row(
        "minus_inf_max_global",
        lambda x: (F.adaptive_max_pool1d(x, 1), F.max_pool1d(x, 3)),
        f32(value=[[[-inf, -inf, -inf], [-inf, 2.0, -inf]]]),
    ),
    row("nan_max_global", lambda x: F.adaptive_max_pool1d(x, 1), f32(value=[[[1.0, nan], [nan, 1.0], [inf, -inf]]])),
    row("minus_inf_max2d", lambda x: F.max_pool2d(x, 2, 1, padding=1), f32(1, 1, 3, 3, value=-inf)),
    row(
        "empty_pools", lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)), f32(0, 3, 4, 6)
    ),
    row("adaptive_avg2d_wider", lambda x: F.adaptive_avg_pool2d(x, 7), f32("B", 3, 1, 3)),
    row("adaptive_max2d_wider", lambda x: F.adaptive_max_pool2d(x, (4, 5)), f32("B", 3, 1, 2)),
    row(
        "size_one_image",
        lambda x: (F.max_pool2d(x, 1), F.avg_pool2d(x, 3, 1, 1), F.adaptive_avg_pool2d(x, 1)),
        f32("B", 3, 1, 1),
    ),
)
