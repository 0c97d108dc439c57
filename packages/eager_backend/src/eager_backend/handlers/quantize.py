"""Quantisation: torch's reference ops, which exist once this module is imported."""

import torch
import torch.ao.quantization.fx._decomposed

from eager_backend.registry import rows

rows(torch._C._VariableFunctions, "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine")
