"""Decoders in onnxruntime-genai and in onnxruntime alone, token for token beside transformers."""

from __future__ import annotations

import collections
import json
import warnings

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator

import language_models
from ir.errors import CaptureError
from language_models import group_query_attention as gqa
from language_models.attention_body import DOMAIN, INPUTS, NAME, Form, function
from language_models.comparing import reference
from language_models.decoding import Generator
from tests.language_models import checkpoints
from tests.language_models.architectures import ARCHITECTURES

genai = pytest.importorskip("onnxruntime_genai")
STEPS = 32


FORMS_OF_ATTENTION = [
    Form(packed=packed, rotary=rotary, rotary_everywhere=everywhere, interleaved=pairs, softcap=cap, sinks=sinks)
    for packed in (False, True)
    for rotary, everywhere, pairs in [
        (False, False, False),
        (True, True, False),
        (True, False, False),
        (True, True, True),
    ]
    for cap, sinks in [(False, False), (True, False), (True, True)]
]
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


@pytest.mark.slow
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


WIDE = {"hidden_size": 64, "head_dim": 16}  # of heads as wide as the op turns them itself


@pytest.mark.parametrize(
    ("family", "weights", "packed"),
    [("Llama", "f32", True), ("Phi3", "f32", True), ("SmolLM3", "f32", True), ("Cohere", "f32", True),
     ("Qwen3", "f32", False), ("Llama", "int4", True)],
)  # fmt: skip
def test_a_layer_is_few_nodes(tmp_path, family, weights, packed):
    """Attention turns its operands itself, and reads one product where nothing is between."""
    model = checkpoints.model(family, **{**ARCHITECTURES[family], **WIDE})
    made = language_models.export(model, path=tmp_path / "out", contrib=True, weights=weights, verify=True)
    graph, count = op_types(made)
    nodes = [n for n in graph.node if n.op_type == "GroupQueryAttention"]
    assert len(nodes) == 2 and not count["RotaryEmbedding"] and not count["Cos"]
    assert [n.input[1] == "" for n in nodes] == [packed] * 2
    tied = model.config.tie_word_embeddings
    assert not packed or (count["Transpose"] == tied and not count["Reshape"] and count["Cast"] == 2)
    assert not made.manifest.positions and "position_ids" not in {i.name for i in graph.input}
    tokens, mask = checkpoints.prompts(3)
    if weights == "f32":
        assert torch.equal(made.load().generate(tokens, mask, STEPS), reference(model, tokens, STEPS, mask))


@pytest.mark.parametrize(
    ("family", "sizes"),
    [("Llama", WIDE), ("Gemma2", WIDE), ("SmolLM3", WIDE), ("Cohere", WIDE), ("GptOss", {}), ("GPTNeoX", {}),
     ("Mixtral", WIDE)],
    ids=lambda p: p if isinstance(p, str) else "",
)  # fmt: skip
def test_a_runtime_without_the_op_runs_its_function(tmp_path, family, sizes):
    """onnx's reference evaluator, from a prompt on: windows, caps, sinks, experts, layers without positions, pairs."""
    model = checkpoints.model(family, **{**ARCHITECTURES[family], **sizes})
    made = language_models.export(model, path=tmp_path / "out", contrib=True)
    proto = onnx.load(made.path / "model.onnx")
    onnx.checker.check_model(proto)
    evaluator, names = ReferenceEvaluator(proto), [o.name for o in proto.graph.output]

    def run(feeds):
        given = {name: feeds[name] for name in evaluator.input_names}
        return dict(zip(names, evaluator.run(names, given), strict=True))

    for batch in (1, 3):
        tokens, mask = checkpoints.prompts(batch)
        found = Generator(made.manifest, run).generate(tokens, mask, 8)
        assert torch.equal(found, reference(model, tokens, 8, mask))


@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize("form", FORMS_OF_ATTENTION, ids=str)
def test_the_function_is_the_kernel(form, window):
    """A prompt, a token and a piece behind it, in buffers of their size and longer, of texts of any length."""
    for lengths, new, room in [
        ((5,), 5, 0),
        ((5, 2, 3), 5, 0),
        ((5, 2, 3), 5, 12),
        ((7, 4), 1, 6),
        ((7, 4), 1, 15),
        ((7,), 3, 4),
    ]:
        model, feeds = attention_node(form, window, lengths, new, room)
        kernel = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
        body = ReferenceEvaluator(model).run(None, feeds)
        for i, length in enumerate(lengths):
            rows = min(length, new)
            np.testing.assert_allclose(kernel[0][i, :rows], body[0][i, :rows], atol=1e-5)
            for a, b in zip(kernel[1:], body[1:], strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a[i, :, :length], b[i, :, :length], atol=1e-6)


