"""Image classifiers of timm, one of each family that says something in another way than torchvision's do."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from .entry import Entry
from .vision import square_images


def _timm(name: str, **options: Any) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False, **options)


def _family(name: str, image: int, small_image: int, small: str = "", **options: Any) -> Entry:
    """Square images; the small variant is `small` (by default the same model) with `options`."""
    few: Mapping[str, Any] = {"num_classes": 10} | options
    return square_images(name, partial(_timm, name), partial(_timm, small or name, **few), image, small_image)


# image and small_image: sides in pixels. A small side that is not the model's own goes into img_size where it must.
ENTRIES: dict[str, Entry] = {
    "mobilevit_s": _family("mobilevit_s", 256, 64, "mobilevit_xxs"),
    "maxvit_nano_rw_256": _family(
        "maxvit_nano_rw_256", 256, 64, img_size=64, depths=(1, 1), embed_dim=(32, 64), stem_width=16
    ),
    "coatnet_nano_rw_224": _family(
        "coatnet_nano_rw_224", 224, 64, img_size=64, depths=(1, 1, 1, 1), embed_dim=(16, 32, 64, 64), stem_width=16
    ),
    "convnextv2_atto": _family("convnextv2_atto", 224, 64, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)),
    "efficientformer_l1": _family("efficientformer_l1", 224, 224, depths=(1, 1, 1, 2), embed_dims=(16, 24, 32, 48)),
    "levit_128s": _family("levit_128s", 224, 224, depth=(1, 1, 1)),
    "eva02_tiny_patch14_224": _family("eva02_tiny_patch14_224", 224, 56, img_size=56, depth=2),
    "beit_base_patch16_224": _family("beit_base_patch16_224", 224, 64, img_size=64, depth=2, embed_dim=32, num_heads=2),
    "eca_nfnet_l0": _family("eca_nfnet_l0", 224, 64),
    "ghostnet_100": _family("ghostnet_100", 224, 64, "ghostnet_050"),
    "repvgg_a0": _family("repvgg_a0", 224, 64),
    "mixer_s32_224": _family("mixer_s32_224", 224, 64, img_size=64),
    "poolformer_s12": _family("poolformer_s12", 224, 64),
    "xcit_nano_12_p16_224": _family("xcit_nano_12_p16_224", 224, 64, img_size=64, depth=2),
    "tiny_vit_5m_224": _family("tiny_vit_5m_224", 224, 224, depths=(1, 1, 1, 1)),
    "fastvit_t8": _family("fastvit_t8", 256, 64, layers=(1, 1, 1, 1)),
    "hrnet_w18_small": _family("hrnet_w18_small", 224, 64),
    "res2net50_26w_4s": _family("res2net50_26w_4s", 224, 64, layers=(1, 1, 1, 1)),
    "edgenext_xx_small": _family("edgenext_xx_small", 256, 64, depths=(1, 1, 2, 1)),
    "pit_ti_224": _family("pit_ti_224", 224, 64, img_size=64, depth=(1, 1, 1)),
}
