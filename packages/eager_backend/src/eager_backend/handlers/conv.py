"""Convolutions."""

from eager_backend.registry import rows
from ir.importer.torch_api import NN, VF

rows(VF, "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution")
rows(NN, "col2im im2col")
