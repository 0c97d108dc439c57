"""timm, one model of each family that the first zoo leaves out, in its smallest size over small images."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from ..entry import Entry
from .rows import picture, row

# Over 64 x 64 pixels as they are.
_SMALL = (
    "convmixer_768_32 crossvit_9_240 cs3darknet_focus_s davit_tiny dla34 dpn48b efficientvim_m1 efficientvit_m0 "
    "focalnet_tiny_srf iformer_t inception_next_atto mvitv2_tiny rdnet_tiny rexnet_100 selecsls42 sequencer2d_s "
    "skresnet18 twins_pcpvt_small lambda_resnet26t csatv2 swiftformer_xs shvit_s1"
)
# Height and width may be dynamic.
_ANY_SIZE = (
    "efficientvit_b0 fasternet_t0 hgnetv2_b0 mambaout_femto nextvit_small pvt_v2_b0 repghostnet_050 repvit_m0_9 "
    "resnest14d resnetv2_18 starnet_s1 ese_vovnet19b_dw xception41 caformer_s18 lcnetv2_small lowformer_b0"
)
# Their tables of positions are made for img_size.
_OF_64 = (
    "cait_xxs24_224 coat_lite_tiny convit_tiny deit3_small_patch16_224 gmlp_s16_224 nest_tiny tnt_s_patch16_224 "
    "vit_relpos_small_patch16_224 visformer_tiny volo_d1_224"
)
_SIDES = {
    "efficientformerv2_s0": 224,
    "gcvit_xxtiny": 224,
    "halonet26t": 256,
    "botnet26t_256": 256,
    "hiera_tiny_224": 224,
}


def _timm(name: str, **given: Any) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=10, **given)


_ROWS = (
    *(row(n, partial(_timm, n), {"x": picture("batch", 3, 64, 64)}) for n in _SMALL.split()),
    *(row(n, partial(_timm, n), {"x": picture("batch", 3, "height", "width")}) for n in _ANY_SIZE.split()),
    *(row(n, partial(_timm, n, img_size=64), {"x": picture("batch", 3, 64, 64)}) for n in _OF_64.split()),
    *(row(n, partial(_timm, n), {"x": picture("batch", 3, side, side)}) for n, side in _SIDES.items()),
)
ENTRIES: dict[str, Entry] = dict(_ROWS)
