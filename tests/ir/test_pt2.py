"""Files that are not trusted: hostile archives are refused and run nothing, damaged ones end in a CaptureError."""

import subprocess
import sys
import zipfile

import pytest
import torch

import ir
from ir.errors import CaptureError
from tests.ir import pt2_files


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return pt2_files.members(tmp_path_factory.mktemp("pt2") / "whole.pt2")


def test_whole_archive(parts, tmp_path):
    graph = ir.capture(pt2_files.write(tmp_path / "same.pt2", parts))
    assert [n.op for n in graph.nodes][:1] == ["aten::linear"]


ATTACKS = """
size, size attribute, guards, enum, factory, hub, library, library method, file, save, dunder, path, no data,
weight pickle, opaque, compiled, older weights, member, older format, prefix, globals, argument name, guard text,
guard quotes, placeholder name, power, tower, python power, deep size, many terms, version, nested, overlong weight
"""
HARMLESS = ["samples", "parameter name"]


@pytest.mark.parametrize("name", [name.strip() for name in ATTACKS.split(",")])
def test_attack_is_refused(parts, tmp_path, name):
    sentinel = tmp_path / "sentinel"
    found = pt2_files.attacks(parts, sentinel)
    path = pt2_files.write(tmp_path / "attack.pt2", found[name])
    before = set(sys.modules)
    with pytest.raises(CaptureError) as refused:
        ir.capture(path)
    assert "attack.pt2" in str(refused.value)
    assert not sentinel.exists()
    assert "antigravity" not in set(sys.modules) - before


def test_every_attack_is_tried(parts, tmp_path):
    assert set(pt2_files.attacks(parts, tmp_path)) == {name.strip() for name in ATTACKS.split(",")}


def test_a_weight_that_is_longer_than_its_record_is_named(parts, tmp_path):
    attack = pt2_files.attacks(parts, tmp_path / "sentinel")["overlong weight"]
    with pytest.raises(CaptureError, match=r"the tensor .* reaches over the end"):
        ir.capture(pt2_files.write(tmp_path / "attack.pt2", attack))


def test_a_weight_that_reaches_one_element_over_its_record_is_named(parts, tmp_path):
    def shift(document):
        for payload in document["config"].values():
            payload["tensor_meta"]["storage_offset"] = {"as_int": 1}

    path = pt2_files.write(tmp_path / "shifted.pt2", pt2_files.edited(parts, pt2_files.WEIGHTS, shift))
    with pytest.raises(CaptureError, match=r"the tensor .* reaches over the end of its (256|32) bytes"):
        ir.capture(path)


def test_what_is_no_plain_file(tmp_path):
    (tmp_path / "link.pt2").symlink_to(tmp_path / "nothing")
    for path, message in ((tmp_path, "no plain file"), (tmp_path / "link.pt2", "no such file")):
        with pytest.raises(CaptureError, match=message):
            ir.capture(path)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_not_read_does_nothing(parts, tmp_path, name):
    sentinel = tmp_path / "sentinel"
    path = pt2_files.write(tmp_path / "attack.pt2", pt2_files.harmless(parts, sentinel)[name])
    whole = ir.capture(pt2_files.write(tmp_path / "whole.pt2", parts))
    assert [n.op for n in ir.capture(path).nodes] == [n.op for n in whole.nodes]
    assert not sentinel.exists()


REAL = ["size", "weight pickle", "placeholder name", "samples"]
REAL += ["opaque"] if torch.__version__ >= "2.13" else []  # older ones make nothing of such constants


LOADED = """
import contextlib, sys, torch
for path in sys.argv[1:]:
    with contextlib.suppress(Exception):
        torch.export.load(path).module()(torch.randn(4, 8))
"""


def test_attacks_are_real(parts, tmp_path):
    """The same files make torch run code, so that refusing them means something."""
    paths = []
    for number, name in enumerate(REAL):
        sentinel = tmp_path / f"sentinel{number}"
        found = pt2_files.attacks(parts, sentinel) | pt2_files.harmless(parts, sentinel)
        paths.append(str(pt2_files.write(tmp_path / f"attack{number}.pt2", found[name])))
    subprocess.run([sys.executable, "-c", LOADED, *paths], capture_output=True, timeout=300)
    assert [name for n, name in enumerate(REAL) if not (tmp_path / f"sentinel{n}").exists()] == []


