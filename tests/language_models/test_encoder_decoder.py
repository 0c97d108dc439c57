"""Models of an encoder and a decoder: T5, Bart and Whisper, token for token beside transformers, on every target."""

from __future__ import annotations

import pytest
import torch

import ir
import language_models
from language_models.encoder_decoder import reference
from tests.language_models import checkpoints

transformers = checkpoints.transformers
HALVES = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
          "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_model": 32, "vocab_size": 96}  # fmt: skip
T5 = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
      "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}  # fmt: skip
WHISPER = {**HALVES, **checkpoints.SIZES, "decoder_start_token_id": 3, "max_source_positions": 30,
           "max_target_positions": 64, "num_mel_bins": 8}  # fmt: skip
STEPS = 20


def made(name, sizes, **settings):
    torch.manual_seed(0)
    cls = getattr(transformers, "MarianMTModel" if name == "Marian" else f"{name}ForConditionalGeneration")
    model = cls(cls.config_class(**sizes)).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() > 1 and "shared" not in key and "embed_tokens" not in key:
                p.mul_(4.0)
    for key, value in settings.items():
        setattr(model.generation_config, key, value)
    return model


def texts():
    """Three texts of different lengths, padded on the right, and their mask."""
    tokens = torch.randint(4, 96, (3, 9), generator=torch.Generator().manual_seed(1))
    return tokens, (torch.arange(9) < torch.tensor([[9], [4], [6]])).to(torch.int64)


BART = {**HALVES, "max_position_embeddings": 64}
SIZES = {"T5": T5, "Bart": BART}


OTHERS = [pytest.param(way, marks=pytest.mark.slow) for way in ("T5-onnx", "T5-nnef", "Bart-onnx")]  # as test_sound


@pytest.fixture(scope="module", params=["T5-eager", *OTHERS])
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    name, target = request.param.split("-")
    model = made(name, SIZES[name])
    model.save_pretrained(folder / "in")
    checkpoints.tokenizer(folder / "in")
    return model, language_models.export(folder / "in", path=folder / "out", target=target, verify=True)


def test_the_tokens(exported):
    model, out = exported
    tokens, mask = texts()
    program = out.load()
    assert torch.equal(program.generate(tokens, mask, STEPS), model.generate(
        tokens, attention_mask=mask, max_new_tokens=STEPS, do_sample=False, num_beams=1))  # fmt: skip
    start = model.generation_config.decoder_start_token_id
    first = torch.tensor([[start, 6, 7]] * 3)  # more tokens than one to begin with
    wanted = model.generate(tokens, attention_mask=mask, decoder_input_ids=first, max_new_tokens=5, do_sample=False)
    assert torch.equal(program.generate(tokens, mask, 5, decoder_input_ids=first), wanted)
    for said, given in {
        "integers of shape": (tokens[0],),
        "inputs has the token 96": (tokens + 96 - tokens.max(),),
        "attention_mask: 1 for each token": (tokens, mask[:, :4]),
        "max_new_tokens=-2": (tokens, mask, -2),
        "decoder_input_ids has 1 rows": (tokens, mask, 5, first[:1]),
    }.items():
        with pytest.raises(ir.RefusedError, match=said):
            program.generate(*given)
    assert "generate(text.input_ids" in out.usage and (out.path / "tokenizer.json").exists()


@pytest.mark.parametrize("target", ["onnx", *(pytest.param(t, marks=pytest.mark.slow) for t in ("nnef", "eager"))])
def test_sound(tmp_path, target):
    model = made("Whisper", WHISPER, begin_suppress_tokens=[5, 6], suppress_tokens=[7])
    example = torch.randn(2, 8, 60, generator=torch.Generator().manual_seed(2))
    out = language_models.export(model, path=tmp_path / "out", target=target, example=example, verify=True)
    found = out.load().generate(example, max_new_tokens=STEPS)
    assert torch.equal(found, reference(model, example, STEPS))
    program = out.load()
    assert torch.equal(
        program.generate(example, torch.tensor([[1] * 60, [1] * 20 + [0] * 40]), STEPS), found
    )  # unheeded
    with pytest.raises(ir.RefusedError, match=r"of shape \[2, 8\] or \[2, 60\] with these inputs"):
        program.generate(example, torch.ones(5, 7).long())
    with pytest.raises(ir.RefusedError, match=r"features of sound of shape \['batch', 8, 60\] are wanted"):
        program.generate(example[..., 1:])
    own = model.generate(example, max_new_tokens=STEPS, do_sample=False, num_beams=1)  # without the first token
    assert torch.equal(found[:, 1 : own.shape[1] + 1], own)


