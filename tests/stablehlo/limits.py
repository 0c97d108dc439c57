"""What this target cannot say, case by case, with the reason; strict: see tests.harness.check_case."""

from __future__ import annotations

from tests.harness import DIFFERS

CRASH = f"{DIFFERS}IREE's compiler fails at dynamic sizes"


def _all(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


LIMITS: dict[str, str] = {
    **_all("IREE has no fmod for float64", "elementwise/remainder_far elementwise/polynomial_beyond_float"),
    "shape/grid_sample_nan": f"{DIFFERS}torch's decomposition has other places for nan than its kernel",
    "elementwise/complex_huge_angles": f"{DIFFERS}its sines are exact up to a million turns",
    **_all(
        "it draws random numbers as 'stablehlo' does not",
        "create/rand create/rand_like_f16 create/randint create/bernoulli create/multinomial create/dropout_train "
        "create/randn_like create/randn_added create/randperm create/normal create/normal_of_tensors "
        "create/alpha_dropout create/feature_dropout create/feature_alpha_dropout create/randint_like "
        "create/exponential create/uniform",
    ),
    # the size of the result depends on data, of which this target has only what a mask picks
    **_all("aten::bincount", "reduce/bincount reduce/bincount_of_a_size"),
    **_all("aten::_unique2", "index/unique index/unique_counts index/unique_beside_nan"),
    "index/unique_rows_beside_nan": "aten::unique_dim",
    "other_names/unique_places": "aten::_unique",
    "other_names/unique_rows": "aten::unique_dim",
    "other_names/split_at_tensor": "whose sign is not known",
    "index/unique_consecutive": "aten::unique_consecutive",
    **_all("needs: aten::repeat_interleave", "shape/repeat_interleave_tensor other_names/repeated"),
    # torch makes no channels of no channels, and its decomposition as many as there are filters
    "conv/conv1d_of_no_channels": "its decomposition returned the shape",
    # no decomposition
    "pool/max2d_ceil": "needs: aten::max_pool2d_with_indices",
    "index/embedding_max_norm": "aten::embedding_renorm",
    # a decomposition that holds for other arguments or sizes
    "pool/avg2d_ceil": "windows that ceil_mode adds behind a dynamic size",
    "pool/adaptive_max2d_one": "indices of windows that differ in size, over several dynamic sizes",
    "shape/tensor_split_back": "it fixes the size B to 3",
    "create/eye_dynamic": "torch cannot trace it for",
    **_all(
        "it writes one number for each element that a mask picks",
        "index/assign_constant_mask index/assign_own index/assign_mask_row",
    ),
    "attention/flash_log_sums": "its decomposition returned the shape",
    **_all(
        CRASH,
        "matmul/inv matmul/solve matmul/solve_complex matmul/inv_complex recurrent/lstm_size_one "
        "control/while_with_cond control/constants_in_map norm/bce_with_logits_weights attention/size_one_heads "
        "create/sizes_as_numbers",
    ),
    **_all(
        "IREE writes the rows of a loop to wrong places where their size is of several",
        "recurrent/lstm_of_pairs recurrent/gru_of_pairs recurrent/rnn_of_pairs",
    ),
    "recurrent/lstm_every_second": "its decomposition cannot be used",
}
