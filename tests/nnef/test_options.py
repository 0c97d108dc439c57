"""What the targets' options do to a document, and what they refuse."""

from __future__ import annotations

import getpass
import os
import platform
import re
import tarfile

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ir
import nnef_backend
from nnef_backend import Khronos, Tract
from nnef_backend.errors import DocumentError
from nnef_backend.format import archive
from tests.cases import ALL
from tests.harness import run_case

X = torch.randn(2, 4)
NET = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
BATCH = ({0: "batch"},)


@pytest.mark.parametrize(("kind", "first"), [("directory", None), ("tar", b"graph.nnef"), ("tgz", b"\x1f\x8b")])
def test_compression_by_option(kind, first, tmp_path):
    path = tmp_path / "model"
    program = ir.export(NET, (X,), target=Tract(compression=kind), path=path, verify=True)
    assert path.is_dir() if first is None else path.read_bytes().startswith(first)
    assert program(X).shape == (2, 2)
    assert set(archive.members(path)) == {"graph.nnef", "0.weight.dat", "0.bias.dat", "2.weight.dat", "2.bias.dat"}


def test_compression_against_the_paths_name(tmp_path):
    with pytest.raises(DocumentError, match=r"model.tgz is the name of a tgz, but compression='tar'"):
        ir.export(NET, (X,), target=Tract(compression="tar"), path=tmp_path / "model.tgz")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "zip"}, "'directory', 'tar', 'tgz'"),
        ({"naming": "short"}, "'raw', 'numeric'"),
        ({"weights": "q8"}, "None, 'q4_0'"),
        ({"version": "new"}, "no version of tract"),
        ({"version": "0.19.2"}, "starts at tract 0.22"),
        ({"version": "99.1"}, "newer than the installed tract"),
    ],
)
def test_options_that_are_none(options, message):
    with pytest.raises(ValueError, match=message):
        Tract(**options)


def test_the_version_decides_the_operations():
    older = ir.export(nn.Sigmoid(), (X,), target=Tract(version="0.22.0"), verify=True)
    assert "sigmoid" in older.artifact.to_text()
    newer = {"aten::erf": lambda h, self: h.emit("tract_core_pow_const", self, exponent=2.0)}
    ir.export(torch.erf, (X,), target="nnef", version="0.23.6", handlers=newer)
    with pytest.raises(ir.RefusedError, match=r"tract_core_pow_const: tract has it since 0.23.6, this is for 0.23.5"):
        ir.export(torch.erf, (X,), target="nnef", version="0.23.5", handlers=newer)
    # what has a decomposition comes out of older operations, equal to torch
    grid = lambda x, g: nn.functional.grid_sample(x, g, align_corners=False)  # noqa: E731
    arguments = (torch.randn(1, 1, 4, 4), torch.rand(1, 3, 3, 2))
    program = ir.export(grid, arguments, target="nnef", version="0.23.2", verify=True)
    assert "tract_core_grid_sample" not in program.artifact.to_text()


def test_assertions():
    program = ir.export(
        NET, (X,), target="nnef", dynamic_shapes=BATCH, assertions=["batch>=1", "batch < 100"], verify=True
    )
    text = program.artifact.to_text()
    assert "extension tract_assert batch>=1;\n" in text and "extension tract_assert batch < 100;\n" in text
    with pytest.raises(ir.RefusedError, match="names S, no symbol of this graph: there are batch"):
        ir.export(NET, (X,), target="nnef", dynamic_shapes=BATCH, assertions=["S>=1"])
    for wrong in ("batch%2==0", "batch", "batch>=1; extension tract_assert x>1", "a: b: batch>=1"):
        with pytest.raises(ir.RefusedError, match="is no comparison"):
            ir.export(NET, (X,), target="nnef", dynamic_shapes=BATCH, assertions=[wrong])


