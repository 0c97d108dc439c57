"""check_op: a right op passes everywhere; a planted bug of each kind is found, and named."""

import pytest
import torch

import ir
import nnef_backend  # noqa: F401
import onnx_backend  # noqa: F401
from ir.registry import registry
from ir.testing import Sample, check_op

SAMPLES = [
    (torch.randn(2, 3), torch.randn(3)),
    (torch.randn(5, 3), torch.randn(3)),
    Sample((torch.randn(4, 3), torch.randn(3)), {"scale": 0.5}, name="scaled"),
]


def affine(x: torch.Tensor, w: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return x * w * scale


right = ir.custom_op("check_op::right", affine)


def table(op, **options):
    report = check_op(op, SAMPLES, raise_exception=False, **options)
    return report, {c.what for c in report.checks if not c.ok}


def test_right():
    report, failed = table(right)
    assert report.ok and not failed, str(report)
    kinds = {c.what for c in report.checks}
    assert kinds >= {"fake", "body", "opcheck test_schema", "onnx", "nnef", "eager", "onnx, dynamic", "nnef, dynamic"}
    assert "ok, max error" in str(report) and str(report).startswith("check_op::right\n")


def test_names_packets_and_overloads():
    for op in ("check_op::right", torch.ops.check_op.right, torch.ops.check_op.right.default):
        assert check_op(op, SAMPLES[:1], targets=["eager"], opcheck=False).op == "check_op::right"
    assert check_op("aten::relu", [(torch.randn(3),)], targets=["onnx"], opcheck=False).ok
    with pytest.raises(ValueError, match="knows no op"):
        check_op("check_op::nothing", SAMPLES)
    with pytest.raises(ValueError, match="sample"):
        check_op(right, [])


def test_wrong_fake_shape():
    torch.library.define("check_op::fake", "(Tensor x, Tensor w, float scale=2.0) -> Tensor")
    torch.library.impl("check_op::fake", "CPU", affine)
    torch.library.register_fake("check_op::fake", lambda x, w, scale=2.0: torch.empty_like(x[1:]))
    op = ir.op("check_op::fake")
    op.body(affine)
    report, failed = table(op, targets=[])
    assert {"fake", "opcheck test_faketensor"} <= failed and "body" not in failed
    assert "the fake says torch.float32[1, 3], the kernel torch.float32[2, 3]" in str(report)
    with pytest.raises(ir.MismatchError, match="the fake says"):
        check_op(op, SAMPLES, targets=[])


def test_wrong_body():
    op = ir.custom_op("check_op::body", affine)
    op.body(lambda x, w, scale=2.0: x * w + scale)
    _, failed = table(op, targets=["onnx"], opcheck=False)
    assert failed == {"body", "onnx", "onnx, dynamic"}


def test_wrong_handler():
    op = ir.custom_op("check_op::handler", affine)

    @op.handler("onnx")
    def _(h, x, w, scale=2.0):
        return h.emit("Add", h.emit("Mul", x, w), h.const(scale, x.type.dtype))

    _, failed = table(op, opcheck=False)
    assert failed == {"onnx", "onnx, dynamic"}


def test_dropped_attribute():
    op = ir.custom_op("check_op::attribute", affine)

    @op.handler("onnx")
    def _(h, x, w, scale=2.0):
        return h.emit("Mul", h.emit("Mul", x, w), h.const(2.0, x.type.dtype))

    report, failed = table(op, opcheck=False)
    assert failed == {"onnx"}
    assert [c.sample for c in report.checks if not c.ok] == ["scaled"]


def test_undeclared_attribute():
    op = ir.custom_op("check_op::undeclared", affine)

    @op.handler("onnx")
    def _(h, x, w):
        return h.emit("Mul", h.emit("Mul", x, w), h.const(2.0, x.type.dtype))

    report, failed = table(op, opcheck=False)
    assert failed == {"onnx"} and "declare the parameter 'scale'" in str(report)


def test_wrong_broadcast_in_nnef():
    """NNEF aligns ranks on the left: a handler that writes torch's broadcasting as it is multiplies by rows."""

    def square(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * w

    op = ir.custom_op("check_op::broadcast", square)

    @op.handler("nnef")
    def _(h, x, w):
        return h.emit("mul", x, h.emit("unsqueeze", w, axes=[1], type=w.type.with_shape((*w.type.shape, 1))))

    samples = [(torch.randn(3, 3), torch.randn(3))]
    report = check_op(op, samples, opcheck=False, raise_exception=False)
    assert {c.what for c in report.checks if not c.ok} == {"nnef"}


def test_op_that_writes():
    @ir.custom_op("check_op::writes", mutates_args=("x",))
    def writes(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(y)

    samples = [(torch.randn(2, 3), torch.randn(2, 3)), (torch.randn(4, 3), torch.randn(4, 3))]
    assert check_op(writes, samples, targets=["onnx", "eager"]).ok


@pytest.fixture(autouse=True)
def clean():
    yield
    for target in ("onnx", "nnef"):
        for name in registry(target).ops():
            if name.startswith("check_op::"):
                registry(target).remove(name)
