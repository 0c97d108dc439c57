"""The same numbers in another arrangement: views, joins, slices, padding, resizing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .base import boolean, c64, f16, f32, family, i64, inf, mod, nan, row, u8

IMAGE = f32("B", 4, "H", "W")
SEQUENCE = f32("B", "S", 6)


def by_size(x: Tensor) -> Tensor:
    batch, length, width = x.size()
    return x.reshape(batch * length, width).t().reshape(width, batch, length)


class Upsampled(nn.Module):
    """Halved by a stride of 2 and doubled again, beside what it was: sizes that are one where the graph holds alone."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(2, 2, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((F.interpolate(self.down(x), scale_factor=2.0), x), 1)


def blocks(x: Tensor) -> Tensor:
    """Padded to whole blocks of 4, whose length is then asked for as the quotient of the sizes."""
    x = F.pad(x, (0, 0, 0, 4 - x.shape[1] % 4))
    count = x.shape[1] // 4
    length = x.shape[1] // count
    return x.reshape(x.shape[0], count, length, 2) * torch.arange(length)[:, None]


def blocks_rounded(x: Tensor) -> Tensor:
    """As Mamba-2 and Zamba pad: by nothing where the length is a multiple already."""
    x = F.pad(x, (0, 0, 0, (4 - x.shape[1] % 4) % 4))
    return x.reshape(x.shape[0], -1, x.shape[1] // (x.shape[1] // 4), 2).sum(1)


def pad_to_multiple(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 0, (-x.shape[1]) % 4))


