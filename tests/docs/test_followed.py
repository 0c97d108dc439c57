"""Pages are followed from start to end, and no page has Python or commands that no test runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.follow import ROOT, blocks, commands

TOPS = ("*.md", "docs/**/*.md", "packages/*/README.md", "examples/**/*.md", "benchmarks/*.md")
CODED = {str(p.relative_to(ROOT)): blocks(p) for top in TOPS for p in sorted(ROOT.glob(top)) if blocks(p)}
# Who runs the other pages: they need other packages, a compiler or engines, or what they print is compared.
ELSEWHERE = {
    "docs/adding-a-pass.md": "tests/docs/test_adding_pages.py",
    "docs/adding-a-target.md": "tests/docs/test_adding_pages.py",
    "docs/adding-an-op.md": "tests/docs/test_adding_pages.py",
    "docs/batch-inference.md": "tests/batch_inference/test_page.py",
    "docs/caches.md": "tests/docs/test_caches_page.py",
    "docs/custom-ops.md": "tests/docs/test_custom_ops_page.py",
    "docs/debugging.md": "tests/docs/test_debugging_page.py",
    "docs/language-models.md": "tests/language_models/test_page.py",
    "docs/migrating-from-torch-onnx.md": "tests/docs/test_migration_page.py",
    "docs/nnef.md": "tests/nnef/test_docs.py",
    "docs/onnx.md": "tests/docs/test_tutorials.py",
    "docs/pipelines.md": "tests/docs/test_scale_pages.py",
    "packages/language_models/README.md": "tests/language_models/test_page.py",
    "packages/stablehlo_backend/README.md": "tests/stablehlo/test_readme.py",
    "packages/vision_ops/README.md": "tests/vision/test_readme.py",
}
FOLLOWED = [name for name in CODED if name not in ELSEWHERE and not name.startswith("docs/tutorials/")]


def follow(names: list[str], folder: Path) -> dict[str, str]:
    """What went wrong on each of these pages, followed in an empty folder by a process of their own."""
    environment = os.environ | {
        "IR_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    result = folder / "result.json"
    command = [sys.executable, "-m", "tests.docs.follow", *names, str(result)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
    found: dict[str, str] = json.loads(result.read_text())
    return found


def test_pages_are_followed(tmp_path):
    """In one test, for all are followed in one process, whichever process of pytest runs the others."""
    assert {name: found for name, found in follow(FOLLOWED, tmp_path).items() if found} == {}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_other_pages_are_run_by_the_test_that_is_named(name):
    text = (ROOT / ELSEWHERE[name]).read_text()
    short = name.removeprefix("docs/")
    assert short in text, f"{ELSEWHERE[name]} does not name {short}"
    assert name in CODED, f"{name} has nothing to run"
    kinds = {"bash" if kind == "bash" else "py" for kind, _ in CODED[name]}
    runs = {kind for kind in ("bash", "py") if kind in text.replace(".py", "").replace("pytest", "")}
    assert "tests.docs" in text or kinds <= runs, f"{ELSEWHERE[name]} runs no {kinds - runs}"


def test_a_command_that_a_shell_would_read_otherwise_is_noticed():
    for line in ("ir export a:b --input x=float32[batch,3]", "ir export a:b --input x=int64[2]<9", "ir run a.onnx > b"):
        with pytest.raises(AssertionError, match="a shell would read"):
            [*commands(line)]
    assert [*commands("pip install x && ir run 'a*.onnx'  # a comment")] == [["ir", "run", "a*.onnx"]]
