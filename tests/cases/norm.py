"""Normalisation, softmax and the losses, which are normalisation and a mean."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .base import bf16, f16, f32, f64, family, i64, inf, mod, nan, row

IMAGE = f32("B", 4, "H", "W")
LOGITS, CLASSES = f32("B", 5), i64("B", low=0, high=5)

LABELS = [[2, 0, -1], [-1, 1, 2], [1, 2, 0], [1, -1, 1]]  # of a sample, up to the first -1

ODD_ROWS = [[1.0, nan, 0.0], [-0.0, 2.0, inf], [-inf, 0.0, 1.0], [1.0, 2.0, 4.0]]


def reduced(loss, *args):
    """A loss in each of the three reductions."""
    return [loss(*args, reduction=r) for r in ("mean", "sum", "none")]


CASES = family(
    __name__,
    mod("batch_norm1d", lambda: nn.BatchNorm1d(4), f32("B", 4)),
    mod("batch_norm1d_sequence", lambda: nn.BatchNorm1d(4), f32("B", 4, "S")),
    mod("batch_norm2d", lambda: nn.BatchNorm2d(4, eps=1e-2), IMAGE),
    mod("batch_norm2d_not_affine", lambda: nn.BatchNorm2d(4, affine=False), IMAGE),
    mod("batch_norm2d_no_statistics", lambda: nn.BatchNorm2d(4, track_running_stats=False), IMAGE),
    mod("batch_norm2d_train", lambda: nn.BatchNorm2d(4), IMAGE, train=True),
    mod("batch_norm1d_train_momentum", lambda: nn.BatchNorm1d(4, momentum=0.3), f32("B", 4, "S"), train=True),
    mod("batch_norm3d", lambda: nn.BatchNorm3d(2), f32("B", 2, 3, 4, 5)),
    row(
        "batch_norm_given",
        lambda x, m, v: F.batch_norm(x, m, v, eps=1e-3),
        *(IMAGE, f32(4), f32(4, positive=True)),
    ),
    mod("layer_norm", lambda: nn.LayerNorm(4), f32("B", "S", 4)),
    mod("layer_norm_not_affine", lambda: nn.LayerNorm(4, elementwise_affine=False), f32("B", "S", 4)),
    mod("layer_norm_no_bias", lambda: nn.LayerNorm(4, bias=False), f32("B", 4)),
    mod("layer_norm_two_axes", lambda: nn.LayerNorm((3, 4), eps=1e-2), f32("B", 3, 4)),
    mod("layer_norm_f16", lambda: nn.LayerNorm(4).half(), f16("B", 4)),
    mod("layer_norm_bf16", lambda: nn.LayerNorm(4).bfloat16(), bf16("B", 4)),
    row("layer_norm_large", lambda x: F.layer_norm(x, (4,)), f32("B", 4, low=999, high=1001)),
    mod("group_norm", lambda: nn.GroupNorm(2, 4), IMAGE),
    mod("group_norm_one_group", lambda: nn.GroupNorm(1, 4), f32("B", 4, "S")),
    mod("group_norm_each", lambda: nn.GroupNorm(4, 4), IMAGE),
    mod("group_norm_not_affine", lambda: nn.GroupNorm(2, 4, affine=False), IMAGE),
    mod("instance_norm1d", lambda: nn.InstanceNorm1d(4), f32("B", 4, "S")),
    mod("instance_norm1d_f16", lambda: nn.InstanceNorm1d(4, affine=True), f16("B", 4, "S")),
    mod("instance_norm2d", lambda: nn.InstanceNorm2d(4), IMAGE),
    mod("instance_norm2d_affine", lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    mod("instance_norm2d_statistics", lambda: nn.InstanceNorm2d(4, track_running_stats=True), IMAGE),
    mod("rms_norm", lambda: nn.RMSNorm(4), f32("B", "S", 4)),
    mod("rms_norm_eps", lambda: nn.RMSNorm((3, 4), eps=0.1), f32("B", 3, 4)),
    row(
        "rms_norm_by_hand",
        lambda x, w: w * x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6),
        f32("B", 4),
        f32(4),
    ),
    mod("local_response_norm", lambda: nn.LocalResponseNorm(3, alpha=0.1, beta=0.5, k=2.0), IMAGE),
    row("normalize", lambda x: F.normalize(x), f32("B", 4)),
    row("normalize_p1_last", lambda x: F.normalize(x, p=1.0, dim=-1), f32("B", 3, "S")),
    row("normalize_zero_row", lambda x: F.normalize(x), f32(value=[[0.0, 0.0], [3.0, 4.0]])),
    row(
        "weight_norm_by_hand",
        lambda x, v, g: F.linear(x, g * v / v.norm(dim=1, keepdim=True)),
        f32("B", 3),
        f32(4, 3),
        f32(4, 1),
    ),
    row(
        "norm_except_dim",
        lambda x: (torch.norm_except_dim(x, 2, 1), torch.norm_except_dim(x, 3, -1), torch.norm_except_dim(x, 2, 0)),
        f32(2, 3, 4),
    ),
    mod("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), f32("B", 3)),
    row("layer_norm_wider_weights", lambda x, w: F.layer_norm(x, (4,), w, w + 1), f16("B", 4), f32(4)),
    row("group_norm_wider_weights", lambda x, w: F.group_norm(x, 2, w, w + 1), f16("B", 4, 3), f32(4)),
    row("cosine_similarity", lambda x, y: F.cosine_similarity(x, y), f32("B", 4), f32("B", 4)),
    row("pairwise_distance", lambda x, y: F.pairwise_distance(x, y), f32("B", 4), f32("B", 4)),
    # softmax
    row("softmax", lambda x: F.softmax(x, -1), f32("B", 5)),
    row("softmax_middle", lambda x: x.softmax(1), f32("B", 4, "S")),
    row("softmax_dynamic", lambda x: x.softmax(0), f32("S", 3)),
    row("softmax_dtype", lambda x: F.softmax(x, -1, dtype=torch.float32), f16("B", 5)),
    row("softmax_int_dtype", lambda x: F.softmax(x, -1, dtype=torch.float64), i64("B", 5)),
    row("softmax_large", lambda x: F.softmax(x, -1), f32(value=[[1000.0, 1001.0], [-inf, 0.0], [-1e9, -1e9]])),
    row("softmax_scalar", lambda x: F.softmax(x, 0), f32()),
    row("softmax_bf16", lambda x: x.softmax(-1), bf16("B", 5)),
    row("log_softmax", lambda x: F.log_softmax(x, 1), f32("B", 5)),
    row("log_softmax_dtype", lambda x: F.log_softmax(x, -1, dtype=torch.float64), f32("B", 5)),
    row("log_softmax_spatial", lambda x: x.log_softmax(1), IMAGE),
    row("softmin", lambda x: F.softmin(x, dim=1), f32("B", 5)),
    mod("softmax2d", lambda: nn.Softmax2d(), IMAGE),
    # losses
    row(
        "ctc_loss",
        lambda x, y: [
            F.ctc_loss(x.log_softmax(2), y, (6, 5, 4), (2, 3, 0), reduction=r) for r in ("mean", "sum", "none")
        ],
        *(f32(6, 3, 5), i64(value=[[1, 1, 9], [2, 3, 2], [4, 9, 9]])),
    ),
    row(
        "ctc_loss_lengths",
        lambda x, y, m, n: F.ctc_loss(x.log_softmax(2), y, m, n, blank=3, zero_infinity=True),
        *(f32("T", "B", 5), i64("B", 4, low=0, high=3), i64("B", low=2, high=6), i64("B", low=0, high=5)),
    ),
    row(
        "ctc_loss_joined",
        lambda x, y, m, n: F.ctc_loss(x.log_softmax(2), y, m, n, reduction="none"),
        *(f32(5, 2, 4), i64(value=[1, 2, 2, 3, 1]), i64(value=[5, 4]), i64(value=[2, 3])),
    ),
    row("cross_entropy", lambda x, y: F.cross_entropy(x, y), LOGITS, CLASSES),
    row(
        "cross_entropy_of_any_classes",
        lambda x, y: (F.cross_entropy(x, y), F.cross_entropy(x[0], y[0], label_smoothing=0.2)),
        *(f32(3, "S"), f32(3, "S", positive=True)),
    ),
    row(
        "cross_entropy_of_unknown",
        lambda x, y: F.cross_entropy(torch.where(x > 1, x.double() * math.nan, x), y, reduction="none"),
        LOGITS,
        CLASSES,
    ),
    row("cross_entropy_none", lambda x, y: F.cross_entropy(x, y, reduction="none"), LOGITS, CLASSES),
    row("cross_entropy_smoothed", lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), LOGITS, CLASSES),
    row(
        "cross_entropy_weight",
        lambda x, y, w: F.cross_entropy(x, y, w),
        LOGITS,
        CLASSES,
        f32(5, positive=True),
    ),
    row("cross_entropy_probabilities", lambda x, y: F.cross_entropy(x, y.softmax(1)), LOGITS, LOGITS),
    row(
        "cross_entropy_ignore",
        lambda x, y: F.cross_entropy(x, y, ignore_index=2),
        LOGITS,
        i64("B", value=[1]),
    ),
    row(
        "cross_entropy_ignores_some",
        lambda x, y: F.cross_entropy(x, y, ignore_index=-100, reduction="sum"),
        *(f32(4, 5), i64(value=[0, -100, 4, -100])),
    ),
    row(
        "cross_entropy_spatial",
        lambda x, y: F.cross_entropy(x, y),
        f32("B", 5, "S"),
        i64("B", "S", low=0, high=5),
    ),
    row("nll", lambda x, y: F.nll_loss(x.log_softmax(1), y), LOGITS, CLASSES),
    row("nll_sum", lambda x, y: F.nll_loss(x, y, reduction="sum"), LOGITS, CLASSES),
    row("mse", lambda x, y: F.mse_loss(x, y), f32("B", 3), f32("B", 3)),
    row("mse_none", lambda x, y: F.mse_loss(x, y, reduction="none"), f32("B", 3), f32("B", 3)),
    row("l1", lambda x, y: F.l1_loss(x, y), f32("B", 3), f32("B", 3)),
    row("l1_sum", lambda x, y: F.l1_loss(x, y, reduction="sum"), f32("B", 3), f32("B", 3)),
    row("smooth_l1", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), f32("B", 3), f32("B", 3)),
    row("huber", lambda x, y: F.huber_loss(x, y, delta=0.7), f32("B", 3), f32("B", 3)),
    row("bce", lambda x, y: F.binary_cross_entropy(x, y), f32("B", 3, low=0.1, high=0.9), f32("B", 3, high=1)),
    row(
        "bce_with_logits",
        lambda x, y: F.binary_cross_entropy_with_logits(x, y),
        f32("B", 3),
        f32("B", 3, high=1),
    ),
    row(
        "bce_with_logits_weights",
        lambda x, y, w, p: F.binary_cross_entropy_with_logits(x, y, w, pos_weight=p, reduction="sum"),
        *(f32("B", 3), f32("B", 3, high=1), f32(3, positive=True), f32(3, positive=True)),
    ),
    row(
        "kl_div",
        lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        *(f32("B", 3), f32("B", 3)),
    ),
    row(
        "kl_div_log_target",
        lambda x, y: F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True, reduction="sum"),
        *(f32("B", 3), f32("B", 3)),
    ),
    row(
        "margin_ranking",
        lambda x, y, t: F.margin_ranking_loss(x, y, t, margin=0.2),
        *(f32("B"), f32("B"), f32("B", value=[-1.0])),
    ),
    row(
        "triplet_margin",
        lambda a, p, n: F.triplet_margin_loss(a, p, n),
        f32("B", 3),
        f32("B", 3),
        f32("B", 3),
    ),
    row("multilabel_margin", lambda x, y: reduced(F.multilabel_margin_loss, x, y), f32(4, 3), i64(value=LABELS)),
    row(
        "multilabel_margin_of_many",
        lambda x, y: reduced(F.multilabel_margin_loss, x, y),
        *(f32("B", "S"), i64("B", "S", low=-1, high=5)),
    ),
    row("multilabel_margin_of_one", lambda x, y: reduced(F.multilabel_margin_loss, x, y), f32(3), i64(value=LABELS[0])),
    row(
        "odd_multilabel_margin",
        lambda x, y: reduced(F.multilabel_margin_loss, x, y),
        *(f32(value=ODD_ROWS), i64(value=LABELS)),
    ),
    row(
        "multi_margin",
        lambda x, y, w: reduced(F.multi_margin_loss, x, y) + reduced(F.multi_margin_loss, x, y, 2, 0.5, w),
        *(LOGITS, CLASSES, f32(5, positive=True)),
    ),
    row("multi_margin_of_one", lambda x, y: reduced(F.multi_margin_loss, x, y), f32(5), i64(value=3)),
    row("multi_margin_of_a_number", lambda x, y: reduced(F.multi_margin_loss, x, y), f32(), i64(value=0)),
    row(
        "odd_multi_margin",
        lambda x, y: reduced(F.multi_margin_loss, x, y),
        f32(value=ODD_ROWS),
        i64(value=[1, 0, 2, 0]),
    ),
    row("softmax_f64", lambda x: x.softmax(-1), f64("B", 5)),
    # nan, infinities, signed zeros; tensors without elements, without axes, with axes of one
    row("odd_softmax", lambda x: (x.softmax(-1), x.log_softmax(-1), x.softmax(0)), f32(value=ODD_ROWS)),
    row("odd_layer_norm", lambda x: F.layer_norm(x, (3,)), f32(value=ODD_ROWS)),
    row("odd_rms_norm", lambda x: F.rms_norm(x, (3,)), f32(value=ODD_ROWS)),
    mod("odd_batch_norm", lambda: nn.BatchNorm1d(3).eval(), f32(value=ODD_ROWS)),
    row("odd_normalize", lambda x: F.normalize(x), f32(value=ODD_ROWS)),
    row("constant_layer_norm", lambda x: (F.layer_norm(x, (4,)), F.rms_norm(x, (4,))), f32("B", 4, value=3.0)),
    row("empty_layer_norm_rows", lambda x: F.layer_norm(x, (0,)), f32("B", 0)),
    row("empty_norms", lambda x: (F.layer_norm(x, (3,)), x.softmax(-1), F.rms_norm(x, (3,))), f32(0, 3)),
    mod("empty_batch_norm", lambda: nn.BatchNorm2d(4).eval(), f32(0, 4, 3, 3)),
    mod("empty_group_norm", lambda: nn.GroupNorm(2, 4), f32(0, 4, 3)),
    row("size_one_norms", lambda x: (F.layer_norm(x, (1,)), x.softmax(-1), F.rms_norm(x, (1,))), f32("B", 3, 1)),
    row(
        "size_one_losses", lambda x, c: (F.cross_entropy(x, c), F.mse_loss(x, x * 2)), f32(1, 5), i64(1, low=0, high=5)
    ),
)