@pytest.mark.slow
def test_sound_by_the_folder_s_own_extractor(tmp_path):
    model = made("Whisper", {**WHISPER, "max_source_positions": 50})
    model.save_pretrained(tmp_path / "in")
    transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(tmp_path / "in")
    out = language_models.export(tmp_path / "in", path=tmp_path / "out", tokenizer=False, verify=True)
    assert out.manifest.said["source"] == [8, 100] and (out.path / "preprocessor_config.json").exists()
    (tmp_path / "in" / "preprocessor_config.json").unlink()
    with pytest.raises(ir.CaptureError, match=r"the encoder takes input_features, .* give example="):
        language_models.export(tmp_path / "in", path=tmp_path / "other", tokenizer=False)


@pytest.mark.parametrize("weights", ["f16", pytest.param("bf16", marks=pytest.mark.slow)])
def test_features_of_the_extractor_in_half_precision(tmp_path, weights):
    """The extractor gives float32, whatever the file computes in."""
    model, example = made("Whisper", WHISPER), torch.randn(1, 8, 60, generator=torch.Generator().manual_seed(2))
    options = {"target": "eager", "weights": weights, "example": example}
    program = language_models.export(model, path=tmp_path / "out", **options).load()
    half = {"f16": torch.float16, "bf16": torch.bfloat16}[weights]
    assert torch.equal(
        program.generate(example, max_new_tokens=4), program.generate(example.to(half), max_new_tokens=4)
    )


def test_names_and_what_is_written_once(exported):
    """Optimum's names; keys of the encoder's text come from its program, and the decoder gives none back."""
    _, out = exported
    if out.manifest.target != "onnx":
        assert sorted(out.manifest.parts) == ["decoder_with_past_model", "encoder_model"]
        return
    onnx = pytest.importorskip("onnx")
    ports = {}
    for name in ("encoder_model", "decoder_with_past_model"):
        graph = onnx.load(out.path / f"{name}.onnx", load_external_data=False).graph
        ports[name] = [i.name for i in graph.input], [o.name for o in graph.output]
    both = [(half, layer) for half in ("decoder", "encoder") for layer in (0, 1)]
    parts = [f"{layer}.{half}.{part}" for half, layer in both for part in ("key", "value")]
    past, present = [f"past_key_values.{p}" for p in parts], [f"present.{p}" for p in parts]
    assert ports["encoder_model"] == (["input_ids", "attention_mask"], ["last_hidden_state", *present[4:]])
    assert ports["decoder_with_past_model"] == (
        ["input_ids", "encoder_attention_mask", *past], ["logits", *present[:4]])  # fmt: skip


@pytest.mark.slow
def test_settings_that_change_the_tokens(tmp_path):
    """Those of the checkpoint: forced first and last tokens, no pair of tokens twice, a penalty."""
    said = {"forced_bos_token_id": 9, "forced_eos_token_id": 2, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5}
    model = made("Bart", BART, **said)
    out = language_models.export(model, path=tmp_path / "out")
    tokens, mask = texts()
    found = out.load().generate(tokens, mask, STEPS)
    assert (found[:, 1] == 9).all() and torch.equal(found, reference(model, tokens, STEPS, mask))
    for name in said:
        setattr(model.generation_config, name, None)
    assert not torch.equal(found[:, :10], reference(model, tokens, STEPS, mask)[:, :10])


@pytest.mark.slow
def test_few_bits(tmp_path):
    model = made("T5", T5)
    out = language_models.export(model, path=tmp_path / "out", weights="int4")
    tokens, mask = texts()
    assert out.load().generate(tokens, mask, 4).shape == (3, 5) and out.manifest.weights == "int4"
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(out.path / "decoder_with_past_model.onnx", load_external_data=False).graph
    # 4 of self-attention, 2 of the other (its keys and values are the encoder's), 2 after it, and the logits
    assert [n.op_type for n in graph.node].count("DequantizeLinear") == 2 * (4 + 2 + 2) + 1


