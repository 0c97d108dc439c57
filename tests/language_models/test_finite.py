"""Models that look for infinite numbers in float16 and clamp them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ir
import language_models
from language_models.finite import clamping
from tests.language_models import checkpoints
from tests.language_models.test_encoder_decoder import BART, made

transformers = checkpoints.transformers
SOURCE = torch.tensor([[5, 6, 7, 8, 9]])


class NotFinite(nn.Module):
    def forward(self, x):
        x = x * 2
        if x.dtype == torch.float16 and not torch.isfinite(x).all():
            bound = torch.finfo(x.dtype).max - 1000
            x = torch.clamp(x, min=-bound, max=bound)
        return x + 0


class Infinite(nn.Module):
    def forward(self, x):
        x = x * 2
        if torch.isinf(x).any():
            x = torch.clamp(x, min=-50, max=50)
        return x + 0


class Halved(nn.Module):
    def forward(self, x):
        if torch.isinf(x).any():
            x = x / 2
        return x + 1


@pytest.mark.parametrize("target", ["onnx", "eager"])
@pytest.mark.parametrize("module", [NotFinite, Infinite])
def test_a_branch_that_clamps(module, target):
    module = module().eval()
    with clamping():
        graph = ir.capture(module, (torch.ones(4).half(),))
    program = ir.export(graph, target=target)
    nan, inf = float("nan"), float("inf")
    # numbers beyond the bound stay where none is infinite
    for row in ([1, 2, 3, 32700], [1, 2, 3, 6e4], [1, -6e4, 32700, 2], [nan, 1, 32700, 2], [nan, inf, -1, -inf]):
        x = torch.tensor(row).half()
        assert torch.equal(program(x).nan_to_num(7), module(x).nan_to_num(7))


def test_a_branch_that_does_something_else():
    with pytest.raises(ir.CaptureError, match="does something else than to clamp numbers"), clamping():
        ir.capture(Halved(), (torch.ones(4).half(),))


def test_torch_is_as_it_was():
    before = torch.isfinite, torch.isinf, torch.clamp, torch.Tensor.all, torch.Tensor.any, torch.Tensor.__bool__
    with clamping():
        assert torch.isinf(torch.ones(2).half()).any().item() is False
    assert before == (
        torch.isfinite, torch.isinf, torch.clamp, torch.Tensor.all, torch.Tensor.any, torch.Tensor.__bool__
    )  # fmt: skip


MODELS = {
    "Bart": lambda: made("Bart", BART, forced_eos_token_id=None),
    "PLBart": lambda: made("PLBart", BART, forced_eos_token_id=None),
    "Marian": lambda: transformers.MarianMTModel(
        transformers.MarianConfig(**BART, pad_token_id=95, decoder_start_token_id=95, forced_eos_token_id=None)
    ),
}


@pytest.mark.parametrize("target", ["onnx", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_float16_of_models_that_clamp(tmp_path, name, target):
    model = MODELS[name]().eval().half()
    model.generation_config.forced_eos_token_id = None
    program = language_models.export(model, path=tmp_path / "out", target=target, weights="f16").load()
    mask = torch.ones_like(SOURCE)
    with torch.no_grad():
        wanted = model.get_encoder()(SOURCE, attention_mask=mask).last_hidden_state
    found = program.encoder({"input_ids": SOURCE, "attention_mask": mask})["last_hidden_state"]
    assert found.dtype == torch.float16
    assert (found - wanted).abs().max() <= 0.01 * wanted.abs().max()
    own = model.generate(SOURCE, attention_mask=mask, max_new_tokens=8, do_sample=False, num_beams=1)
    assert torch.equal(program.generate(SOURCE, mask, max_new_tokens=8), own)
