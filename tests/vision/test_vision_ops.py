"""vision_ops against torchvision's compiled kernels: `nox -s vision`, with the torchvision that has them."""

import math
from types import SimpleNamespace

import pytest
import torch
import torchvision
import vision_ops
from torch import nn

import ir
from ir.testing import check_op


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def regions(count, images=2, size=40.0, wild=False):
    """[count, 5]; wild ones reach far outside of the image, and some are turned inside out."""
    low = torch.rand(count, 2) * size
    high = low + torch.rand(count, 2) * size * 0.7
    if wild:
        low, high = low - size / 2, torch.where(torch.rand(count, 1) < 0.2, low - 1, high + size)
    return torch.cat([torch.randint(0, images, (count, 1)).float(), low, high], 1)


def on_maps(channels, *args):
    maps = lambda h: torch.randn(2, channels, h, 24)  # noqa: E731
    edges = torch.tensor([[0.0, 0, 0, 0, 0], [1, 48, 40, 48, 40], [0, 3, 3, 3, 9], [1, -9, -9, 99, 99]])
    return [
        (maps(20), regions(5), *args),
        (maps(26), regions(9, wild=True), *args),
        (maps(20), edges, *args),
        (maps(20), torch.zeros(0, 5), *args),
    ]


def checked(op, samples, **options):
    return check_op(op, samples, opcheck=False, **options)


@pytest.mark.parametrize("aligned", [True, False])
def test_roi_align(aligned):
    checked("torchvision::roi_align", on_maps(4, 0.5, 7, 5, 2, aligned))


def test_roi_align_with_as_many_samples_as_a_region_is_large():
    samples = on_maps(4, 0.5, 3, 3, -1, True)
    report = checked("torchvision::roi_align", samples, targets=["onnx", "eager"], raise_exception=False)
    assert {c.what for c in report.checks if not c.ok} == {"body"}, str(report)
    with pytest.raises(ir.UnsupportedOpsError, match="positive sampling_ratio"):
        ir.export(lambda x, r: torchvision.ops.roi_align(x, r, 3), samples[0][:2], target="nnef")


def test_roi_pool():
    checked("torchvision::roi_pool", on_maps(4, 0.5, 7, 5))


def test_ps_roi_align():
    checked("torchvision::ps_roi_align", on_maps(24, 0.5, 3, 2, 2))


def test_ps_roi_pool():
    checked("torchvision::ps_roi_pool", on_maps(24, 0.5, 3, 2))


def boxes(count):
    return regions(count)[:, 1:], torch.rand(count)


def test_nms():
    same = boxes(1)[0].repeat(4, 1)
    ties = torch.cat([boxes(6)[0]] * 2), torch.tensor([0.5, 0.25, 0.5] * 4)
    flat, inside_out = (boxes(40)[0] for _ in range(2))
    flat[::2, 2:] = flat[::2, :2]
    inside_out[::3] = inside_out[::3, [2, 3, 0, 1]]
    # overlaps of exactly 1/10 as a float, which is more than 0.1 is as a double
    tenth = torch.tensor([[0.0, 0, 10, 10], [0, 9, 10, 10], [0, 0, 1, 10]])
    samples = [
        (*boxes(30), 0.3), (*boxes(50), 0.3), (same, torch.ones(4), 0.3), (*ties, 0.3), (tenth, torch.rand(3), 0.1),
        (torch.zeros(0, 4), torch.zeros(0), 0.3), (*boxes(1), 0.3), (*boxes(20), 0.0), (*boxes(20), 1.0),
        (flat, torch.rand(40), 0.2), (inside_out, torch.rand(40), 0.2), (*(x.double() for x in boxes(30)), 0.3),
        (*boxes(20), 1.5), (*boxes(20), -0.5),
        (boxes(4)[0], torch.tensor([0.5, math.nan, -math.inf, math.nan]), 0.1),
    ]  # fmt: skip
    checked("torchvision::nms", samples)


@pytest.mark.parametrize(
    ("dtype", "threshold", "reason"),
    [
        (ir.DType.float32, 1.5, "a threshold in .*=1.5"),
        (ir.DType.float64, 0.5, "boxes of float32, and those of float64"),
    ],
)
def test_what_native_nms_refuses_is_said(dtype, threshold, reason):
    def refuse(text):
        raise ir.RefusedError(text)

    native = ir.registry.registry("onnx").lookup("torchvision::nms").fn
    dets = SimpleNamespace(type=SimpleNamespace(dtype=dtype))
    with pytest.raises(ir.RefusedError, match=reason):
        native(SimpleNamespace(refuse=refuse), dets, None, threshold)