def test_compressed_and_doubled(parts, tmp_path):
    import zipfile

    path = pt2_files.write(tmp_path / "compressed.pt2", parts, zipfile.ZIP_DEFLATED)
    with pytest.raises(CaptureError, match="compressed"):
        ir.capture(path)
    path = pt2_files.write(tmp_path / "doubled.pt2", parts)
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"m/{pt2_files.MODEL}", parts[pt2_files.MODEL])
    with pytest.raises(CaptureError, match="have the name"):
        ir.capture(path)


def test_a_directory_that_counts_fewer_records_than_it_holds(parts, tmp_path):
    """Another reader would find the last one."""
    path = pt2_files.write(tmp_path / "short.pt2", parts)
    data = bytearray(path.read_bytes())
    count = int.from_bytes(data[-12:-10], "little")
    data[-14:-10] = (count - 1).to_bytes(2, "little") * 2
    path.write_bytes(data)
    with pytest.raises(CaptureError, match="the archive's directory is not as long as it says"):
        ir.capture(path)


def test_members_beside_the_folder(parts, tmp_path):
    """torch.export.load turns to them, pickles of an older format, where the folder holds no program."""
    import zipfile

    path = pt2_files.write(tmp_path / "both.pt2", {n: d for n, d in parts.items() if n != pt2_files.MODEL})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("version", b"8.1")
    with pytest.raises(CaptureError, match="one folder"):
        ir.capture(path)


def test_example_inputs_are_data(parts, tmp_path):
    """Those of the graph's own types are given; nothing else is, and what is no tensor is not run."""
    nested: list = []
    for _ in range(40):
        nested = [nested] * 10
    right = torch.randn(4, 8)
    strange = {
        "code": pt2_files.Touch(tmp_path / "touched"),
        "code in a dict": {"a": pt2_files.Touch(tmp_path / "touched")},
        "nested without end": ((nested,), {}),
        "two": ((right, right), {}),
        "another name": ((), {"x": right}),
        "another rank": ((right[0],), {}),
        "another size": ((right[:3],), {}),
        "another type": ((right.double(),), {}),
        "a number": ((3,), {}),
        "no arguments": right,
    }
    for name, value in strange.items():
        path = pt2_files.write(tmp_path / "m.pt2", {**parts, pt2_files.SAMPLES: pt2_files.saved(value)})
        with pytest.raises(CaptureError, match="its example inputs"):
            ir.capture(path).context.example()
        assert not (tmp_path / "touched").exists(), name
    path = pt2_files.write(tmp_path / "m.pt2", {**parts, pt2_files.SAMPLES: pt2_files.saved(((right,), {}))})
    assert torch.equal(ir.capture(path).context.example()[0][0], right)
    path = pt2_files.write(tmp_path / "m.pt2", {**parts, pt2_files.SAMPLES: pt2_files.saved(None)})
    with pytest.raises(CaptureError, match="carries no example inputs"):
        ir.capture(path).context.example()


def test_a_list_of_too_many_numbers(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x, w):
            return torch.nn.functional.conv2d(x, w, padding=1)

    args = (torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
    torch.export.save(torch.export.export(Model(), args), tmp_path / "m.pt2")
    with zipfile.ZipFile(tmp_path / "m.pt2") as archive:
        parts = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}

    def edit(document):
        (node,) = document["graph_module"]["graph"]["nodes"]
        next(i for i in node["inputs"] if i["name"] == "padding")["arg"] = {"as_ints": [1, 1, 1]}

    path = pt2_files.write(tmp_path / "m.pt2", pt2_files.edited(parts, pt2_files.MODEL, edit))
    with pytest.raises(CaptureError, match="3 numbers for padding, which takes 2"):
        ir.capture(path)


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


def test_a_range_that_no_number_is_in(parts, tmp_path):
    def edit(document):
        for known in document["range_constraints"].values():
            known.update(min_val=-5, max_val=-9)

    path = pt2_files.write(tmp_path / "m.pt2", pt2_files.edited(parts, pt2_files.MODEL, edit))
    with pytest.raises(CaptureError, match="at least -5 and at most -9"):
        ir.capture(path)


def test_ranges_of_sizes_that_the_graph_has_not(parts, tmp_path):
    def edit(document):
        own = document["range_constraints"]
        document["range_constraints"] = {f"s{1000 + i}": {"min_val": 0, "max_val": 5} for i in range(100_000)} | own

    whole = ir.capture(pt2_files.write(tmp_path / "whole.pt2", parts))
    path = pt2_files.write(tmp_path / "m.pt2", pt2_files.edited(parts, pt2_files.MODEL, edit))
    graph = ir.capture(path)
    assert graph.symbols == whole.symbols and len(graph.context.program.ranges) < 10
    assert graph.context.reference(graph, (torch.randn(4, 8),), {})[0].shape == (7, 8)
