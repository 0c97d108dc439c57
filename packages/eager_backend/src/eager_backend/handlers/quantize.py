"""Quantisation: torch's reference ops, which exist once this module is imported."""

from eager_backend.registry import rows
from ir.importer.torch_api import VF, register_quantized_decomposed

register_quantized_decomposed()
rows(VF, "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine")
