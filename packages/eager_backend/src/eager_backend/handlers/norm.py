"""Normalisations and softmax."""

import torch

from eager_backend.registry import rows

VF = torch._C._VariableFunctions

rows(
    VF,
    "batch_norm group_norm instance_norm layer_norm rms_norm native_batch_norm native_group_norm native_layer_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training",
)
rows(VF, "softmax log_softmax _softmax _log_softmax _safe_softmax renorm cosine_similarity _weight_norm")