def windows(x: Tensor) -> Tensor:
    batch, height, width, channels = x.shape
    x = x.view(batch, height // 3, 3, width // 2, 2, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 6, channels)


def write_through_view(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(-1)[0] = 7.0
    y[:, 1].mul_(2)
    return y


def transpose_in_place(x: Tensor) -> Tensor:
    return (x + 1).transpose_(0, 1).unsqueeze_(0)


def joined_in_a_loop(x: Tensor) -> Tensor:
    parts = [x[:, i : i + 2] * (i + 1) for i in range(0, 6, 2)]
    return torch.cat(parts, dim=1)


SAMPLED, PADDED = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
ODD = [nan, inf, -inf, -0.0, 0.0, 1.0]


def nearest_pyramid(x: Tensor) -> Tensor:
    """Features of half the size, brought back to that of their elder, which may be odd."""
    half = F.max_pool2d(x, 3, 2, 1)
    quarter = F.max_pool2d(half, 3, 2, 1)
    return x + F.interpolate(half + F.interpolate(quarter, size=half.shape[-2:]), size=x.shape[-2:])


class Repeated(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.linear = function, nn.Linear(3, 9)

    def forward(self, x):
        return self.linear(self.function(x.repeat_interleave(2, dim=0)).transpose(0, 1))


CASES = family(
    __name__,
    # views
    row("view", lambda x: x.view(x.shape[0], -1), f32("B", 2, 3)),
    row("view_merge_dynamic", lambda x: x.view(-1, 6), SEQUENCE),
    row("view_split_last", lambda x: x.view(*x.shape[:-1], 2, 3), SEQUENCE),
    row("view_dtype", lambda x: x.view(torch.int32), f32("B", 3)),
    row("view_as", lambda x, y: x.view_as(y), f32("B", 6), f32("B", 2, 3)),
    row("reshape", lambda x: x.reshape(-1, 3), f32("B", 6)),
    row("reshape_to_scalar", lambda x: x.reshape(()), f32(1, 1)),
    row("reshape_from_scalar", lambda x: x.reshape(1, 1), f32()),
    row("reshape_transposed", lambda x: x.transpose(1, 2).reshape(x.shape[0], -1), SEQUENCE),
    row("reshape_by_size", by_size, SEQUENCE),
    row("reshape_empty", lambda x: x.reshape(3, 0), f32(0, 3)),
    row("flatten", lambda x: x.flatten(1), f32("B", 2, 3)),
    row("flatten_all", lambda x: torch.flatten(x), SEQUENCE),
    row("flatten_middle", lambda x: x.flatten(1, 2), f32("B", 2, "S", 3)),
    row("flatten_scalar", lambda x: x.flatten(), f32()),
    row("unflatten", lambda x: x.unflatten(-1, (2, -1)), SEQUENCE),
    row("ravel", lambda x: x.ravel(), f32("B", 3)),
    row("squeeze", lambda x: x.squeeze(), f32(1, "S", 1, 3)),
    row("squeeze_dim", lambda x: x.squeeze(1), f32("B", 1, 3)),
    row("squeeze_not_one", lambda x: x.squeeze(-1), f32("B", 3)),
    row("squeeze_dims", lambda x: x.squeeze((0, -1)), f32(1, "S", 1)),
    row("unsqueeze", lambda x: x.unsqueeze(0), f32("B", 3)),
    row("unsqueeze_last", lambda x: x.unsqueeze(-1), f32("B", 3)),
    row("none_indices", lambda x: x[None, :, None], f32("B", 3)),
    row("windows", windows, f32("B", 6, 4, 2)),
    # order of axes
    row("permute", lambda x: x.permute(0, 2, 3, 1), IMAGE),
    row("permute_negative", lambda x: x.permute(-1, 0, -2), SEQUENCE),
    row("transpose", lambda x: x.transpose(-2, -1), SEQUENCE),
    row("t", lambda x: x.t(), f32("B", 3)),
    row("t_vector", lambda x: x.t(), f32("B")),
    row("mT", lambda x: x.mT, SEQUENCE),
    row("movedim", lambda x: x.movedim(1, -1), IMAGE),
    row("movedim_many", lambda x: torch.movedim(x, (0, 1), (2, 0)), IMAGE),
    row("swapaxes", lambda x: x.swapaxes(0, 2), SEQUENCE),
    row("contiguous", lambda x: x.transpose(0, 1).contiguous().view(-1), f32("B", 3)),
    row("channels_last", lambda x: x.contiguous(memory_format=torch.channels_last) * 2, IMAGE),
    row("transpose_in_place", transpose_in_place, f32("B", 3)),
    row("permute_u8", lambda x: x.permute(2, 0, 1).float() / 255, u8("H", "W", 3, low=0, high=256)),
    # repetition
    row(
        "expand_to_nothing",
        lambda x: (
            torch.sin((x * 2)[:1].expand(0, 3)),
            (x + 1).unsqueeze(0).expand(0, -1, 3) * 2,
            x[:1].expand(0, 3) > 0,
        ),
        f32("B", 3),
    ),
    row("expand", lambda x: x.expand(4, -1, 3), f32("B", 1)),
    row("expand_to_dynamic", lambda x, y: x.expand(y.shape[0], -1), f32(1, 3), f32("B", 3)),
    row("expand_as", lambda x, y: x.expand_as(y), f32("B", 1), f32("B", 4)),
    row("broadcast_to", lambda x: torch.broadcast_to(x, (2, 4, 3)), f32(3)),
    row("broadcast_tensors", lambda x, y: torch.broadcast_tensors(x, y), f32("B", 1), f32(1, "S")),
    row("repeat", lambda x: x.repeat(2, 3), f32("B", 3)),
    row("repeat_adds_axes", lambda x: x.repeat(2, 1, 2), f32("B", 3)),
    row("repeat_dynamic", lambda x, y: x.repeat(y.shape[0], 1), f32(1, 3), f32("B")),
    row("tile", lambda x: x.tile((2,)), f32("B", 3)),
    row("repeat_interleave", lambda x: x.repeat_interleave(2, dim=1), SEQUENCE),
    row("repeat_interleave_sum", lambda x: x.repeat_interleave(2, dim=1).sum(0), i64("B", 3)),
    mod("negative_repeat_interleave", lambda: Repeated(torch.neg), f32("B", 3, 3)),
    mod("squared_repeat_interleave", lambda: Repeated(torch.square), f32("B", 3, 3)),
    mod("gelu_of_repeat_interleave", lambda: Repeated(F.gelu), f32("B", 3, 3)),
    row("repeat_interleave_flat", lambda x: x.repeat_interleave(3), f32("B", 2)),
    row(
        "repeat_interleave_tensor",
        lambda x, n: x.repeat_interleave(n, dim=0, output_size=6),
        f32(3, 2),
        i64(value=[1, 3, 2]),
    ),
    # joins and splits
    row("cat", lambda x, y: torch.cat((x, y), dim=1), f32("B", 2), f32("B", 3)),
    row("cat_dynamic", lambda x, y: torch.cat((x, y), dim=1), f32("B", "S", 3), f32("B", "T", 3)),
    row("cat_negative", lambda x: torch.cat([x, x, x], -1), f32("B", 3)),
    row("concatenate_promotes", lambda x, y: torch.concatenate([x, y]), f32("B", 3), i64("N", 3)),
    row("hstack_promotes", lambda x, y: torch.hstack([x, y]), f32("B", 3), i64("B", 2)),
    row("block_diag_promotes", lambda x, y: torch.block_diag(x, y), f32(2, 3), i64(2, 2)),
    row("cat_promotes", lambda x, y: torch.cat([x, y]), f32("B", 3), i64("N", 3)),
    row("cat_legacy_empty", lambda x: torch.cat([torch.zeros(0), x], 0), f32("B", 3)),
    row("cat_turned", lambda x: torch.cat([x, x.mT, x, x.flip(1), x.mT], 1), f32("B", 3, 3)),
    row("cat_one", lambda x: torch.cat([x], 0), f32("B", 3)),
    row("cat_in_a_loop", joined_in_a_loop, f32("B", 6)),
    row("stack", lambda x, y: torch.stack((x, y)), f32("B", 3), f32("B", 3)),
    row("stack_last", lambda x, y: torch.stack((x, y), -1), f32("B", 3), f32("B", 3)),
    row("hstack_vstack", lambda x, y: (torch.hstack((x, y)), torch.vstack((x, y))), f32("B", 3), f32("B", 3)),
    row("dstack", lambda x, y: torch.dstack((x, y)), f32("B", 3), f32("B", 3)),
    row("column_stack", lambda x, y: torch.column_stack((x, y)), f32("B"), f32("B", 3)),
    row("split", lambda x: x.split(4, dim=1), f32("B", 6)),
    row("split_sizes", lambda x: x.split([1, 2, 3], -1), SEQUENCE),
    row("split_half_used", lambda x: x.split(2, dim=1)[1], f32("B", 6)),
    row(
        "expanded_in_front_and_axes_put_in",
        lambda x: (
            x[:, 2:3].squeeze(1).expand(6, 6, 3, 3).unsqueeze(1),
            x.sum(1).expand(6, 6, 3, 3).reshape(6, 1, 6, 3, 3).transpose(1, 2),
        ),
        f32(6, 3, 3, 3),
    ),
    row("split_evenly", lambda x: (*x.hsplit(2), *x.vsplit(1), *x.unsqueeze(-1).dsplit(1)), f32("B", 6)),
    row(
        "chunk_cat",
        lambda x, y: (torch._chunk_cat([x, y], 0, 2), torch._chunk_cat([x, y], -1, 4)),
        *(f32("B", 3), f32("B", 5)),
    ),
    row(
        "pad_sequence",
        lambda x, y: (pad_sequence([x, y], batch_first=True), pad_sequence([y, x], False, -1.5, "left")),
        *(f32("S", 3), f32("N", 3)),
    ),
    row("tensor_split", lambda x: x.tensor_split(4, dim=1), f32("B", 6)),
    row("tensor_split_flat", lambda x: x.tensor_split(2)[1].mT.ravel(), f32("B", 6)),
    row("tensor_split_back", lambda x: (*x.tensor_split((4, 1, -2, 9), 1), *x.tensor_split((1, -1))), f32("B", 6)),
    row("chunk", lambda x: x.chunk(2, dim=-1), SEQUENCE),
    row("chunk_dynamic", lambda x: (*x.chunk(2), *x.chunk(2, 1)), f32("N", "T")),
    row("chunk_uneven", lambda x: x.chunk(3, dim=1), f32("B", 7)),
    row("unbind", lambda x: x.unbind(1), f32("B", 3)),
    # slices
    row("narrow", lambda x: x.narrow(1, 1, 2), f32("B", 4)),
    row("select", lambda x: x.select(1, 2), f32("B", 4)),
    row("select_negative", lambda x: x.select(1, -2), SEQUENCE),
    row("slice_first", lambda x: x[:, 0], SEQUENCE),
    row("slice_last", lambda x: x[:, -1], SEQUENCE),
    row("slice_last_kept", lambda x: x[:, -1:], SEQUENCE),
    row("slice_step", lambda x: x[:, ::2], SEQUENCE),
    row("slice_step_offset", lambda x: x[:, 1::3], SEQUENCE),
    row("slice_inner", lambda x: x[..., 1:-1], SEQUENCE),
    row("slice_inner_dynamic", lambda x: x[:, 1:-1], SEQUENCE),
    row("slice_tail", lambda x: x[:, -3:], SEQUENCE),
    row("slice_but_last", lambda x: x[:, :-1], SEQUENCE),
    row("slice_past_the_end", lambda x: x[:, 1:100], f32("B", 4)),
    row("slice_empty", lambda x: x[:, 2:2], f32("B", 4)),
    row("slice_half", lambda x: x[:, : x.shape[1] // 2], SEQUENCE),
    row("slice_second_half", lambda x: x[:, x.shape[1] // 2 :], SEQUENCE),
    row("slice_by_other_size", lambda x, y: y[:, : x.shape[1]], f32("B", "S"), f32("B", 16)),
    row("slice_two_axes", lambda x: x[:, 1:, 1:4:2], SEQUENCE),
    row("slice_bool", lambda x: x[:, 1:], boolean("B", "S")),
    row("shifted_difference", lambda x: x[:, 1:] - x[:, :-1], SEQUENCE),
    row("write_through_view", write_through_view, f32("B", 3)),
    # turns
    row("flip", lambda x: x.flip(1), f32("B", 4)),
    row("flip_dynamic", lambda x: x.flip(-2), SEQUENCE),
    row("flip_dynamic_u8", lambda x: x.flip(-2), u8("B", 3)),
    row("flip_two", lambda x: x.flip((1, 2)), SEQUENCE),
    row("fliplr_flipud", lambda x: (torch.fliplr(x), torch.flipud(x)), f32("B", 3)),
    row("roll", lambda x: x.roll(1, dims=1), f32("B", 4)),
    row("roll_dynamic_negative", lambda x: x.roll(-2, dims=1), SEQUENCE),
    row("moved_along_an_axis_of_one", lambda x: (x * x.roll(1, 0), x * x.flip(0), x * x[[0]]), i64(1, 3)),
    row("roll_two", lambda x: x.roll((1, -1), (1, 2)), SEQUENCE),
    row("roll_flat", lambda x: x.roll(2), f32(3, 4)),
    row("rot90", lambda x: (torch.rot90(x, 1, (1, 2)), torch.rot90(x, 2, (1, 2))), SEQUENCE),
    # padding
    row("pad", lambda x: F.pad(x, (1, 2)), SEQUENCE),
    row("pad_to_blocks", blocks, f32("B", "S", 2)),
    row("pad_to_blocks_rounded", blocks_rounded, f32("B", "S", 2)),
    mod("upsampled_beside", Upsampled, f32("B", 2, "T")),
    row("arange_of_halves", lambda x: x + torch.arange(0.5, x.shape[1])[:, None], SEQUENCE),
    row("pad_value", lambda x: F.pad(x, (1, 2, 0, 3), value=-1.5), SEQUENCE),
    row("pad_negative", lambda x: F.pad(x, (-1, 2, 1, -1)), SEQUENCE),
    row("pad_int", lambda x: F.pad(x, (1, 1), value=9), i64("B", 3)),
    row(
        "pad_inexact",
        lambda x, y: (F.pad(x, (1, 1), value=0.1), F.pad(y, (1, 1), value=16777217)),
        f32("B", 3),
        i64("B", 3),
    ),
    row("pad_bool", lambda x: F.pad(x, (0, 2), value=True), boolean("B", 3)),
    row("pad_reflect_1d", lambda x: F.pad(x, (2, 1), mode="reflect"), f32("B", 3, "T")),
    row("pad_reflect_2d", lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"), IMAGE),
    row("pad_replicate", lambda x: F.pad(x, (1, 2, 0, 3), mode="replicate"), IMAGE),
    row("pad_replicate_3d", lambda x: F.pad(x, (1, 0, 1, 1, 0, 2), mode="replicate"), f32("B", 2, 3, 4, 5)),
    row("pad_circular", lambda x: F.pad(x, (1, 2, 0, 1), mode="circular"), IMAGE),
    row("pad_circular_tile", lambda x: F.pad(x.tile(2), (1, 1, 0, 0), mode="circular"), IMAGE),
    row("pad_to_multiple", pad_to_multiple, SEQUENCE),
    mod("zero_pad_module", lambda: nn.ZeroPad2d((1, 0, 2, 1)), IMAGE),
    # space and channels
    row("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), IMAGE),
    row("pieces_in_hundreds", lambda x: x.split(1)[-1] + x.chunk(290)[0], f32(580, 1)),
    row("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), f32("B", 3, 4, 6)),
    row("pixel_shuffles_by_one", lambda x: torch.atan2(F.pixel_shuffle(x, 1), F.pixel_unshuffle(x, 1)), IMAGE),
    row("channel_shuffle", lambda x: F.channel_shuffle(x, 2), IMAGE),
    row("unfold_method", lambda x: x.unfold(1, 3, 2), f32("B", 7)),
    row("unfold_method_dynamic", lambda x: x.unfold(1, 2, 1), SEQUENCE),
    row("im2col", lambda x: F.unfold(x, (2, 3), dilation=1, padding=1, stride=2), f32("B", 4, 5, 6)),
    row("col2im", lambda x: F.fold(x, (4, 5), (2, 2)), f32("B", 12, 12)),
    # diagonals and triangles
    row("diagonal", lambda x: x.diagonal(0, -2, -1), f32("B", 3, 4)),
    row("diagonal_of_rows", lambda x: torch.cat([x, x]).diagonal(2, 1, 0), f32("B", 5)),
    row("diagonal_square", lambda x: ((x @ x.mT).diagonal(0, 1, 2), (x @ x.mT).diagonal(-1, 1, 2)), SEQUENCE),
    row("diagonal_offset", lambda x: (x.diagonal(1), x.diagonal(-1)), f32(3, 4)),
    row("diag", lambda x, y: (torch.diag(x), torch.diag(y)), f32(3), f32(3, 3)),
    row("diag_embed", lambda x: torch.diag_embed(x), f32("B", 3)),
    row("diag_embed_offset", lambda x: torch.diag_embed(x, offset=1, dim1=0, dim2=2), f32("B", 3)),
    row("tril", lambda x: x.tril(), f32("B", 3, 4)),
    row("triu_offset", lambda x: x.triu(1), f32("S", "T")),
    row("tril_negative", lambda x: x.tril(-1), f32(4, 4)),
    row("triu_bool", lambda x: x.triu(), boolean(4, 4)),
    row("meshgrid_ij", lambda x, y: torch.meshgrid(x, y, indexing="ij"), f32("B"), f32("N")),
    row("meshgrid_xy", lambda x, y: torch.meshgrid(x, y, indexing="xy"), f32(3), f32(4)),
    row("cartesian_prod", lambda x, y: torch.cartesian_prod(x, y), f32(3), f32(4)),
    # resizing
    row(
        "bilinear_aligned_infinite",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        f32(value=[[[[1.0, 2.0, inf]]]]),
    ),
    row("nearest_scale", lambda x: F.interpolate(x, scale_factor=2), IMAGE),
    row("nearest_scale_uneven", lambda x: F.interpolate(x, scale_factor=(1.5, 0.7)), IMAGE),
    row("nearest_size", lambda x: F.interpolate(x, size=(7, 5)), f32("B", 4, 5, 6)),
    row("nearest_size_dynamic", lambda x: F.interpolate(x, size=(7, 5)), IMAGE),
    row("nearest_exact", lambda x: F.interpolate(x, size=(7, 5), mode="nearest-exact"), f32("B", 4, 5, 6)),
    row("nearest_1d", lambda x: F.interpolate(x, scale_factor=3.0), f32("B", 3, "T")),
    row("nearest_3d", lambda x: F.interpolate(x, scale_factor=2), f32("B", 2, 3, 4, 5)),
    row("bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE),
    row(
        "bilinear_corners",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        IMAGE,
    ),
    row("bilinear_size", lambda x: F.interpolate(x, size=(3, 11), mode="bilinear"), f32("B", 4, 5, 6)),
    row(
        "bilinear_like",
        lambda x, y: F.interpolate(x, size=y.shape[-2:], mode="bilinear"),
        f32("B", 4, 5, 6),
        IMAGE,
    ),
    row("bilinear_down", lambda x: F.interpolate(x, scale_factor=0.4, mode="bilinear"), f32("B", 4, 10, 15)),
    row(
        "bilinear_recomputed",
        lambda x: F.interpolate(x, scale_factor=0.43, mode="bilinear", recompute_scale_factor=True),
        f32("B", 4, 10, 15),
    ),
    row(
        "bilinear_antialias",
        lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True),
        f32("B", 4, 8, 9),
    ),
    row("bicubic", lambda x: F.interpolate(x, size=(7, 9), mode="bicubic"), f32("B", 4, 5, 6)),
    row(
        "bicubic_corners",
        lambda x: F.interpolate(x, size=(7, 9), mode="bicubic", align_corners=True),
        f32("B", 4, 5, 6),
    ),
    row(
        "bilinear_u8",
        lambda x: (
            F.interpolate(x, size=(13, 5), mode="bilinear"),
            F.interpolate(x, scale_factor=2.5, mode="bilinear"),
        ),
        u8("B", 3, 8, 9, low=0, high=256),
    ),
    row("bicubic_u8", lambda x: F.interpolate(x, size=(13, 5), mode="bicubic"), u8("B", 3, 8, 9, low=0, high=256)),
    row(
        "bilinear_u8_antialias",
        lambda x: F.interpolate(x, size=(3, 12), mode="bilinear", antialias=True),
        u8("B", 3, 8, 9, low=0, high=256),
    ),
    row("bicubic_u8_dynamic", lambda x: F.interpolate(x, (13, 5), mode="bicubic"), u8("B", 3, "H", "W", high=256)),
    row(
        "bilinear_antialias_dynamic",
        lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True, align_corners=True),
        IMAGE,
    ),
    row("linear_1d", lambda x: F.interpolate(x, size=9, mode="linear"), f32("B", 3, "T")),
    row(
        "linear_1d_corners",
        lambda x: F.interpolate(x, size=9, mode="linear", align_corners=True),
        f32("B", 3, 6),
    ),
    row("trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), f32("B", 2, 3, 4, 5)),
    row("area", lambda x: F.interpolate(x, size=(3, 2), mode="area"), f32("B", 4, 6, 8)),
    row("bilinear_f16", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), f16("B", 2, 3, 4)),
    row(
        "linear_corners_to_dynamic",
        lambda x, y: F.interpolate(x, size=y.shape[2], mode="linear", align_corners=True),
        f32("B", 2, 4),
        f32("B", 2, "S"),
    ),
    row("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False), IMAGE, f32("B", 3, 5, 2)),
    row(
        "grid_sample_corners",
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True),
        *(IMAGE, f32("B", 3, 5, 2)),
    ),
    row(
        "grid_sample_far",
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=False),
        *(IMAGE, f32("B", 2, 3, 2, value=[[1e8, -1e8], [inf, 0.3], [0.2, -3e9]])),
    ),
    row(
        "grid_sample_far_zeros",
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        *(IMAGE, f32("B", 2, 3, 2, value=[[1e20, -1e20], [1e30, 0.3], [0.2, -3e9]])),
    ),
    row(
        "grid_sample_nearest_far",
        lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False),
        *(IMAGE, f32("B", 2, 3, 2, value=[[1e20, -inf], [inf, 0.3], [0.2, -3e9]])),
    ),
    row(
        "grid_sample_nearest_reflection",
        lambda x, g: F.grid_sample(x, g, mode="nearest", padding_mode="reflection", align_corners=False),
        *(IMAGE, f32("B", 3, 5, 2)),
    ),
    row(
        "grid_sample_bicubic",
        lambda x, g: F.grid_sample(x, g, mode="bicubic", align_corners=False),
        *(IMAGE, f32("B", 3, 5, 2, low=-0.8, high=0.8)),
    ),
    row(
        "grid_sample_3d",
        lambda x, g: F.grid_sample(x, g, align_corners=True),
        *(f32("B", 2, 3, 4, 5), f32("B", 2, 2, 3, 3, low=-1.2, high=1.2)),
    ),
    row(
        "grid_sample_nan",
        lambda x, g: tuple(F.grid_sample(x, g, m, p, align_corners=False) for m in SAMPLED for p in PADDED),
        *(IMAGE, f32("B", 2, 3, 2, value=[[nan, nan], [nan, 0.3], [0.2, nan]])),
    ),
    row(
        "grid_sample_3d_nan",
        lambda x, g: tuple(F.grid_sample(x, g, m, p, align_corners=False) for m in SAMPLED[:2] for p in PADDED),
        *(f32("B", 2, 3, 4, 5), f32("B", 1, 1, 3, 3, value=[[nan, nan, nan], [nan, 0.3, 0.1], [0.2, 0.5, nan]])),
    ),
    row(
        "affine_grid",
        lambda t: F.affine_grid(t, [t.shape[0], 1, 4, 5], align_corners=False),
        f32("B", 2, 3),
    ),
    row(
        "affine_grid_dynamic",
        lambda x, t: F.grid_sample(x, F.affine_grid(t, list(x.shape), align_corners=False), align_corners=False),
        *(f32("B", 2, "H", "W"), f32("B", 2, 3)),
        beyond_export=True,
    ),
    row(
        "affine_grid_corners_dynamic",
        lambda x, t: F.affine_grid(t, list(x.shape), align_corners=True),
        *(f32("B", 2, "N", "H", "W"), f32("B", 3, 4)),
        beyond_export=True,
    ),
    row("affine_grid_of_one_place", lambda t: F.affine_grid(t, [2, 1, 1, 5], align_corners=True), f32(2, 2, 3)),
    row("affine_grid_corners", lambda t: F.affine_grid(t, [2, 1, 4, 5], align_corners=True), f32(2, 2, 3)),
    # views of storage
    row(
        "complex_moves",
        lambda x: (x.t().reshape(-1), x.flip(1), x[1:], torch.cat([x, x.conj()]), x.roll(1, 0)),
        c64("B", 3),
    ),
    row(
        "complex_pad",
        lambda x: (torch.nn.functional.pad(x, (1, 2), value=1.5), torch.stack([x, x * 1j], -1)),
        c64("B", 3),
    ),
    row("view_as_real", lambda x: torch.view_as_real(x), c64("B", 3)),
    row(
        "complex_product",
        lambda x, y: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y)),
        f32("B", 3, 2),
        f32(3, 2),
    ),
    row(
        "as_strided_copies",
        lambda x, y: (torch.as_strided_copy(x, (2, 3), (1, 2), 1), torch.as_strided_scatter(x, y, (2, 2), (3, 2), 1)),
        *(f32(3, 4), f32(2, 2)),
    ),
    row("as_strided", lambda x: x.as_strided((2, 3), (1, 2), 1), f32(3, 4)),
    row("identity", lambda x: x, f32("B", 3)),
    row("same_output_twice", lambda x: (y := x * 2, y), f32("B", 3)),
    row("input_returned_beside", lambda x: (x, x + 1), f32("B", 3)),
    row("input_unused", lambda x, y: x + 1, f32("B", 3), f32(4)),
    row("clone_detach", lambda x: x.clone().detach() + 1, f32("B", 3)),
    # nan, infinities, signed zeros; tensors without elements, without axes, with axes of one
    row(
        "odd_pad", lambda x: (F.pad(x, (1, 1), value=float("nan")), F.pad(x, (0, 2), value=float("-inf"))), f32("B", 3)
    ),
    row("odd_moved", lambda x: (1 / x.flip(0), 1 / x.reshape(2, 3).mT, 1 / x.repeat(2), 1 / x[::2]), f32(value=ODD)),
    row("odd_interpolate", lambda x: F.interpolate(x, scale_factor=2), f32(1, 2, 6, value=[[ODD]])),
    row("slice_scatter_all", lambda x: torch.slice_scatter(x, x / 3, dim=1), u8("B", 4)),
    row("odd_bicubic", lambda x: F.interpolate(x, (6, 4), mode="bicubic"), f32(value=[[[[nan, 1.0, 2.0, inf]]]])),
    row(
        "odd_bicubic_same",
        lambda x: F.interpolate(x, (2, 4), mode="bicubic"),
        f32(value=[[[[nan, 1.0, 2.0, inf], [0.0, 1.0, 5.0, 2.0]]]]),
    ),
    row("odd_triangles", lambda x: (x.tril(), x.triu(1), x.diagonal()), f32(value=[[nan, inf], [-inf, 1.0]])),
    row("empty_moved", lambda x: (x.mT, x.flip(0), x.reshape(2, 0), x.expand(4, 0, 3), x.repeat(2, 2)), f32(0, 3)),
    row(
        "empty_joined",
        lambda x, y: (torch.cat([x, y]), torch.stack([x, x]), torch.cat([x, x], 1)),
        f32(0, 3),
        f32("B", 3),
    ),
    row("empty_cut", lambda x: (x[1:1], x[:0].sum(0), x.narrow(0, 2, 0), *x.split([0, 3])), f32(3, 2)),
    row("empty_pad", lambda x: (F.pad(x, (1, 1, 2, 0), value=2.0), F.pad(x, (0, -3))), f32(0, 3)),
    row("scalar_moved", lambda x: (x.reshape(1), x[None], x.expand(2, 3), x.permute(()), x.repeat(3)), f32()),
    row(
        "scalar_joined", lambda x, y: (torch.stack([x, y]), torch.hstack([x, y]), x.view(1, 1).squeeze()), f32(), f32()
    ),
    row("size_one_moved", lambda x: (x.squeeze(), x.expand(-1, 4, 3), x.mT, x.flip(1), x.roll(1, 1)), f32("B", 1, 3)),
    row("size_one_split", lambda x: (*x.split(1, 1), *x.unbind(1), x.chunk(3, 1)[0]), f32("B", 1, 3)),
    row("nearest_pyramid", nearest_pyramid, f32("B", 2, "H", "W")),
)
