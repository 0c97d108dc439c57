"""What tract cannot say, case by case, with the reason; strict: see tests.harness.check_case."""

CHANCE = "tract draws no random numbers"
LOOP = "tract has no loop whose end depends on data"


def _all(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


LIMITS: dict[str, str] = {
    **_all(
        "the size of the result depends on data, and tract counts nothing but what is not zero",
        "reduce/bincount reduce/bincount_of_a_size other_names/unique_rows index/unique_rows_beside_nan",
    ),
    **_all(
        "depends on data: no input has",
        "control/size_from_item control/mask_from_item control/cut_by_item control/repeat_by_durations "
        "other_names/split_at_tensor",
    ),
    "control/view_by_item": "tract cannot prove that (12, T) holds as many elements as (u0, (12*T)//u0)",
    **_all(
        CHANCE,
        "create/dropout_train create/rand create/randn_like create/rand_like_f16 create/randn_added create/randint "
        "create/randperm create/bernoulli create/normal create/multinomial create/normal_of_tensors "
        "create/alpha_dropout create/feature_dropout create/feature_alpha_dropout create/randint_like "
        "create/exponential create/uniform",
    ),
    **_all(LOOP, "control/while_until_large control/while_given_steps"),
    "attention/flash_log_sums": "a result that the handler which made it left out",
    "pool/pools_ceil_that_drop_a_window": "is only known at run time",
    "index/embedding_max_norm": "aten::embedding_renorm",
    "shape/view_dtype": "tract cannot read the bits of a tensor as another type",
    "shape/nearest_scale_uneven": "the size trunc(0.7*(float(W))) has no form in tract's expressions",
}

# Handlers that no case of the table reaches on this target: tests/reached.py. None is to be added.
WITHOUT_CASE = [
    "aten::cudnn_batch_norm",
    "aten::gru.data",
    "aten::logspace",
    "aten::lstm.data",
    "aten::positive",
    "aten::repeat_interleave.self_Tensor",
    "aten::rnn_relu.data",
    "aten::rnn_tanh.data",
    "aten::tril_indices",
    "aten::triu_indices",
]
