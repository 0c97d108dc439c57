"""Rotary embeddings whose frequencies are others beyond a number of tokens: the text that becomes longer than that."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import ir
import language_models
from language_models.comparing import check, reference
from tests.language_models import checkpoints

SHORT = 32
WAYS = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4}
ROPE = {**WAYS, "long_factor": [3.0, 4.0, 5.0, 6.0], "original_max_position_embeddings": SHORT}
SIZES = {**checkpoints.LLAMA, "max_position_embeddings": 72, "rope_parameters": ROPE}
FAMILIES = {  # the first reads the whole text again there, the second keeps what it remembers
    "Phi3": {**SIZES, "original_max_position_embeddings": SHORT},
    "Llama": SIZES,
}


EAGER = pytest.param("eager", {}, marks=pytest.mark.slow)


def tokens(length, seed=0):
    return torch.randint(0, checkpoints.VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("target, options", [("onnx", {}), ("onnx", {"contrib": True}), ("nnef", {}), EAGER])
def test_a_text_that_becomes_long(tmp_path, family, target, options):
    model = checkpoints.model(family, **FAMILIES[family])
    made = language_models.export(model, path=tmp_path / "out", target=target, verify=True, **options)
    program = made.load()
    for length in (SHORT - 4, SHORT, SHORT + 1):
        given = tokens(length)
        if family == "Phi3" and target == "nnef":
            with pytest.raises(ir.RefusedError, match=f"more than the context of {SHORT} tokens"):
                program.generate(given, max_new_tokens=SHORT)
        else:
            assert torch.equal(program.generate(given, max_new_tokens=SHORT), reference(model, given, SHORT))


@pytest.mark.slow
def test_texts_of_several_lengths(tmp_path):
    model = checkpoints.model("Phi3", **FAMILIES["Phi3"])
    given = torch.cat([tokens(SHORT - 2), tokens(SHORT - 2, 1)])
    mask = torch.ones_like(given)
    mask[1, :7] = 0
    for target, options in (("onnx", {}), ("onnx", {"contrib": True}), ("eager", {})):
        made = language_models.export(model, path=tmp_path / "out", target=target, **options)
        found = made.load().generate(given * mask, mask, 16)
        assert torch.equal(found, reference(model, given * mask, 16, mask))


@pytest.mark.slow
def test_what_onnxruntime_genai_is_told(tmp_path):
    """Its loop never reads a text again: there texts end before that is wanted."""
    model = checkpoints.model("Phi3", **FAMILIES["Phi3"])
    made = language_models.export(model, path=tmp_path / "out")
    said = json.loads((made.path / "genai_config.json").read_text())
    assert said["model"]["context_length"] == said["search"]["max_length"] == SHORT
    assert made.summary()["context"].startswith(f"72 tokens, {SHORT} in onnxruntime-genai; beyond those the model")
    made = language_models.export(model, path=tmp_path / "out", target="nnef")
    assert made.summary()["context"].startswith(f"{SHORT} tokens; beyond them the model computes its keys anew")


def test_the_comparison_reaches_it(tmp_path, monkeypatch):
    model = checkpoints.model("Phi3", **FAMILIES["Phi3"])
    checkpoint = language_models.checkpoint.Checkpoint("phi", model)
    program = language_models.export(model, path=tmp_path / "out").load()
    program.manifest = dataclasses.replace(program.manifest, computed_anew=0)
    with pytest.raises(ir.MismatchError):
        check(checkpoint, program)
    monkeypatch.setattr("language_models.comparing.FARTHEST", SHORT - 1)
    with pytest.warns(UserWarning, match=f"texts of more than {SHORT} tokens, .*, are not compared"):
        check(checkpoint, program)


@pytest.mark.slow
def test_the_loss_of_few_bits(tmp_path):
    """It is measured token by token, and so on a text that stays short."""
    model = checkpoints.model("Phi3", **FAMILIES["Phi3"])
    for target in ("onnx", "eager"):
        made = language_models.export(model, path=tmp_path / "out", target=target, text=tokens(60))
        assert made.loss.perplexity == pytest.approx(made.loss.floats, rel=1e-3)
