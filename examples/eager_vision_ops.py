"""nms, roi_align and deform_conv2d in one eager program, with handlers registered in both ways.

A small detector: a deformable convolution over the image, boxes of its scores thinned out by nms, and a feature for
each box that stays. nms and deform_conv2d get a class in ExTorch's shape (`ops()` and `compile()`), roi_align a
function. The results equal torchvision's own at two image sizes. Needs torchvision's compiled kernels. Usage:

    python examples/eager_vision_ops.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

import eager_backend
import ir
from eager_backend import op_handlers
from eager_backend.op_handlers import OpNode

calls: Counter[str] = Counter()


class VisionOps:
    """Keeps what is fixed in a closure, and takes what varies out of the values of each call."""

    def ops(self) -> list[str]:
        return ["torchvision::nms", "torchvision::deform_conv2d"]

    def compile(
        self, node: OpNode, initial_values: Mapping[str, Tensor], device: torch.device
    ) -> Callable[[Mapping[str, Any]], Tensor]:
        arguments = {i.name: i.arg for i in node.inputs}
        return self.nms(arguments) if node.target.endswith("nms") else self.deform_conv2d(arguments)

    def nms(self, arguments: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Tensor]:
        boxes, scores, threshold = arguments["dets"].name, arguments["scores"].name, arguments["iou_threshold"]
        kernel = torch.ops.torchvision.nms.default._op

        def closure(values: Mapping[str, Any]) -> Tensor:
            calls["nms"] += 1
            return kernel(values[boxes], values[scores], threshold)

        return closure

    def deform_conv2d(self, arguments: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Tensor]:
        tensors = [arguments[n].name for n in ("input", "weight", "offset", "mask", "bias")]
        fixed = [v for n, v in arguments.items() if n not in ("input", "weight", "offset", "mask", "bias")]
        kernel = torch.ops.torchvision.deform_conv2d.default._op

        def closure(values: Mapping[str, Any]) -> Tensor:
            calls["deform_conv2d"] += 1
            return kernel(*(values[t] for t in tensors), *fixed)

        return closure


def roi_align(
    h: Any, input: Any, rois: Any, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int,
    aligned: bool,
) -> Any:  # fmt: skip
    """The handler is asked once, when the program is made; what it emits runs at every call."""

    def kernel(*arguments: Any) -> Tensor:
        calls["roi_align"] += 1
        return torch.ops.torchvision.roi_align.default._op(*arguments)

    return h.emit(kernel, input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Conv2d(3, 2 * 9, 3, padding=1)
        self.features = torchvision.ops.DeformConv2d(3, 8, 3, padding=1)
        self.scores = nn.Conv2d(8, 1, 1)
        self.classify = nn.Linear(8 * 3 * 3, 5)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        height, width = image.shape[2:]
        features = self.features(image, self.offset(image)).relu()
        scores = self.scores(features)[0, 0].flatten()
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        centres = torch.stack([x, y, x, y], -1).view(-1, 4).to(image.dtype)
        boxes = centres + torch.tensor([-3.0, -3.0, 3.0, 3.0])
        kept = boxes[torchvision.ops.nms(boxes, scores, 0.2)]
        regions = torch.cat([kept.new_zeros(kept.shape[0], 1), kept], 1)
        return kept, self.classify(torchvision.ops.roi_align(features, regions, 3, 1.0, 2, True).flatten(1))


def main() -> dict[str, int]:
    """Export, run at two sizes, compare; how often each handler's kernel was called."""
    torch.manual_seed(0)
    calls.clear()
    op_handlers.register(VisionOps())
    eager_backend.register("torchvision::roi_align")(roi_align)
    try:
        model = Detector().eval()
        shapes = {"image": {2: "height", 3: "width"}}
        program = ir.export(model, (torch.randn(1, 3, 20, 24),), target="eager", dynamic_shapes=shapes)
        for size in ((20, 24), (33, 18)):
            image = torch.randn(1, 3, *size)
            with torch.no_grad():
                expected = model(image)
            boxes, classes = program(image)
            assert torch.equal(boxes, expected[0])
            torch.testing.assert_close(classes, expected[1])
            print(f"{size[0]} x {size[1]}: {len(boxes)} boxes, equal to torchvision's")
        print(program.artifact.profile(torch.randn(1, 3, 20, 24), runs=5))
        return dict(calls)
    finally:
        op_handlers.reset()
        eager_backend.REGISTRY.remove("torchvision::roi_align", layer="runtime")


if __name__ == "__main__":
    print(main())
