"""roi_align, roi_pool and their position-sensitive forms.

Rois are [K, 5]: the image's number, then x1, y1, x2, y2 in pixels of the input image, which `spatial_scale` takes to
the feature map's. The bodies follow torchvision/csrc/ops/cpu; numbers in comments are shapes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import ir
from vision_ops.sampling import axis_taps, rows

roi_align = ir.op("torchvision::roi_align")
roi_pool = ir.op("torchvision::roi_pool")
ps_roi_align = ir.op("torchvision::ps_roi_align")
ps_roi_pool = ir.op("torchvision::ps_roi_pool")


# -- aligned: the mean of bilinear samples -----------------------------------------------------------------------------


@roi_align.handler("onnx", since_version=16)
def _(
    h: Any,
    input: Any,
    rois: Any,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Any:
    dtype = input.type.dtype
    input, rois = (h.cast(x, ir.DType.float32) for x in (input, rois))
    numbers = h.cast(h.squeeze(h.slice(rois, 1, 0, 1, size=1), [1]), ir.DType.int64)
    pooled = h.emit(
        "RoiAlign", input, h.slice(rois, 1, 1, 5, size=4), numbers, mode="avg", spatial_scale=spatial_scale,
        output_height=pooled_height, output_width=pooled_width, sampling_ratio=max(sampling_ratio, 0),
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel", shape=h.out.shape,
    )  # fmt: skip
    return h.cast(pooled, dtype)


@roi_align.body
def _(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    _check_samples(sampling_ratio)
    start, extent = _extents(rois, spatial_scale, 0.5 if aligned else 0.0)
    if not aligned:
        extent = extent.clamp(min=1.0)
    n, c, height, width = input.shape
    table = input.permute(0, 2, 3, 1).reshape(n * height * width, c)
    y = axis_taps(_positions(start[:, 1], extent[:, 1], pooled_height, sampling_ratio), height)
    x = axis_taps(_positions(start[:, 0], extent[:, 0], pooled_width, sampling_ratio), width)
    image = rois[:, 0].long() * (height * width)
    samples = _bilinear(table, image, y, x, width)  # K, ph * s, pw * s, C
    k, s = rois.shape[0], sampling_ratio
    means = samples.reshape(k, pooled_height, s, pooled_width, s, c).mean((2, 4))
    return means.permute(0, 3, 1, 2)


@ps_roi_align.body
def _(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int
) -> tuple[Tensor, Tensor]:
    _check_samples(sampling_ratio)
    start, extent = _extents(rois, spatial_scale, 0.5)
    n, c, height, width = input.shape
    ph, pw, s, k = pooled_height, pooled_width, sampling_ratio, rois.shape[0]
    out = c // (ph * pw)
    table = input.reshape(n, out, ph, pw, height, width).permute(0, 4, 5, 2, 3, 1).reshape(-1, out)
    y = axis_taps(_positions(start[:, 1], extent[:, 1], ph, s), height)
    x = axis_taps(_positions(start[:, 0], extent[:, 0], pw, s), width)
    bins = _bin_numbers(ph, pw, s, input.device)  # ph * s, pw * s: which bin a sample belongs to
    image = rois[:, 0].long() * (height * width)
    samples = _bilinear(table, image, y, x, width, bins, ph * pw)
    means = samples.reshape(k, ph, s, pw, s, out).mean((2, 4)).permute(0, 3, 1, 2)
    return means, _channels(k, out, ph, pw, rois)


def _check_samples(sampling_ratio: int) -> None:
    if sampling_ratio <= 0:
        raise NotImplementedError(
            "sampling_ratio <= 0 takes as many samples as each region is large, which no static graph can say: "
            "give the op a positive sampling_ratio, such as 2"
        )


def _extents(rois: Tensor, spatial_scale: float, offset: float) -> tuple[Tensor, Tensor]:
    """Where each region starts and how large it is, [K, 2] as x, y in pixels of the feature map."""
    start = rois[:, 1:3] * spatial_scale - offset
    return start, rois[:, 3:5] * spatial_scale - offset - start


def _positions(start: Tensor, extent: Tensor, bins: int, samples: int) -> Tensor:
    """The sample positions of each region along one axis, [K, bins * samples]."""
    at = (torch.arange(bins * samples, device=start.device, dtype=start.dtype) + 0.5) / samples
    return start[:, None] + at * (extent / bins)[:, None]


def _bilinear(
    table: Tensor,
    image: Tensor,
    y: tuple[Tensor, Tensor, Tensor, Tensor],
    x: tuple[Tensor, Tensor, Tensor, Tensor],
    width: int,
    bins: Tensor | None = None,
    count: int = 1,
) -> Tensor:
    """Samples [K, P, Q, C] of a table whose rows are pixels, or pixels times bins."""
    total: Tensor | None = None
    for row, row_weight in ((y[0], y[2]), (y[1], y[3])):
        for column, column_weight in ((x[0], x[2]), (x[1], x[3])):
            index = (image[:, None] + row * width)[:, :, None] + column[:, None, :]
            if bins is not None:
                index = index * count + bins
            weight = row_weight[:, :, None] * column_weight[:, None, :]
            part = rows(table, index) * weight[..., None]
            total = part if total is None else total + part
    assert total is not None
    return total


def _bin_numbers(ph: int, pw: int, samples: int, device: Any) -> Tensor:
    i = torch.arange(ph * samples, device=device) // samples
    j = torch.arange(pw * samples, device=device) // samples
    return i[:, None] * pw + j[None, :]


def _channels(k: int, out: int, ph: int, pw: int, like: Tensor) -> Tensor:
    """The input channel that each result was read from, [K, C, ph, pw]."""
    numbers = torch.arange(out * ph * pw, device=like.device, dtype=torch.int32).reshape(1, out, ph, pw)
    return numbers.expand(k, out, ph, pw).contiguous()


# -- pooled: the maximum or mean of whole pixels -----------------------------------------------------------------------


@roi_pool.body
def _(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    height, width = input.shape[2:]
    start, end = _rounded(rois[:, 1:3] * spatial_scale), _rounded(rois[:, 3:5] * spatial_scale)
    extent = (end - start + 1).clamp(min=1)
    in_y = _bins(start[:, 1], extent[:, 1], pooled_height, height, height)  # K, ph, H
    in_x = _bins(start[:, 0], extent[:, 0], pooled_width, width, width)  # K, pw, W
    maps = input.index_select(0, rois[:, 0].long())  # K, C, H, W
    lowest = torch.finfo(input.dtype).min
    by_row, column = torch.where(in_x[:, None, None], maps[:, :, :, None], lowest).max(-1)  # K, C, H, pw
    spread = torch.where(in_y[:, None, :, None], by_row.transpose(2, 3)[:, :, None], lowest)  # K, C, ph, pw, H
    values, row = spread.max(-1)
    columns = column.transpose(2, 3)[:, :, None].expand(-1, -1, pooled_height, -1, -1)
    where = row * width + columns.gather(-1, row[..., None])[..., 0]
    full = (in_y.any(-1)[:, :, None] & in_x.any(-1)[:, None, :])[:, None]
    return torch.where(full, values, 0.0), torch.where(full, where, -1).to(torch.int32)


@ps_roi_pool.body
def _(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    c, height, width = input.shape[1:]
    ph, pw, k = pooled_height, pooled_width, rois.shape[0]
    out = c // (ph * pw)
    start, end = _rounded(rois[:, 1:3] * spatial_scale), _rounded(rois[:, 3:5] * spatial_scale)
    extent = (end - start).clamp(min=1)
    # torchvision holds the bins at size - 1, so that the last row and column are never read
    in_y = _bins(start[:, 1], extent[:, 1], ph, height, height - 1).to(input.dtype)
    in_x = _bins(start[:, 0], extent[:, 0], pw, width, width - 1).to(input.dtype)
    maps = input.index_select(0, rois[:, 0].long()).reshape(k, out, ph, pw, height, width)
    sums = ((maps * in_x[:, None, None, :, None, :]).sum(-1) * in_y[:, None, :, None, :]).sum(-1)
    area = in_y.sum(-1)[:, :, None] * in_x.sum(-1)[:, None, :]
    return sums / area.clamp(min=1)[:, None], _channels(k, out, ph, pw, rois)


def _rounded(x: Tensor) -> Tensor:
    """To the nearest integer, halves away from zero as C's round does."""
    return torch.sign(x) * torch.floor(x.abs() + 0.5)


def _bins(start: Tensor, extent: Tensor, bins: int, size: int, most: int) -> Tensor:
    """Which pixels of an axis each bin of each region covers, [K, bins, size]."""
    # a quotient in doubles rounds to the very float that C's division gives; tract multiplies by 1 / bins, which floor
    # and ceil would show
    step = (extent.double() / bins).to(extent.dtype)[:, None]
    number = torch.arange(bins, device=start.device, dtype=start.dtype)
    low = (torch.floor(number * step) + start[:, None]).clamp(0, most)
    high = (torch.ceil((number + 1) * step) + start[:, None]).clamp(0, most)
    pixel = torch.arange(size, device=start.device, dtype=start.dtype)
    return (pixel >= low[..., None]) & (pixel < high[..., None])
