"""What ONNX or onnxruntime cannot say, case by case, with the reason; strict: see tests.harness.check_case."""

COMPLEX = "complex numbers have no form in ONNX yet"

LIMITS: dict[str, str] = {
    "elementwise/complex_arithmetic": COMPLEX,
    "elementwise/complex_parts": COMPLEX,
    "reduce/norm_complex": COMPLEX,
    "matmul/matmul_complex": COMPLEX,
    "matmul/fft": COMPLEX,
    "matmul/rfft_abs": COMPLEX,
    "attention/rotary_complex": COMPLEX,
    "shape/view_as_real": COMPLEX,
    "shape/complex_product": COMPLEX,
    "shape/view_dtype": "it needs BitCast, which opset 26 brings",
}