def attention_node(form, window, lengths, new, room):
    """A model of one node, and what it is given: `room` is how long the buffer of the past is."""
    draw, (heads, groups, width, half) = np.random.default_rng(0), (4, 2, 32, 8)
    batch, total = len(lengths), max(lengths)

    def some(*shape):
        return draw.standard_normal(shape, dtype=np.float32)

    rows = [some(batch, new, n * width) for n in (heads, groups, groups)]
    angles = np.arange(total)[:, None] * np.linspace(1, 0.1, half)
    feeds = dict(zip(("query", "key", "value"), rows, strict=True))
    if form.packed:
        feeds = {"query": np.concatenate(rows, 2)}
    feeds |= {n: some(batch, groups, room, width) for n in ("past_key", "past_value")}
    feeds["seqlens_k"] = np.array(lengths, np.int32) - 1
    feeds["total_sequence_length"] = np.array(total, np.int32)
    if form.rotary:
        feeds |= {"cos_cache": np.cos(angles).astype("f4"), "sin_cache": np.sin(angles).astype("f4")}
    if form.sinks:
        feeds["head_sink"] = some(heads)
    node = onnx.helper.make_node(
        NAME, [n if n in feeds else "" for n in INPUTS[: form.inputs]], ["output", "present_key", "present_value"],
        domain=DOMAIN, num_heads=heads, kv_num_heads=groups, scale=0.3, softcap=5.0 * form.softcap,
        local_window_size=window, do_rotary=int(form.rotary), rotary_interleaved=int(form.interleaved),
    )  # fmt: skip
    kinds = {n: onnx.helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
    given = [onnx.helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in feeds.items()]
    results = [
        onnx.helper.make_tensor_value_info(n, 1, [f"{n}{i}" for i in range(3 if n == "output" else 4)])
        for n in node.output
    ]
    graph = onnx.helper.make_graph([node], "attention", given, results)
    versions = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid(DOMAIN, 1)]
    made = onnx.helper.make_model(graph, opset_imports=versions, ir_version=11, functions=[function(form, 23)])
    onnx.checker.check_model(made)
    return made, feeds


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_heads_stay_where_they_are(tmp_path, family):
    """Rotary embeddings turn rows as the layers make them: no head is moved to the front and back."""
    model = checkpoints.model(family, **ARCHITECTURES[family])
    count = op_types(language_models.export(model, path=tmp_path / "out", contrib=True))[1]
    assert count["RotaryEmbedding"] == 4 and not count["Transpose"]


@pytest.mark.parametrize("family", ["Mistral", "GptOss", "GPT2LMHeadModel", "Gemma2"])
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
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
    gqa.check(model, 128)
    real = gqa._attention
    monkeypatch.setattr(gqa, "_attention", lambda *a, **k: real(*a, **{**k, untold: None}))
    with pytest.raises(CaptureError, match=said):
        gqa.check(model, 128)


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


@pytest.mark.parametrize("positions", [8, 17])
def test_grouped_attention_of_a_short_table_of_positions(tmp_path, positions):
    """The texts that its arithmetic is compared on are no longer than the table."""
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": positions}
    model = checkpoints.model("GPT2LMHeadModel", **checkpoints.SIZES, **sizes)
    made = language_models.export(model, path=tmp_path / "out", contrib=True, verify=True)
    assert op_types(made)[1]["GroupQueryAttention"] == 2


@pytest.mark.parametrize("contrib", [False, True])
def test_tokens_behind_generated_ones(tmp_path, contrib):
    """onnxruntime-genai does not read the last of those, so that two are taken back and appended again."""
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    made = language_models.export(model, path=tmp_path / "out", contrib=contrib)
    held = genai.Model(str(made.path))
    params = genai.GeneratorParams(held)
    params.set_search_options(max_length=40, do_sample=False)
    generator = genai.Generator(held, params)
    generator.append_tokens([5, 6, 7, 8])
    for _ in range(2):
        generator.generate_next_token()
    text = [int(t) for t in generator.get_sequence(0)]
    generator.rewind_to(len(text) - 2)
    generator.append_tokens([*text[-2:], 11, 12, 13])
    wanted = model.generate(torch.tensor([[*text, 11, 12, 13]]), max_new_tokens=4, do_sample=False)[0].tolist()
    for _ in range(4):
        generator.generate_next_token()
    assert [int(t) for t in generator.get_sequence(0)] == wanted


def test_a_checkpoint_without_an_end(tmp_path):
    """onnxruntime-genai knows of no text without an end, which is told; our own loop does."""
    model = checkpoints.model("Llama", **{**checkpoints.LLAMA, "eos_token_id": None})
    with pytest.warns(
        UserWarning, match="settings of LlamaForCausalLM say of no token that .* at the padding, 0, where"
    ):
        made = language_models.export(model, path=tmp_path / "out", verify=True)
    assert json.loads((made.path / "genai_config.json").read_text())["model"]["eos_token_id"] == 0


@pytest.mark.parametrize("options", [{}, {"contrib": True}])
def test_nothing_is_told_of_a_plain_model(tmp_path, options):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        language_models.export(model, path=tmp_path / "out", **options)


def test_what_is_told_of_a_model_that_remembers_other_states(tmp_path):
    sizes = {**checkpoints.LLAMA, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1}
    model = checkpoints.model("Lfm2Moe", **sizes, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    with pytest.warns(UserWarning) as told:
        language_models.export(model, path=tmp_path / "out", contrib=True)
    assert ["it remembers other things than keys and values" in str(w.message) for w in told] == [True]