def test_assertions_of_a_mode():
    """tract runs such a document in the sizes of its modes alone."""
    modes = ["one: batch==1", "three : batch==3"]
    program = ir.export(NET, (X,), target="nnef", dynamic_shapes=BATCH, assertions=modes)
    assert "extension tract_assert one: batch==1;\n" in program.artifact.to_text()
    assert program(X[:1]).shape[0] == 1
    with pytest.raises(ir.RuntimeFailure, match="No possible scenario"):
        program(X[:1].repeat(2, *[1] * (X.dim() - 1)))


def test_assertions_with_products_of_symbols_are_refused():
    with pytest.raises(ir.RefusedError, match="multiplies symbols"):
        ir.export(NET, (X,), target="nnef", dynamic_shapes=BATCH, assertions=["batch*(batch + 1) >= 1"])


def test_sizes_below_those_that_torch_found_are_refused():
    program = ir.export(lambda x: x[-3:-1] * 2, (torch.randn(4),), target="nnef", dynamic_shapes=({0: "n"},))
    assert program(torch.arange(3.0)).tolist() == [0.0, 2.0]
    with pytest.raises(ir.RefusedError, match=r"float32\[2\], the program was made for f32\[n\] with 3 <= n"):
        program(torch.arange(2.0))


def test_a_filter_of_weights_wants_packed_weights():
    with pytest.raises(ValueError, match="weights='q4_0'"):
        nnef_backend.Tract(weights_filter="0.*")


def test_naming():
    raw = ir.export(NET, (X,), target="nnef").artifact
    assert "linear" in raw.to_text() and "0.weight" in raw.tensors
    program = ir.export(NET, (X,), target="nnef", naming="numeric", dynamic_shapes=BATCH, verify=True)
    text = program.artifact.to_text()
    assert set(program.artifact.tensors) == {"w0", "w1", "w2", "w3"}
    made = re.findall(r"^ +(\w+) =", text, re.MULTILINE)
    assert all(re.fullmatch(r"[vw]\d+", name) for name in made if name not in ("input", "output")), made
    assert program.artifact.inputs == raw.inputs and program.artifact.outputs == raw.outputs


def test_numeric_names_in_fragments_and_loops():
    model = nn.LSTM(4, 3, batch_first=True)
    program = ir.export(
        model, (torch.randn(2, 5, 4),), target="nnef", naming="numeric", dynamic_shapes=({0: "B"},), verify=True
    )
    assert program.artifact.fragments


def test_metadata_is_what_was_asked_for(tmp_path):
    plain = ir.export(NET, (X,), target="nnef", path=tmp_path / "plain")
    assert not plain.artifact.properties
    data = b"".join(f.read_bytes() for f in (tmp_path / "plain").iterdir()).lower()
    for private in (platform.node(), getpass.getuser(), os.getcwd(), str(tmp_path)):
        assert len(private) < 5 or private.lower().encode() not in data
    given = {"licence": "MIT", "revision": 3, "quantised": False}
    program = ir.export(NET, (X,), target="nnef", metadata=given, path=tmp_path / "model.tgz", verify=True)
    assert nnef_backend.load(tmp_path / "model.tgz").property_names == ["licence", "quantised", "revision"]
    assert program.artifact.to_text().count("tract_core_properties") == 1
    with pytest.raises(DocumentError, match="quotes"):
        ir.export(NET, (X,), target="nnef", metadata={"a": "it's"}, path=tmp_path / "bad")


@pytest.mark.parametrize("target", [Tract(), Tract(naming="numeric"), Khronos()])
def test_the_same_model_gives_the_same_bytes(target, tmp_path):
    paths = [tmp_path / name / "model.tgz" for name in "ab"]
    for path in paths:
        path.parent.mkdir()
        ir.export(NET, (X,), target=target, path=path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with tarfile.open(paths[0]) as tar:
        assert not any(entry.mtime or entry.uid or entry.uname for entry in tar)


def test_four_gigabytes_are_refused_before_anything_is_written(tmp_path):
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.empty(1).expand(2**30 + 1))

        def forward(self, x):
            return x + self.table[x.long()]

    with pytest.raises(ir.RefusedError, match=r"refuses table: .* takes 4294967300 bytes"):
        ir.export(Large(), (X,), target="nnef", path=tmp_path / "large")
    assert not os.listdir(tmp_path)


