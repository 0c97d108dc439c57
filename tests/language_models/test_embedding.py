"""Embedding models: vectors of texts of different lengths, equal to torch's, on every target."""

from __future__ import annotations

import json

import pytest
import torch

import ir
import language_models
from language_models.embedding import POOLING, pooling_of
from tests.language_models import checkpoints
from tests.language_models.architectures import ARCHITECTURES

transformers = checkpoints.transformers
BERT = {**checkpoints.SIZES, **checkpoints.LAYERS, "intermediate_size": 64, "max_position_embeddings": 64}


def bert(cls="BertModel"):
    torch.manual_seed(0)
    return getattr(transformers, cls)(transformers.BertConfig(**BERT)).eval()


def texts(side="right"):
    """Three texts of different lengths, and their mask."""
    tokens = torch.randint(4, checkpoints.VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(9) < torch.tensor([[9], [3], [6]])).to(torch.int64)
    return tokens, mask if side == "right" else mask.flip(1)


def alone(model, tokens, mask, pooling):
    """The vector of each text by itself, by hand."""
    found = []
    for row, kept in zip(tokens, mask, strict=True):
        hidden = model(input_ids=row[kept > 0][None]).last_hidden_state[0].detach()
        found.append({"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling])
    return torch.stack(found)


@pytest.mark.parametrize("target, pooling", [
    *(("onnx", p) for p in sorted(POOLING)), ("nnef", "mean"), ("eager", "last"),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in
      [("nnef", "cls"), ("nnef", "last"), ("eager", "cls"), ("eager", "mean")]),
])  # fmt: skip
def test_each_text_as_if_alone(tmp_path, target, pooling):
    model = bert()
    made = language_models.export(model, path=tmp_path / "out", target=target, pooling=pooling, verify=True)
    tokens, mask = texts()
    found = made.load()(tokens, mask)
    assert found.shape == (3, 32)
    torch.testing.assert_close(found, alone(model, tokens, mask, pooling), rtol=1e-4, atol=1e-5)
    assert made.manifest.said == {
        "pooling": pooling,
        "normalised": False,
        "width": 32,
        "vocabulary": 96,
        "positions": 64,
    }


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra"])
def test_padding_in_front_of_absolute_positions(tmp_path, family, target):
    """Positions count from the text, not from its padding; those of RoBERTa begin behind the id of padding."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**BERT, "pad_token_id": int(family == "Roberta")})
    model = transformers.AutoModel.from_config(config).eval()
    program = language_models.export(model, path=tmp_path / "out", target=target, pooling="mean").load()
    (tokens, left), (_, right) = texts("left"), texts("right")
    padded = [torch.where(mask > 0, tokens, config.pad_token_id) for mask in (left, right)]
    longest = 62 if family == "Roberta" else 64
    for given in (torch.full((1, longest + 1), 7), torch.full((1, 100), 7)):
        with pytest.raises(ir.RefusedError, match=f"input_ids has rows of .* the model has positions for {longest}"):
            program(given)
    assert program(torch.full((1, longest), 7)).isfinite().all()
    for given, mask in zip(padded, (left, right), strict=True):
        torch.testing.assert_close(program(given, mask), alone(model, given, mask, "mean"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["onnx", "eager"])
def test_texts_beyond_a_table_that_no_row_is_looked_up_in(tmp_path, target, capfd):
    """MPT makes its ALiBi for the longest text, and cuts it off for shorter ones."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 40}
    model = transformers.MptModel(transformers.MptConfig(**sizes)).eval()
    program = language_models.export(model, path=tmp_path / "out", target=target, pooling="mean", verify=True).load()
    assert program(torch.full((1, 40), 5)).isfinite().all() and "broadcast" not in capfd.readouterr().err
    with pytest.raises(ir.RefusedError, match=r"input_ids has rows of 41 tokens, .* the model has positions for 40"):
        program(torch.full((1, 41), 5))


@pytest.mark.slow
def test_a_table_whose_rows_are_chosen_by_the_length(tmp_path):
    """DeBERTa reads out of a tensor how many rows there are, which its .pt2 file keeps."""
    torch.manual_seed(0)
    config = transformers.DebertaConfig(**BERT, relative_attention=True, pos_att_type=["c2p", "p2c"])
    model = transformers.DebertaModel(config).eval()
    made = language_models.export(model, path=tmp_path / "out", target="eager", pooling="mean", verify=True)
    tokens, mask = texts()
    torch.testing.assert_close(made.load()(tokens, mask), alone(model, tokens, mask, "mean"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_decoder_that_embeds(tmp_path, side):
    """As Qwen3-Embedding: the last token, of unit length, with padding on either side."""
    torch.manual_seed(0)
    model = transformers.Qwen3Model(transformers.Qwen3Config(**checkpoints.LLAMA, head_dim=8)).eval()
    made = language_models.export(model, path=tmp_path / "out", pooling="last", normalise=True, verify=True)
    tokens, mask = texts(side)
    wanted = torch.nn.functional.normalize(alone(model, tokens, mask, "last"), dim=-1)
    torch.testing.assert_close(made.load()(tokens, mask), wanted, rtol=1e-4, atol=1e-5)


def test_a_folder_says_how(tmp_path):
    """modules.json of sentence-transformers; without it the mean. A model with a head gives its body."""
    source = tmp_path / "in"
    bert("BertForMaskedLM").save_pretrained(source)
    checkpoints.tokenizer(source)
    assert language_models.export(source, path=tmp_path / "a", task="feature-extraction").manifest.said == {
        "pooling": "mean", "normalised": False, "width": 32, "vocabulary": 96, "positions": 64}  # fmt: skip
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in kinds]
    (source / "modules.json").write_text(json.dumps(modules))
    made = language_models.export(source, path=tmp_path / "b", task="feature-extraction", verify=True)
    assert made.manifest.said == {"pooling": "cls", "normalised": True, "width": 32, "vocabulary": 96, "positions": 64}
    assert (made.path / "tokenizer.json").exists() and "feature-extraction" in made.summary().values()
    (source / "modules.json").write_text(json.dumps([*modules, {"type": "models.Dense", "path": "3_Dense"}]))
    with pytest.raises(ir.CaptureError, match="asks for Dense, which is not written: say pooling="):
        pooling_of(source)


NONE = dict.fromkeys(("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens"), False)


@pytest.mark.parametrize(
    "said, pooling",
    [
        ({"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({**NONE, "pooling_mode": "cls"}, "cls"),  # the old settings beside the new one say nothing
        ({}, "mean"),
        ({"pooling_mode": ["cls", "mean"]}, "cls, mean"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({"pooling_mode": ["mean", "max"]}, "max"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt=false"),
        ({**NONE, "pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        (NONE, "a Pooling without a mode"),
    ],
)
def test_settings_of_a_pooling(tmp_path, said, pooling):
    """Of sentence-transformers from 5.4 on, and from before."""
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(said))
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "models.Pooling", "path": "1_Pooling"}]))
    if pooling in POOLING:
        assert pooling_of(tmp_path) == (pooling, False)
        return
    with pytest.raises(ir.CaptureError, match=f"asks for {pooling}, which is not written: say pooling="):
        pooling_of(tmp_path)


def test_the_encoder_of_two_halves(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    model = transformers.T5Model(transformers.T5Config(**sizes)).eval()
    made = language_models.export(model, path=tmp_path / "out", pooling="mean", verify=True)
    tokens, mask = texts()
    wanted = alone(model.get_encoder(), tokens, mask, "mean")
    torch.testing.assert_close(made.load()(tokens, mask), wanted, rtol=1e-4, atol=1e-5)


T5 = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}


@pytest.mark.parametrize("weights", ["f32", "int8"])
def test_an_encoder_alone(tmp_path, weights):
    """As sentence-t5: the checkpoint names T5EncoderModel, and has no weights of a decoder."""
    torch.manual_seed(0)
    model = transformers.T5EncoderModel(transformers.T5Config(**T5)).eval()
    model.save_pretrained(tmp_path / "in")
    options = {"task": "feature-extraction", "pooling": "mean", "tokenizer": False, "verify": True}
    made = language_models.export(tmp_path / "in", path=tmp_path / "out", weights=weights, **options)
    if weights == "f32":
        tokens, mask = texts()
        torch.testing.assert_close(made.load()(tokens, mask), alone(model, tokens, mask, "mean"), rtol=1e-4, atol=1e-5)


def test_an_encoder_alone_that_does_not_say_so(tmp_path):
    transformers.T5EncoderModel(transformers.T5Config(**T5)).save_pretrained(tmp_path / "in")
    config = tmp_path / "in" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": ["T5Model"]}))
    with pytest.raises(ir.CaptureError, match=r"has no weights for decoder\..*: its results would be random"):
        language_models.export(tmp_path / "in", path=tmp_path / "out", pooling="mean", tokenizer=False)


def test_weights_that_are_missing(tmp_path):
    """A pooler that no vector comes from may be missing; a layer may not."""
    source = tmp_path / "in"
    bert("BertForMaskedLM").save_pretrained(source)
    state = ir.importer.checkpoint.stored_tensors(source)
    import safetensors.torch

    kept = {n: t.clone() for n, t in state.items() if "layer.1.attention.self.query" not in n}
    safetensors.torch.save_file(kept, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ir.CaptureError, match="has no weights for "):
        language_models.export(source, path=tmp_path / "a", pooling="mean", tokenizer=False)


@pytest.mark.parametrize("target, weights", [("onnx", "int8"), ("onnx", "int4")])
def test_few_bits(tmp_path, target, weights):
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**{**BERT, "hidden_size": 64, "intermediate_size": 256}))
    made = language_models.export(
        model.eval(), path=tmp_path / "out", target=target, pooling="mean", weights=weights, verify=True
    )
    whole = language_models.export(model, path=tmp_path / "whole", target=target, pooling="mean")
    sizes = [sum(f.stat().st_size for f in m.path.glob("model*")) for m in (made, whole)]
    assert made.manifest.weights == weights and sizes[0] < 0.6 * sizes[1]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_experts_of_an_embedding_stay_whole(tmp_path, target):
    """Their codes have an op in a decoder's file only; linear layers beside them are rounded."""
    model = checkpoints.model("Mixtral", **ARCHITECTURES["Mixtral"]).model
    with pytest.warns(UserWarning, match="experts, .* stay in float32"):
        made = language_models.export(
            model, path=tmp_path / "out", target=target, pooling="mean", weights="int4", verify=True
        )
    whole = language_models.export(model, path=tmp_path / "whole", target=target, pooling="mean")
    sizes = [sum(f.stat().st_size for f in m.path.glob("model*")) for m in (made, whole)]
    assert made.manifest.weights == "int4" and sizes[0] < sizes[1]


def test_a_model_that_a_short_text_changes(tmp_path):
    """BigBird attends to all of a short text, for good: the model stays as it was."""
    torch.manual_seed(0)
    model = transformers.BigBirdModel(transformers.BigBirdConfig(**{**BERT, "block_size": 4, "num_random_blocks": 1}))
    with pytest.warns(UserWarning, match="the program takes texts of at most 28 tokens"):
        program = language_models.export(model.eval(), path=tmp_path / "out", pooling="mean", verify=True).load()
    assert model.attention_type == model.encoder.attention_type == "block_sparse"
    with pytest.raises(ir.RefusedError, match="the program needs sequence_length <= 28"):
        program(torch.randint(4, 96, (1, 60)))


def test_what_is_refused(tmp_path):
    model = bert()
    with pytest.raises(ir.RefusedError, match="text= is for decoders of text"):
        language_models.export(model, path=tmp_path / "out", text=torch.ones(1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="task='poetry' is none of"):
        language_models.export(model, path=tmp_path / "out", task="poetry")
    with pytest.raises(ValueError, match="pooling='median' is none of cls, last, mean"):
        language_models.export(model, path=tmp_path / "out", pooling="median")
    assert not list(tmp_path.iterdir())


def test_what_is_done_to_texts_before_they_are_tokens_is_told(tmp_path):
    bert().save_pretrained(tmp_path / "in")
    checkpoints.tokenizer(tmp_path / "in")
    said = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "in" / "config_sentence_transformers.json").write_text(json.dumps(said))
    (tmp_path / "in" / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.warns(UserWarning, match="puts 'query: ' in front and makes lower case of the texts"):
        language_models.export(tmp_path / "in", path=tmp_path / "out", target="eager")


def test_a_model_that_gives_fewer_vectors_than_tokens_is_refused(tmp_path):
    sizes = {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, "block_sizes": [1, 1], "vocab_size": 96}
    model = transformers.FunnelBaseModel(transformers.FunnelConfig(**sizes)).eval()
    with pytest.raises(ir.CaptureError, match="FunnelBaseModel gives 3 vectors for 5 tokens"):
        language_models.export(model, path=tmp_path / "out", target="eager", pooling="mean")


def test_a_model_that_wants_more_than_tokens_is_refused_with_its_line(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.CLIPConfig(text_config={**sizes, "vocab_size": 96}, vision_config={**sizes, "image_size": 16})
    told = r"CLIPModel gives no vectors for tokens and a mask alone: .*\n +at .*modeling_clip.py:\d+ .*pixel_values"
    with pytest.raises(ir.CaptureError, match=told):
        language_models.export(transformers.CLIPModel(config).eval(), path=tmp_path / "out", pooling="mean")
