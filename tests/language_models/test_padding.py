"""Texts of different lengths in one batch, where the last position of a file's logits is none of a text's."""

from __future__ import annotations

import pytest
import torch

import ir
import language_models
from language_models.checkpoint import Checkpoint
from language_models.comparing import check, reference
from language_models.decoding import Generator
from tests.language_models import checkpoints

STEPS = 12


def test_grouped_attention_with_logits_of_all_positions(tmp_path, monkeypatch):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    program = language_models.export(model, path=tmp_path / "out", contrib=True, logits="all", verify=True).load()
    mask = (torch.arange(12) >= torch.arange(8)[:, None]).long()
    tokens = torch.randint(4, 96, mask.shape, generator=torch.Generator().manual_seed(1)) * mask
    wanted = reference(model, tokens, STEPS, mask)[:, 12:]
    rows = [
        torch.stack([torch.cat([r[m > 0], r[m < 1]]) for r, m in zip(t, mask, strict=True)]) for t in (tokens, mask)
    ]
    for given in ([tokens, mask], rows):
        assert torch.equal(program.generate(*given, STEPS)[:, 12:], wanted)
    with torch.no_grad():
        torch.testing.assert_close(program.logits(tokens[:1]), model(tokens[:1]).logits, rtol=1e-3, atol=1e-4)
    # a loop that takes the last position, which --verify sees
    monkeypatch.setattr(Generator, "_last", lambda self, logits, mask: logits[:, -1:])
    assert not torch.equal(program.generate(tokens, mask, STEPS)[:, 12:], wanted)
    with pytest.raises(ir.MismatchError, match="behind texts of different lengths the folder generates"):
        check(Checkpoint("it", model), program)


def test_texts_at_once_of_a_model_that_guesses():
    """transformers guesses tokens first for one text alone, and refuses several."""
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    tokens, mask = checkpoints.prompts(3)
    wanted = reference(model, tokens, STEPS, mask)
    model.generation_config.prompt_lookup_num_tokens = 3
    assert torch.equal(reference(model, tokens, STEPS, mask), wanted)


@pytest.mark.parametrize("target", ["onnx", pytest.param("eager", marks=pytest.mark.slow)])
def test_padding_that_is_no_token(tmp_path, target):
    """Of three texts one ends first; -1 behind it is no token, which transformers' own loop stops at."""
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    tokens, mask = checkpoints.prompts(3)
    model.generation_config.eos_token_id = None
    end = int(reference(model, tokens, STEPS, mask)[0, 11])
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = [end, 96], -1
    told = rf"pad_token_id=-1, eos_token_id=96, and tokens are 0 to 95: .* and {end} is behind a text that has ended"
    with pytest.warns(UserWarning, match=told):
        made = language_models.export(model, path=tmp_path / "out", target=target, verify=True)
    found = made.load().generate(tokens, mask, STEPS)
    assert torch.equal(found, reference(model, tokens, STEPS, mask, padding=end))
    assert (found[0, 12:] == end).all()


def test_a_model_that_masks_padding_in_its_prompt_alone(tmp_path):
    """GIT sees what it remembers of padding behind the prompt: in a batch a text has other tokens than alone."""
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = checkpoints.transformers.GitConfig(vision_config=vision, **checkpoints.LLAMA)
    torch.manual_seed(0)
    model = checkpoints.transformers.GitForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3 if p.dim() > 1 else 0.05)
    model.generation_config.eos_token_id = None
    with pytest.warns(
        UserWarning, match="GitForCausalLM masks padding within a prompt and not behind it: a batch is one"
    ):
        made = language_models.export(model, path=tmp_path / "out", task="text-generation", verify=True)
    tokens, mask = checkpoints.prompts(2)
    found = made.load().generate(tokens, mask, STEPS)
    for row, text, seen in zip(found, tokens, mask, strict=True):
        alone = reference(model, text[seen > 0][None], STEPS)
        assert torch.equal(row[-STEPS:], alone[0, -STEPS:])
