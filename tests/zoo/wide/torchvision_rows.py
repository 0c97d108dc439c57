"""torchvision's families that the first zoo leaves out; of detectors what comes before boxes are picked."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from ..entry import Entry
from ..vision import torchvision
from .rows import numbers, picture, row


class Raw(nn.Module):
    """A detector's backbone and head: every anchor's scores and offsets."""

    def __init__(self, name: str, **given: Any) -> None:
        super().__init__()
        detector = torchvision(name, weights_backbone=None, **given)
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = self.head(list(self.backbone(x).values()))
        return found


class Proposals(nn.Module):
    """Faster R-CNN's pyramid and the scores of its region proposals."""

    def __init__(self, name: str) -> None:
        super().__init__()
        detector = torchvision(name, weights_backbone=None, num_classes=5)
        self.backbone, self.head = detector.backbone, detector.rpn.head

    def forward(self, x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        found: tuple[list[torch.Tensor], list[torch.Tensor]] = self.head(list(self.backbone(x).values()))
        return found


_ANY = {"x": picture("batch", 3, "height", "width")}
_CLIP = {"x": numbers("batch", 3, 8, 32, 32)}

_ROWS = (
    row("vgg16", partial(torchvision, "vgg16", num_classes=10), {"x": picture("batch", 3, 64, 64)}),
    row("deeplabv3_resnet50", partial(torchvision, "deeplabv3_resnet50", weights_backbone=None), _ANY),
    row("mc3_18", partial(torchvision, "mc3_18", num_classes=10), _CLIP),
    row("r2plus1d_18", partial(torchvision, "r2plus1d_18", num_classes=10), _CLIP),
    row(
        "ssdlite320", partial(Raw, "ssdlite320_mobilenet_v3_large", num_classes=5), {"x": picture("batch", 3, 320, 320)}
    ),
    row(  # its coarsest map has one place for 128 pixels: of images below that torch fixes it to one place
        "fcos",
        partial(Raw, "fcos_resnet50_fpn", num_classes=5),
        _ANY,
        {"height": (192, 160, 256), "width": (160, 256, 192)},
    ),
    row("fasterrcnn_proposals", partial(Proposals, "fasterrcnn_mobilenet_v3_large_fpn"), _ANY),
)
ENTRIES: dict[str, Entry] = dict(_ROWS)
