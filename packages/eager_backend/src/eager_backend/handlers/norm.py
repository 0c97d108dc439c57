"""Normalisations and softmax."""

from typing import Any

import torch
from torch import Tensor

from eager_backend.registry import plain, register, rows
from ir.importer.torch_api import VF, plain_call

rows(
    VF,
    "batch_norm group_norm instance_norm layer_norm rms_norm native_batch_norm native_group_norm native_layer_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training",
)
rows(VF, "softmax log_softmax _softmax _log_softmax _safe_softmax renorm cosine_similarity _weight_norm")


def training_batch_norm(
    input: Tensor, weight: Any, bias: Any, running_mean: Tensor, running_var: Tensor, *how: Any
) -> tuple[Tensor, ...]:
    """The functional form, which has no statistics for a batch that is empty, where `batch_norm` changes none."""
    if input.numel():
        return _FUNCTIONAL(input, weight, bias, running_mean, running_var, *how)  # type: ignore[no-any-return]
    return input.clone(), running_mean, running_var, running_mean, running_var


_FUNCTIONAL = plain_call(torch.ops.aten._native_batch_norm_legit_functional.default)
register("aten::_native_batch_norm_legit_functional")(plain(training_batch_norm))
