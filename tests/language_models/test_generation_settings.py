"""Settings of a checkpoint that change the likeliest token: each is applied as transformers does it, or told."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest
import torch

import ir
import language_models
from language_models import comparing
from language_models.checkpoint import Checkpoint
from language_models.encoder_decoder import reference
from language_models.generation_settings import APPLIED, SILENT, Settings, settings_of
from tests.language_models import checkpoints
from tests.language_models.test_encoder_decoder import T5, made
from tests.language_models.test_vision_language import llava

transformers = checkpoints.transformers
TOLD = {
    "guidance_scale", "watermarking_config", "stop_strings", "max_time", "token_healing", "penalty_alpha",
    "dola_layers", "constraints", "force_words_ids",
}  # fmt: skip
# a value for each that changes the tokens of a small T5
VALUES = {
    "forced_bos_token_id": 0, "sequence_bias": {(5,): 300.0, (5, 6): 600.0}, "encoder_repetition_penalty": 0.01,
    "repetition_penalty": 5.0,
    "no_repeat_ngram_size": 1, "encoder_no_repeat_ngram_size": 1, "bad_words_ids": [[n] for n in range(4, 60)],
    "min_length": 12, "min_new_tokens": 12, "forced_eos_token_id": 1,
    "exponential_decay_length_penalty": (1, 30.0), "suppress_tokens": list(range(4, 60)),
    "begin_suppress_tokens": list(range(4, 60)),
}  # fmt: skip
STEPS = 8


def test_every_field_of_transformers_has_a_place():
    fields = {n for n in vars(transformers.GenerationConfig()) if not n.startswith("_")}
    assert sorted([*APPLIED, *SILENT, *TOLD]) == sorted({*APPLIED, *SILENT, *TOLD})
    assert fields <= {*APPLIED, *SILENT, *TOLD}
    assert {*VALUES, "remove_invalid_values"} == {*APPLIED}


def source():
    """Two texts of different lengths, the longer of which the model repeats some tokens of."""
    tokens = torch.randint(4, 96, (2, 20), generator=torch.Generator().manual_seed(1))
    return tokens, (torch.arange(20) < torch.tensor([[20], [4]])).to(torch.int64)


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """A model one of whose texts ends early, and its folder, which has a forced first token of 0."""
    model = made("T5", T5)
    settings = {"decoder_start_token_id": 2, "pad_token_id": 0, "max_length": 20}
    model.generation_config = transformers.GenerationConfig(**settings)
    tokens, mask = source()
    model.generation_config.eos_token_id = int(reference(model, tokens, STEPS, mask)[1, 5])
    with setting(model, "forced_bos_token_id", 0):
        out = language_models.export(model, path=tmp_path_factory.mktemp("halves") / "out", target="eager", verify=True)
    return model, out.load()


@contextlib.contextmanager
def setting(model, name, value):
    setattr(model.generation_config, name, value)
    try:
        yield
    finally:
        setattr(model.generation_config, name, None)


def settings(model, ends, two_halves=False):
    return Settings(settings_of(Checkpoint("it", model), ends, 96), ends, 96, two_halves)


@pytest.mark.parametrize("name", VALUES)
def test_an_encoder_and_a_decoder(halves, name, monkeypatch):
    model, program = halves
    tokens, mask = source()
    before = reference(model, tokens, STEPS, mask)
    with setting(model, name, VALUES[name]):
        wanted = reference(model, tokens, STEPS, mask)
        if name != "forced_bos_token_id":  # which the folder has
            monkeypatch.setattr(program, "settings", settings(model, program.said["ends"], two_halves=True))
    assert not torch.equal(before, wanted)
    assert torch.equal(program.generate(tokens, mask, STEPS), wanted)


# a value for each that changes the tokens of a small Llama
OWN = {**VALUES, "repetition_penalty": 50.0, "bad_words_ids": [[10], [18]], "min_length": 20,
       "begin_suppress_tokens": [10, 18]}  # fmt: skip


@pytest.mark.parametrize("target", ["onnx", pytest.param("eager", marks=pytest.mark.slow)])
def test_an_end_that_the_settings_do_not_have(tmp_path, target):
    """Of the configuration's transformers takes no notice, and no loop of ours; that of onnxruntime-genai has to."""
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    tokens, mask = prompts()
    model.generation_config = transformers.GenerationConfig(bos_token_id=1, pad_token_id=0)
    wanted = decoded(model, tokens, mask)
    model.config.eos_token_id = int(wanted[0, 14])
    model.save_pretrained(tmp_path / "in")
    told = pytest.warns(UserWarning, match=r"say of no token .* at that of config.json, \[\d+\], where")
    with told if target == "onnx" else contextlib.nullcontext():
        out = language_models.export(
            tmp_path / "in", path=tmp_path / "out", target=target, tokenizer=False, verify=True
        )
    assert out.manifest.eos == () and torch.equal(out.load().generate(tokens, mask, STEPS), wanted)
    if target == "onnx":
        said = json.loads((out.path / "genai_config.json").read_text())["model"]
        assert said["eos_token_id"] == model.config.eos_token_id and said["pad_token_id"] == 0


