"""A model whose graph has about 2,000 nodes in modules of three levels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)) * 0.5


class Stage(nn.Module):
    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, width)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).tanh()


class Large(nn.Module):
    def __init__(self, stages: int = 10, blocks: int = 24, width: int = 16) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Stage(width, blocks) for _ in range(stages))
        self.angles = nn.Linear(width, 4)

    def forward(self, x):
        first = x
        for stage in self.stages:
            x = stage(x) + first
        return torch.polar(self.angles(x).abs(), self.angles(x)).real  # an op that some target has by a body


def large():
    return Large(), (torch.randn(2, 7, 16),), None, ({0: "batch", 1: "length"},)


def small():
    return Large(2, 2), (torch.randn(2, 7, 16),), None, ({0: "batch", 1: "length"},)
