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
    "aten::_batch_norm_with_update_functional",
    "aten::_int_mm",
    "aten::_linalg_det",
    "aten::_native_batch_norm_legit.no_stats",
    "aten::_unique",
    "aten::_upsample_bicubic2d_aa",
    "aten::alias",
    "aten::alpha_dropout",
    "aten::detach",
    "aten::empty_permuted",
    "aten::empty_strided",
    "aten::exponential",
    "aten::feature_alpha_dropout",
    "aten::feature_dropout",
    "aten::gelu",
    "aten::hardswish",
    "aten::logspace",
    "aten::max_unpool3d",
    "aten::mish",
    "aten::native_dropout",
    "aten::new_empty_strided",
    "aten::normal",
    "aten::positive",
    "aten::randint_like",
    "aten::repeat_interleave.self_Tensor",
    "aten::tensor_split.tensor_indices_or_sections",
    "aten::tril_indices",
    "aten::triu_indices",
    "aten::uniform",
    "aten::unique_dim",
    "aten::view.dtype@26",
    "ir::rotary_embedding",
    "prims::device_put",
    "torchao::dequantize_affine",
]
