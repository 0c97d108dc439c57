"""Decoders whose weights stay in the checkpoint's files, in onnxruntime-genai and in onnxruntime alone."""

from __future__ import annotations

import dataclasses
import json
import shutil

import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

import language_models
from ir.errors import CaptureError, RefusedError
from ir.stored import linked_shards
from language_models import onnx_genai
from language_models.folder import MANIFEST
from onnx_backend.runtime import settings
from tests.language_models import checkpoints
from tests.language_models.test_embedding import bert
from tests.language_models.test_encoder_decoder import BART, made
from tests.language_models.test_vision_language import llava

genai = pytest.importorskip("onnxruntime_genai")
TOKENS = torch.tensor([[5, 6, 7, 8]])
WIDE = {**checkpoints.LLAMA, "hidden_size": 128, "intermediate_size": 256}


def saved(folder, dtype=torch.float32, shards="1GB", family="Llama", **sizes):
    """A checkpoint of this element type, in shards of at most this size."""
    made = checkpoints.model(family, **(sizes or WIDE)).to(dtype)
    made.save_pretrained(folder, max_shard_size=shards)
    checkpoints.tokenizer(folder)
    return made


def in_genai(folder):
    params = genai.GeneratorParams(model := genai.Model(str(folder)))
    params.set_search_options(max_length=24, do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(TOKENS[0].tolist())
    while not generator.is_done():
        generator.generate_next_token()
    return generator.get_sequence(0).tolist()


def bytes_of(folder):
    return sum(f.stat().st_size for f in folder.iterdir())


@pytest.mark.parametrize("contrib", (False, True), ids=("plain", "contrib"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16), ids=str)
def test_weights_stay_in_the_shards(tmp_path, dtype, contrib):
    model = saved(tmp_path / "in", dtype, "100KB")
    weights = {torch.float32: "f32", torch.float16: "f16"}[dtype]
    made = language_models.export(
        tmp_path / "in", path=tmp_path / "out", weights=weights, contrib=contrib, external_data="reference"
    )
    assert not [*(tmp_path / "out").glob("*.data")] and bytes_of(tmp_path / "out") < 100_000
    assert len([*(tmp_path / "in").glob("*.safetensors")]) > 2
    wanted = language_models.comparing.reference(model, TOKENS, 20)[0].tolist()
    assert made.load().generate(TOKENS, max_new_tokens=20)[0].tolist() == wanted
    assert in_genai(tmp_path / "out") == wanted


@pytest.mark.slow
def test_bfloat16_in_onnxruntime_alone(tmp_path):
    saved(tmp_path / "in", torch.bfloat16)
    made = language_models.export(
        tmp_path / "in", path=tmp_path / "out", weights="bf16", external_data="reference", verify=True
    )
    assert made.load().generate(TOKENS, max_new_tokens=4).shape == (1, 8)


@pytest.mark.slow
def test_a_cache_of_links_and_folders_that_move_together(tmp_path):
    model = saved(tmp_path / "in", shards="100KB")
    (blobs := tmp_path / "models" / "blobs").mkdir(parents=True)
    for i, shard in enumerate(sorted((tmp_path / "in").glob("*.safetensors"))):
        shard.rename(blobs / f"{i:040x}")
        shard.symlink_to(blobs / f"{i:040x}")
    language_models.export(tmp_path / "in", path=tmp_path / "models" / "out", external_data="reference")
    said = json.loads((tmp_path / "models" / "out" / "genai_config.json").read_text())
    assert "../blobs" in said["model"]["decoder"]["session_options"].values()
    (tmp_path / "models").rename(tmp_path / "moved")
    wanted = language_models.comparing.reference(model, TOKENS, 20)[0].tolist()
    assert in_genai(tmp_path / "moved" / "out") == wanted
    loaded = language_models.load(tmp_path / "moved" / "out", checkpoint=linked_folder(tmp_path / "moved" / "blobs"))
    assert loaded.generate(TOKENS, max_new_tokens=20)[0].tolist() == wanted


def linked_folder(blobs):
    """A folder with links of the usual names to files that have none."""
    (links := blobs.parent / "links").mkdir()
    for file in blobs.iterdir():
        (links / f"{file.name}.safetensors").symlink_to(file)
    assert linked_shards(links).folder == blobs.resolve()
    return links


def test_a_state_that_genai_does_not_hold(tmp_path):
    saved(tmp_path / "in", family="Mamba", **{**checkpoints.STATE, "hidden_size": 64})
    made = language_models.export(
        tmp_path / "in", path=tmp_path / "out", tokenizer=False, external_data="reference", verify=True
    )
    assert f"checkpoint={str(tmp_path / 'out' / '../in')!r}" in made.usage


def test_what_a_folder_refers_to_is_read_where_it_is_asked_for_alone(tmp_path):
    saved(tmp_path / "in")
    language_models.export(tmp_path / "in", path=tmp_path / "out", external_data="reference")
    with pytest.raises(CaptureError, match=r"refers to weights in another folder, \.\./in: where that is meant, load"):
        language_models.load(tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CaptureError, match=r"empty holds no file 'model\.safetensors', in which weights of .* lie"):
        language_models.load(tmp_path / "out", checkpoint=tmp_path / "empty")
    with pytest.raises(CaptureError, match=r"there is no such folder"):
        language_models.load(tmp_path / "out", checkpoint=tmp_path / "in" / "config.json")


@pytest.fixture(scope="module")
def referring(tmp_path_factory):
    """Gives a folder a copy of a checkpoint in it, and an export that refers to that."""
    exported = {}

    def copied(family, folder):
        if family not in exported:
            place = tmp_path_factory.mktemp(family)
            if family == "Llama":
                saved(place / "in")
            else:
                bert().save_pretrained(place / "in")
            exported[family] = language_models.export(
                place / "in", path=place / "out", tokenizer=False, external_data="reference"
            )
        made = exported[family]
        shutil.copytree(made.path.parent, folder, dirs_exist_ok=True)
        return dataclasses.replace(made, path=folder / "out")

    return copied


def longer_header(folder):
    file = folder / "model.safetensors"
    save_file(load_file(file), file, {"format": "pt", "note": "x" * 200})


def cut_off(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])


