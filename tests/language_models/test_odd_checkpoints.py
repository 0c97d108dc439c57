"""Checkpoints that are not whole, and options that say nothing: what is said names the file, or the way out."""

from __future__ import annotations

import json
import os
import shutil

import huggingface_hub
import pytest
import torch

import ir
import language_models
from language_models import configuration
from language_models.checkpoint import open_checkpoint
from tests.language_models import checkpoints


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    place = tmp_path_factory.mktemp("sound")
    checkpoints.model("Llama", **checkpoints.LLAMA).save_pretrained(place, max_shard_size="40KB")
    assert len([*place.glob("*.safetensors")]) > 2
    return place


def said(**changes):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def second_shard(change):
    return lambda folder: change(sorted(folder.glob("*.safetensors"))[1])


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def only_bin(folder):
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"nothing")


class Code:
    """What a pickle runs where it is read as one."""

    def __reduce__(self):
        return os.system, ("exit 1",)


def renamed(folder):
    (folder / "model.safetensors.index.json").unlink()


def bin_with_code(folder):
    only_bin(folder)
    torch.save({"weight": Code()}, folder / "pytorch_model.bin")


def setting(name, value):
    return text("generation_config.json", json.dumps({name: value}))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
ODD = {
    "no model type": (said(model_type=""), "reads no model from its config.json .*give that to language_models.export"),
    "unknown": (
        said(model_type="martian"),
        "reads no model from its config.json .*`martian`.*take a newer transformers",
    ),
    "own code": (said(model_type="martian", auto_map={"AutoConfig": "x.Y"}), "it has code of its own"),
    "number": (said(hidden_size="wide"), "reads no model from its config.json .*'hidden_size' expected int"),
    "config": (text("config.json", '{"model_type": '), "config.json is no JSON of a checkpoint .*; download it again"),
    "list": (text("config.json", "[1]"), "config.json is no JSON of a checkpoint .no object."),
    "generation": (text("generation_config.json", "{"), "generation_config.json is no JSON"),
    "tokenizer": (text("tokenizer_config.json", "nope"), "tokenizer_config.json is no JSON"),
    "missing": (second_shard(lambda s: s.unlink()), "names the shard .*no such file beside it; download the whole"),
    "cut off": (
        second_shard(lambda s: s.write_bytes(s.read_bytes()[:-40])),
        "no sound .safetensors .*download it again",
    ),
    "empty": (second_shard(lambda s: s.write_bytes(b"")), "no sound .safetensors .*the file has 0; download it again"),
    "pointer": (second_shard(lambda s: s.write_text(POINTER)), "no sound .safetensors .*download it again"),
    "index": (text("model.safetensors.index.json", "{"), "is no index of shards"),
    "no index": (renamed, "reads weights from model.safetensors, .* and there is none of them, but model-00001-of-"),
    "bin": (only_bin, "its .bin files are no weights .UnpicklingError: Unsupported operand .*; download it again"),
    "code": (bin_with_code, "its .bin files hold code .*system.*, which is not run; ask its author for .safetensors"),
    "a pipe": (lambda f: os.mkfifo(f / "chat_template.jinja"), "chat_template.jinja is neither a file nor a folder"),
    "no heads": (said(num_attention_heads=0), "ZeroDivisionError.*; no such model has these values: correct them"),
    "end of text": (
        setting("eos_token_id", "x"),
        "generation_config.json: eos_token_id is 'x' and has to be an integer",
    ),
    "padding": (
        setting("pad_token_id", [1]),
        r"generation_config.json: pad_token_id is \[1\] and has to be an integer;",
    ),
    "temperature": (setting("temperature", "x"), "temperature is 'x' and has to be a number"),
    "large": (text("config.json", json.dumps({"a": "b" * 16_000_000})), "config.json .*larger than 16 MB"),
    "list of methods": (said(quantization_config=[1]), "the quantization_config of its config.json is no object"),
    "method": (said(quantization_config={"quant_method": ["x"]}), r"quant_method is \['x'\].*has to be a name"),
    "start": (setting("do_sample", 1), "do_sample is 1 and has to be true or false; correct it, or delete the file"),
}


@pytest.mark.parametrize("weights", ["f32", "int4"])
@pytest.mark.parametrize("kind", ODD)
def test_a_checkpoint_that_is_not_whole(sound, tmp_path, kind, weights):
    folder, place = tmp_path / "checkpoint", tmp_path / "out"
    shutil.copytree(sound, folder)
    change, told = ODD[kind]
    change(folder)
    with pytest.raises(ir.ExportError, match=told):
        language_models.export(folder, path=place, weights=weights, tokenizer=False)
    assert not place.exists()


