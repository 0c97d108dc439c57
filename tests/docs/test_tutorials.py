"""docs/tutorials and docs/onnx.md, followed from an empty folder: files, commands and Python, in their order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "onnx.md", *sorted(p for p in (DOCS / "tutorials").glob("*.md") if p.name != "README.md")]
NEEDS = {"hugging-face.md": ("transformers",), "quantising.md": ("torchao",), "custom-op-in-cpp.md": ("ninja",)}
# torchvision that does not load would be in the way of transformers; the tests' own shim stands for it
START = "import runpy; shim = runpy.run_path({!r})\n".format(
    str(Path(__file__).parents[1] / "zoo" / "torchvision_shim.py")
)
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
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "PATH": _path()}
    python: list[str] = []
    last = len(steps(page.read_text()))
    for place, (kind, block) in enumerate(steps(page.read_text()), 1):
        if named := FILE.match(block):
            (tmp_path / named[1]).write_text(block)
        elif kind == "python":
            python.append(block)
        else:
            _run([sys.executable, "-c", START + "\n".join(python)], tmp_path, environment)
            for line in block.splitlines():
                name, *words = line.split()
                assert name == "ir", f"{page.name}: {line}"
                call = f"import sys\nfrom ir.cli import main\nmain({words!r})"
                _run([sys.executable, "-c", START + call], tmp_path, environment, int(line in DIFFER))
            continue
        if place == last:
            _run([sys.executable, "-c", START + "\n".join(python)], tmp_path, environment)


def _path() -> str:
    """With the scripts of this environment, of which ninja is one."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _run(command: list[str], folder: Path, environment: dict[str, str], code: int = 0) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == code, f"{command[-1][-500:]}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def test_every_tutorial_is_in_the_list():
    listed = re.findall(r"\]\(([^)]+)\)", (DOCS / "tutorials" / "README.md").read_text())
    assert {p.name for p in PAGES[1:]} <= {*listed} and len(listed) == 8
