"""Image classifiers of torchvision: (batch, 3, height, width) in, class scores out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from .entry import Entry, Inputs, Sizes, Variant, entry, images

# Makes a model; the weights come from the seed that is set when it is called.
Build = Callable[[], nn.Module]


def small_resnet(block: str, **options: Any) -> nn.Module:
    """One block a stage; `options` are those of torchvision's ResNet."""
    from torchvision.models import resnet

    return resnet.ResNet(getattr(resnet, block), [1, 1, 1, 1], num_classes=10, **options)


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


def _vgg() -> nn.Module:
    from torchvision.models.vgg import VGG, make_layers

    model = VGG(make_layers([8, "M", 16, "M", 32, 32, "M"], batch_norm=True), num_classes=10, init_weights=False)
    model.classifier = nn.Sequential(nn.Linear(32 * 7 * 7, 64), nn.ReLU(True), nn.Dropout(), nn.Linear(64, 10))
    return model


def _inception_v3() -> nn.Module:
    """In evaluation mode the auxiliary classifier does nothing, so it is left out.

    All the classes in the small variant too: the largest of ten scores of so deep a net is near its float32 rounding.
    """
    from torchvision.models import Inception3

    return Inception3(aux_logits=False, init_weights=False)


def _googlenet(classes: int) -> nn.Module:
    from torchvision.models import GoogLeNet

    return GoogLeNet(num_classes=classes, aux_logits=False, init_weights=False)


def _mobilenet_v2() -> nn.Module:
    from torchvision.models import MobileNetV2

    return MobileNetV2(10, inverted_residual_setting=[[1, 16, 1, 1], [6, 24, 2, 2]])


def _efficientnet_v2() -> nn.Module:
    from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig

    settings = [FusedMBConvConfig(4, 3, 2, 24, 24, 2), MBConvConfig(4, 3, 2, 24, 32, 2)]
    return EfficientNet(settings, dropout=0.2, num_classes=10, last_channel=64)


def _regnet(se_ratio: float | None) -> nn.Module:
    from torchvision.models.regnet import BlockParams, RegNet

    blocks = BlockParams([1, 2], [16, 32], [8, 8], [1.0, 1.0], [2, 2], se_ratio)
    return RegNet(blocks, num_classes=10, stem_width=16)


def _swin_v2() -> nn.Module:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    return SwinTransformer(
        [4, 4],
        24,
        [2, 2],
        [2, 4],
        [8, 8],
        num_classes=10,
        block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
    )


def _maxvit() -> nn.Module:
    from torchvision.models import MaxVit

    return MaxVit((64, 64), 16, 2, [16, 32], [1, 2], head_dim=8, stochastic_depth_prob=0.0, num_classes=10)


def torchvision(name: str, **options: Any) -> nn.Module:
    """The model of that name from torchvision's registry."""
    from torchvision import models

    return models.get_model(name, weights=None, **options)


def square_images(name: str, full: Build, small: Build, image: int = 224, small_image: int = 64) -> Entry:
    """Square images of a fixed size; the batch is dynamic."""

    def variant(is_small: bool) -> Variant:
        side = small_image if is_small else image

        def inputs(sizes: Sizes) -> Inputs:
            return (images(sizes["batch"], side, side),), {}

        return Variant(small if is_small else full, inputs, {"batch": 2}, ({"batch": 1}, {"batch": 3}))

    return entry(name, {"x": {0: "batch"}}, variant)


def _plain(name: str, small: Build, small_image: int = 64, image: int = 224) -> Entry:
    return square_images(name, partial(torchvision, name), small, image, small_image)


ENTRIES: dict[str, Entry] = {
    "alexnet": _plain("alexnet", partial(torchvision, "alexnet", num_classes=10)),
    "vgg11_bn": _plain("vgg11_bn", _vgg, small_image=32),
    "resnet18": _plain("resnet18", partial(small_resnet, "BasicBlock")),
    "resnet50": _plain("resnet50", partial(small_resnet, "Bottleneck")),
    "resnext50_32x4d": _plain("resnext50_32x4d", partial(small_resnet, "Bottleneck", groups=4, width_per_group=4)),
    "wide_resnet50_2": _plain("wide_resnet50_2", partial(small_resnet, "Bottleneck", width_per_group=128)),
    "densenet121": _plain("densenet121", _densenet),
    "squeezenet1_1": _plain("squeezenet1_1", partial(torchvision, "squeezenet1_1", num_classes=10)),
    "googlenet": square_images("googlenet", partial(_googlenet, 1000), partial(_googlenet, 10)),
    "inception_v3": square_images("inception_v3", _inception_v3, _inception_v3, 299, 160),
    "shufflenet_v2_x1_0": _plain("shufflenet_v2_x1_0", _shufflenet),
    "mobilenet_v2": _plain("mobilenet_v2", _mobilenet_v2),
    "mobilenet_v3_small": _plain("mobilenet_v3_small", _mobilenet_v3),
    "efficientnet_b0": _plain("efficientnet_b0", _efficientnet),
    "efficientnet_v2_s": _plain("efficientnet_v2_s", _efficientnet_v2),
    "mnasnet1_0": _plain("mnasnet1_0", partial(torchvision, "mnasnet0_5", num_classes=10)),
    "regnet_x_400mf": _plain("regnet_x_400mf", partial(_regnet, None)),
    "regnet_y_400mf": _plain("regnet_y_400mf", partial(_regnet, 0.25)),
    "convnext_tiny": _plain("convnext_tiny", _convnext),
    "vit_b_16": _plain("vit_b_16", _vit, small_image=32),
    "swin_t": _plain("swin_t", _swin, small_image=56),
    "swin_v2_t": _plain("swin_v2_t", _swin_v2, small_image=64, image=256),
    "maxvit_t": _plain("maxvit_t", _maxvit),
}
