"""Decoders in onnxruntime-genai and in onnxruntime alone, token for token beside transformers."""

from __future__ import annotations

import collections
import json

import onnx
import pytest
import torch

import language_models
from ir.errors import CaptureError
from language_models import group_query_attention as gqa
from language_models.exporting import reference
from tests.language_models import checkpoints
from tests.language_models.architectures import ARCHITECTURES

genai = pytest.importorskip("onnxruntime_genai")
STEPS = 32


FORMS = [(family, contrib) for family in checkpoints.FAMILIES for contrib in (False, True)]


@pytest.fixture(scope="module", params=FORMS, ids=lambda p: f"{p[0]}-{'contrib' if p[1] else 'plain'}")
def exported(request, tmp_path_factory):
    family, contrib = request.param
    folder = tmp_path_factory.mktemp(family)
    model = checkpoints.checkpoint(folder / "in", family, **checkpoints.FAMILIES[family])
    return model, language_models.export(folder / "in", path=folder / "out", contrib=contrib)


def in_genai(path, rows):
    """Greedy text of rows that are padded on the right, as onnxruntime-genai's own tokenizer pads them."""
    model = genai.Model(str(path))
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=rows.shape[1] + STEPS, batch_size=len(rows), do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(rows.numpy().astype("int32"))
    while not generator.is_done():
        generator.generate_next_token()
    return [list(generator.get_sequence(i))[rows.shape[1] :] for i in range(len(rows))]


@pytest.mark.parametrize("batch", [1, 3])
def test_genai_repeats_the_tokens(exported, batch):
    model, made = exported
    tokens, mask = checkpoints.prompts(batch)
    wanted = reference(model, tokens, STEPS, mask)[:, tokens.shape[1] :].tolist()
    rows = torch.stack([torch.cat([t[m > 0], t[m < 1]]) for t, m in zip(tokens, mask, strict=True)])
    assert in_genai(made.path, rows) == wanted


@pytest.mark.parametrize("batch", [1, 3])
def test_our_own_loop_repeats_the_tokens(exported, batch):
    model, made = exported
    tokens, mask = checkpoints.prompts(batch)
    found = made.load().generate(tokens, mask, STEPS)
    assert torch.equal(found, reference(model, tokens, STEPS, mask))


def test_text_goes_in_and_out(exported):
    """The tokenizer's files go along, with a length that onnxruntime-genai can read; the lines shown are run."""
    _, made = exported
    model = genai.Model(str(made.path))
    tokenizer = genai.Tokenizer(model)
    assert tokenizer.decode(tokenizer.encode("the cat sat")) == "the cat sat"
    assert json.loads((made.path / "tokenizer_config.json").read_text())["model_max_length"] == 128
    exec(made.usage, {})


def test_a_prompt_in_pieces(exported):
    """onnxruntime-genai feeds long prompts piece by piece where it is told to."""
    model, made = exported
    tokens, _ = checkpoints.prompts(1, 17)
    opened = genai.Model(str(made.path))
    params = genai.GeneratorParams(opened)
    params.set_search_options(max_length=17 + STEPS, do_sample=False)
    generator = genai.Generator(opened, params)
    for piece in tokens.split(6, 1):
        generator.append_tokens(piece.numpy().astype("int32"))
    while not generator.is_done():
        generator.generate_next_token()
    assert list(generator.get_sequence(0)) == reference(model, tokens, STEPS)[0].tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_all_positions(tmp_path, side):
    import onnxruntime

    model = checkpoints.checkpoint(tmp_path / "in", "Llama", **checkpoints.LLAMA)
    made = language_models.export(tmp_path / "in", path=tmp_path / "out", logits="all")
    tokens, mask = checkpoints.prompts(3)
    with torch.no_grad():
        places = (mask.cumsum(1) - 1).clip(0)
        wanted = model(tokens, attention_mask=mask, position_ids=places).logits
    rows = tokens, mask, places, wanted
    if side == "right":
        rows = tuple(torch.stack([torch.cat([r[m > 0], r[m < 1]]) for r, m in zip(t, mask, strict=True)]) for t in rows)
    tokens, mask, places, wanted = rows
    session = onnxruntime.InferenceSession(str(made.path / "model.onnx"))
    feeds = {"input_ids": tokens.numpy(), "attention_mask": mask.numpy(), "position_ids": places.numpy()}
    (logits,) = session.run(["logits"], feeds | made.load().start(3))
    torch.testing.assert_close(torch.from_numpy(logits)[mask > 0], wanted[mask > 0], rtol=1e-3, atol=1e-4)


