"""Image models of torchvision and timm: (batch, 3, height, width) in, class scores or maps out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from .entry import Entry, Inputs, Sizes, Variant, entry, images

Build = Callable[[], nn.Module]


def _resnet(block: str) -> nn.Module:
    from torchvision.models import resnet

    return resnet.ResNet(getattr(resnet, block), [1, 1, 1, 1], num_classes=10)


def _mobilenet_v3() -> nn.Module:
    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

    row = partial(InvertedResidualConfig, width_mult=1.0)
    return MobileNetV3(
        [
            row(16, 3, 16, 16, True, "RE", 2, 1),
            row(16, 3, 48, 24, False, "RE", 2, 1),
            row(24, 5, 48, 24, True, "HS", 1, 1),
        ],
        last_channel=64,
        num_classes=10,
    )


def _efficientnet() -> nn.Module:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    settings = [MBConvConfig(1, 3, 1, 32, 16, 1, 1.0, 1.0), MBConvConfig(6, 5, 2, 16, 24, 2, 1.0, 1.0)]
    return EfficientNet(settings, dropout=0.2, num_classes=10)


def _vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10)


def _densenet() -> nn.Module:
    from torchvision.models import DenseNet

    return DenseNet(growth_rate=8, block_config=(2, 2, 2), num_init_features=16, num_classes=10)


def _swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 24, [2, 2], [2, 4], [7, 7], num_classes=10)


def _convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 2)], num_classes=10)


def _shufflenet() -> nn.Module:
    from torchvision.models import ShuffleNetV2

    return ShuffleNetV2([2, 2, 2], [24, 32, 48, 64, 128], num_classes=10)


def _fcn() -> nn.Module:
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    layers = {"layer4": "out", "layer3": "aux"}
    return FCN(IntermediateLayerGetter(_resnet("BasicBlock"), layers), FCNHead(512, 5), FCNHead(256, 5))


def _torchvision(name: str, **options: Any) -> nn.Module:
    from torchvision import models

    return models.get_model(name, weights=None, **options)


def _timm(name: str, **options: Any) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False, **options)


def _images(name: str, full: Build, small: Build, image: int = 224, small_image: int = 64) -> Entry:
    """Square images of a fixed size; the batch is dynamic."""

    def variant(is_small: bool) -> Variant:
        side = small_image if is_small else image

        def inputs(sizes: Sizes) -> Inputs:
            return (images(sizes["batch"], side, side),), {}

        return Variant(small if is_small else full, inputs, {"batch": 2}, ({"batch": 1}, {"batch": 3}))

    return entry(name, {"x": {0: "batch"}}, variant)


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


def _plain(name: str, small: Build, small_image: int = 64) -> Entry:
    return _images(name, partial(_torchvision, name), small, small_image=small_image)


_MAXVIT = "maxvit_nano_rw_256"
_FCN = partial(_torchvision, "fcn_resnet50", aux_loss=True, weights_backbone=None)
_DEEPLAB = partial(_torchvision, "deeplabv3_mobilenet_v3_large", weights_backbone=None)
_LRASPP = partial(_torchvision, "lraspp_mobilenet_v3_large", weights_backbone=None)
_SMALL_MAXVIT = {"img_size": 64, "depths": (1, 1), "embed_dim": (32, 64), "stem_width": 16, "num_classes": 10}

ENTRIES: dict[str, Entry] = {
    "resnet18": _plain("resnet18", partial(_resnet, "BasicBlock")),
    "resnet50": _plain("resnet50", partial(_resnet, "Bottleneck")),
    "mobilenet_v3_small": _plain("mobilenet_v3_small", _mobilenet_v3),
    "efficientnet_b0": _plain("efficientnet_b0", _efficientnet),
    "vit_b_16": _plain("vit_b_16", _vit, small_image=32),
    "squeezenet1_1": _plain("squeezenet1_1", partial(_torchvision, "squeezenet1_1", num_classes=10)),
    "densenet121": _plain("densenet121", _densenet),
    "swin_t": _plain("swin_t", _swin, small_image=56),
    "convnext_tiny": _plain("convnext_tiny", _convnext),
    "shufflenet_v2_x1_0": _plain("shufflenet_v2_x1_0", _shufflenet),
    "fcn_resnet50": _any_size("fcn_resnet50", _FCN, _fcn, "x"),
    # These two have no smaller form of the same operators; their small variants take smaller images.
    "deeplabv3_mobilenet_v3_large": _images("deeplabv3_mobilenet_v3_large", _DEEPLAB, _DEEPLAB, 256),
    "lraspp": _any_size("lraspp", _LRASPP, _LRASPP, "input"),
    "mobilevit_s": _images(
        "mobilevit_s", partial(_timm, "mobilevit_s"), partial(_timm, "mobilevit_xxs", num_classes=10), 256
    ),
    _MAXVIT: _images(_MAXVIT, partial(_timm, _MAXVIT), partial(_timm, _MAXVIT, **_SMALL_MAXVIT), 256),
}
