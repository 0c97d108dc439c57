"""What `generate` takes: padding on either side, its errors, and what an export leaves of a model."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import ir
import language_models
from language_models.comparing import reference
from language_models.prompts import limits
from tests.language_models import checkpoints

FORMS = {
    "onnx": {}, "contrib": {"contrib": True}, "nnef": {"target": "nnef"}, "eager": {"target": "eager"},
    "bf16": {"weights": "bf16"},
}  # fmt: skip
LLAMA = checkpoints.FAMILIES["Llama"]


SLOW = [pytest.param(form, marks=pytest.mark.slow) for form in ("nnef", "bf16")]


@pytest.fixture(scope="module", params=[*("onnx", "contrib", "eager"), *SLOW])
def program(request, tmp_path_factory):
    model = checkpoints.model("Llama", **LLAMA)
    out = tmp_path_factory.mktemp("out") / request.param
    program = language_models.export(model, path=out, tokenizer=False, **FORMS[request.param]).load()
    return model.to(torch.bfloat16).float() if request.param == "bf16" else model, program


def test_padding_on_either_side_and_between_tokens(program):
    model, generator = program
    text = torch.tensor([[35, 44, 15, 39, 17]])
    wanted = reference(model, text, 4)[0, -4:] if generator.manifest.weights != "bf16" else None
    alone = generator.generate(text, max_new_tokens=4)[0, -4:]
    assert wanted is None or torch.equal(alone, wanted)
    for padded in (F.pad(text, (0, 3)), F.pad(text, (3, 0)), torch.tensor([[35, 44, 0, 0, 15, 39, 17, 0]])):
        given = torch.cat([padded, torch.full_like(padded, 7)])  # beside a longer text
        mask = torch.cat([(padded != 0).long(), torch.ones_like(padded)])
        found = generator.generate(given, mask, max_new_tokens=4)
        assert torch.equal(found[:, : padded.shape[1]], given)
        assert torch.equal(found[0, -4:], alone)


def test_what_generate_does_not_take(program):
    _, generator = program
    text = torch.tensor([[35, 44]])
    assert torch.equal(generator.generate(text, max_new_tokens=0), text)
    assert torch.equal(generator.generate([[35, 44]], max_new_tokens=2), generator.generate(text, max_new_tokens=2))
    for said, given in {
        "max_new_tokens=-1": {"max_new_tokens": -1},
        "more than the context of 128 tokens": {"max_new_tokens": 127},
        r"integers of shape \[batch, length\]": {"input_ids": text[0]},
        "the token -1": {"input_ids": text - 36},
        "float32": {"input_ids": text.float()},
        r"of the shape \[1, 2\]": {"attention_mask": torch.ones(1, 3, dtype=torch.int64)},
        "row 0 of attention_mask has no token": {"attention_mask": torch.zeros_like(text)},
    }.items():
        with pytest.raises(ir.RefusedError, match=said):
            generator.generate(**{"input_ids": text, **given})


def test_texts_for_calibration_and_loss(tmp_path):
    model = checkpoints.model("Llama", **LLAMA)
    longer = torch.randint(0, 64, (1, 1000))
    language_models.export(model, path=tmp_path / "out", tokenizer=False, weights="int4", calibration=longer)
    for said, given in {
        "calibration: two tokens": {"calibration": torch.tensor([[5]])},
        "calibration: integers": {"calibration": torch.zeros(1, 0)},
        "text has the token 100000": {"text": torch.tensor([[5, 100_000]])},
    }.items():
        with pytest.raises(ir.RefusedError, match=said):
            language_models.export(model, path=tmp_path / "no", tokenizer=False, weights="int4", **given)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_numbers_without_codes_are_refused(target, tmp_path):
    model = checkpoints.model("Llama", **LLAMA)
    model.model.layers[1].mlp.up_proj.weight.data[3, 4] = float("nan")
    with pytest.raises(ir.RefusedError, match=r"the weight of model.layers.1.mlp.up_proj has nan"):
        language_models.export(model, path=tmp_path / "out", target=target, tokenizer=False, weights="int4")


def test_a_model_in_memory_stays_as_it_is(tmp_path):
    model = checkpoints.model("Llama", **LLAMA).to(torch.bfloat16).train()
    model.model.norm.eval()
    language_models.export(model, path=tmp_path / "out", tokenizer=False)
    assert model.dtype == torch.bfloat16
    assert model.training and model.lm_head.training and not model.model.norm.training


@pytest.mark.slow
def test_weights_that_the_configuration_has_no_place_for_are_told(tmp_path):
    checkpoints.checkpoint(tmp_path / "in", "Llama", **LLAMA)
    config = tmp_path / "in" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 1'))
    with pytest.warns(UserWarning, match=r"no place for the weights model.layers.1\..* and \d+ more"):
        language_models.export(tmp_path / "in", path=tmp_path / "out", target="eager")


def test_layers_that_stay_in_float32_are_told(tmp_path):
    model = checkpoints.model("Llama", **LLAMA | {"intermediate_size": 100})
    with pytest.warns(UserWarning, match=r"2 linear layers, \d+% of .* in float32: .*down_proj have 100"):
        language_models.export(model, path=tmp_path / "out", target="nnef", tokenizer=False, weights="int4")


def test_what_a_model_s_tables_say():
    """The tokens that it has embeddings for, and the longest text; rotary positions and relative ones end nowhere."""

    def tables(name, **sizes):
        config = getattr(checkpoints.transformers, f"{name}Config")(**sizes)
        model = checkpoints.transformers.AutoModel.from_config(config).eval()
        return limits(lambda text: model(input_ids=text, attention_mask=torch.ones_like(text)), config.pad_token_id)

    sizes = {**checkpoints.SIZES, **checkpoints.LAYERS, "intermediate_size": 64, "max_position_embeddings": 40}
    assert tables("Bert", **sizes) == (96, 40)
    assert tables("Roberta", **{**sizes, "pad_token_id": 1}) == (96, 38)
    assert tables("MPNet", **sizes) == (96, 38)  # relative ones too, of 32 kinds
    assert tables("Llama", **sizes) == (96, None)
    assert limits(lambda text: text[:, 4].item(), 0) == (None, None)  # none of so short a text