BF16 = [c for c in ALL if "bf16" in c.name or "bfloat" in c.name]


@pytest.mark.parametrize("case", BF16, ids=lambda c: c.name)
def test_bfloat16_in_float32(case):
    """It is rounded as torch rounds it, or only held in float32, or refused."""
    with pytest.raises(ir.RefusedError, match="bf16"):
        run_case(case, "nnef", bfloat16=None)
    run_case(case, "nnef", bfloat16="float32")


def _every_kind_of_float32() -> torch.Tensor:
    """Numbers of all sizes, those next to the middle of two of bfloat16, and the odd ones."""
    bits = torch.randint(-(2**31), 2**31, (40000,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    middle = [bits & ~0xFFFF | 0x8000 + k for k in (-1, 0, 1)]
    odd = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.4028234e38, 2**-134, -(2**-134), -1e-45, 2**-126]
    )
    return torch.cat([*(b.view(torch.float32) for b in (bits, *middle)), odd])


def test_bfloat16_is_rounded_to_the_bit():
    x = _every_kind_of_float32()
    found, wanted = ir.export(lambda x: x.bfloat16(), (x,), target="nnef")(x), x.bfloat16()
    same = found.view(torch.int16) == wanted.view(torch.int16)
    assert (same | (found.isnan() & wanted.isnan())).all()


BFLOATS = {
    "numbers that kernels round": lambda x: (
        x == 0.1,
        x > 0.3,
        x + 0.1,
        x.sub(0.1),
        0.3 - x,
        x.fmod(0.3),
        F.hardshrink(x, 0.3),
    ),
    "factors and bases that kernels round": lambda x: (
        torch.add(x[:32], x[:32], alpha=0.3003),  # whole vectors: what is left over torch rounds twice
        torch.sub(x[:32], 0.3003, alpha=1.7012),
        torch.rsub(x[:32], x[31:].neg(), alpha=0.3003),
        1.7012**x,
        torch.float_power(x.abs(), 2),
    ),
    "logit of one and above its limit": lambda x: (torch.logit(x, 1e-3), torch.logit(x, 0.1003), torch.logit(x)),
    "numbers that kernels read in float32": lambda x: (x * 0.1, x / 0.3, F.softshrink(x, 0.1), F.leaky_relu(x, 0.3)),
    "each step": lambda x: ((x * 1.1 + 0.3) * x).sum(0),
    "its own limits": lambda x: torch.nan_to_num(x / 0),
    "to and fro": lambda x: (x.float() * 1.001).bfloat16().double(),
    "a body": lambda x: torch.cond(x.sum() > 0, lambda x: x * 1.3 + 1, lambda x: x - 1.3, (x,)),
}


@pytest.mark.parametrize("name", BFLOATS)
def test_bfloat16_gives_torchs_own_numbers(name):
    x = torch.cat([torch.linspace(-2, 2, 60), torch.tensor([0.1, 0.3, -0.1])]).bfloat16()[:, None]
    found, wanted = ir.export(BFLOATS[name], (x,), target="nnef")(x), BFLOATS[name](x)
    for a, b in zip(*((v if isinstance(v, (tuple, list)) else [v]) for v in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_bfloat16_that_has_no_form_is_refused():
    x = torch.ones(3).bfloat16()
    with pytest.raises(ir.RefusedError, match="middle of this division"):
        ir.export(lambda x: torch.floor_divide(x, x), (x,), target="nnef")
    with pytest.raises(ir.RefusedError, match="reads the bits"):
        ir.export(lambda x: x.view(torch.int16), (x,), target="nnef")


def test_bfloat16_weights_in_four_bits():
    model = nn.Sequential(nn.Embedding(20, 32), nn.Linear(32, 8)).bfloat16()
    ids = torch.randint(0, 20, (2, 3))
    program = ir.export(model, (ids,), target="nnef", bfloat16="float32", weights="q4_0", verify=True)
    assert program(ids).dtype is torch.bfloat16
