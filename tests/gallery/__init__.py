"""The samples of the gallery's ops, and what a target cannot express; the ops themselves are in examples/gallery."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, rand, randint, randn

from ir.testing import Sample

FOLDER = Path(__file__).parents[2] / "examples" / "gallery"
TARGETS = ("onnx", "nnef", "eager")
LIMITS: dict[tuple[str, str], str] = {}  # (op, target) -> why the target cannot express it; strict
SAMPLES: dict[str, Callable[[], list[Sample]]] = {}


def module(name: str) -> ModuleType:
    """The gallery's file, imported by the name under which torch.compile finds it again."""
    return importlib.import_module(f"examples.gallery.{name}")


def op(name: str) -> Any:
    """The op of a file; both have the same name."""
    return getattr(module(name), name)


def samples(name: str) -> list[Sample]:
    """The calls on which an op is compared: the same numbers each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SAMPLES[name]()


def _of(make: Callable[..., list[Sample]]) -> Callable[..., list[Sample]]:
    SAMPLES[make.__name__] = make
    return make


@_of
def selective_scan() -> list[Sample]:
    def call(batch: int, length: int, inner: int = 6, state: int = 4) -> Sample:
        sequence, into, out = randn(batch, length, inner), randn(batch, length, state), randn(batch, length, state)
        return Sample((sequence, rand(batch, length, inner), -rand(inner, state), into, out, randn(inner)))

    return [call(2, 5), call(3, 9)]


@_of
def wkv() -> list[Sample]:
    def call(batch: int, length: int) -> Sample:
        return Sample((rand(6), randn(6), 3 * randn(batch, length, 6), randn(batch, length, 6)))

    return [call(2, 5), call(3, 9)]


@_of
def rotary() -> list[Sample]:
    def call(batch: int, length: int, **options: Any) -> Sample:
        return Sample((randn(batch, length, 2, 8), randint(0, 100, (batch, length))), options)

    return [call(2, 5), call(3, 7), call(2, 4, base=500.0, interleaved=True)]


@_of
def ms_deform_attn() -> list[Sample]:
    def call(batch: int, queries: int) -> Sample:
        maps, places = randn(batch, 4 * 6 + 2 * 3, 2, 4), rand(batch, queries, 2, 2, 3, 2) * 1.4 - 0.2
        return Sample((maps, [4, 6, 2, 3], places, rand(batch, queries, 2, 2, 3)))

    return [call(2, 3), call(3, 5)]


@_of
def corr_lookup() -> list[Sample]:
    def call(batch: int, height: int, width: int) -> Sample:
        match = rand(batch, 2, height, width) * max(height, width)
        return Sample((randn(batch, 5, height, width), randn(batch, 5, height, width), match, 1, 2))

    return [call(2, 5, 6), call(3, 8, 7)]


@_of
def upfirdn2d() -> list[Sample]:
    kernel = Tensor([1, 3, 3, 1]).outer(Tensor([1, 2, 4])) / 56
    enlarge, shrink = {"up": 2, "before": 2, "after": 1}, {"down": 2, "before": 1, "after": 2}
    crop = {"up": 3, "down": 2, "before": -1, "after": 2}
    calls = [((2, 3, 5, 6), enlarge), ((3, 3, 7, 8), enlarge), ((2, 3, 7, 6), shrink), ((2, 3, 5, 6), crop)]
    return [Sample((randn(*shape), kernel), options) for shape, options in calls]


@_of
def fused_bias_act() -> list[Sample]:
    calls = [(randn(2, 3, 4, 5), randn(3)), (randn(3, 3, 5, 6), randn(3)), (randn(2, 3), None, 0.1, 1.0)]
    return [Sample(c) for c in calls]


@_of
def rotated_iou() -> list[Sample]:
    def boxes(count: int) -> Tensor:
        return torch.cat([rand(count, 2) * 4 + 20, rand(count, 2) * 4 + 0.5, randn(count, 1) * 3], 1)

    # the same box, a quarter turn of a square, one inside of another, a shared side, one far away, a thin one
    edge = Tensor([[1, 2, 3, 4, 0.3], [0, 0, 2, 2, 0], [0, 0, 2, 2, math.pi / 2], [0, 0, 1, 1, 0.5], [2, 0, 2, 2, 0],
                   [1, 0, 2, 2, 0], [90, 90, 1, 1, 1], [0, 0, 8, 0.01, 0.1]])  # fmt: skip
    return [Sample((edge, edge)), Sample((boxes(4), boxes(5)))]


@_of
def farthest_points() -> list[Sample]:
    return [Sample((randn(2, 9, 3), 4)), Sample((randn(3, 12, 3), 4))]


@_of
def ball_query() -> list[Sample]:
    def call(batch: int, points: int, centers: int) -> Sample:
        return Sample((rand(batch, points, 3), rand(batch, centers, 3) * 1.5, 0.5, 4))

    return [call(2, 9, 3), call(3, 14, 5)]


@_of
def segment_reduce() -> list[Sample]:
    def call(rows: int, reduce: str) -> Sample:
        return Sample((randn(rows, 3), randint(0, 4, (rows,)) * 5 % 6, 6, reduce))

    return [call(7, "sum"), call(11, "sum"), call(7, "mean"), call(11, "mean")]


@_of
def ctc_greedy_decode() -> list[Sample]:
    def call(batch: int, steps: int) -> Sample:
        return Sample((randn(batch, steps, 3), randint(1, steps + 1, (batch,))))

    return [call(3, 8), call(4, 12), Sample((randn(2, 6, 3), randint(0, 7, (2,)), 2))]


@_of
def hadamard() -> list[Sample]:
    return [Sample((randn(2, 16),)), Sample((randn(3, 16),))]


@_of
def bilateral_slice() -> list[Sample]:
    def call(batch: int, height: int, width: int) -> Sample:
        return Sample((randn(batch, 12, 4, 2, 3), rand(batch, height, width), randn(batch, 3, height, width)))

    return [call(2, 5, 6), call(3, 7, 8)]


@_of
def int4_linear() -> list[Sample]:
    def call(rows: int) -> Sample:
        packed, zeros = (randint(0, n, s, dtype=torch.uint8) for n, s in ((256, (5, 16)), (16, (5, 4))))
        return Sample((randn(rows, 32), packed, rand(5, 4), zeros))

    return [call(2), call(3)]


@_of
def voxel_sample() -> list[Sample]:
    def call(batch: int, points: int) -> Sample:
        places = rand(batch, points, 3) * 6 - 1
        return Sample((randn(batch, 2, 3, 4, 5), torch.cat([places, Tensor([[[0, 3, 4]]]).expand(batch, 1, 3)], 1)))

    return [call(2, 4), call(3, 7)]
