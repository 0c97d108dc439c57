"""Networks over whole scenes: segmentation, detection backbones with their pyramids, clips of video, optical flow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from .entry import Entry, Inputs, Sizes, Variant, entry, floats, images
from .vision import Build, small_resnet, square_images, torchvision


def _fcn(backbone: nn.Module, classes: int, width: int) -> nn.Module:
    """torchvision's fcn_resnet50 around any ResNet whose last stage has `width` channels."""
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    layers = {"layer4": "out", "layer3": "aux"}
    return FCN(IntermediateLayerGetter(backbone, layers), FCNHead(width, classes), FCNHead(width // 2, classes))


def _fcn_full() -> nn.Module:
    """Residual branches start out weak, as in training: at full strength they lift float32's rounding above 1e-4."""
    dilated = {"replace_stride_with_dilation": [False, True, True], "zero_init_residual": True}
    return _fcn(torchvision("resnet50", **dilated), 21, 2048)


def _fcn_small() -> nn.Module:
    return _fcn(small_resnet("BasicBlock"), 5, 512)


def _pyramid(block: str) -> nn.Module:
    """A ResNet with a feature pyramid: five maps of 256 channels (64 in the small variant)."""
    from torchvision.models.detection.backbone_utils import BackboneWithFPN, resnet_fpn_backbone

    if block == "full":
        return resnet_fpn_backbone(backbone_name="resnet50", weights=None, norm_layer=nn.BatchNorm2d)
    layers = {f"layer{i}": str(i - 1) for i in (1, 2, 3, 4)}
    return BackboneWithFPN(small_resnet(block), layers, [64, 128, 256, 512], 64)


class _RetinaNet(nn.Module):
    """RetinaNet up to its raw scores and box offsets over all anchors; what follows picks boxes and is not a graph."""

    def __init__(self, block: str) -> None:
        super().__init__()
        from torchvision.models.detection.retinanet import RetinaNetHead

        self.backbone = _pyramid(block)
        self.head = RetinaNetHead(self.backbone.out_channels, num_anchors=9, num_classes=91 if block == "full" else 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores: dict[str, torch.Tensor] = self.head(list(self.backbone(x).values()))
        return scores


def _mobilenet_pyramid() -> nn.Module:
    from torchvision.models.detection.backbone_utils import mobilenet_backbone

    return mobilenet_backbone(backbone_name="mobilenet_v3_large", weights=None, fpn=True, norm_layer=nn.BatchNorm2d)


def _any_size(name: str, full: Build, small: Build, arg: str) -> Entry:
    """Batch, height and width are dynamic: fully convolutional networks."""

    def variant(is_small: bool) -> Variant:
        unit = 32 if is_small else 64

        def inputs(sizes: Sizes) -> Inputs:
            return (images(sizes["batch"], sizes["height"], sizes["width"]),), {}

        def size(batch: int, height: int, width: int) -> Sizes:
            return {"batch": batch, "height": height * unit, "width": width * unit}

        return Variant(small if is_small else full, inputs, size(2, 3, 4), (size(1, 4, 5), size(3, 5, 2)))

    return entry(name, {arg: {0: "batch", 2: "height", 3: "width"}}, variant)


def _resnet_3d() -> nn.Module:
    from torchvision.models.video.resnet import BasicBlock, BasicStem, Conv3DSimple, VideoResNet

    return VideoResNet(BasicBlock, [Conv3DSimple] * 4, [1, 1, 1, 1], BasicStem, num_classes=10)


def _mvit() -> nn.Module:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    blocks = [
        MSBlockConfig(1, 16, 32, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 4, 4]),
        MSBlockConfig(2, 32, 32, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 2, 2]),
    ]
    return MViT((64, 64), 4, blocks, True, False, True, True, num_classes=10)


def _swin_3d() -> nn.Module:
    from torchvision.models.video import SwinTransformer3d

    return SwinTransformer3d([2, 4, 4], 24, [2, 2], [2, 4], [4, 4, 4], num_classes=10)


def _clips(name: str, arg: str, full: Build, small: Build, frames: tuple[int, int], side: tuple[int, int]) -> Entry:
    """Clips of (batch, 3, frames, side, side), full and small; the batch is dynamic."""

    def variant(is_small: bool) -> Variant:
        count, pixels = frames[is_small], side[is_small]

        def inputs(sizes: Sizes) -> Inputs:
            batch = sizes["batch"]
            return (0.5 * floats(batch, 3, count, pixels, pixels) + floats(batch, 3, 1, 1, 1),), {}

        return Variant(small if is_small else full, inputs, {"batch": 2}, ({"batch": 1}, {"batch": 3}))

    return entry(name, {arg: {0: "batch"}}, variant)


class _Raft(nn.Module):
    """RAFT (small) with a fixed number of refinements; the result is the flow after the last one."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.raft = torchvision("raft_small")
        self.updates = updates

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        flows: list[torch.Tensor] = self.raft(first, second, num_flow_updates=self.updates)
        return flows[-1]


def _raft(is_small: bool) -> Variant:
    """Pairs of images, 128 x 128 at least: the coarsest of four correlation maps must have two pixels a side."""

    def inputs(sizes: Sizes) -> Inputs:
        first = images(sizes["batch"], 128, 128).clamp(-1, 1)
        return (first, torch.roll(first, (3, -2), (2, 3))), {}

    build: Callable[[], nn.Module] = partial(_Raft, 1 if is_small else 4)
    return Variant(build, inputs, {"batch": 2}, ({"batch": 1}, {"batch": 3}))


_DEEPLAB = partial(torchvision, "deeplabv3_mobilenet_v3_large", weights_backbone=None)
_LRASPP = partial(torchvision, "lraspp_mobilenet_v3_large", weights_backbone=None)

ENTRIES: dict[str, Entry] = {
    "fcn_resnet50": _any_size("fcn_resnet50", _fcn_full, _fcn_small, "x"),
    # These have no smaller form of the same operators; their small variants take smaller images.
    "deeplabv3_mobilenet_v3_large": square_images("deeplabv3_mobilenet_v3_large", _DEEPLAB, _DEEPLAB, 256),
    "lraspp": _any_size("lraspp", _LRASPP, _LRASPP, "input"),
    "resnet50_fpn": _any_size("resnet50_fpn", partial(_pyramid, "full"), partial(_pyramid, "BasicBlock"), "x"),
    "mobilenet_v3_large_fpn": _any_size("mobilenet_v3_large_fpn", _mobilenet_pyramid, _mobilenet_pyramid, "x"),
    "retinanet": _any_size("retinanet", partial(_RetinaNet, "full"), partial(_RetinaNet, "BasicBlock"), "x"),
    "r3d_18": _clips("r3d_18", "x", partial(torchvision, "r3d_18"), _resnet_3d, (8, 4), (112, 32)),
    "s3d": _clips(
        "s3d", "x", partial(torchvision, "s3d"), partial(torchvision, "s3d", num_classes=10), (16, 16), (224, 224)
    ),
    "mvit_v2_s": _clips("mvit_v2_s", "x", partial(torchvision, "mvit_v2_s"), _mvit, (16, 4), (224, 64)),
    "swin3d_t": _clips("swin3d_t", "x", partial(torchvision, "swin3d_t"), _swin_3d, (8, 8), (112, 32)),
    "raft_small": entry("raft_small", {"first": {0: "batch"}, "second": {0: "batch"}}, _raft),
}
