"""What this target cannot say, case by case, with the reason; strict: see tests.harness.check_case."""

from __future__ import annotations

from tests.harness import DIFFERS

FMOD = "IREE has no fmod for float64"
NONE = "target 'stablehlo' cannot express"  # no handler, and no decomposition that holds for these arguments and sizes
CRASH = f"{DIFFERS}IREE's compiler fails at dynamic sizes"
RANDOM = NONE  # StableHLO's random numbers are not torch's, and none are drawn

LIMITS: dict[str, str] = {
    **dict.fromkeys(
        [
            "elementwise/remainder_far",
            "elementwise/polynomial_beyond_float",
        ],
        FMOD,
    ),
    **dict.fromkeys(
        [
            "reduce/bincount",
            "pool/max2d_ceil",
            "pool/adaptive_max2d_one",
            "shape/repeat_interleave_tensor",
            "shape/as_strided_copies",
            "index/assign_mask_row",
            "index/masked_scatter",
            "index/unique",
            "index/unique_consecutive",
            "index/searchsorted_right",
            "create/eye_dynamic",
            "quantize/per_tensor_given_int8",
            "quantize/per_tensor_given_tiny",
            "quantize/fake_per_tensor_4_bits",
            "matmul/bilinear",
            "pool/avg2d_ceil",
            "shape/tensor_split_back",
            "shape/grid_sample_nearest_reflection",
            "shape/grid_sample_3d",
            "shape/as_strided",
            "index/assign_constant_mask",
            "index/assign_own",
            "index/put",
            "index/embedding_max_norm",
            "index/unique_counts",
            "index/searchsorted",
            "index/searchsorted_sorter",
            "index/odd_searchsorted",
            "quantize/per_tensor_given",
            "quantize/per_tensor_given_symmetric",
            "quantize/choose_qparams",
            "quantize/fake_per_tensor",
            "quantize/fake_per_channel",
            "other_names/convolution_flags",
            "other_names/parts_copied",
            "other_names/copied",
            "other_names/grids",
            "other_names/repeated",
        ],
        NONE,
    ),
    **dict.fromkeys(
        [
            "matmul/inv",
            "matmul/solve_complex",
            "recurrent/lstm_size_one",
            "control/while_with_cond",
            "matmul/solve",
            "matmul/inv_complex",
            "norm/bce_with_logits_weights",
            "attention/size_one_heads",
            "control/constants_in_map",
        ],
        CRASH,
    ),
    **dict.fromkeys(
        [
            "create/rand",
            "create/rand_like_f16",
            "create/randint",
            "create/bernoulli",
            "create/multinomial",
            "create/dropout_train",
            "create/randn_like",
            "create/randn_added",
            "create/randperm",
            "create/normal",
        ],
        RANDOM,
    ),
    "attention/flash_log_sums": "its decomposition returned the shape",
}
