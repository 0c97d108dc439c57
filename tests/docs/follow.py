"""Follows a page from its start to its end: its Python in one namespace and its commands, beside a reader's files.

`python -m tests.docs.follow PAGE... RESULT.json`, in an empty folder; one process, since each would import torch anew.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|py|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INSTALLS = (["pip", "install"], ["python", "-m", "venv"], ["."], ["nox"])  # these change an environment
DIFFERS = (["ir", "diff", "old.pt2"],)  # from what it is compared with: exit code 1

MODELS = '''"""The models that pages call my_package.models."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))

    def forward(self, x):
        for layer in self.encoder.layers:
            x = layer(x)
        return x


class Detector(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 2, 8, stride=8), nn.ReLU(), nn.Conv2d(2, 2, 3))

    def forward(self, image):
        return super().forward(image)


class Encoder(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(30522, 32), nn.Linear(32, 32))

    def forward(self, ids):
        return super().forward(ids)


def classifier():
    return Classifier(), (torch.randn(2, 8),), None, ({0: "batch"},)


def detector():
    torch.manual_seed(0)
    return Detector(), (torch.randn(2, 3, 64, 64),), None, ({0: "batch"},)


def tracker():
    return lambda x: torch.linalg.eigvals(torch.relu(x)), torch.randn(3, 3)  # which no target has


encoder = Encoder
'''


def blocks(page: Path) -> list[tuple[str, str]]:
    """The Python and bash of a page, in order."""
    return BLOCK.findall(page.read_text())


def commands(block: str) -> Iterator[list[str]]:
    """The words of each command of a bash block that does more than install."""
    for line in block.splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.commenters, words.whitespace_split = "#", True
        command: list[str] = []
        for word in (*words, "&&"):
            if word != "&&":
                assert not {*word} & {*"<>|;()[]*?"} or f"'{word}'" in line, f"a shell would read {word!r}: {line}"
                command.append(word)
            elif command:
                if not any(command[: len(start)] == start for start in INSTALLS):
                    yield command
                command = []


def prepare() -> dict[str, object]:
    """Writes the files that a reader has; gives the names that a page may use."""
    import numpy
    import torch

    from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)

    package = Path("my_package")
    package.mkdir()
    (package / "models.py").write_text(MODELS)
    numpy.save("x.npy", numpy.ones((3, 8), "float32"))
    numpy.save("image.npy", numpy.ones((1, 3, 640, 640), "float32"))
    sys.path.insert(0, str(Path.cwd()))
    models = runpy.run_path(str(package / "models.py"))
    model, args, _, _ = models["classifier"]()
    torch.export.save(torch.export.export(model.eval(), args), "model.pt2")
    image = torch.randn(1, 3, 640, 640)
    torch.export.save(torch.export.export(models["detector"]()[0].eval(), (image,)), "old.pt2")
    return {"__name__": "page", "model": model.eval(), "args": args}


def checkpoint() -> None:
    """A checkpoint of transformers, for the pages that name one."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=29, **sizes)).save_pretrained("checkpoint_folder")


@cache
def script(file: str) -> None:
    """Runs a file of the repository, once however many pages name it."""
    runpy.run_path(str(ROOT / file), run_name="__main__")


def run(command: list[str]) -> None:
    """`ir ...` as `python -m ir`, and the repository's own files of Python; exit codes other than 0 are errors."""
    name, *words = command
    sys.argv = [name, *words] if name == "ir" else words
    try:
        if name == "ir":
            runpy.run_module("ir", run_name="__main__", alter_sys=True)
        else:
            assert name == "python", command
            script(words[0])
    except SystemExit as end:
        wanted = int(any(command[: len(start)] == start for start in DIFFERS))
        assert (end.code or 0) == wanted, f"{shlex.join(command)}: exit code {end.code}"


def follow(page: Path) -> None:
    """Follows a page in the folder where the process is.

    Raises:
        Exception: what a block raises, AssertionError for a command with another exit code than it should have.
    """
    names = prepare()
    sys.path.insert(0, str(page.parent))  # what lies beside a page can be imported
    if "checkpoint_folder" in page.read_text():
        checkpoint()
    for kind, block in blocks(page):
        if kind == "bash":
            for command in commands(block):
                print("$", shlex.join(command), flush=True)
                run(command)
        else:
            exec(compile(block, page.name, "exec", dont_inherit=True), names)


def followed(pages: list[str]) -> dict[str, str]:
    """What went wrong on each page of the repository, each in a folder of its own below this one."""
    found, place, path = dict.fromkeys(pages, ""), Path.cwd(), [*sys.path]
    for name in pages:
        folder = place / name.replace("/", "-")
        folder.mkdir()
        os.chdir(folder)
        try:
            follow(ROOT / name)
        except Exception:
            found[name] = traceback.format_exc()
        sys.path[:] = path
    os.chdir(place)
    return found


if __name__ == "__main__":
    *pages, result = sys.argv[1:]
    Path(result).write_text(json.dumps(followed(pages)))