def test_two_nms_and_what_follows_them():
    """Two sizes that data decides in one file, both used further on."""

    class Model(nn.Module):
        def forward(self, boxes, scores):
            few, many = (torchvision.ops.nms(boxes, scores, t) for t in (0.1, 0.8))
            best = boxes[few] * scores[few][:, None]
            return torch.cat([best, boxes[many]]), best.sum(0), torch.arange(many.shape[0]), scores[many].softmax(0)

    model, shapes = Model(), ({0: "n"}, {0: "n"})
    for target in ("onnx", "nnef", "eager"):
        program = ir.export(model, boxes(40), target=target, dynamic_shapes=shapes, verify=True)
        for n in (1, 2, 90):
            args = boxes(n)
            for got, want in zip(program(*args), model(*args), strict=True):
                torch.testing.assert_close(got, want)


def test_batched_nms():
    class Model(nn.Module):
        def forward(self, boxes, scores, labels):
            return torchvision.ops.batched_nms(boxes, scores, labels, 0.4)

    def sample(n):
        return (*boxes(n), torch.randint(0, 3, (n,)))

    model, shapes = Model(), ({0: "n"}, {0: "n"}, {0: "n"})
    for target in ("onnx", "nnef", "eager"):
        program = ir.export(model, sample(40), target=target, dynamic_shapes=shapes, verify=True)
        for n in (1, 2, 200):
            args = sample(n)
            assert torch.equal(program(*args), model(*args))
    assert torchvision.ops.batched_nms.__module__ == vision_ops.boxes.__name__


def deform(n, c, f, kernel, groups, offset_groups, mask, size=(9, 10), stride=1, pad=1, dilation=1, scale=2.0):
    h, w = size
    oh, ow = ((s + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for s in size)
    taps = offset_groups * kernel * kernel
    return (
        torch.randn(n, c, h, w), torch.randn(f, c // groups, kernel, kernel), torch.randn(n, 2 * taps, oh, ow) * scale,
        torch.rand(n, taps, oh, ow) if mask else torch.zeros(n, 0), torch.randn(f),
        stride, stride, pad, pad, dilation, dilation, groups, offset_groups, mask,
    )  # fmt: skip


def test_deform_conv2d():
    samples = [
        deform(2, 4, 6, 3, 1, 1, True), deform(3, 4, 6, 3, 1, 1, True, size=(12, 10)),
        deform(2, 4, 6, 3, 2, 2, True, stride=2, scale=9.0),  # offsets far outside of the input
        deform(2, 4, 4, 3, 1, 2, False, dilation=2, pad=2),
        deform(2, 4, 4, 3, 4, 4, True, scale=0.0),
        deform(2, 4, 4, 1, 1, 1, False, pad=0),
    ]  # fmt: skip
    checked("torchvision::deform_conv2d", samples)
    # below opset 19 there is no DeformConv: the body serves
    checked("torchvision::deform_conv2d", samples[:3], targets=[ir.plugins.find_target("onnx", {"opset": 17})])


class Detector(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        return self.model([image])[0]


def test_retinanet():
    """The whole model: anchors, decoding, thresholds, top-k and nms in one file, equal to torchvision's own result."""
    model = Detector(
        torchvision.models.detection.retinanet_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=5, min_size=128, max_size=160,
            score_thresh=0.0101, detections_per_img=60,
        ).eval()
    )  # fmt: skip
    with torch.no_grad():  # scores far enough apart that rounding does not decide their order
        model.model.head.classification_head.cls_logits.weight *= 5
    program = ir.export(model, (torch.rand(3, 128, 160),), target="onnx", verify=True)
    image = torch.rand(3, 128, 160)
    got, want = program(image), model(image)
    assert want["scores"].numel() == 60
    for name, value in want.items():
        torch.testing.assert_close(got[name], value.detach(), rtol=1e-3, atol=1e-3)


def test_region_heads_of_faster_rcnn():
    """Aligned regions of a dynamic number of proposals, the box head, decoding, thresholds and nms."""
    whole = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=5, box_score_thresh=0.1
    ).eval()

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = whole.roi_heads

        def forward(self, features, proposals):
            return self.heads({"0": features}, [proposals], [(320, 320)])[0][0]

    model = Heads()
    program = ir.export(
        model, (torch.randn(1, 256, 10, 10), boxes(30)[0] * 4), dynamic_shapes=({}, {0: "n"}), verify=True
    )
    args = torch.randn(1, 256, 10, 10), boxes(57)[0] * 4
    got, want = program(*args), model(*args)
    assert want["scores"].numel() > 10
    for name, value in want.items():
        torch.testing.assert_close(got[name], value.detach(), rtol=1e-3, atol=1e-3)
