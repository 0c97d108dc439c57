"""The op: `from ir_hardmish import hardmish`. Models import this; exporting them needs nothing else."""

import torch

import ir


@ir.custom_op("hardmish::hardmish")
def hardmish(x: torch.Tensor) -> torch.Tensor:
    """x / 2 * min(2, max(0, x + 2)), element by element, as in timm's HardMish."""
    return 0.5 * x * (x + 2).clamp(min=0, max=2)
