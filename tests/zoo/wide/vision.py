"""transformers over images and clips, by class: classifiers, backbones, depth, detection, segmentation, two towers."""

from __future__ import annotations

from ..entry import Entry
from .rows import ids, kept, numbers, picture, unit
from .text import transformer

_SIDE = 64
_IMAGE = {"pixel_values": picture("batch", 3, _SIDE, _SIDE)}
_ANY = {"pixel_values": picture("batch", 3, "height", "width")}
_TOWERS = {
    "input_ids": ids("batch", "sequence"),
    "attention_mask": kept("batch", "sequence"),
    "pixel_values": picture("images", 3, _SIDE, _SIDE),
}
_TWO = {"pixel_values": picture(2, 3, _SIDE, _SIDE)}  # their code loops over the images
_FUSED = _TOWERS | _IMAGE

# Height and width are dynamic where the architecture takes any size.
_ANY_SIZE = (
    "DINOv3ViT DINOv3ConvNext ConvNext ConvNextV2 ResNet RegNet Bit MobileNetV1 MobileNetV2 PoolFormer "
    "Segformer PvtV2 FocalNet TextNet"
)
_FIXED = (
    "Beit DeiT Dinov2 Dinov2WithRegisters IJepa ViTMSN Yolos DPT Data2VecVision SwiftFormer Cvt MobileViT GLPN "
    "Pixio Sapiens2 CLIPSegVision InternVLVision MLCDVision SiglipVision BlipVision AltCLIPVision JanusVision "
    "VitDet"
)
_DETECTORS = "Detr ConditionalDetr DeformableDetr DabDetr TableTransformer Yolos"
_SWIN = {"embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4, "image_size": 64}
_DPT = {
    "num_hidden_layers": 4,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 16, 16, 16],
    "fusion_hidden_size": 16,
}

_ROWS = (
    *(transformer(f"{n}Model", _ANY) for n in _ANY_SIZE.split()),
    transformer("MobileViTV2Model", {"pixel_values": picture("batch", 3, "tall", "broad")}),
    *(transformer(f"{n}Model", _IMAGE) for n in _FIXED.split()),
    *(transformer(f"{n}ForObjectDetection", _IMAGE, label=n.lower() + "_detection") for n in _DETECTORS.split()),
    transformer("SwinModel", _IMAGE, **_SWIN),
    transformer("Swinv2Model", _IMAGE, **_SWIN),
    transformer(
        "Swin2SRForImageSuperResolution",
        _ANY,
        label="swin2sr",
        **_SWIN | {"patch_size": 1, "upscale": 2, "window_size": 8},
    ),
    transformer("SegformerForSemanticSegmentation", _ANY, label="segformer_segmentation"),
    transformer("UperNetForSemanticSegmentation", _IMAGE, label="upernet"),
    transformer("MobileViTForSemanticSegmentation", _IMAGE, label="mobilevit_segmentation"),
    transformer("GLPNForDepthEstimation", _IMAGE, label="glpn_depth"),
    transformer("DPTForDepthEstimation", _IMAGE, label="dpt_depth", **_DPT),
    transformer("SuperPointForKeypointDetection", _TWO, label="superpoint"),
    transformer("PixtralVisionModel", _TWO),
    transformer(
        "VitPoseForPoseEstimation",
        _IMAGE,
        label="vitpose",
        backbone_config={
            "model_type": "vitpose_backbone",
            "image_size": [64, 64],
            "patch_size": [16, 16],
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "out_indices": [2],
        },
    ),
    transformer("SamVisionModel", _IMAGE, image_size=64, window_size=4),
    transformer("ImageGPTModel", {"input_ids": ids("batch", "sequence", least=0)}),
    transformer("ViltModel", _FUSED),
    transformer(
        "VisualBertModel",
        {"input_ids": ids("batch", "sequence"), "visual_embeds": numbers("batch", 5, 32)},
        visual_embedding_dim=32,
    ),
    transformer(
        "LxmertModel",
        {
            "input_ids": ids("batch", "sequence"),
            "visual_feats": numbers("batch", 5, 32),
            "visual_pos": unit("batch", 5, 4),
        },
        visual_feat_dim=32,
    ),
    *(transformer(f"{n}Model", _TOWERS) for n in ("Blip", "Siglip", "AltCLIP", "MetaClip2")),
    *(transformer(f"{n}Model", _TOWERS, text_config={"max_position_embeddings": 128}) for n in ("Owlv2", "OwlViT")),
    transformer("CLIPSegModel", _TOWERS),
    transformer("GitModel", _FUSED),
    transformer("VideoMAEModel", {"pixel_values": numbers("batch", 4, 3, 32, 32)}, num_frames=4, image_size=32),
    transformer("TimesformerModel", {"pixel_values": numbers("batch", 8, 3, 64, 64)}),
    transformer("VivitModel", {"pixel_values": numbers("batch", 8, 3, 64, 64)}, num_frames=8),
    transformer("VJEPA2Model", {"pixel_values_videos": numbers("batch", 4, 3, 64, 64)}),
)
ENTRIES: dict[str, Entry] = dict(_ROWS)