def pointer(folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n")


def three_layers(folder):
    saved(folder, **{**WIDE, "num_hidden_layers": 3})


def other_type(folder):
    saved(folder, torch.float16)


def other_layout(folder):
    """A file of the same size, whose header is as long."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"norm.weight", b"norm.weighs").replace(b"Norm.weight", b"Norm.weighs"))


def other_shards(folder):
    (folder / "model.safetensors").unlink()
    saved(folder, shards="100KB")


@pytest.mark.parametrize(("change", "told"), [
    (longer_header, "model.safetensors is not the file that .* refers to .*bytes, not .*export it again"),
    (cut_off, "is not the file"), (pointer, "is not the file"), (three_layers, "is not the file"),
    (other_type, "is not the file"), (other_layout, "its tensors lie in other places, or are others"),
    (other_shards, "holds no file 'model.safetensors'"),
])  # fmt: skip
@pytest.mark.parametrize("family", ["Llama", "Bert"])
def test_another_checkpoint_than_that_of_the_export(tmp_path, referring, family, change, told):
    made = referring(family, tmp_path)
    change(tmp_path / "in")
    for opened in (made.load, lambda: language_models.load(tmp_path / "out", checkpoint=tmp_path / "in")):
        with pytest.raises(CaptureError, match=told):
            opened()


@pytest.mark.slow
def test_a_folder_that_was_written_before_files_were_noted(tmp_path):
    saved(tmp_path / "in")
    made = language_models.export(tmp_path / "in", path=tmp_path / "out", external_data="reference")
    file = tmp_path / "out" / MANIFEST
    said = json.loads(file.read_text())
    assert [*said.pop("weights_files")] == ["model.safetensors"]
    file.write_text(json.dumps(said))
    assert made.load().generate(TOKENS, max_new_tokens=2).shape == (1, 6)


@pytest.mark.parametrize("noted", [3, {"model.safetensors": 3}, {"../in/model.safetensors": {"bytes": 3}}])
def test_what_is_noted_is_not_trusted(tmp_path, referring, noted):
    made = referring("Llama", tmp_path)
    file = tmp_path / "out" / MANIFEST
    file.write_text(json.dumps(json.loads(file.read_text()) | {"weights_files": noted}))
    with pytest.raises(CaptureError, match=r"is no folder of|holds no file '\.\./in/model"):
        made.load()


@pytest.mark.parametrize("family", ["Llama", "Bert"])
def test_a_cache_of_hugging_face(tmp_path, family):
    """Links of the usual names to files without a suffix, beside others: what is proposed and printed works."""
    saved(tmp_path / "in", shards="100KB") if family == "Llama" else bert().save_pretrained(tmp_path / "in")
    (blobs := tmp_path / "cache" / "blobs").mkdir(parents=True)
    (snapshot := tmp_path / "cache" / "snapshots" / "abc").mkdir(parents=True)
    for i, file in enumerate(sorted((tmp_path / "in").iterdir())):
        file.rename(blobs / f"{i:040x}")
        (snapshot / file.name).symlink_to(blobs / f"{i:040x}")
    made = language_models.export(
        snapshot, path=tmp_path / "out", tokenizer=False, external_data="reference", verify=True
    )
    assert made.load() and language_models.load(tmp_path / "out", checkpoint=snapshot)
    with pytest.raises(CaptureError, match="where that is meant, load with checkpoint=") as refused:
        language_models.load(tmp_path / "out")
    proposed = str(refused.value).rpartition("checkpoint=")[2].strip("'")
    assert language_models.load(tmp_path / "out", checkpoint=proposed)
    max(blobs.iterdir(), key=lambda f: f.stat().st_size).unlink()
    with pytest.raises(CaptureError, match="holds no file"):
        made.load()


@pytest.mark.parametrize("target", ["onnx", *(pytest.param(t, marks=pytest.mark.slow) for t in ("eager", "nnef"))])
def test_a_checkpoint_for_a_folder_that_has_its_own_weights(tmp_path, target):
    saved(tmp_path / "in")
    language_models.export(tmp_path / "in", path=tmp_path / "out", target=target)
    with pytest.raises(RefusedError, match="has all its weights in itself and reads no checkpoint: leave checkpoint="):
        language_models.load(tmp_path / "out", checkpoint=tmp_path / "in")
    assert language_models.load(tmp_path / "out", checkpoint=None)


def test_the_config_entry_is_that_of_the_onnx_backend():
    assert onnx_genai.WEIGHTS_FOLDER == settings.WEIGHTS


def test_a_second_export_leaves_the_checkpoint_alone(tmp_path):
    saved(tmp_path / "in")
    before = {f.name: f.read_bytes() for f in (tmp_path / "in").iterdir()}
    for options in ({"external_data": "reference"}, {"external_data": "reference"}, {}):
        language_models.export(tmp_path / "in", path=tmp_path / "out", **options)
    shutil.rmtree(tmp_path / "out")
    assert {f.name: f.read_bytes() for f in (tmp_path / "in").iterdir()} == before


@pytest.mark.parametrize(("options", "told"), [
    ({"weights": "f16"}, "weights='f16' are made anew, as .* holds bf16: take weights='bf16' or leave external_data"),
    ({"weights": "int4"}, "leave it out for other targets, for weights in few bits"),
    ({"weights": "f16", "target": "nnef"}, "leave it out for other targets"),
])  # fmt: skip
def test_what_cannot_refer(tmp_path, options, told):
    saved(tmp_path / "in", torch.bfloat16)
    with pytest.raises(ValueError, match=told):
        language_models.export(tmp_path / "in", path=tmp_path / "out", external_data="reference", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_norms_in_another_type_than_the_weights(tmp_path):
    model = saved(tmp_path / "in", torch.bfloat16)
    held = {n: t.float() if "norm" in n else t for n, t in load_file(tmp_path / "in" / "model.safetensors").items()}
    save_file(held, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ValueError, match=r"most weights='f32' are made anew, as .* holds bf16, f32: take weights='bf16'"
    ):
        language_models.export(tmp_path / "in", path=tmp_path / "out", external_data="reference")
    made = language_models.export(
        tmp_path / "in", path=tmp_path / "out", weights="bf16", external_data="reference", verify=True
    )
    assert bytes_of(made.path) < 100_000 and model


def test_a_model_in_memory(tmp_path):
    model = saved(tmp_path / "in")
    with pytest.raises(ValueError, match="and of a model in memory"):
        language_models.export(model, path=tmp_path / "out", external_data="reference")


def bart():
    return made("Bart", BART)


@pytest.mark.slow
@pytest.mark.parametrize("make", [bart, bert, llava])
def test_models_of_several_programs(tmp_path, make):
    make().save_pretrained(tmp_path / "in", max_shard_size="100KB")
    checkpoints.tokenizer(tmp_path / "in")
    out = language_models.export(tmp_path / "in", path=tmp_path / "out", external_data="reference", verify=True)
    files = [*out.path.glob("*.onnx")]
    assert not [*out.path.glob("*.data")] and len(files) == len(out.manifest.parts)
    outside = [t for f in files for t in onnx.load(f, load_external_data=False).graph.initializer if t.external_data]
    places = {e.value for t in outside for e in t.external_data if e.key == "location"}
    assert places and places <= {f.name for f in (tmp_path / "in").glob("*.safetensors")}
    with pytest.raises(CaptureError, match=r"refers to weights in another folder, \.\./in: where that is meant, load"):
        language_models.load(out.path)
    assert f"checkpoint={str(out.path / '../in')!r}" in out.usage
    assert language_models.load(out.path, checkpoint=tmp_path / "in") and out.load()


def test_what_is_large_lies_in_the_checkpoint_and_what_is_small_in_the_model(tmp_path):
    saved(tmp_path / "in")
    language_models.export(tmp_path / "in", path=tmp_path / "out", external_data="reference")
    held = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph.initializer
    outside = [t for t in held if t.data_location == onnx.TensorProto.EXTERNAL]
    assert {e.value for t in outside for e in t.external_data if e.key == "location"} == {"model.safetensors"}
    assert all(len(t.raw_data) < 1024 * 64 for t in held if t not in outside)
