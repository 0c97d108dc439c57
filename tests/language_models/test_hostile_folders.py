"""A folder's description is read as data: a file outside of it, or a type that is none, is refused."""

import json
import os
import shutil

import pytest
import torch

import ir
import language_models
from language_models.embedding import pooling_of
from language_models.folder import FORMAT, MANIFEST
from tests.language_models.checkpoints import FAMILIES, model

STATE = {"name": "0.key", "in": "past", "out": "present", "shape": [1, "P"], "dtype": "float32"}
STEP = {
    "target": "onnx", "step": "model.onnx",
    "contract": {"logits": "l", "remembered_in": "i", "remembered_out": "o", "past": "P"},
    "states": [STATE], "mask": False, "positions": False, "one_by_one": False, "weights": "f32", "eos": [0], "pad": 0,
    "vocabulary": 1, "context_length": 1, "files": [],
}  # fmt: skip
PARTS = {
    "kind": "text2text-generation", "target": "onnx", "weights": "f32", "files": [],
    "parts": {"encoder_model": {"file": "encoder.onnx", "inputs": [], "outputs": []}},
    "said": {"remembered": {"0.key": [1, 8, "float32"]}},
}  # fmt: skip


@pytest.mark.parametrize(("said", "told"), [
    (STEP | {"step": "../model.onnx"}, "'../model.onnx' lies outside of the folder"),
    (STEP | {"step": "/model.onnx"}, "'/model.onnx' lies outside of the folder"),
    (STEP | {"states": [STATE | {"dtype": "save"}]}, "'save' is no element type"),
    (STEP | {"pad": None}, "pad is None"),
    (STEP | {"eos": ["x"]}, "eos is"),
    (STEP | {"vocabulary": "x"}, "vocabulary is 'x'"),
    (STEP | {"context_length": 1e99}, "context_length is 1e"),
    (STEP | {"mask": []}, r"mask is \[\]"),
    (STEP | {"kind": {}}, "kind is {}"),
    (STEP | {"contract": STEP["contract"] | {"tokens": [1]}}, r"tokens is \[1\]"),
    (STEP | {"states": [STATE | {"shape": [-1]}]}, "a tensor has the size -1"),
    (STEP | {"states": [STATE | {"shape": ["x"]}]}, "a tensor has the size 'x'"),
    (PARTS | {"parts": {"e": PARTS["parts"]["encoder_model"] | {"file": "../../e"}}},
     "'../../e' lies outside of the folder"),
    (PARTS | {"said": {"remembered": {"0.key": [1, 8, "__import__"]}}}, "'__import__' is no element type"),
    (PARTS | {"said": {"remembered": 3}}, "is no folder of language_models.export"),
    (PARTS | {"said": [1]}, "is no folder of language_models.export"),
    (PARTS | {"parts": [1]}, "is no folder of language_models.export"),
])  # fmt: skip
def test_what_a_folder_says_is_checked(tmp_path, said, told):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, **said}))
    with pytest.raises(ir.CaptureError, match=told):
        language_models.load(folder)


@pytest.mark.parametrize("name", ["x" * 3000, "a\0b", "\udcff"])
def test_a_folder_whose_name_is_none(tmp_path, name):
    for call in (language_models.load, lambda n: language_models.export(n, path=tmp_path / "out")):
        with pytest.raises(ir.CaptureError) as caught:
            call(name)
        assert len(str(caught.value)) < 600
    with pytest.raises(ir.OutputError):
        language_models.export("nowhere", path=tmp_path / f"{name}/x")


@pytest.fixture(scope="module", params=["onnx", "eager"])
def exported(request, tmp_path_factory):
    path, llama = tmp_path_factory.mktemp("out") / request.param, model("Llama", **FAMILIES["Llama"])
    return language_models.export(llama, path=path, target=request.param, tokenizer=False).path


@pytest.mark.parametrize(
    "damage", [lambda s: [], lambda s: s[1:], lambda s: [s[0] | {"shape": s[0]["shape"][1:]}, *s[1:]]]
)
def test_a_description_of_another_step_is_refused(tmp_path, exported, damage):
    folder = shutil.copytree(exported, tmp_path / "folder")
    said = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(said | {"states": damage(said["states"])}))
    with pytest.raises(ir.ExportError):
        language_models.load(folder).generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2)


def test_poolings_outside_of_a_checkpoint_are_not_read(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (folder / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": ".."}]))
    with pytest.raises(ir.CaptureError, match="lies outside of the folder"):
        pooling_of(folder)


@pytest.mark.parametrize("key", ["pad", "vocabulary", "context_length"])
def test_numbers_that_no_runtime_has_are_refused(tmp_path, key):
    (tmp_path / MANIFEST).write_text(json.dumps({"format": FORMAT, **STEP, key: 1 << 70}))
    with pytest.raises(ir.CaptureError, match="the number 1180591620717411303424"):
        language_models.load(tmp_path)


def test_a_description_without_end_is_not_read(tmp_path):
    (tmp_path / MANIFEST).touch()
    os.truncate(tmp_path / MANIFEST, 8 << 30)
    with pytest.raises(ir.CaptureError, match="it has more than 16777216 bytes"):
        language_models.load(tmp_path)


@pytest.mark.parametrize("name", [MANIFEST, "genai_config.json"])
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path, name):
    (tmp_path / MANIFEST).write_text(json.dumps({"format": FORMAT, **STEP}))
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ir.CaptureError, match=f"{name} in it is neither a file nor a folder"):
        language_models.load(tmp_path)
