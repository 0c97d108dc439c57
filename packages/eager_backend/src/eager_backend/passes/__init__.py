"""What is done to a graph, and to a program's blocks before they become source: one pass a file, in this order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from eager_backend.building.contracts import Compilation
from eager_backend.building.steps import Block
from eager_backend.passes.attention import takes_groups
from eager_backend.passes.batch_norm import fold_batch_norm
from eager_backend.passes.constants import fold_constants
from eager_backend.passes.convolution import pack_convolutions
from eager_backend.passes.cublas import fuse_linears
from eager_backend.passes.cudnn import fuse_convolutions
from eager_backend.passes.inplace import write_in_place
from eager_backend.passes.layer_scale import fold_layer_scale
from eager_backend.passes.linear import pack_linears
from eager_backend.passes.scalars import bind_scalars
from eager_backend.passes.siblings import join_siblings
from eager_backend.passes.updates import write_updates
from ir.passes.group_heads import group_heads
from ir.target import Pass

BlockPass = Callable[[Compilation, Block], None]


class GraphPass(NamedTuple):
    """A pass of the graph, before nodes become steps, and whether it pays on a device."""

    run: Pass
    pays: Callable[[torch.device], bool]


GRAPH_PASSES: Mapping[str, GraphPass] = {"attention": GraphPass(group_heads, takes_groups)}
PASSES: Mapping[str, BlockPass | GraphPass] = {
    **GRAPH_PASSES,
    "constants": fold_constants,
    "batch_norm": fold_batch_norm,
    "layer_scale": fold_layer_scale,
    "siblings": join_siblings,
    "convolution": pack_convolutions,
    "linear": pack_linears,
    "cudnn": fuse_convolutions,
    "cublas": fuse_linears,
    "updates": write_updates,
    "scalars": bind_scalars,
    "inplace": write_in_place,
}
# By name or autotune: what pays on some machines and sizes only. No GPU is known before a program is measured on it.
MEASURED = frozenset({"siblings", "cudnn", "cublas"})
FOR_CUDA = ("cudnn", "cublas")

__all__ = ["FOR_CUDA", "GRAPH_PASSES", "MEASURED", "PASSES", "BlockPass", "GraphPass"]