MOONSHINE = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 96, "decoder_start_token_id": 1,
             **{f"{half}_{n}": v for half in ("encoder", "decoder")
                for n, v in (("num_hidden_layers", 2), ("num_attention_heads", 4))}}  # fmt: skip


SPEECH2TEXT = {**HALVES, "input_feat_per_channel": 8, "conv_channels": 16, "max_source_positions": 60,
               "max_target_positions": 64, "decoder_start_token_id": 3}  # fmt: skip


def padded(*shape):
    """Two sounds and the mask that tells the end of the second, which is loud, from what is to be heard."""
    mask = torch.ones(2, shape[0]).long()
    mask[1, shape[0] // 2 :] = 0
    return 3 * torch.randn(2, *shape, generator=torch.Generator().manual_seed(2)), mask


MASKED = {"Moonshine": (MOONSHINE, (4000,)), "Speech2Text": (SPEECH2TEXT, (40, 8))}


EVERY = [(name, target) for name in MASKED for target in ("onnx", "eager", "nnef")]
QUICK = [("Moonshine", "onnx"), ("Speech2Text", "eager")]


@pytest.mark.parametrize("name, target", [p if p in QUICK else pytest.param(*p, marks=pytest.mark.slow) for p in EVERY])
def test_a_mask_of_sound(tmp_path, name, target):
    """Both make the mask shorter along with the sound: Moonshine in its encoder, Speech2Text again in its decoder."""
    sizes, shape = MASKED[name]
    model, (sound, mask) = made(name, sizes), padded(*shape)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "encoder_attn" in key:  # so that a decoder of random weights says what it hears
                p.mul_(8.0)
    out = language_models.export(model, path=tmp_path / "out", target=target, example=sound[:1], verify=True)
    program = out.load()
    masked, whole = reference(model, sound, 8, mask), reference(model, sound, 8)
    assert torch.equal(program.generate(sound, mask, 8), masked) and not torch.equal(masked, whole)
    assert torch.equal(program.generate(sound, max_new_tokens=8), whole)
    for wrong in (mask[:1], mask[:, 1:], 2 * mask):
        with pytest.raises(ir.RefusedError, match=f"attention_mask: 1 for sound .* of shape .2, {shape[0]}. with"):
            program.generate(sound, wrong)
    with pytest.raises(ir.RefusedError, match="row 1 of attention_mask has no sound"):
        program.generate(sound, torch.tensor([[1], [0]]).expand(2, shape[0]))


def any_halves():
    """An encoder of sound and a decoder of text, each a model of its own."""
    encoder = transformers.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16),
        conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    decoder = transformers.BartConfig(**BART, is_decoder=True, add_cross_attention=True)
    torch.manual_seed(0)
    config = transformers.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = transformers.SpeechEncoderDecoderModel(config=config).eval()
    with torch.no_grad():
        for key, p in model.decoder.named_parameters():
            if p.dim() > 1 and "embed_tokens" not in key:
                p.mul_(4.0)
    model.generation_config.decoder_start_token_id = 1
    return model


def test_any_two_halves(tmp_path):
    """What the encoder takes is called as it calls it."""
    model, (sound, mask) = any_halves(), padded(2000)
    with pytest.raises(ir.CaptureError, match=r"the encoder takes input_values, .* give example="):
        language_models.export(model, path=tmp_path / "out")
    out = language_models.export(model, path=tmp_path / "out", example=sound[:1], verify=True)
    assert out.manifest.parts["encoder_model"].inputs == ("input_values", "attention_mask")
    assert torch.equal(out.load().generate(sound, mask, 8), reference(model, sound, 8, mask))


@pytest.mark.parametrize("name, audio, text", [
    ("Qwen2Audio", {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 64}, "qwen2"),
    ("Voxtral", {**checkpoints.LAYERS, "intermediate_size": 64}, "llama"),
])  # fmt: skip
def test_sound_among_the_tokens_is_refused(tmp_path, name, audio, text):
    """transformers has them among its models of two halves, and their sound goes another way."""
    cls = getattr(transformers, f"{name}ForConditionalGeneration")
    model = cls(cls.config_class(audio_config={**audio, "num_mel_bins": 8, "max_source_positions": 8},
                                 text_config={"model_type": text, **checkpoints.LLAMA}))  # fmt: skip
    with pytest.raises(
        ir.CaptureError, match=f"{name}For.* puts sound among the tokens .* task='text-generation', for"
    ):
        language_models.export(model, path=tmp_path / "out", example=torch.randn(1, 8, 16))
    out = language_models.export(model, path=tmp_path / "out", target="eager", task="text-generation", verify=True)
    assert out.manifest.kind == "text-generation"


