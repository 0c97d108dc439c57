"""Files that are not trusted: hostile archives are refused and run nothing, damaged ones end in a CaptureError."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ir
from ir.errors import CaptureError
from tests.ir import pt2_files

ROOT = Path(__file__).parents[2]
COUNT = 600


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return pt2_files.members(tmp_path_factory.mktemp("pt2") / "whole.pt2")


def test_whole_archive(parts, tmp_path):
    graph = ir.capture(pt2_files.write(tmp_path / "same.pt2", parts))
    assert [n.op for n in graph.nodes][:1] == ["aten::linear"]


ATTACKS = """
size, size attribute, guards, enum, factory, hub, library, library method, file, save, dunder, path, no data,
weight pickle, opaque, samples, compiled, older weights, member, older format
"""


@pytest.mark.parametrize("name", [name.strip() for name in ATTACKS.split(",")])
def test_attack_is_refused(parts, tmp_path, name):
    sentinel = tmp_path / "sentinel"
    found = pt2_files.attacks(parts, sentinel)
    path = pt2_files.write(tmp_path / "attack.pt2", found[name])
    before = set(sys.modules)
    with pytest.raises(CaptureError) as refused:
        ir.capture(path)
    assert "attack.pt2: " in str(refused.value)  # by the check, not by accident in torch
    assert not sentinel.exists()
    assert "antigravity" not in set(sys.modules) - before


@pytest.mark.parametrize("name", ["size", "samples", "weight pickle", "opaque"])
def test_attack_is_real(parts, tmp_path, name):
    """The same files make torch.export.load run code, so that refusing them means something."""
    sentinel = tmp_path / "sentinel"
    path = pt2_files.write(tmp_path / "attack.pt2", pt2_files.attacks(parts, sentinel)[name])
    script = "import sys, torch; torch.export.load(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, timeout=120)
    assert sentinel.exists()


def test_compressed_and_doubled(parts, tmp_path):
    import zipfile

    path = pt2_files.write(tmp_path / "compressed.pt2", parts, zipfile.ZIP_DEFLATED)
    with pytest.raises(CaptureError, match="compressed"):
        ir.capture(path)
    path = pt2_files.write(tmp_path / "doubled.pt2", parts)
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"m/{pt2_files.MODEL}", parts[pt2_files.MODEL])
    with pytest.raises(CaptureError, match="one name"):
        ir.capture(path)


def test_members_beside_the_folder(parts, tmp_path):
    """torch.export.load turns to them, pickles of an older format, where the folder holds no program."""
    import zipfile

    path = pt2_files.write(tmp_path / "both.pt2", {n: d for n, d in parts.items() if n != pt2_files.MODEL})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("version", b"8.1")
    with pytest.raises(CaptureError, match="one folder"):
        ir.capture(path)


def test_damaged_archives(tmp_path):
    """In a child process, which must survive them all."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ir.pt2_files", str(tmp_path), "7", str(COUNT)],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["refused"] + outcome["loaded"] == COUNT
    assert outcome["refused"] > COUNT // 2 and outcome["loaded"] > 0


def test_old_load_path_is_not_offered(tmp_path):
    torch.save({"x": 1}, tmp_path / "plain.pt2")
    with pytest.raises(CaptureError, match="older format"):
        ir.capture(tmp_path / "plain.pt2")


def test_weights_that_the_graph_was_not_made_for(parts, tmp_path):
    def swap(document):
        tensors = document["config"]
        first, second = list(tensors)[:2]
        tensors[first], tensors[second] = tensors[second], tensors[first]

    path = pt2_files.write(tmp_path / "swapped.pt2", pt2_files.edited(parts, pt2_files.WEIGHTS, swap))
    with pytest.raises(CaptureError, match="the graph was made for"):
        ir.capture(path)
