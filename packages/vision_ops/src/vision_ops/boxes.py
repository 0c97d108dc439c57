"""nms, whose result is as long as the boxes that stay: native on ONNX, a loop over the boxes elsewhere.

torchvision's batched_nms asks how many boxes there are, to choose between two ways; no graph can hold that question
where data decides the number. While torch.export traces, the function here stands in, which goes one way.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor

import ir
from ir.importer.torch_api import scan_op

nms = ir.op("torchvision::nms")


@nms.handler("onnx", since_version=10)
def _(h: Any, dets: Any, scores: Any, iou_threshold: float) -> Any:
    """NonMaxSuppression keeps equal scores in their order, as torchvision's stable sort does."""
    if not 0 <= iou_threshold <= 1:
        h.refuse(f"NonMaxSuppression takes a threshold in [0, 1], not iou_threshold={iou_threshold}")
    if dets.type.dtype is ir.DType.float64:
        h.refuse("NonMaxSuppression takes boxes of float32, and those of float64 would be rounded")
    boxes, marks = (h.cast(x, ir.DType.float32) for x in (dets, scores))
    marks = h.emit("Where", h.emit("IsNaN", marks), math.inf, marks)  # torch's sort has nan before all numbers
    # turned inside out a box overlaps nothing in torchvision; here its corners would be swapped
    low, high = h.slice(boxes, 1, 0, 2, size=2), h.slice(boxes, 1, 2, 4, size=2)
    boxes = h.concat([low, h.emit("Max", low, high)], 1)
    batches = h.unsqueeze(boxes, [0]), h.unsqueeze(marks, [0, 1])
    (count,) = h.out.shape
    kept = h.emit("NonMaxSuppression", *batches, [2**31 - 1], [_rounded_down(iou_threshold)], shape=(count, 3))
    return h.squeeze(h.slice(kept, 1, 2, 3, size=1), [1])


@nms.body
def _(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """torchvision/csrc/ops/cpu/nms_kernel.cpp: from the best box on, each that stays suppresses what overlaps it."""
    order = scores.sort(stable=True, dim=0, descending=True)[1]
    boxes = torch.cat([dets.index_select(0, order), dets.new_zeros(1, 4)])  # one more: no target loops over nothing
    low, high = boxes[:, :2], boxes[:, 2:]
    sides = high - low
    areas = sides[:, 0] * sides[:, 1]

    def step(stays: Tensor, place: Tensor, *boxes: Tensor) -> list[Tensor]:
        low_i, high_i, area_i, low, high, areas = boxes  # one box, and all of them
        stays_i = stays.gather(0, place.reshape(1))
        shared_sides = (torch.minimum(high_i, high) - torch.maximum(low_i, low)).clamp(min=0)
        shared = shared_sides[:, 0] * shared_sides[:, 1]
        # torchvision compares the quotient, a float, with a double; tract divides floats not to the last bit
        quotient = (shared.double() / (area_i + areas - shared).double()).to(shared.dtype)
        overlaps = quotient.double() > iou_threshold
        return [stays & ~(stays_i & overlaps), stays_i]

    places = torch.arange(boxes.shape[0], device=scores.device)
    stays = torch.ones_like(areas, dtype=torch.bool)
    _, kept = scan_op(step, [stays], [places, low, high, areas], (low, high, areas))
    return order.index_select(0, kept[:-1, 0].nonzero()[:, 0])


def _rounded_down(threshold: float) -> float:
    """The float32 that floats exceed just where they exceed this double, with which torchvision compares them."""
    nearest = np.float32(threshold)
    return float(nearest if float(nearest) <= threshold else np.nextafter(nearest, np.float32(-np.inf)))


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """nms within each category: boxes [N, 4], scores [N], idxs [N] (the categories); the kept places, best first.

    The boxes of each category are moved to a place of their own, where none of another's overlaps them.
    """
    # a zero more, since there may be no box at all
    largest = torch.cat([boxes.reshape(-1), boxes.new_zeros(1)]).max()
    offsets = idxs.to(boxes) * (largest + 1)
    kept: Tensor = torch.ops.torchvision.nms(boxes + offsets[:, None], scores, iou_threshold)
    return kept


def stand_in() -> None:
    """Let torchvision's models call the function above while they are exported."""
    own = torchvision.ops.boxes.batched_nms
    if getattr(own, "__wrapped__", None) is not None and own.__module__ == __name__:
        return

    @functools.wraps(own)
    def chosen(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
        way = batched_nms if torch.compiler.is_exporting() else own
        return way(boxes, scores, idxs, iou_threshold)

    chosen.__module__ = __name__
    torchvision.ops.boxes.batched_nms = torchvision.ops.batched_nms = chosen
