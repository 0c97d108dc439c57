"""Models that decide by the length of a text are refused, with the line where they do, or their longest is told."""

from __future__ import annotations

import pytest
import torch
import transformers

import ir
import language_models
from language_models.encoder_decoder import reference
from tests.language_models import checkpoints
from tests.language_models.architectures import ARCHITECTURES
from tests.language_models.test_encoder_decoder import BART, T5, made

SOME = {
    "local": ("LongT5", {**T5, "local_radius": 4}, r"% 5\) != 0\n  at .*modeling_longt5.py:\d+"),
    "blocks": (
        "PegasusX", {**BART, "block_size": 4, "num_global_tokens": 4}, r"% 4\) != 0\n  at .*modeling_pegasus_x.py:\d+"
    ),
}  # fmt: skip


@pytest.mark.slow  # test_a_decoder_that_decides_by_lengths is not
@pytest.mark.parametrize(
    "kind, target", [("local", "onnx"), ("blocks", "onnx"), ("local", "eager"), ("blocks", "eager")]
)
def test_a_model_that_decides_by_the_length_of_the_text(tmp_path, kind, target):
    family, sizes, told = SOME[kind]
    with pytest.raises(ir.CaptureError, match=f"it decides by the length of the text, and .*{told}"):
        language_models.export(made(family, sizes), path=tmp_path / "out", target=target)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_that_decides_beyond_a_length(tmp_path):
    model = made("LongT5", {**T5, "encoder_attention_type": "transient-global"})
    with pytest.warns(UserWarning, match=r"takes texts of at most 15 tokens: it holds only where .*//16\) <= 0"):
        program = language_models.export(model, path=tmp_path / "out", target="eager").load()
    text = torch.randint(4, 79, (1, 15), generator=torch.Generator().manual_seed(0))
    assert torch.equal(program.generate(text, max_new_tokens=8), reference(model, text, 8))
    with pytest.raises(ir.RefusedError, match="encoder_sequence_length <= 15"):
        program.generate(text.repeat(1, 2))


def test_a_decoder_that_decides_by_lengths(tmp_path):
    class Decides(transformers.LlamaForCausalLM):
        def forward(self, input_ids, past_key_values, **given):
            found = super().forward(input_ids, past_key_values=past_key_values, **given)
            if past_key_values.layers[0].keys.shape[2] > self.most:
                found.logits = -found.logits
            return found

    model = Decides(transformers.LlamaConfig(**checkpoints.LLAMA))
    model.most = 32
    told = r"Decides cannot be exported as it is: it decides .* only where .*32.*\n +at .*test_lengths.py:\d+"
    with pytest.raises(ir.CaptureError, match=told):
        language_models.export(model, path=tmp_path / "out", target="onnx")
    model.most = model.config.max_position_embeddings
    assert language_models.export(model, path=tmp_path / "out", target="onnx").load()


@pytest.mark.parametrize("family", ["Jamba", "Qwen3Next"], ids=str.lower)
def test_a_mask_as_long_as_the_text_is_no_decision(tmp_path, family):
    """Of a step of one token, whose masks ask whether all of the text but that token is remembered."""
    model = checkpoints.model(family, **ARCHITECTURES[family])
    assert (language_models.export(model, path=tmp_path / "out", target="onnx").path / "model.onnx").exists()


@pytest.mark.parametrize("family", ["LlamaForCausalLM", "BertModel"], ids=str.lower)
def test_lengths_that_no_text_has_are_not_told(tmp_path, recwarn, family):
    """torch.export's warning of a text of one token, at which the model gives the same, and of none."""
    config = transformers.AutoConfig.for_model(family.partition("F")[0].removesuffix("Model").lower())
    config.update({**checkpoints.SIZES, **checkpoints.LAYERS, "intermediate_size": 64, "num_key_value_heads": 4})
    language_models.export(getattr(transformers, family)(config), path=tmp_path / "out", target="nnef")
    assert not [w for w in recwarn if "dynamic sizes" in str(w.message)]
