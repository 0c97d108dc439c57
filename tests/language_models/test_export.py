"""What `language_models.export` takes, writes and refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil

import pytest
import torch
import transformers

import ir
import language_models
from language_models.comparing import check, reference
from language_models.folder import MANIFEST
from tests.language_models import checkpoints
from tests.language_models.test_embedding import bert
from tests.language_models.test_encoder_decoder import T5, WHISPER
from tests.language_models.test_encoder_decoder import made as two_halves
from tests.language_models.test_vision_language import llava


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("llama")
    checkpoints.checkpoint(place / "in", "Llama", **checkpoints.LLAMA)
    return place / "in"


def export(source, path, **options):
    return language_models.export(source, path=path, **options)


@pytest.fixture(scope="module")
def exported(folder):
    return export(folder, folder.parent / "out")


def test_a_model_instead_of_a_folder(tmp_path):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    made = export(model, tmp_path / "out", verify=True)
    assert not list(made.path.glob("tokenizer*")) and made.manifest.files


def test_an_older_export_is_replaced_and_nothing_else(folder, tmp_path):
    export(folder, tmp_path / "out", logits="all")
    made = export(folder, tmp_path / "out")
    assert sorted(made.manifest.files) == sorted(p.name for p in made.path.iterdir())
    (made.path / "notes.txt").write_text("mine")
    with pytest.raises(ir.OutputError, match=r"holds notes.txt, which no export wrote"):
        export(folder, made.path)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "a").write_text("b")
    with pytest.raises(ir.OutputError, match="is not an export of ours"):
        export(folder, tmp_path / "strange")
    (tmp_path / "file").write_text("c")
    with pytest.raises(ir.OutputError, match="is a file or a link"):
        export(folder, tmp_path / "file")


@pytest.mark.parametrize("make", [
    lambda out: (out / "notes").mkdir(),
    lambda out: (out / "link").symlink_to("nowhere"),
    lambda out: (out / "link").symlink_to(out.parent),
    lambda out: os.mkfifo(out / "pipe"),
    lambda out: ((out / "model.onnx.data").rename(out.parent / "kept"),
                 (out / "model.onnx.data").symlink_to(out.parent / "kept")),
], ids=["folder", "broken link", "link to a folder", "pipe", "link under our name"])  # fmt: skip
def test_what_is_no_file_of_ours_is_not_replaced(folder, exported, tmp_path, make):
    out = shutil.copytree(exported.path, tmp_path / "out")
    make(out)
    before = {p.name: p.lstat() for p in out.iterdir()}
    with pytest.raises(ir.OutputError, match=r"holds .*, which no export wrote, and stays as it is"):
        export(folder, out)
    assert {p.name: p.lstat() for p in out.iterdir()} == before


def test_a_file_that_only_the_description_calls_ours_is_not_replaced(folder, exported, tmp_path):
    """Whoever makes a folder can name any file of it."""
    out = shutil.copytree(exported.path, tmp_path / "out")
    said = json.loads((out / MANIFEST).read_text())
    (out / "thesis.txt").write_text("years of work")
    said["fingerprints"]["thesis.txt"] = said["fingerprints"]["model.onnx"]
    said["files"].append("thesis.txt")
    (out / MANIFEST).write_text(json.dumps(said))
    with pytest.raises(ir.OutputError, match=r"holds thesis.txt, changed since its export, and stays as it is"):
        export(folder, out)
    del said["fingerprints"]
    (out / MANIFEST).write_text(json.dumps(said))
    with pytest.raises(ir.OutputError, match="does not say what its files hold"):
        export(folder, out)
    assert (out / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("file", ["genai_config.json", "model.onnx.data"])
def test_an_export_that_somebody_changed_is_not_replaced(folder, exported, tmp_path, file):
    out = shutil.copytree(exported.path, tmp_path / "out")
    with (out / file).open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(ir.OutputError, match=f"holds {file}, changed since its export"):
        export(folder, out)


@pytest.mark.slow
def test_what_is_printed_without_a_tokenizer(tmp_path):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    for target in ("onnx", "eager", "nnef"):
        made = export(model, tmp_path / target, target=target)
        assert "okenizer" not in made.usage
        exec(made.usage, {"input_ids": torch.tensor([[1, 2, 3]])})
    made = export(bert(), tmp_path / "bert")
    assert "okenizer" not in made.usage
    exec(made.usage, {"input_ids": torch.tensor([[1, 2]]), "attention_mask": torch.ones(1, 2, dtype=torch.int64)})


def test_what_is_always_compared_is_said_to_be(tmp_path, capsys):
    from ir.cli import main

    llava().save_pretrained(tmp_path / "in")
    arguments = ["llm", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--no-tokenizer"]
    with contextlib.suppress(SystemExit):
        main(arguments)
    assert "equal to the model's own" in capsys.readouterr().out


def test_a_failure_leaves_what_was_there(folder, exported, tmp_path, monkeypatch):
    out = shutil.copytree(exported.path, tmp_path / "out")
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with pytest.raises(ir.MismatchError, match="the folder generates"):
        monkeypatch.setattr("language_models.comparing.reference", lambda *_: torch.zeros(1, 28, dtype=torch.int64))
        export(folder, out, verify=True)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("option, value, message", [
    ("target", "tvm", "target='tvm' is none of onnx, nnef, eager"),
    ("weights", "int3", "weights='int3' is none of f32"),
    ("logits", "some", "logits='some' is none of last, all"),
])  # fmt: skip
def test_unknown_values(folder, tmp_path, option, value, message):
    with pytest.raises(ValueError, match=message):
        export(folder, tmp_path / "out", **{option: value})


@pytest.mark.parametrize("given, message", [
    ({"target": "nnef"}, "contrib=True writes decoders for onnxruntime: leave it out for nnef of text-generation"),
    ({"target": "eager"}, "contrib=True writes decoders for onnxruntime: leave it out for eager of text-generation"),
    ({"weights": "bf16"}, "contrib=True has no kernel for bf16"),
])  # fmt: skip
def test_contrib_where_it_is_not(folder, tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        export(folder, tmp_path / "out", contrib=True, **given)
    assert not (tmp_path / "out").exists()


def test_what_is_no_checkpoint(folder, tmp_path):
    for source, message in [
        (tmp_path / "nowhere", "there is no such folder; download the checkpoint first"),
        (tmp_path, "there is no config.json; give the folder that save_pretrained wrote"),
        (torch.nn.Linear(2, 2), "a Linear makes no text: give a model of AutoModelForCausalLM"),
    ]:
        with pytest.raises(ir.CaptureError, match=message):
            export(source, tmp_path / "out")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ir.CaptureError, match=r"there are no weights"):
        export(tmp_path, tmp_path / "out")
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(ir.CaptureError, match=r"there is no tokenizer.json; write one by .* or say tokenizer=False"):
        export(tmp_path, tmp_path / "out")
    export(tmp_path, tmp_path / "out", tokenizer=False)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ir.CaptureError, match="vit is no causal language model"):
        export(tmp_path, tmp_path / "other", tokenizer=False)
    with pytest.raises(ir.CaptureError, match=r"is no folder of language_models.export"):
        language_models.load(tmp_path)


def test_models_without_a_cache_of_transformers(tmp_path):
    import transformers

    sizes = {**checkpoints.SIZES, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**sizes))
    with pytest.raises(ir.CaptureError, match="OpenAIGPTLMHeadModel takes no cache: it cannot go on"):
        export(model, tmp_path / "out")
    model = checkpoints.model("xLSTM", **checkpoints.SIZES, hidden_size=32, num_hidden_layers=2, num_heads=4)
    told = r"xLSTMForCausalLM does not run with transformers' DynamicCache: .*\n +at .*modeling_xlstm.py:\d+"
    with pytest.raises(ir.CaptureError, match=told):
        export(model, tmp_path / "out")


class _Passes(transformers.LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class _Takes(transformers.LlamaForCausalLM):
    def forward(self, input_ids, **kwargs):
        return super().forward(input_ids, **kwargs)


@pytest.mark.parametrize("cls", [_Passes, _Takes])
def test_a_forward_that_names_nothing(tmp_path, cls):
    model = cls(transformers.LlamaConfig(**checkpoints.LLAMA))
    # versions of transformers call a cache by different names
    told = rf"{cls.__name__}.forward names no \w+ among its parameters, .*: write them as its base class has"
    with pytest.raises(ir.CaptureError, match=told):
        export(model, tmp_path / "out")


@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_a_mixture_that_does_not_run(tmp_path, target):
    model = checkpoints.model("Mixtral", **checkpoints.LLAMA)
    model.model.norm.weight = torch.nn.Parameter(torch.ones(5))
    told = r"MixtralForCausalLM does not run with.*: RuntimeError: The size of tensor"
    with pytest.raises(ir.CaptureError, match=told):
        export(model, tmp_path / "out", target=target)


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


@pytest.mark.parametrize("target", ["onnx", pytest.param("eager", marks=pytest.mark.slow)])
def test_angles_that_change_with_the_length(tmp_path, target):
    """What to take instead is the same up to the context."""
    sizes = {**checkpoints.LLAMA, "max_position_embeddings": 32}
    model = checkpoints.model("Llama", **sizes, rope_parameters=DYNAMIC)
    told = (
        r"LlamaForCausalLM cannot be exported as it is: rope_type=\"dynamic\" .* up to 32 tokens .*\n +at .*rope_utils"
    )
    with pytest.raises(ir.CaptureError, match=told) as raised:
        export(model, tmp_path / "out", target=target)
    assert "torch.cond" not in str(raised.value) and not (tmp_path / "out").exists()
    tokens = torch.randint(4, checkpoints.VOCABULARY, (1, 32), generator=torch.Generator().manual_seed(0))
    other = checkpoints.model("Llama", **sizes, rope_parameters={**DYNAMIC, "rope_type": "default"})
    assert torch.equal(model(tokens).logits, other(tokens).logits)


@pytest.mark.slow
def test_a_model_that_is_a_loop_over_tokens(tmp_path):
    sizes = {**checkpoints.LLAMA, "num_hidden_layers": 3, "head_dim": 8, "lru_width": 32, "attention_window_size": 32}
    told = r"RecurrentGemmaForCausalLM cannot be exported as it is: it decides .*\n +at .*recurrent_gemma.py:\d+ "
    with pytest.raises(ir.CaptureError, match=told):
        export(checkpoints.model("RecurrentGemma", **sizes), tmp_path / "out")


def test_a_model_that_decides_by_lengths(tmp_path):
    import transformers

    sizes = {"hidden_size": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64}
    layers = {
        f"num_{half}_{n}": v for half in ("encoder", "decoder") for n, v in (("layers", 1), ("attention_heads", 4))
    }
    model = transformers.ProphetNetForConditionalGeneration(
        transformers.ProphetNetConfig(**checkpoints.SIZES, **sizes, **layers)
    )
    with pytest.raises(ir.CaptureError, match=r"cannot be exported as it is: it decides .*\n +at .*prophetnet.py:\d+ "):
        export(model, tmp_path / "out")


def test_a_text_that_ends_is_padded(folder, tmp_path):
    """A row that has ended goes on with padding until the others end, as in transformers."""
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    tokens, mask = checkpoints.prompts(3)
    wanted = model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False)
    model.generation_config.eos_token_id = [int(wanted[1, 14]), 2]
    wanted = model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False)
    assert (wanted[1] == 0).sum() > 3
    assert torch.equal(export(model, tmp_path / "out").load().generate(tokens, mask, 12), wanted)


def test_a_wrong_file_is_seen(folder, tmp_path):
    made = export(folder, tmp_path / "out")
    other = checkpoints.model("Llama", **{**checkpoints.LLAMA, "intermediate_size": 48})
    with pytest.raises(ir.MismatchError):
        check(language_models.checkpoint.Checkpoint("other", other), made.load())


class _Last:
    """Greedy tokens of a model, the last of those that are equally likely: another order of the same sums."""

    def __init__(self, model, manifest, beside=0):
        self.model, self.manifest, self.beside = model, manifest, beside

    def generate(self, tokens, mask=None, max_new_tokens=4):
        mask = torch.ones_like(tokens) if mask is None else mask
        own = self.model.generation_config.repetition_penalty or 1.0
        penalty = transformers.RepetitionPenaltyLogitsProcessor(own)
        for _ in range(max_new_tokens):
            places = (mask.cumsum(1) - 1).clip(0)
            logits = self.model(tokens, attention_mask=mask, position_ids=places).logits[:, -1].float()
            token = logits.shape[-1] - 1 - penalty(tokens, logits).flip(-1).argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, (token + self.beside) % logits.shape[-1]], 1)
            mask = torch.cat([mask, torch.ones_like(token)], 1)
        return tokens


@pytest.mark.slow
def test_tokens_that_are_as_likely_in_16_bits_are_no_mismatch(tmp_path):
    """Two rows of lm_head are equal, so that one token or the other is the likeliest by the order of a kernel."""
    model = checkpoints.model("Llama", **{**checkpoints.LLAMA, "tie_word_embeddings": False}).to(torch.bfloat16)
    model.generation_config.eos_token_id = None
    manifest = export(model, tmp_path / "out", target="eager", weights="bf16").load().manifest
    with torch.no_grad():
        half = model.config.vocab_size // 2
        model.lm_head.weight[half:] = model.lm_head.weight[:half]
        own = language_models.checkpoint.Checkpoint("ties", model)
        tokens = torch.randint(0, half, (1, 12))
        for penalty in (None, 1.3):  # which moves both scores
            model.generation_config.repetition_penalty = penalty
            manifest = dataclasses.replace(manifest, rules={"repetition_penalty": penalty} if penalty else {})
            assert not torch.equal(_Last(model, manifest).generate(tokens), reference(model, tokens, 4))
            check(own, _Last(model, manifest))
            with pytest.raises(ir.MismatchError, match="the folder generates"):
                check(own, _Last(model, manifest, beside=1))
        with pytest.raises(ir.MismatchError, match="the folder generates"):  # which float32 tells apart
            check(language_models.checkpoint.Checkpoint("ties", model.float()), _Last(model, manifest))


def test_a_terminal_shows_what_is_being_done(folder, tmp_path, monkeypatch, capsys):
    from ir.cli import main

    monkeypatch.setenv("FORCE_COLOR", "1")
    for words, shown in [([], {"capture", "lower", "write"}), (["--quiet"], set())]:
        with pytest.raises(SystemExit) as done:
            main(["llm", str(folder), "-o", str(tmp_path / "out"), *words])
        said = capsys.readouterr().err
        assert done.value.code == 0
        assert {stage for stage in ("capture", "lower", "write") if stage in said} == shown


def test_the_command_line(folder, tmp_path, capsys):
    from ir.cli import main

    with pytest.raises(SystemExit) as done:
        main(["llm", str(folder), "-o", str(tmp_path / "out"), "--verify"])
    said = capsys.readouterr().out
    assert done.value.code == 0 and "equal to the model's own" in said and "og.Model(" in said
    with pytest.raises(SystemExit) as done:
        main(["llm", str(folder), "-o", str(tmp_path / "contrib"), "--contrib", "--quiet"])
    assert done.value.code == 0 and b"GroupQueryAttention" in (tmp_path / "contrib" / "model.onnx").read_bytes()
    for words, code, message in [
        (["nowhere", "-o", "out"], 1, "there is no such folder"),
        ([str(folder), "-o", "out", "--weights", "int3"], 2, "--weights='int3' is none of"),
        (
            [str(folder), "-o", "out", "--target", "nnef", "--contrib"],
            2,
            "--contrib=True writes decoders for onnxruntime",
        ),
        ([str(folder)], 2, "Missing option"),
    ]:
        with pytest.raises(SystemExit) as done:
            main(["llm", *words])
        assert done.value.code == code and message in capsys.readouterr().err


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_model_that_remembers_states(tmp_path, target):
    """A token at a time, from states of zeros; those of padding are forgotten."""
    model = checkpoints.model("Mamba", **checkpoints.STATE)
    made = export(model, tmp_path / "out", target=target)
    tokens, mask = checkpoints.prompts(3)
    assert made.manifest.one_by_one and not (made.path / "genai_config.json").exists()
    assert torch.equal(made.load().generate(tokens, mask, 24), reference(model, tokens, 24, mask))
    assert "language_models.load(" in made.usage


def test_states_in_tract_are_always_compared(tmp_path, monkeypatch):
    model = checkpoints.model("Mamba", **checkpoints.STATE)
    monkeypatch.setattr("language_models.comparing.reference", lambda *_: torch.zeros(1, 28, dtype=torch.int64))
    with pytest.raises(ir.MismatchError, match="the folder generates"):
        export(model, tmp_path / "out", target="nnef")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("make", "options", "told"), [
    (lambda: two_halves("T5", T5), {"logits": "all"}, "logits= is for decoders of text .*, and this is text2text-gen"),
    (bert, {"logits": "all"}, "logits= is for decoders of text .*, and this is feature-extraction: leave it out"),
    (bert, {"weights": "int8", "lm_head": "int8"}, "lm_head= is for models that make logits, and this one embeds"),
    (bert, {"weights": "int4", "accuracy_level": 1}, "accuracy_level= is for decoders of text"),
    (lambda: two_halves("T5", T5), {"weights": "int4", "accuracy_level": 1}, "accuracy_level= is for decoders of text"),
], ids=["logits of T5", "logits of Bert", "lm_head", "level of Bert", "level of T5"])  # fmt: skip
def test_options_for_another_kind_of_model(tmp_path, make, options, told):
    with pytest.raises(ir.RefusedError, match=told):
        export(make(), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("options", "told"), [
    ({"target": "nnef", "weights": "int4"}, "accuracy_level= is of products with int4 weights in onnxruntime: leave"),
    ({"target": "eager", "weights": "int4"}, "accuracy_level= is of products with int4 weights in onnxruntime: leave"),
    ({}, "accuracy_level= is for weights in few bits, and these are f32"),
])  # fmt: skip
def test_an_accuracy_of_products_that_are_not_there(folder, tmp_path, options, told):
    with pytest.raises(ValueError, match=told):
        export(folder, tmp_path / "out", accuracy_level=1, **options)


@pytest.mark.parametrize(("content", "told"), [
    ("", "preprocessor_config.json is no JSON of a checkpoint"),
    ("{}", "preprocessor_config.json makes no features of sound"),
    ('{"feature_extractor_type": "Nothing"}', "preprocessor_config.json makes no features of sound"),
])  # fmt: skip
def test_a_processor_of_sound_that_is_none(tmp_path, content, told):
    two_halves("Whisper", WHISPER).save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "preprocessor_config.json").write_text(content)
    with pytest.raises(ir.CaptureError, match=told):
        export(tmp_path / "in", tmp_path / "out", tokenizer=False)
