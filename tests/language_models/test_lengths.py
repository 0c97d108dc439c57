"""Models that decide by the length of a text are refused, with the line where they do, or their longest is told."""

from __future__ import annotations

import pytest
import torch

import ir
import language_models
from language_models.encoder_decoder import reference
from tests.language_models.test_encoder_decoder import BART, T5, made

SOME = {
    "local": ("LongT5", {**T5, "local_radius": 4}, r"% 5\) != 0\n  at .*modeling_longt5.py:\d+"),
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


def test_a_model_that_decides_beyond_a_length(tmp_path):
    model = made("LongT5", {**T5, "encoder_attention_type": "transient-global"})
    with pytest.warns(UserWarning, match=r"takes texts of at most 15 tokens: it holds only where .*//16\) <= 0"):
        program = language_models.export(model, path=tmp_path / "out", target="eager").load()
    text = torch.randint(4, 79, (1, 15), generator=torch.Generator().manual_seed(0))
    assert torch.equal(program.generate(text, max_new_tokens=8), reference(model, text, 8))
    with pytest.raises(ir.RefusedError, match="encoder_sequence_length <= 15"):
        program.generate(text.repeat(1, 2))
