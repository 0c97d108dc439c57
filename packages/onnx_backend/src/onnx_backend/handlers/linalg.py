"""Determinants and distances: what ONNX has of linear algebra. The rest are shared decompositions."""

from __future__ import annotations

import math

from onnx_backend.handlers.reduce import norm
from onnx_backend.registry import register as op


@op("aten::linalg_det", "aten::_linalg_det", "aten::det")
def linalg_det(h, self=None, A=None):
    x = A if self is None else self
    return [h.emit("Det", x, shape=h.out.shape), None, None][: len(h.results)]


@op("aten::cdist", "aten::_cdist_forward")
def cdist(h, x1, x2, p=2, compute_mode=None):
    if p in (0, math.inf):
        h.refuse("such a distance is no norm where there is nan; its decomposition is written")
    gap = h.emit("Sub", h.unsqueeze(x1, [x1.type.rank - 1]), h.unsqueeze(x2, [x2.type.rank - 2]))
    return norm(h, gap, p, [len(h.out.shape)])