@pytest.mark.slow
def test_an_end_of_two_halves_that_the_settings_do_not_have(tmp_path):
    model, (tokens, mask) = made("T5", T5), source()
    model.generation_config = transformers.GenerationConfig(decoder_start_token_id=2)
    wanted = reference(model, tokens, STEPS, mask)
    model.config.eos_token_id = int(wanted[0, 3])
    out = language_models.export(model, path=tmp_path / "out", target="eager", verify=True)
    assert torch.equal(out.load().generate(tokens, mask, STEPS), wanted)


@pytest.mark.slow
def test_a_padding_that_the_settings_do_not_have(tmp_path):
    """It is the end of a text, whatever the configuration's padding is."""
    model, (tokens, mask) = checkpoints.model("Llama", **checkpoints.LLAMA), prompts()
    model.generation_config = transformers.GenerationConfig()
    model.generation_config.eos_token_id = end = int(decoded(model, tokens, mask)[0, 14])
    wanted = decoded(model, tokens, mask)
    assert (wanted[0, 14:] == end).all() and not (wanted[1] == end).any()
    out = language_models.export(model, path=tmp_path / "out", target="eager")
    assert torch.equal(out.load().generate(tokens, mask, STEPS), wanted)


def prompts():
    """Two texts of different lengths, padded on the left, the first of which the model repeats a token of."""
    tokens = torch.randint(4, 96, (2, 12), generator=torch.Generator().manual_seed(9))
    return tokens, (torch.arange(12) >= torch.tensor([[0], [5]])).to(torch.int64)


@pytest.fixture(scope="module", params=["eager", "onnx", "nnef"])
def decoder(request, tmp_path_factory):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    tokens, mask = prompts()
    model.generation_config.eos_token_id = int(decoded(model, tokens, mask)[0, 16])
    with setting(model, "repetition_penalty", 50.0):
        path = tmp_path_factory.mktemp(request.param) / "out"
        out = language_models.export(model, path=path, target=request.param, tokenizer=False, verify=True)
    return model, out.load()


def decoded(model, tokens, mask):
    return comparing.reference(model, tokens, STEPS, mask)


@pytest.mark.parametrize("name", OWN)
def test_a_decoder(decoder, name, monkeypatch):
    model, program = decoder
    tokens, mask = prompts()
    if not program.manifest.contract.batch:  # each text is generated as if it were alone
        tokens, mask = tokens[:1], mask[:1]
    before = decoded(model, tokens, mask)
    with setting(model, name, OWN[name]):
        wanted = decoded(model, tokens, mask)
        if name != "repetition_penalty":  # which the folder has
            monkeypatch.setattr(program, "settings", settings(model, program.manifest.eos))
    if name != "forced_bos_token_id" and len(tokens) > 1:  # the first, for texts of one token
        assert not torch.equal(before, wanted)
    assert torch.equal(program.generate(tokens, mask, STEPS), wanted)


@pytest.mark.slow
def test_a_model_that_reads_images(tmp_path):
    """Every such folder is compared with what transformers generates."""
    model = llava()
    plain = language_models.export(model, path=tmp_path / "plain", target="eager").load()
    model.generation_config.repetition_penalty = 5.0
    program = language_models.export(model, path=tmp_path / "out", target="eager").load()
    text = torch.tensor([[1, 5, 6, 7]])
    wanted = model.generate(text, max_new_tokens=STEPS, do_sample=False)
    assert torch.equal(program.generate(text, max_new_tokens=STEPS), wanted)
    assert not torch.equal(plain.generate(text, max_new_tokens=STEPS), wanted)


def test_what_no_loop_applies_is_told():
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    with setting(model, "guidance_scale", 1.5), pytest.warns(UserWarning, match=r"it: .* guidance_scale=1.5, which no"):
        settings(model, [2])
    with (
        setting(model, "bad_words_ids", [["a"]]),
        pytest.raises(ir.CaptureError, match=r"bad_words_ids is \[\['a'\]\]"),
    ):
        settings(model, [2])
    with setting(model, "temperature", 0.5):  # of drawing
        assert not settings_of(Checkpoint("it", model), [2], 96)


def test_damaged_settings_of_a_folder(decoder):
    _, program = decoder
    with pytest.raises(ir.CaptureError, match="the generation setting repetition_penalty is 'much'"):
        type(program).__mro__[-2](dataclasses.replace(program.manifest, rules={"repetition_penalty": "much"}), None)
