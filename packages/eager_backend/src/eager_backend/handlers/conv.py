"""Convolutions."""

import torch

from eager_backend.registry import rows

VF, NN = torch._C._VariableFunctions, torch._C._nn

rows(VF, "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution")
rows(NN, "col2im im2col")
