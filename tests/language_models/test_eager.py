"""Decoders as compiled programs over torch, with a cache that is written in place."""

from __future__ import annotations

import pytest
import torch

import ir
import language_models
from language_models import eager
from language_models.comparing import reference
from tests.language_models import checkpoints
from tests.language_models.architectures import ARCHITECTURES

STEPS = 32


@pytest.fixture(scope="module", params=checkpoints.FAMILIES)
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = checkpoints.checkpoint(folder / "in", request.param, **checkpoints.FAMILIES[request.param])
    return model, language_models.export(folder / "in", path=folder / "out", target="eager", verify=True)


@pytest.mark.parametrize("batch, room", [(1, 5), (3, 256)])  # at first, for new tokens
def test_the_tokens(exported, batch, room, monkeypatch):
    monkeypatch.setattr(eager, "ROOM", room)
    model, made = exported
    program = made.load()
    for length in (9, 4):  # a cache of another length each time
        tokens, mask = checkpoints.prompts(batch, length)
        mask[:, -1] = 1
        assert torch.equal(program.generate(tokens, mask, STEPS), reference(model, tokens, STEPS, mask))


@pytest.mark.slow
def test_the_weights_are_stored_once(tmp_path):
    model = checkpoints.model("Llama", **{**checkpoints.LLAMA, "vocab_size": 20_000})
    made = language_models.export(model, path=tmp_path / "out", target="eager")
    sizes = {p.name: p.stat().st_size for p in made.path.iterdir()}
    assert sizes["model.safetensors"] > 5_000_000
    assert sizes["prompt.pt2"] < 1_000_000 and sizes["step.pt2"] < 1_000_000
    (made.path / "model.safetensors").write_bytes(b"none")
    with pytest.raises(ir.CaptureError, match=r"model.safetensors: "):
        made.load()


def test_a_model_that_looks_at_the_length_of_its_cache(tmp_path):
    """GPT-Neo counts a query's place from the end of the cache, so that there must be nothing behind the text."""
    model = checkpoints.model("GPTNeo", **ARCHITECTURES["GPTNeo"])
    made = language_models.export(model, path=tmp_path / "out", target="eager")
    program = made.load()
    assert program.grows
    tokens, mask = checkpoints.prompts(3)
    assert torch.equal(program.generate(tokens, mask, STEPS), reference(model, tokens, STEPS, mask))


def test_a_prompt_of_one_token(tmp_path):
    """torch.export takes the past of an example to be 2 or longer; behind a text of one token there is 1."""
    model = checkpoints.model("GPTNeo", **ARCHITECTURES["GPTNeo"])
    program = language_models.export(model, path=tmp_path / "out", target="eager").load()
    assert program.grows
    for tokens in (torch.tensor([[5]]), torch.tensor([[5], [9]])):
        assert torch.equal(program.generate(tokens, max_new_tokens=8), reference(model, tokens, 8))


@pytest.mark.slow
def test_a_weight_of_no_dimension(tmp_path):
    """Apertus has single numbers beside its matrices."""
    sizes = {**checkpoints.LLAMA, "eos_token_id": 2}
    model = checkpoints.model("Apertus", **sizes)
    assert any(t.dim() == 0 for t in model.buffers())
    language_models.export(model, path=tmp_path / "out", target="eager", verify=True)


@pytest.mark.slow
def test_a_program_that_cannot_be_opened_is_not_written(tmp_path):
    """Of JetMoE torch.export's program has a number in it that is the example's."""
    sizes = {**checkpoints.LLAMA, "kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
    model = checkpoints.model("JetMoe", **sizes)
    with pytest.raises(ir.CaptureError, match=r"is not read again: aten\.index_add"):
        language_models.export(model, path=tmp_path / "out", target="eager")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("family, weights", [("Mamba", "int8"), ("Mamba", "int4"), ("Jamba", "int8")])
def test_few_bits_of_models_that_read_weights_themselves(tmp_path, family, weights):
    """`dt_proj.weight @ time_step.transpose(1, 2)`, and lm_head.weight.dtype; Jamba's rows are transposed."""
    model = checkpoints.model(family, **ARCHITECTURES[family])
    made = language_models.export(model, path=tmp_path / "out", target="eager", weights=weights, verify=True)
    assert made.load().generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4).shape == (1, 7)