@pytest.mark.slow
def test_experts_that_decide_by_data_are_refused(tmp_path):
    """In a sentence: their decoder asks the encoder for its router's logits before it comes to that."""
    sizes = {**BART, "num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "decoder_start_token_id": 2}
    with pytest.raises(ir.CaptureError, match="NllbMoeForConditionalGeneration cannot be exported as it is"):
        language_models.export(made("NllbMoe", sizes), path=tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnx", pytest.param("eager", marks=pytest.mark.slow)])
def test_a_model_that_a_short_text_changes(tmp_path, target):
    """BigBird-Pegasus attends to all of a short text, for good: the file has that text's attention, and no other's."""
    sizes = {**BART, "attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
    model = made("BigBirdPegasus", sizes)
    with pytest.warns(UserWarning, match="the program takes texts of at most 28 tokens"):
        program = language_models.export(model, path=tmp_path / "out", target=target, verify=True).load()
    attention = model.model.encoder.layers[0].self_attn.self
    assert model.model.encoder.attention_type == "block_sparse" and "BlockSparse" in type(attention).__name__
    drawn = torch.Generator().manual_seed(0)
    with pytest.raises(ir.RefusedError, match="encoder_sequence_length <= 28"):
        program.generate(torch.randint(4, 79, (1, 60), generator=drawn))
    text = torch.randint(4, 79, (1, 12), generator=drawn)
    assert torch.equal(program.generate(text, max_new_tokens=8), reference(model, text, 8))


SEPARATE = {"Marian": {**BART, "vocab_size": 70, "decoder_vocab_size": 96, "share_encoder_decoder_embeddings": False,
                       "tie_word_embeddings": False, "decoder_start_token_id": 2, "pad_token_id": 0},
            "FSMT": {**{n: v for n, v in BART.items() if n != "vocab_size"}, "langs": ["en", "de"],
                     "src_vocab_size": 96, "tgt_vocab_size": 70}}  # fmt: skip


@pytest.mark.parametrize("name", SEPARATE)
def test_a_vocabulary_for_each_half(tmp_path, name):
    """Tokens of the source are those of the encoder, of which `verify` draws."""
    model = made(name, SEPARATE[name])
    program = language_models.export(model, path=tmp_path / "out", target="eager", verify=True).load()
    most = 70 if name == "Marian" else 96
    text = torch.tensor([[5, most - 1, 7]])
    assert torch.equal(program.generate(text, max_new_tokens=6), reference(model, text, 6))
    with pytest.raises(ir.RefusedError, match=rf"inputs has the token {most}, and the vocabulary is 0 to {most - 1}"):
        program.generate(text + 1)
    with pytest.raises(ir.RefusedError, match="decoder_input_ids has the token 96"):
        program.generate(text, decoder_input_ids=torch.tensor([[96]]))


@pytest.mark.slow
def test_texts_beyond_the_positions(tmp_path):
    """They are refused before the first token, and the last that there are places for is generated."""
    model = made("Bart", {**BART, "max_position_embeddings": 20, "eos_token_id": None, "forced_eos_token_id": None})
    program = language_models.export(model, path=tmp_path / "out", target="eager").load()
    tokens = torch.full((1, 20), 7)
    assert program.generate(tokens, max_new_tokens=20).shape == (1, 21)
    with pytest.raises(ir.RefusedError, match="max_new_tokens=21 behind 1 is more than the 20 positions of the dec"):
        program.generate(tokens, max_new_tokens=21)
    with pytest.raises(ir.RefusedError, match=r"inputs has rows of 21 tokens, .* the model has positions for 20"):
        program.generate(torch.full((1, 21), 7))


@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_a_cache_that_is_too_short_for_the_decoder(tmp_path, target):
    """transformers makes it by the layers of the encoder: its own `generate` fails, too."""
    told = "T5ForConditionalGeneration does not run with transformers' EncoderDecoderCache: IndexError: list index"
    with pytest.raises(ir.CaptureError, match=told):
        language_models.export(made("T5", {**T5, "num_decoder_layers": 3}), path=tmp_path / "out", target=target)
