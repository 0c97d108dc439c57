"""Weights that lie in files and not in memory while a checkpoint is exported."""

from __future__ import annotations

import pytest
import torch

import language_models
from language_models.checkpoint import converted, open_checkpoint
from language_models.scratch import Scratch, by_rows, save_tensors
from language_models.weights import Plan, QuantisedLinear, quantise, rounded, to_blocks
from tests.language_models import checkpoints
from tests.language_models.architectures import ARCHITECTURES

WIDE = {**checkpoints.LLAMA, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["own", "tied"])
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("bf16")
    model = checkpoints.model("Llama", **WIDE, tie_word_embeddings=request.param).to(torch.bfloat16)
    model.save_pretrained(place)
    return place


def test_codes_of_the_checkpoint_s_own_numbers(folder):
    """Mapped in bfloat16 they round to what they round to as float32; what stays is float32 at the end."""
    whole = open_checkpoint(folder, torch.float32, tokenizer=False)
    streamed = open_checkpoint(folder, torch.float32, tokenizer=False, streams=True)
    assert streamed.mapped and {p.dtype for p in streamed.model.parameters()} == {torch.bfloat16}
    for checkpoint in (whole, streamed):
        assert quantise(checkpoint.model, Plan("int4", lm_head="int8", exclude=["*.k_proj"])) == 13
        converted(checkpoint, torch.float32)
    assert {p.dtype for p in streamed.model.parameters()} == {torch.float32}
    wanted, found = (dict(c.model.state_dict()) for c in (whole, streamed))
    assert wanted.keys() == found.keys() and all(torch.equal(wanted[n], found[n]) for n in wanted)


@pytest.mark.parametrize("target", [pytest.param("onnx", marks=pytest.mark.slow), "nnef"])
def test_what_was_rounded_stays(tmp_path, target):
    """Experts that are mapped, of a model that is compared: as the numbers that the file has for them."""
    model = checkpoints.model("GptOss", **ARCHITECTURES["GptOss"]).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "in")
    plan = Plan("int4", experts=True)
    found = []
    for streams in (False, True):
        checkpoint = open_checkpoint(tmp_path / "in", torch.float32, tokenizer=False, streams=streams)
        assert checkpoint.mapped == streams
        to_blocks(checkpoint.model, plan) if target == "nnef" else quantise(checkpoint.model, plan)
        converted(checkpoint, torch.float32)
        found.append(checkpoint.model.state_dict())
    wanted, streamed = found
    assert wanted.keys() == streamed.keys() and all(torch.equal(wanted[n], streamed[n]) for n in wanted)
    options = {"contrib": True} if target == "onnx" else {}
    language_models.export(
        tmp_path / "in", path=tmp_path / "out", target=target, weights="int4", tokenizer=False, verify=True, **options
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_pieces_are_the_whole(bits, monkeypatch):
    monkeypatch.setattr("language_models.scratch.PIECE", 256)
    layer = torch.nn.Linear(64, 23)
    codes, scales = rounded(layer.weight.detach(), bits)
    made = QuantisedLinear(codes, scales, layer.bias)
    assert len(list(by_rows(codes))) == 6
    x = torch.randn(2, 3, 64)
    torch.testing.assert_close(made(x), torch.nn.functional.linear(x, made.weight, layer.bias))
    again = torch.nn.Sequential(layer)
    again.get_output_embeddings = lambda: None
    quantise(again, Plan("int4" if bits == 4 else "int8"))
    assert torch.equal(again[0].codes, made.codes) and torch.equal(again[0].scales, made.scales)


def test_what_is_written_tensor_by_tensor(tmp_path):
    import safetensors
    import safetensors.torch

    room = Scratch(1 << 14).empty([3, 5], torch.float32)
    tensors = {"a": room.normal_(), "b": torch.arange(6).view(2, 3).T, "c": torch.zeros(0, 2, dtype=torch.bfloat16),
               "d": torch.tensor(True), "e": torch.randn(4).to(torch.float16)}  # fmt: skip
    save_tensors(tensors, tmp_path / "x.safetensors", {"f": "a"})
    found = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys() and all(torch.equal(found[n], t) for n, t in tensors.items())
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as opened:
        assert opened.metadata() == {"f": "a"}


def test_a_streamed_export_is_the_same(folder, tmp_path):
    sizes = {}
    for name, options in (("streamed", {}), ("whole", {"text": torch.ones(1, 4, dtype=torch.int64)})):
        path = tmp_path / name
        language_models.export(folder, path=path, weights="int4", tokenizer=False, verify=True, **options)
        sizes[name] = (path / "model.onnx.data").read_bytes()
    assert sizes["streamed"] == sizes["whole"]
