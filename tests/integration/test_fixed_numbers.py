"""Dynamic sizes where an op of torch takes a number: torch.export puts that of the example there, and notes it.

A program that goes on with it at other sizes has other numbers than the model, so that it refuses them.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ir
from ir.opening import open_artifact
from ir.plugins import find_target

FIXED = {
    "linspace": lambda x, n: torch.linspace(0, 1, n),
    "logspace": lambda x, n: torch.logspace(0, 1, n),
    "hann_window": lambda x, n: torch.hann_window(n),
    "one_hot": lambda x, n: F.one_hot(torch.arange(3), n + 3),
    "unfold": lambda x, n: x.unfold(1, n, 1),
    "tril_indices": lambda x, n: torch.tril_indices(n, n + 5),
    "adaptive_avg_pool1d": F.adaptive_avg_pool1d,
    "avg_pool1d": F.avg_pool1d,
    "max_pool2d": lambda x, n: F.max_pool2d(x[None], (1, n)),
    "diag": lambda x, n: x[0].diag(n),
    "new_tensor": lambda x, n: x.new_tensor([1, n]),
    "rot90": lambda x, n: x.rot90(n),
    "diff": lambda x, n: x.diff(n=n // 4),
    "interpolate": lambda x, n: F.interpolate(x[None], scale_factor=n / 8),
    "chunk": lambda x, n: x.chunk(n, 1),
    "split": lambda x, n: x.split(n, 1),
    "int": lambda x, n: x * int(n),
}

FLOWING = ("linspace", "one_hot")  # which `ir.capture` gives the size itself


class Halved(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        return FIXED[self.name](x, x.shape[1] // 2)


def leaves(result):
    return torch.utils._pytree.tree_leaves(result)


@pytest.mark.filterwarnings("ignore:the model branches on dynamic sizes")
@pytest.mark.parametrize("name", FIXED)
def test_a_number_that_torch_fixed_is_held_to(name):
    model = Halved(name)
    graph = ir.capture(model, (torch.randn(2, 16),), dynamic_shapes=({1: "n"},))
    for target in ("eager", "onnx", "nnef"):
        try:
            program = ir.export(graph, target=target)
        except ir.ExportError:
            assert target != "eager"
            continue
        refused = 0
        for size in (16, 17, 34, 9, 6):
            x = torch.randn(2, size)
            try:
                given = program(x)
            except ir.ExportError as error:
                assert "for other" in str(error), error
                refused += 1
                continue
            for a, b in zip(leaves(given), leaves(model(x)), strict=True):
                torch.testing.assert_close(a, b)
        assert refused == 0 if name in FLOWING else 0 < refused < 5 or name == "split"


def test_the_number_is_told_at_the_capture():
    with pytest.warns(UserWarning, match=r"n//2.*16.*test_fixed_numbers.py:"):
        ir.capture(Halved("logspace"), (torch.randn(2, 32),), dynamic_shapes=({1: "n"},))


def branched(x):
    return x * 2 if x.shape[0] > x.shape[1] else x - 1


@pytest.mark.filterwarnings("ignore:the model branches on dynamic sizes")
@pytest.mark.parametrize("target", ["eager", "onnx", "nnef"])
def test_every_program_refuses_the_other_side_of_a_branch(target):
    program = ir.export(branched, (torch.randn(9, 4),), dynamic_shapes=({0: "n", 1: "m"},), target=target)
    x = torch.randn(5, 4)
    assert torch.equal(program(x), x * 2)
    with pytest.raises(ir.RefusedError, match=r"holds only where .*: .*test_fixed_numbers.py:\d+ branched on that"):
        program(x.T)


BRANCHES = {
    "least": lambda n, m: n > 4,
    "even": lambda n, m: n % 2 == 0,
    "not": lambda n, m: n != 3,
    "both": lambda n, m: n > m,
    "half": lambda n, m: n // 2 > m - 3,
}


@pytest.mark.filterwarnings("ignore:the model branches on dynamic sizes")
@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("name", BRANCHES)
def test_a_file_that_is_opened_anew_refuses_the_other_side_of_a_branch(name, target, tmp_path):
    def model(x):
        return x * 2 if BRANCHES[name](*x.shape) else x - 1

    path = tmp_path / f"model{find_target(target, {}).suffix}"
    ir.export(model, (torch.randn(8, 4),), dynamic_shapes=({0: "n", 1: "m"},), target=target, path=path)
    opened = open_artifact(path)
    for n, m in ((8, 4), (7, 4), (3, 4), (4, 2), (10, 3), (1, 1)):
        x = torch.randn(n, m)
        if BRANCHES[name](n, m):
            torch.testing.assert_close(opened(x)[0], model(x))
        else:
            with pytest.raises(ir.ExportError, match=r"needs|does not hold|only where|made for"):
                opened(x)


def beside_its_columns(x):
    half = x[x.shape[0] // 2 :]
    columns = half.T.reshape(half.shape)
    return torch.cat([half, columns], 1), torch.stack([half, columns]) + columns


@pytest.mark.filterwarnings("ignore:the model branches on dynamic sizes")
@pytest.mark.parametrize("target", ["eager", "onnx", "nnef"])
def test_tensors_whose_sizes_are_equal_by_a_condition_alone(target):
    """torch leaves out the reshape: the program is for two rows."""
    program = ir.export(beside_its_columns, (torch.randn(3, 2),), dynamic_shapes=({0: "n"},), target=target)
    for size in (3, 4):
        x = torch.randn(size, 2)
        assert all(map(torch.equal, program(x), beside_its_columns(x)))
    with pytest.raises(ir.RefusedError, match="holds only where 2 == "):
        program(torch.randn(7, 2))


def rows_beside_their_number(z):
    rows = z[1::2]
    lower = rows.tril() + rows.tril(-1).mT
    return torch.cat([lower, rows], 1), lower.sum(0) / lower.shape[0]


class Rows(torch.nn.Module):
    def forward(self, z):
        return rows_beside_their_number(z)


@pytest.mark.filterwarnings("ignore:sizes that depend on dynamic ones are fixed")
@pytest.mark.parametrize("target", ["eager", "onnx", "nnef"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_size_that_is_1_at_the_example_stays_1(target, saved, tmp_path):
    """torch's shape rules write that 1 into the shapes behind, and the model's code reads it."""
    program = torch.export.export(
        Rows(),
        (torch.randn(3, 2, 3, 3),),
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
    )
    if saved:
        torch.export.save(program, tmp_path / "model.pt2")
    exported = ir.export(tmp_path / "model.pt2" if saved else program, target=target)
    for rows in (3, 2):
        z = torch.randn(rows, 2, 3, 3)
        for a, b in zip(exported(z), rows_beside_their_number(z), strict=True):
            torch.testing.assert_close(a, b)
    with pytest.raises(ir.RefusedError, match=r"\(s0//2\) == 1"):
        exported(torch.randn(7, 2, 3, 3))


STRIDED = (lambda x: F.conv1d(x[None], torch.ones(1, 2, 1), stride=x.shape[1] // 2),)
PADDED = (
    lambda x: F.conv1d(x[None], torch.ones(1, 2, 3), padding=x.shape[1] // 2),
    lambda x: F.conv_transpose1d(x[None], torch.ones(2, 1, 3), stride=x.shape[1] // 2),
)


@pytest.mark.parametrize(
    ("model", "target"), [*((m, "onnx") for m in (*STRIDED, *PADDED)), *((m, "nnef") for m in PADDED)]
)
def test_an_attribute_that_a_size_decides_is_computed(model, target):
    """A runtime's own convolution takes numbers alone; the shared form reads its windows by index."""
    program = ir.export(model, (torch.randn(2, 16),), dynamic_shapes=({1: "n"},), target=target)
    for size in (16, 24, 7):
        x = torch.randn(2, size)
        assert torch.allclose(program(x), model(x), atol=1e-5)


def test_a_stride_that_a_size_decides_is_refused_by_tract():
    with pytest.raises(ir.RefusedError, match="a stride, padding or dilation is n//2, which is only known at run time"):
        ir.export(STRIDED[0], (torch.randn(2, 16),), dynamic_shapes=({1: "n"},), target="nnef")


def test_a_decomposition_that_holds_for_the_traced_size_alone_is_not_used():
    def put(x, source):
        return x.put(torch.arange(x.shape[0] // 2), source)

    args, shapes = (torch.randn(20), torch.randn(10)), ({0: "B"}, None)
    with pytest.raises(ir.UnsupportedOpsError, match=r"its decomposition cannot be used: it holds only where \(B//2\)"):
        ir.export(put, args, target="onnx", dynamic_shapes=shapes)
