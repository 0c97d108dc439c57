"""Tensors out of nothing: fills, ranges, constants, chance."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import boolean, f16, f32, family, i32, i64, inf, mod, nan, row

SEQUENCE = f32("B", "S", 3)


class Positions(nn.Module):
    """Adds a learned position to each step: a buffer cut to a dynamic length."""

    table: Tensor

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(1, 16, 3), persistent=persistent)
        self.scale = nn.Parameter(torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.table[:, : x.shape[1]]


class Plain(nn.Module):
    """Tensors that are plain attributes, and one parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.randn(3)
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + self.offset


class Strided(nn.Module):
    """A weight that is not contiguous, and two that share one storage."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.randn(4, 6)
        self.left, self.right = nn.Parameter(both[:, :3]), nn.Parameter(both[:, 3:].contiguous().t())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.left) + x @ self.right


def sinusoidal(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[1])[:, None] * torch.exp(torch.arange(0, 4, 2) * -0.5)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


CASES = family(
    __name__,
    row("zeros", lambda x: x + torch.zeros(3), f32("B", 3)),
    row("zeros_rounded_up", lambda x: torch.zeros(-(-x.shape[0] // 2), (3 - x.shape[1]) // 2 + 5), SEQUENCE),
    row("zeros_dynamic", lambda x: torch.zeros(x.shape[0], 2, x.shape[1]), SEQUENCE),
    row("ones_dynamic_int", lambda x: torch.ones(x.shape[1], dtype=torch.int64), SEQUENCE),
    row("full", lambda x: torch.full((2, 3), 1.5) * x, f32(3)),
    row("full_dynamic", lambda x: torch.full((x.shape[0], 3), 7), SEQUENCE),
    row("full_bool", lambda x: torch.full((x.shape[0],), True), SEQUENCE),
    row("full_by_size", lambda x: torch.full((2,), x.shape[0]), SEQUENCE),
    row("empty_filled", lambda x: torch.empty(x.shape[0], 2).fill_(4.0), SEQUENCE),
    row("zeros_like", lambda x: torch.zeros_like(x), SEQUENCE),
    row("ones_like_dtype", lambda x: torch.ones_like(x, dtype=torch.int32), SEQUENCE),
    row("full_like", lambda x: torch.full_like(x, -2), f16("B", 3)),
    row("full_like_int", lambda x: torch.full_like(x, 3), i32("B", 3)),
    row("zeros_like_bool", lambda x: torch.zeros_like(x) | True, boolean("B", 3)),
    row("new_zeros", lambda x: x.new_zeros(x.shape[0], 2), f16("B", 3)),
    row("new_ones_dtype", lambda x: x.new_ones(2, dtype=torch.int64), SEQUENCE),
    row("new_full", lambda x: x.new_full((x.shape[0],), 2.5), SEQUENCE),
    row("new_tensor", lambda x: x * x.new_tensor([1.0, 2.0, 3.0]), f32("B", 3)),
    # ranges
    row("arange", lambda x: torch.arange(5) + x, i64(5)),
    row("arange_dynamic", lambda x: torch.arange(x.shape[1]), SEQUENCE),
    row("arange_float", lambda x: torch.arange(0, 1, 0.25) + x, f32("B", 4)),
    row("arange_start_step", lambda x: torch.arange(2, 2 * x.shape[1], 3), SEQUENCE),
    row("arange_down", lambda x: torch.arange(x.shape[1] - 1, -1, -1), SEQUENCE),
    row("arange_dtype", lambda x: torch.arange(x.shape[1], dtype=torch.float32) / 2, SEQUENCE),
    row("linspace", lambda x: torch.linspace(-1, 1, 5) + x, f32("B", 5)),
    row("pad_with_a_size", lambda x: F.pad(x, (0, 1), value=x.shape[0] * 2.0), f32("B", 3)),
    row(
        "sizes_as_numbers",
        lambda x: (
            torch.addmm(x, x, torch.ones(3, 3), alpha=x.shape[0]),
            torch.lerp(x, x * 2, 1 / x.shape[0]),
            F.threshold(x, 0.1, x.shape[0]),
            F.softplus(x, beta=x.shape[0]),
        ),
        f32("B", 3),
    ),
    row("linspace_by_size", lambda x: torch.linspace(0, 1, x.shape[1]), f32("B", 5, 3)),  # torch fixes the count
    row(
        "linspace_of_size",
        lambda x: (
            torch.linspace(-1, 1, x.shape[1]) + x,
            torch.linspace(start=0.5, end=x.shape[1] - 0.5, steps=x.shape[0]),
        ),
        f32("B", "S"),
    ),
    row(
        "sizes_as_tensor",
        lambda x: (x + torch.as_tensor([[x.shape[1], 2]], dtype=torch.float32).sum(), torch.asarray(x.shape)),
        f32("B", "S"),
    ),
    row("linspace_to_size", lambda x: torch.linspace(-1, x.shape[0] - 1, 6).floor() + x[0], f32("B", 1)),
    row("linspace_between", lambda x: torch.linspace(x.amin(), x.amax(), 6) + x.amax(), f32("B", 3)),
    row("linspace_one", lambda x: torch.linspace(2, 9, 1) + x, f32("B", 1)),
    row("logspace", lambda x: torch.logspace(0, 2, 4) * x, f32("B", 4)),
    row("eye", lambda x: x @ torch.eye(3), f32("B", 3)),
    row("eye_uneven_int", lambda x: torch.eye(3, 4, dtype=torch.int64) + x, i64(4)),
    row("eye_dynamic", lambda x: torch.eye(x.shape[1]), SEQUENCE),
    row("tril_indices", lambda x: x[torch.tril_indices(3, 3, -1).unbind()], f32(3, 3)),
    row("triu_indices", lambda x: torch.triu_indices(3, 4) + x, i64(1)),
    row("causal_mask", lambda x: torch.full((x.shape[1],) * 2, -1e9).triu(1), SEQUENCE),
    row("sinusoidal", sinusoidal, SEQUENCE),
    row("window", lambda x: x * torch.hann_window(8), f32("B", 8)),
    row("vander", lambda x: torch.vander(x, 3), f32(4)),
    row("vander_int", lambda x: torch.vander(x), i64(value=[2, -1, 3])),
    # constants and sizes as numbers
    row("constant", lambda x: x + torch.tensor([1.0, 2.0, 3.0]), f32("B", 3)),
    row("constant_int_list", lambda x: torch.tensor([[1, 2], [3, 4]]) * x, i64(2)),
    row("constant_output", lambda x: (x * 2, torch.tensor([1, 2])), f32("B", 3)),
    row("scalar_tensor", lambda x: x * torch.scalar_tensor(2.5), f32("B", 3)),
    row("scalar_constant", lambda x: x / torch.tensor(3), f32("B", 3)),
    row("size_as_number", lambda x: x / x.shape[1] + x.shape[0], SEQUENCE),
    row("size_arithmetic", lambda x: x * (x.shape[0] * x.shape[1] - 1) / (x.shape[1] // 2), SEQUENCE),
    row("size_root", lambda x: x / x.shape[-1] ** 0.5, SEQUENCE),
    row("numel", lambda x: x.sum() / x.numel(), SEQUENCE),
    row("size_as_tensor", lambda x: torch.tensor(x.shape[1]) * 2, SEQUENCE),
    mod("buffer", lambda: Positions(True), SEQUENCE),
    mod("buffer_not_persistent", lambda: Positions(False), SEQUENCE),
    mod("plain_attribute_and_shared_weight", Plain, f32("B", 3)),
    mod("strided_weight", Strided, f32("B", 3)),
    # chance, which is certain in eval mode
    mod("dropout_eval", lambda: nn.Dropout(0.5), SEQUENCE),
    mod("dropout2d_eval", lambda: nn.Dropout2d(0.5), f32("B", 3, 4, 4)),
    row("dropout_zero", lambda x: F.dropout(x, 0.0, training=True), SEQUENCE),
    row("dropout_one", lambda x: F.dropout(x, 1.0, training=True), SEQUENCE),
    mod("dropout_train", lambda: nn.Dropout(0.5), SEQUENCE, train=True, random=True),
    row("rand", lambda x: torch.rand(x.shape[0], 3), SEQUENCE, random=True),
    row("randn_like", lambda x: torch.randn_like(x) + x, SEQUENCE, random=True),
    row("rand_like_f16", lambda x: torch.rand_like(x), f16("B", 3), random=True),
    row("randn_added", lambda x: x + 0.1 * torch.randn(x.shape[0], 1, 3), SEQUENCE, random=True),
    row("randint", lambda x: torch.randint(0, 10, (x.shape[0], 2)), SEQUENCE, random=True),
    row("randperm", lambda x: torch.randperm(x.shape[0]), SEQUENCE, random=True),
    row("bernoulli_never", lambda x: torch.bernoulli(x, p=0.0) + x, SEQUENCE),
    row("bernoulli", lambda x: torch.bernoulli(x.sigmoid()), SEQUENCE, random=True),
    row("normal", lambda x: torch.empty_like(x).normal_(2.0, 0.5), SEQUENCE, random=True),
    row("normal_of_tensors", lambda x: torch.normal(x, x.abs()), f32("B", 3), random=True),
    row("alpha_dropout", lambda x: F.alpha_dropout(x, 0.5, True), f32("B", 3), random=True),
    row("feature_dropout", lambda x: F.dropout1d(x, 0.5, True), f32("B", 3, 2), random=True),
    row("feature_alpha_dropout", lambda x: F.feature_alpha_dropout(x, 0.5, True), f32("B", 3, 2), random=True),
    row("randint_like", lambda x: torch.randint_like(x, 0, 9), f32("B", 3), random=True),
    row("exponential", lambda x: torch.ops.aten.exponential(x), f32("B", 3), random=True),
    row("uniform", lambda x: torch.ops.aten.uniform(x), f32("B", 3), random=True),
    row("multinomial", lambda x: torch.multinomial(x.softmax(-1), 2), f32("B", 5), random=True),
    # nan, infinities, signed zeros; tensors without elements, without axes, with axes of one
    row(
        "odd_filled",
        lambda x: (torch.full((2,), nan) + x[0, 0, 0], torch.full_like(x, -inf), 1 / x.new_full((2,), -0.0)),
        SEQUENCE,
    ),
    row(
        "empty_made",
        lambda x: (torch.zeros(0, 3) + x[0, 0], torch.arange(0) + 1, x.new_ones(2, 0), torch.eye(0)),
        SEQUENCE,
    ),
    row("empty_like_empty", lambda x: (torch.zeros_like(x), torch.full_like(x, 2), x.new_zeros(3)), f32(0, 3)),
    row(
        "scalar_made",
        lambda x: (torch.zeros(()) + x, torch.ones_like(x), torch.full((), 3.0) * x, torch.tensor(2.0) * x),
        f32(),
    ),
    row(
        "constants_in_channels_last",
        lambda x: (
            x
            + torch.ones(1, 2, 2, 3).clone(memory_format=torch.channels_last)
            + torch.arange(12).reshape(1, 2, 2, 3).to(torch.float32, memory_format=torch.channels_last)
        ),
        f32("B", 2, 2, 3),
    ),
    row("size_one_made", lambda x: (torch.arange(1) + x, torch.eye(1) * x, torch.linspace(0, 1, 1) + x), f32("B", 1)),
)