def test_keys_that_are_wider_than_values(tmp_path):
    """onnxruntime-genai makes both caches of one width: such a folder is not said to be one of its own."""
    model = checkpoints.model("DeepseekV3", **ARCHITECTURES["DeepseekV3"])
    made = language_models.export(model, path=tmp_path / "out")
    assert not (made.path / "genai_config.json").exists() and "language_models.load(" in made.usage
    tokens, mask = checkpoints.prompts(3)
    assert torch.equal(made.load().generate(tokens, mask, 8), reference(model, tokens, 8, mask))


def op_types(made):
    graph = onnx.load(made.path / "model.onnx", load_external_data=False).graph
    return graph, collections.Counter(node.op_type for node in graph.node)


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma2", "GptOss"])
def test_no_step_copies_the_past(tmp_path, family):
    """What is remembered goes into attention and nowhere else, and comes out of it: one buffer for past and present."""
    model = checkpoints.model(family, **ARCHITECTURES[family])
    made = language_models.export(model, path=tmp_path / "out", contrib=True)
    graph, count = op_types(made)
    for state in made.manifest.states:
        (reader,) = (node for node in graph.node if state.given in node.input)
        (maker,) = (node for node in graph.node if state.result in node.output)
        assert reader is maker and reader.op_type == "GroupQueryAttention"
    assert count["GroupQueryAttention"] == model.config.num_hidden_layers
    said = json.loads((made.path / "genai_config.json").read_text())
    assert said["search"]["past_present_share_buffer"] is True


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_heads_stay_where_they_are(tmp_path, family):
    """Rotary embeddings turn rows as the layers make them: no head is moved to the front and back."""
    model = checkpoints.model(family, **ARCHITECTURES[family])
    count = op_types(language_models.export(model, path=tmp_path / "out", contrib=True))[1]
    assert count["RotaryEmbedding"] == 4 and not count["Transpose"]


@pytest.mark.parametrize("family", ["Mistral", "GptOss", "GPT2LMHeadModel", "Gemma2"])
@pytest.mark.parametrize("batch", [1, 3])
def test_grouped_attention_with_windows_sinks_and_soft_caps(tmp_path, family, batch):
    model = checkpoints.model(family, **ARCHITECTURES[family])
    made = language_models.export(model, path=tmp_path / "out", contrib=True)
    tokens, mask = checkpoints.prompts(batch)
    assert op_types(made)[1]["GroupQueryAttention"] == 2
    assert torch.equal(made.load().generate(tokens, mask, STEPS), reference(model, tokens, STEPS, mask))


@pytest.mark.parametrize("family", ["Bloom", "DeepseekV3"])
def test_another_attention_stays_plain(tmp_path, family):
    model = checkpoints.model(family, **ARCHITECTURES[family])
    with pytest.warns(UserWarning, match="is written without GroupQueryAttention: "):
        made = language_models.export(model, path=tmp_path / "out", contrib=True)
    assert not op_types(made)[1]["GroupQueryAttention"] and made.manifest.padding_side == "left"
    tokens, mask = checkpoints.prompts(3)
    assert torch.equal(made.load().generate(tokens, mask, 8), reference(model, tokens, 8, mask))


@pytest.mark.parametrize(
    ("family", "untold", "said"),
    [("Mistral", "sliding_window", "a layer's window is in its mask alone"), ("GptOss", "s_aux", "is another than")],
)
def test_attention_that_differs_is_seen(monkeypatch, family, untold, said):
    """What the interface is not told of; a window by the configuration, as texts of the check may be shorter."""
    model = checkpoints.model(family, **ARCHITECTURES[family])
    gqa.check(model)
    real = gqa._attention
    monkeypatch.setattr(gqa, "_attention", lambda *a, **k: real(*a, **{**k, untold: None}))
    with pytest.raises(CaptureError, match=said):
        gqa.check(model)


@pytest.mark.parametrize(("given", "least"), [({"contrib": True}, 23), ({"weights": "int4"}, 21)])
def test_an_opset_that_is_too_old(tmp_path, given, least):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    with pytest.raises(ValueError, match=f"is written with opset {least} or newer, not 18: leave opset= out"):
        language_models.export(model, path=tmp_path / "out", opset=18, **given)
    assert not (tmp_path / "out").exists()


def test_an_opset_that_is_newer_is_taken(tmp_path):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    made = language_models.export(model, path=tmp_path / "out", opset=22, weights="int4")
    found = {o.domain: o.version for o in onnx.load(made.path / "model.onnx", load_external_data=False).opset_import}
    assert found[""] == 22


def test_few_bits_with_grouped_attention(tmp_path):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    made = language_models.export(model, path=tmp_path / "out", contrib=True, weights="int4", verify=True)
    count = op_types(made)[1]
    assert count["GroupQueryAttention"] == 2 and count["DequantizeLinear"]
