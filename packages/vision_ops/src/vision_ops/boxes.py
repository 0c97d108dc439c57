"""nms, whose result is as long as the boxes that stay: native on ONNX, a size that only data tells elsewhere.

torchvision's batched_nms asks how many boxes there are, to choose between two ways; no graph can hold that question
where data decides the number. While torch.export traces, the function here stands in, which goes one way.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torchvision
from torch import Tensor

import ir

nms = ir.op("torchvision::nms")


@nms.handler("onnx", since_version=10)
def _(h: Any, dets: Any, scores: Any, iou_threshold: float) -> Any:
    """NonMaxSuppression keeps equal scores in their order, as torchvision's stable sort does."""
    if not 0 <= iou_threshold <= 1:
        h.refuse(f"NonMaxSuppression takes a threshold in [0, 1], not {iou_threshold}")
    boxes, marks = (h.cast(x, ir.DType.float32) for x in (dets, scores))
    batches = h.unsqueeze(boxes, [0]), h.unsqueeze(marks, [0, 1])
    (count,) = h.out.shape
    kept = h.emit("NonMaxSuppression", *batches, [2**31 - 1], [iou_threshold], shape=(count, 3))
    return h.squeeze(h.slice(kept, 1, 2, 3, size=1), [1])


@nms.handler("nnef")
def _(h: Any, dets: Any, scores: Any, iou_threshold: float) -> Any:
    h.refuse("tract needs to know how many boxes stay; end the model before nms and run it on the outputs")


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """nms within each category: boxes [N, 4], scores [N], idxs [N] (the categories); the kept places, best first.

    The boxes of each category are moved to a place of their own, where none of another's overlaps them.
    """
    # a zero more, since there may be no box at all
    largest = torch.cat([boxes.reshape(-1), boxes.new_zeros(1)]).max()
    offsets = idxs.to(boxes) * (largest + 1)
    return torch.ops.torchvision.nms(boxes + offsets[:, None], scores, iou_threshold)


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
