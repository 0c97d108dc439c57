"""What ONNX or onnxruntime cannot say, case by case, with the reason; strict: see tests.harness.check_case."""

LIMITS: dict[str, str] = {
    "shape/view_dtype": "it needs BitCast, which opset 26 brings",
}
