"""Entries in a line each: a model, and its inputs as draws over dimensions; what has a name is dynamic.

    row("pointnet", PointNet, x=numbers("batch", "points", 3))

There is one size of each model, small enough for seconds on every target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ..entry import Entry, Inputs, Sizes, Variant, entry, floats, generator

# The size to trace with and two others, by the dimension's name. A row may give its own.
SIZES: Mapping[str, tuple[int, int, int]] = {
    "batch": (2, 1, 3),
    "sequence": (12, 20, 7),
    "target": (9, 6, 14),
    "height": (64, 96, 128),
    "width": (96, 64, 128),
    "frames": (48, 64, 40),
    "samples": (4000, 6400, 5120),
    "points": (20, 33, 16),
    "images": (2, 1, 3),
    # of some blocks, patches or windows: torch.export takes what has one of them for a model of one
    "passage": (260, 300, 150),
    "clips": (2, 4, 3),
    "tall": (128, 192, 256),
    "broad": (192, 128, 256),
}


@dataclass(frozen=True)
class Draw:
    """One input: its dimensions, and how it is drawn from the sizes."""

    dims: tuple[str | int, ...]
    make: Callable[[tuple[int, ...]], torch.Tensor]

    def __call__(self, sizes: Sizes) -> torch.Tensor:
        return self.make(tuple(d if isinstance(d, int) else sizes[d] for d in self.dims))

    @property
    def dynamic(self) -> dict[int, str]:
        """The named dimensions."""
        return {i: d for i, d in enumerate(self.dims) if isinstance(d, str)}


def numbers(*dims: str | int) -> Draw:
    """Standard normal numbers."""
    return Draw(dims, lambda shape: floats(*shape))


def unit(*dims: str | int) -> Draw:
    """Numbers from 0 to 1."""
    return Draw(dims, lambda shape: torch.rand(shape, generator=generator()))


def picture(*dims: str | int) -> Draw:
    """Noise around a colour of its own for each image; plain noise averages to the same scores for all."""
    return Draw(dims, lambda shape: 0.5 * floats(*shape) + floats(shape[0], 3, *(1 for _ in shape[2:])))


def ids(*dims: str | int, below: int = 64, least: int = 3) -> Draw:
    """Token numbers; the first ones are left to special tokens."""
    return Draw(dims, lambda shape: torch.randint(least, below, shape, generator=generator()))


def kept(*dims: str | int) -> Draw:
    """A mask of ones in which each row but the first ends in some padding."""

    def make(shape: tuple[int, ...]) -> torch.Tensor:
        lengths = torch.tensor([max(1, shape[1] - row) for row in range(shape[0])])
        return (torch.arange(shape[1])[None, :] < lengths[:, None]).long()

    return Draw(dims, make)


def row(
    name: str,
    build: Callable[[], nn.Module],
    draws: Mapping[str, Draw],
    sizes: Mapping[str, tuple[int, int, int]] | None = None,
) -> tuple[str, Entry]:
    """A name and its entry; `draws` are keyword arguments of the model."""
    table = {**SIZES, **(sizes or {})}
    used = dict.fromkeys(d for draw in draws.values() for d in draw.dims if isinstance(d, str))
    traced, *others = ({d: table[d][i] for d in used} for i in range(3))

    def inputs(given: Sizes) -> Inputs:
        return (), {key: draw(given) for key, draw in draws.items()}

    shapes = {key: draw.dynamic for key, draw in draws.items()}
    return name, entry(name, shapes, lambda small: Variant(build, inputs, traced, (others[0], others[1])))
