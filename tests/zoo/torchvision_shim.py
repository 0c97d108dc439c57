"""Makes `import torchvision` work where its compiled operators do not load.

The wheel of the public index is compiled against CUDA. Beside a CPU build of torch its shared library cannot
be loaded, and the package then fails at import, since it registers fake kernels for operators that nobody
defined. Import this module before torchvision, timm or transformers: it defines the missing schemas, without
kernels. The models of the zoo never call these operators; whoever wants to run one brings a kernel.
"""

import importlib.util
from pathlib import Path

import torch

_SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_POOLED = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_REGIONS = f"Tensor input, Tensor rois, {_POOLED}"
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask"
)

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
    f"roi_align({_REGIONS}, int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, "
    f"int rois_zero_point, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_POOLED}, {_SHAPE}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_REGIONS}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_POOLED}, {_SHAPE}) -> Tensor",
    f"ps_roi_align({_REGIONS}, int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, "
    f"{_POOLED}, int sampling_ratio, {_SHAPE}) -> Tensor",
    f"ps_roi_pool({_REGIONS}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, {_SHAPE}) -> Tensor",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)

# A Library takes its definitions along when it is collected, so it lives as long as this module.
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]


def install() -> None:
    """Define every operator that is still missing; does nothing where torchvision's own library loads."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _load(Path(spec.origin).parent):
        return
    for schema in SCHEMAS:
        if not _is_defined(schema.partition("(")[0]):
            _LIBRARY.define(schema)  # type: ignore[no-untyped-call]


def _load(package: Path) -> bool:
    """Load torchvision's own operators, which torchvision would refuse to define a second time after us."""
    library = next((path for suffix in ("so", "pyd") for path in sorted(package.glob(f"_C*.{suffix}"))), None)
    if library is None:
        return False
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return True


def _is_defined(name: str) -> bool:
    return hasattr(torch.ops.torchvision, name)


install()