@pytest.mark.parametrize("setting", ["attn_implementation", "_attn_implementation", "experts_implementation"])
@pytest.mark.parametrize("name", ["kernels-community/flash-attn", "someone/theirs@main:call", ["a", "list"]])
def test_a_file_names_no_kernel_of_a_hub(sound, tmp_path, setting, name):
    folder = tmp_path / "checkpoint"
    shutil.copytree(sound, folder)
    said(**{setting: name})(folder)
    with pytest.raises(ir.CaptureError, match=r"of its config.json is .* names code from elsewhere, and that is never"):
        language_models.export(folder, path=tmp_path / "out", tokenizer=False)


def test_a_part_names_no_kernel_either(tmp_path):
    config = checkpoints.transformers.LlavaConfig()
    config.vision_config._attn_implementation = "someone/theirs"
    with pytest.raises(ir.CaptureError, match="someone/theirs"):
        for part in [*configuration._configurations(config)]:
            configuration._choose_plain(tmp_path, part)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["attn_implementation", "experts_implementation"])
def test_a_kernel_of_one_machine_is_transformers_choice_here(sound, tmp_path, setting):
    """The packages of such kernels lie on the machine that trained; the same sums are computed without them."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(sound, folder)
    said(**{setting: "flash_attention_2"})(folder)
    assert language_models.export(folder, path=tmp_path / "out", tokenizer=False).path.is_dir()


def test_nothing_is_asked_of_a_hub(sound, tmp_path, monkeypatch):
    """Whatever a constructor of transformers wants from one: a model of timm, a kernel of its own."""
    offline = []
    before = checkpoints.transformers.AutoModelForCausalLM.from_config

    def building(*given, **named):
        offline.append(huggingface_hub.is_offline_mode())
        return before(*given, **named)

    monkeypatch.setattr(checkpoints.transformers.AutoModelForCausalLM, "from_config", building)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    language_models.export(sound, path=tmp_path / "out", tokenizer=False)
    assert offline == [True] and not huggingface_hub.is_offline_mode()


@pytest.mark.parametrize("place", ["AutoConfig", "MODEL_FOR_CAUSAL_LM_MAPPING", "AutoModelForCausalLM"])
def test_an_installation_that_is_not_whole(sound, tmp_path, monkeypatch, place):
    """What is behind transformers' own words is told, and no checkpoint is blamed."""

    class Broken:
        def __getattr__(self, name):
            try:
                raise RuntimeError("operator torchvision::nms does not exist")
            except RuntimeError as error:
                raise ModuleNotFoundError("Could not import module 'LlamaConfig'.") from error

        __contains__ = __getattr__

    monkeypatch.setattr(checkpoints.transformers, place, Broken())
    told = "RuntimeError: operator torchvision::nms does not exist.*install or mend it, the checkpoint is not at fault"
    with pytest.raises(ir.CaptureError, match=told):
        language_models.export(sound, path=tmp_path / "out", tokenizer=False)


def test_a_package_that_weights_want(sound, tmp_path, monkeypatch):
    folder = tmp_path / "checkpoint"
    shutil.copytree(sound, folder)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    torch.save(checkpoints.model("Llama", **checkpoints.LLAMA).state_dict(), folder / "pytorch_model.bin")

    def lacking(*_, **__):
        raise ImportError("Loading an FP8 quantized model requires accelerate (`pip install accelerate`)")

    monkeypatch.setattr(checkpoints.transformers.AutoModelForCausalLM, "from_pretrained", lacking)
    with pytest.raises(
        ir.CaptureError, match=r"requires accelerate .*: a package is missing or does not import; install"
    ):
        language_models.export(folder, path=tmp_path / "out", tokenizer=False)


@pytest.mark.parametrize("kind", ["a whole file", "a .bin file", "one that config.json names"])
def test_the_weights_that_transformers_reads(sound, tmp_path, kind):
    """Beside shards with their index: each goes before them, but for the .bin file, beside which there is no index."""
    shutil.copytree(sound, folder := tmp_path / "checkpoint")
    other = checkpoints.model("Llama", seed=5, **checkpoints.LLAMA)
    if kind == "a .bin file":
        renamed(folder)
        torch.save(other.state_dict(), folder / "pytorch_model.bin")
    else:
        name = "model.safetensors" if kind == "a whole file" else "ema.safetensors"
        other.save_pretrained(there := tmp_path / "other")
        shutil.copy(there / "model.safetensors", folder / name)
        said(transformers_weights=name if name.startswith("ema") else None)(folder)
    found = open_checkpoint(folder, torch.float32, tokenizer=False).model
    assert torch.equal(found.lm_head.weight, other.lm_head.weight)


