"""What tract cannot say, case by case, with the reason; strict: see tests.harness.check_case."""

CHANCE = "tract draws no random numbers"
LOOP = "tract has no loop whose end depends on data"


def _all(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


LIMITS: dict[str, str] = {
    **_all(
        "the size of the result depends on data, and tract counts nothing but what is not zero",
        "reduce/bincount control/size_from_item control/mask_from_item control/cut_by_item control/view_by_item "
        "control/repeat_by_durations",
    ),
    **_all(
        CHANCE,
        "create/dropout_train create/rand create/randn_like create/rand_like_f16 create/randn_added create/randint "
        "create/randperm create/bernoulli create/normal create/multinomial",
    ),
    **_all(LOOP, "control/while_until_large control/while_given_steps"),
    "attention/flash_log_sums": "it reads a result that only the backward pass of attention does",
    "index/embedding_max_norm": "it writes to the weight of the embedding",
    "shape/view_dtype": "tract cannot read the bits of a tensor as another type",
    "shape/nearest_scale_uneven": "tract's sizes have no multiplication by 0.7",
}
