"""What ONNX or onnxruntime cannot say, case by case, with the reason; strict: see tests.harness.check_case."""

from tests.harness import DIFFERS

LIMITS: dict[str, str] = {
    "shape/view_dtype": "it needs BitCast, which opset 26 brings",
    "pool/odd_max1d": f"{DIFFERS}MaxPool skips nan, and starts from the lowest finite number",
    "pool/minus_inf_max2d": f"{DIFFERS}MaxPool starts from the lowest finite number",
    "recurrent/lstm_odd": f"{DIFFERS}the activations of LSTM cut nan and infinities off",
    "shape/bilinear_aligned_infinite": f"{DIFFERS}Resize does not multiply what lies beyond the last pixel by 0",
    "recurrent/gru_odd": f"{DIFFERS}the activations of GRU cut nan and infinities off",
}

# Handlers that no case of the table reaches on this target: tests/reached.py. None is to be added.
WITHOUT_CASE = [
    "aten::_upsample_bicubic2d_aa",
    "aten::alias",
    "aten::detach",
    "aten::gelu",
    "aten::logspace",
    "aten::mish",
    "aten::positive",
    "aten::repeat_interleave.self_Tensor",
    "aten::tril_indices",
    "aten::triu_indices",
    "aten::view.dtype@26",
    "ir::rotary_embedding",
    "torchao::dequantize_affine",
]
