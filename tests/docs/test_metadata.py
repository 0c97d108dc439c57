"""What a package index shows of each package: the same licence, authors, readme and kinds, and extras that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted((ROOT / "packages").iterdir())


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_a_package_says_what_it_is(package):
    text = (package / "pyproject.toml").read_text()
    for line in ('license = "MIT"', 'license-files = ["LICENSE"]', 'readme = "README.md"', 'version = "1.0.0"'):
        assert f"\n{line}\n" in text, line
    for key in ("description", "requires-python", "authors", "keywords", "classifiers"):
        assert re.search(rf"\n{key} = \S", text), key
    assert (package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (package / "README.md").read_text().startswith("# ")
    assert (package / "src" / package.name / "py.typed").is_file()


def test_the_extras_of_ir_are_packages_of_this_repository():
    text = (ROOT / "packages" / "ir" / "pyproject.toml").read_text()
    extras = dict(
        re.findall(r"^(\w+) = \[(.*)\]$", text.partition("optional-dependencies]")[2].partition("\n[")[0], re.M)
    )
    assert {"cli", "onnx", "nnef", "eager", "all"} <= extras.keys()
    named = {n for held in extras.values() for n in re.findall(r'"(\w+?)(?:\[\w+\])?==', held)}
    assert named <= {p.name for p in PACKAGES}
