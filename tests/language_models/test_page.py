"""docs/language-models.md: its commands and its Python run, block after block, on a checkpoint made here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ir.cli import main
from tests.docs.follow import blocks, commands
from tests.language_models import checkpoints
from tests.language_models.test_embedding import bert
from tests.language_models.test_encoder_decoder import T5
from tests.language_models.test_encoder_decoder import made as encoder_decoder

PAGE = Path(__file__).parents[2] / "docs" / "language-models.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime_genai")
    checkpoints.checkpoint(tmp_path / "CHECKPOINT", "Llama", **checkpoints.LLAMA)
    for folder, model in (("SEQ2SEQ", encoder_decoder("T5", T5)), ("EMBEDDER", bert())):
        model.save_pretrained(tmp_path / folder)
        checkpoints.tokenizer(tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page", "CHECKPOINT": "CHECKPOINT"}
    found = re.findall(r"```(python|bash)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert {kind for kind, _ in found} == {"python", "bash"}
    for kind, block in found:
        if kind == "python":
            exec(compile(block, "language-models.md", "exec"), names)
            continue
        for line in block.splitlines():
            with pytest.raises(SystemExit) as done:
                main(line.split()[1:])
            assert not done.value.code, line


def test_the_packages_readme_runs(tmp_path, monkeypatch):
    readme = PAGE.parents[1] / "packages/language_models/README.md"
    checkpoints.checkpoint(tmp_path / "checkpoint", "Llama", **checkpoints.LLAMA)
    monkeypatch.chdir(tmp_path)
    lines = [words for kind, block in blocks(readme) for words in commands(block) if kind == "bash"]
    assert lines
    for words in lines:
        with pytest.raises(SystemExit) as done:
            main(words[1:])
        assert not done.value.code, words
