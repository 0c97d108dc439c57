"""docs/tutorials and docs/onnx.md, followed from an empty folder: files, commands and Python, in their order."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "onnx.md", *sorted(p for p in (DOCS / "tutorials").glob("*.md") if p.name != "README.md")]
NEEDS = {"hugging-face.md": ("transformers",), "quantising.md": ("torchao",), "custom-op-in-cpp.md": ("ninja",)}
# Each command and each Python is a process of its own, as a reader's is: a copy of one that has imported torch.
# torchvision that does not load would be in the way of transformers; the tests' own shim stands for it.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.zoo.torchvision_shim", "ir.cli"])
DIFFER = ("ir diff plain.onnx small.onnx",)  # with exit code 1
FILE = re.compile(r"(?:#|//) (\w+\.(?:py|cpp))\n")


def steps(text: str) -> list[tuple[str, str]]:
    """The blocks of a page that are for following, in order."""
    return [(k, b) for k, b in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL) if k in ("python", "cpp", "bash")]


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=pytest.mark.slow if "cpp" in p.stem else ()) for p in PAGES]
)  # C++ takes a minute to compile; tests/integration/test_extensions.py does it too
def test_a_page_is_followed(page, tmp_path):
    for name in NEEDS.get(page.name, ()):
        pytest.importorskip(name)
    if page.name == "custom-op-in-cpp.md" and shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler on this machine")
    python: list[str] = []
    last = len(steps(page.read_text()))
    for place, (kind, block) in enumerate(steps(page.read_text()), 1):
        if named := FILE.match(block):
            (tmp_path / named[1]).write_text(block)
        elif kind == "python":
            python.append(block)
        else:
            _run("\n".join(python), tmp_path)
            for line in block.splitlines():
                name, *words = line.split()
                assert name == "ir", f"{page.name}: {line}"
                _run(f"from ir.cli import main\nmain({words!r})", tmp_path, int(line in DIFFER))
            continue
        if place == last:
            _run("\n".join(python), tmp_path)


def _run(code: str, folder: Path, wanted: int = 0) -> None:
    process = PROCESSES.Process(target=_child, args=(code, folder))
    process.start()
    process.join()
    assert process.exitcode == wanted, f"{code[-500:]}\n{(folder / 'output').read_text()[-6000:]}"


def _child(code: str, folder: Path) -> None:
    """Runs Python as `python -c` does in a folder, with the scripts of this environment, of which ninja is one."""
    os.chdir(folder)
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    sys.path.insert(0, str(folder))
    exec(compile(code, "<page>", "exec", dont_inherit=True), {"__name__": "__main__"})


def test_every_tutorial_is_in_the_list():
    listed = re.findall(r"\]\(([^)]+)\)", (DOCS / "tutorials" / "README.md").read_text())
    assert {p.name for p in PAGES[1:]} <= {*listed} and len(listed) == 8
