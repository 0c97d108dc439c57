"""Models that decide by the length of a text are refused, with the line where they do."""

from __future__ import annotations

import pytest

import ir
import language_models
from tests.language_models.test_encoder_decoder import BART, T5, made

SOME = {
    "local": ("LongT5", {**T5, "local_radius": 4}, r"% 5\) != 0\n  at .*modeling_longt5.py:\d+"),
    "transient-global": (
        "LongT5", {**T5, "encoder_attention_type": "transient-global"}, r"//16\) <= 0\n  at .*modeling_longt5.py:\d+"
    ),
    "blocks": (
        "PegasusX", {**BART, "block_size": 4, "num_global_tokens": 4}, r"% 4\) != 0\n  at .*modeling_pegasus_x.py:\d+"
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["onnx", "eager"])
@pytest.mark.parametrize("kind", SOME)
def test_a_model_that_decides_by_the_length_of_the_text(tmp_path, kind, target):
    family, sizes, told = SOME[kind]
    with pytest.raises(ir.CaptureError, match=f"it decides by the length of the text, in transformers.*{told}"):
        language_models.export(made(family, sizes), path=tmp_path / "out", target=target)
    assert not (tmp_path / "out").exists()
