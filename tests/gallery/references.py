"""The gallery's ops once more, in numpy and loops, from their formulas and not from their bodies.

Each takes and returns what the op does, as numpy arrays and plain numbers; floats are computed in float64.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def selective_scan(u: Array, delta: Array, A: Array, B: Array, C: Array, D: Array) -> Array:
    y = np.zeros_like(u)
    for b, d in np.ndindex(u.shape[0], u.shape[2]):
        h = np.zeros(A.shape[1])
        for t in range(u.shape[1]):
            h = np.exp(delta[b, t, d] * A[d]) * h + delta[b, t, d] * B[b, t] * u[b, t, d]
            y[b, t, d] = C[b, t] @ h + D[d] * u[b, t, d]
    return y


def wkv(w: Array, u: Array, k: Array, v: Array) -> Array:
    y = np.zeros_like(v)
    for b, t, c in np.ndindex(*v.shape):
        weights = [math.exp(-(t - 1 - i) * w[c] + k[b, i, c]) for i in range(t)] + [math.exp(u[c] + k[b, t, c])]
        y[b, t, c] = np.average(v[b, : t + 1, c], weights=weights)
    return y


def rotary(x: Array, positions: Array, base: float = 10000.0, interleaved: bool = False) -> Array:
    y, half = np.zeros_like(x), x.shape[3] // 2
    for b, t, head, i in np.ndindex(*x.shape[:3], half):
        one, other = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        turn = np.exp(1j * positions[b, t] * base ** (-i / half))
        z = (x[b, t, head, one] + 1j * x[b, t, head, other]) * turn
        y[b, t, head, one], y[b, t, head, other] = z.real, z.imag
    return y


def read(table: Array, *place: float, border: bool = False) -> Array:
    """A table [..., extents] between its elements, linearly; zero outside of it, or held at the border."""
    extents = table.shape[-len(place) :]
    total = np.zeros(table.shape[: -len(place)])
    for corner in itertools.product((0, 1), repeat=len(place)):
        at = [math.floor(p) + c for p, c in zip(place, corner, strict=True)]
        weight = math.prod(1 - abs(p - a) for p, a in zip(place, at, strict=True))
        if border:
            at = [min(max(a, 0), n - 1) for a, n in zip(at, extents, strict=True)]
        if all(0 <= a < n for a, n in zip(at, extents, strict=True)):
            total = total + weight * table[(..., *at)]
    return total


def ms_deform_attn(value: Array, shapes: list[int], locations: Array, weights: Array) -> Array:
    batch, _, heads, size = value.shape
    scales = np.reshape(shapes, (-1, 2))
    ends = np.cumsum(scales.prod(1))
    y = np.zeros((batch, locations.shape[1], heads, size))
    for b, q, m, level, p in np.ndindex(*weights.shape):
        height, width = scales[level]
        table = value[b, ends[level] - height * width : ends[level], m].T.reshape(size, height, width)
        across, down = locations[b, q, m, level, p]
        y[b, q, m] += weights[b, q, m, level, p] * read(table, down * height - 0.5, across * width - 0.5)
    return y.reshape(batch, -1, heads * size)


def corr_lookup(f1: Array, f2: Array, match: Array, radius: int = 4, levels: int = 4) -> Array:
    batch, channels, height, width = f1.shape
    side = 2 * radius + 1
    y = np.zeros((batch, levels * side * side, height, width))
    for b, i, j in np.ndindex(batch, height, width):
        table = np.einsum("c,ckl->kl", f1[b, :, i, j], f2[b]) / math.sqrt(channels)
        for level in range(levels):
            for dx, dy in np.ndindex(side, side):
                across, down = match[b, :, i, j] / 2**level
                place = down + dy - radius, across + dx - radius
                y[b, (level * side + dx) * side + dy, i, j] = read(table, *place)
            h, w = (n // 2 for n in table.shape)
            table = table[: 2 * h, : 2 * w].reshape(h, 2, w, 2).mean((1, 3))
    return y


def upfirdn2d(x: Array, kernel: Array, up: int = 1, down: int = 1, before: int = 0, after: int = 0) -> Array:
    (height, width), (kh, kw) = x.shape[2:], kernel.shape
    high, wide = ((n * up + before + after - k) // down + 1 for n, k in ((height, kh), (width, kw)))
    y = np.zeros((*x.shape[:2], high, wide))
    for i, j, a, b in np.ndindex(high, wide, kh, kw):
        row, column = i * down + a - before, j * down + b - before
        if row % up == column % up == 0 and 0 <= row < height * up and 0 <= column < width * up:
            y[:, :, i, j] += kernel[kh - 1 - a, kw - 1 - b] * x[:, :, row // up, column // up]
    return y


def fused_bias_act(x: Array, bias: Array | None = None, slope: float = 0.2, scale: float = 2**0.5) -> Array:
    y = np.zeros_like(x)
    for at in np.ndindex(*x.shape):
        z = x[at] + (0 if bias is None else bias[at[1]])
        y[at] = scale * (z if z > 0 else slope * z)
    return y


def rotated_iou(a: Array, b: Array) -> Array:
    """The intersection is one box cut, corner by corner, by the half-plane of each side of the other."""

    def corners(x: float, y: float, w: float, h: float, angle: float) -> list[complex]:
        around = [complex(-w, -h), complex(w, -h), complex(w, h), complex(-w, h)]
        return [complex(x, y) + c / 2 * complex(math.cos(angle), math.sin(angle)) for c in around]

    def cross(one: complex, other: complex) -> float:
        return (one.conjugate() * other).imag

    def cut(polygon: list[complex], start: complex, end: complex) -> list[complex]:
        kept = []
        for p, q in zip(polygon, [*polygon[1:], *polygon[:1]], strict=True):
            at, then = cross(end - start, p - start), cross(end - start, q - start)
            kept += [p] if at >= 0 else []
            kept += [p + (q - p) * at / (at - then)] if at * then < 0 else []
        return kept

    y = np.zeros((len(a), len(b)))
    for i, j in np.ndindex(*y.shape):
        polygon, other = corners(*a[i]), corners(*b[j])
        for start, end in zip(other, [*other[1:], *other[:1]], strict=True):
            polygon = cut(polygon, start, end)
        area = sum(cross(p, q) for p, q in zip(polygon, [*polygon[1:], *polygon[:1]], strict=True)) / 2
        y[i, j] = area / (a[i, 2] * a[i, 3] + b[j, 2] * b[j, 3] - area)
    return y


def farthest_points(points: Array, count: int) -> Array:
    taken = np.zeros((len(points), count), np.int64)
    for b, cloud in enumerate(points):
        for n in range(1, count):
            nearest = [min(((p - cloud[t]) ** 2).sum() for t in taken[b, :n]) for p in cloud]
            taken[b, n] = int(np.argmax(nearest))
    return taken


def ball_query(points: Array, centers: Array, radius: float, count: int) -> Array:
    found = np.zeros((*centers.shape[:2], count), np.int64)
    for b, c in np.ndindex(*centers.shape[:2]):
        near = [i for i, p in enumerate(points[b]) if math.dist(p, centers[b, c]) < radius][:count]
        found[b, c] = (near + near[:1] * count)[:count] if near else 0
    return found


def segment_reduce(x: Array, segment: Array, segments: int, reduce: str = "sum") -> Array:
    zero = np.zeros((1, x.shape[1]))
    rows = [np.concatenate([zero, x[segment == s]]) for s in range(segments)]
    return np.stack([r.sum(0) / (max(len(r) - 1, 1) if reduce == "mean" else 1) for r in rows])


def ctc_greedy_decode(scores: Array, lengths: Array, blank: int = 0) -> tuple[Array, Array]:
    labels = np.full(scores.shape[:2], -1)
    found = np.zeros_like(lengths)
    for b, length in enumerate(lengths):
        merged = [int(label) for label, _ in itertools.groupby(scores[b, :length].argmax(-1))]
        kept = [label for label in merged if label != blank]
        labels[b, : len(kept)], found[b] = kept, len(kept)
    return labels, found


def hadamard(x: Array) -> Array:
    n = x.shape[1]
    signs = [[(-1) ** (i & j).bit_count() for j in range(n)] for i in range(n)]
    return x @ np.array(signs) / math.sqrt(n)


def bilateral_slice(grid: Array, guide: Array, image: Array) -> Array:
    batch, channels, height, width = image.shape
    depth, high, wide = grid.shape[2:]
    y = np.zeros((batch, grid.shape[1] // (channels + 1), height, width))
    for b, i, j in np.ndindex(batch, height, width):
        place = guide[b, i, j] * depth - 0.5, (i + 0.5) * high / height - 0.5, (j + 0.5) * wide / width - 0.5
        affine = read(grid[b], *place, border=True).reshape(-1, channels + 1)
        y[b, :, i, j] = affine @ np.append(image[b, :, i, j], 1)
    return y


def int4_linear(x: Array, packed: Array, scales: Array, zeros: Array) -> Array:
    features, k = packed.shape[0], packed.shape[1] * 2
    group = k // scales.shape[1]
    weight = np.zeros((features, k))
    for n, i in np.ndindex(features, k):
        q = int(packed[n, i // 2]) // (16 if i % 2 else 1) % 16
        weight[n, i] = (q - int(zeros[n, i // group])) * scales[n, i // group]
    return x @ weight.T


def voxel_sample(grid: Array, points: Array) -> Array:
    y = np.zeros((*grid.shape[:2], points.shape[1]))
    for b, p in np.ndindex(*points.shape[:2]):
        held = [min(max(c, 0), n - 1) for c, n in zip(points[b, p], grid.shape[2:], strict=True)]
        y[b, :, p] = read(grid[b], *held, border=True)
    return y
