"""A folder's description is read as data: a file outside of it, or a type that is none, is refused."""

import json

import pytest

import ir
import language_models
from language_models.embedding import pooling_of
from language_models.folder import FORMAT, MANIFEST

STATE = {"name": "0.key", "in": "past", "out": "present", "shape": [1, "P"], "dtype": "float32"}
STEP = {
    "target": "onnx", "step": "model.onnx", "contract": {"logits": "l", "remembered_in": "i", "remembered_out": "o"},
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


def test_poolings_outside_of_a_checkpoint_are_not_read(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (folder / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": ".."}]))
    with pytest.raises(ir.CaptureError, match="lies outside of the folder"):
        pooling_of(folder)
