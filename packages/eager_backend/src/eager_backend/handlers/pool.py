"""Pooling and resampling."""

from eager_backend.registry import rows
from ir.importer.torch_api import NN, VF

rows(VF, "adaptive_avg_pool1d adaptive_max_pool1d avg_pool1d max_pool1d max_pool1d_with_indices max_pool2d max_pool3d")
rows(
    NN,
    "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d "
    "fractional_max_pool2d max_pool2d_with_indices max_pool3d_with_indices max_unpool2d",
)
rows(
    NN,
    "upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa",
)
rows(VF, "affine_grid_generator grid_sampler grid_sampler_2d grid_sampler_3d")