def test_a_model_without_numbers(tmp_path):
    with torch.device("meta"):
        model = checkpoints.transformers.LlamaForCausalLM(checkpoints.transformers.LlamaConfig(**checkpoints.LLAMA))
    with pytest.raises(ir.CaptureError, match=r"LlamaForCausalLM has no numbers in model.embed_tokens.weight, .* meta"):
        language_models.export(model, path=tmp_path / "out")


@pytest.mark.parametrize("source", [{"a": 1}, None, 3])
def test_what_is_neither_a_model_nor_a_path(tmp_path, source):
    told = f"a {type(source).__name__} is neither a model of transformers nor the path"
    with pytest.raises(ir.CaptureError, match=told):
        language_models.export(source, path=tmp_path / "out")


def test_a_file_in_the_place_of_the_folder(sound, tmp_path):
    with pytest.raises(ir.CaptureError, match="is a file: give the folder"):
        language_models.export(sound / "config.json", path=tmp_path / "out", tokenizer=False)


@pytest.mark.parametrize(("options", "told"), [
    ({"lm_head": "int8"}, "lm_head= is for weights in few bits, and these are f32"),
    ({"exclude": ["*.down_proj"]}, "exclude= is for weights in few bits"),
    ({"calibration": "a text"}, "calibration= is for weights in few bits"),
    ({"weights": "int4", "lm_head": "int3"}, "lm_head='int3' is none of f32, int8, int4"),
    ({"external_data": "references"}, "external_data='references': True, False, None or 'reference'"),
    ({"external_data": "reference", "target": "eager"}, "for onnxruntime: leave it out for other targets"),
    ({"weights": "int4", "lm_head": "int8", "target": "nnef"}, "lm_head='int8' is none of f32, int4"),
])  # fmt: skip
def test_options_that_would_say_nothing(sound, tmp_path, options, told):
    with pytest.raises(ValueError, match=told):
        language_models.export(sound, path=tmp_path / "out", tokenizer=False, **options)


@pytest.mark.parametrize(("options", "told"), [
    ({"weights": "int4", "exclude": ["*.down"]}, r"exclude='\*.down' is the name of no linear layer; one is 'model"),
    ({"weights": "int4", "exclude": ["*.down"], "target": "nnef"}, "is the name of no linear layer"),
    ({"weights": "int4", "text": "a text"}, "has no tokenizer for the text: give tokens"),
    ({"task": "automatic-speech-recognition"}, "AutoModelForSpeechSeq2Seq has no llama: its tasks are text-generation"),
])  # fmt: skip
def test_what_does_not_fit_the_checkpoint(sound, tmp_path, options, told):
    with pytest.raises(ir.ExportError, match=told):
        language_models.export(sound, path=tmp_path / "out", tokenizer=False, **options)


@pytest.mark.parametrize("content", ['{"a": 1}', '{"version": "1.0", "model": {"type": "BPE", "vocab": 3}}'])
def test_a_tokenizer_that_is_none(sound, tmp_path, content):
    folder = tmp_path / "checkpoint"
    shutil.copytree(sound, folder)
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ir.CaptureError, match=r"tokenizer.json is no tokenizer .* or say tokenizer=False"):
        language_models.export(folder, path=tmp_path / "out")
    assert language_models.export(folder, path=tmp_path / "out", tokenizer=False).path.is_dir()


@pytest.mark.parametrize("option", ["text", "calibration"])
def test_a_text_of_nothing(sound, tmp_path, option):
    with pytest.raises(ir.RefusedError, match=f"{option}: the text is empty"):
        language_models.export(sound, path=tmp_path / "out", weights="int4", tokenizer=False, **{option: " \n"})


def test_the_command_line_says_options_as_it_has_them(sound, tmp_path, capsys):
    from ir.cli import main

    with pytest.raises(SystemExit) as done:
        main(["llm", str(sound), "-o", str(tmp_path / "out"), "--no-tokenizer", "--lm-head", "int8"])
    assert done.value.code == 2 and "--lm-head= is for weights in few bits" in capsys.readouterr().err
