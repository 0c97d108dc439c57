"""Tensors from nothing, and random ones from torch's own generator."""

import torch

from eager_backend.registry import rows
from ir.importer.torch_api import VF

Tensor = torch.Tensor

rows(
    VF,
    "arange bartlett_window blackman_window empty empty_like empty_permuted empty_strided eye full full_like "
    "hamming_window hann_window kaiser_window linspace logspace ones ones_like scalar_tensor tril_indices triu_indices "
    "zeros zeros_like",
)
rows(Tensor, "new_empty new_empty_strided new_full new_ones new_zeros")
rows(VF, "bernoulli binomial multinomial poisson rand rand_like randint randint_like randn randn_like randperm")
