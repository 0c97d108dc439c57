"""A quantization_config over floats, and codes without one: read as transformers does, or refused."""

from __future__ import annotations

import json
import re

import pytest
import safetensors.torch
import torch
from transformers.quantizers import quantizer_bitnet

import ir
import language_models
from language_models.checkpoint import open_checkpoint
from language_models.comparing import reference
from tests.language_models import checkpoints

ONLINE = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online",
          "modules_to_not_convert": None}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    model.save_pretrained(tmp_path / "in")
    return tmp_path / "in"


def configured(folder, said):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": said}))


def opened(folder, streams=False):
    return open_checkpoint(folder, torch.float32, tokenizer=False, streams=streams).model


def test_packages_that_are_not_there(folder, monkeypatch):
    configured(folder, ONLINE)
    monkeypatch.setattr(quantizer_bitnet, "is_accelerate_available", lambda: False)
    told = r"quantised weights here .*accelerate.*: install what it asks for, take quantization_config out"
    with pytest.raises(ir.CaptureError, match=told):
        opened(folder)


def test_linear_layers_that_round_as_they_run(folder, monkeypatch):
    configured(folder, ONLINE)
    monkeypatch.setattr(quantizer_bitnet, "is_accelerate_available", lambda: True)
    for streams in (False, True):
        assert type(opened(folder, streams).model.layers[0].mlp.up_proj).__name__ == "AutoBitLinear"


@pytest.mark.slow
def test_the_tokens_of_layers_that_round(folder, tmp_path, monkeypatch):
    own = opened(folder)
    configured(folder, ONLINE)
    monkeypatch.setattr(quantizer_bitnet, "is_accelerate_available", lambda: True)
    tokens, _ = checkpoints.prompts(1)
    wanted = reference(opened(folder), tokens, 16)
    made = language_models.export(folder, path=tmp_path / "out", tokenizer=False, verify=True)
    assert torch.equal(made.load().generate(tokens, max_new_tokens=16), wanted)
    assert not torch.equal(reference(own, tokens, 16), wanted)


def test_methods_that_transformers_does_not_know(folder):
    configured(folder, {"quant_method": "zzz"})
    with pytest.warns(UserWarning, match="does not know quant_method 'zzz' .*, and reads the weights as they are"):
        assert type(opened(folder).model.layers[0].mlp.up_proj) is torch.nn.Linear
    configured(folder, {"bits": 4})
    with pytest.raises(ir.CaptureError, match="has no quant_method: take quantization_config out"):
        opened(folder)


@pytest.mark.parametrize("streams", [False, True], ids=["converted", "mapped"])
@pytest.mark.parametrize("scale", ["", "_scale_inv"])
@pytest.mark.parametrize(("dtype", "kind"), [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8")], ids=["fp8", "int8"])
def test_codes_that_nothing_is_said_of(folder, dtype, kind, scale, streams):
    """Alone they have the shape of the weight, so that a cast would take them for it."""
    name, file = "model.layers.1.mlp.up_proj.weight", folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    weights[name] = weights[name].to(dtype)
    weights |= {name + scale: torch.ones(1)} if scale else {}
    safetensors.torch.save_file(weights, file, {"format": "pt"})
    told = f"the weight {re.escape(name)} is stored in {kind}, and config.json has no quantization_config that says how"
    with pytest.raises(ir.CaptureError, match=told):
        opened(folder, streams)
