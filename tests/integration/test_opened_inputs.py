"""Files that are called wrongly: what does not fit their inputs is said before a runtime has it, alike for all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ir
from ir.opening import open_artifact

R = torch.randn
FILES = {"onnx": "m.onnx", "nnef": "m.nnef.tgz", "eager": "m.pt2"}


class Gathering(torch.nn.Module):
    """Takes two inputs of one name that no op holds to one size, and a number."""

    def forward(self, x, at, by):
        return x[at] * by


@pytest.fixture(scope="module", params=FILES)
def opened(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("opened") / FILES[request.param]
    args = R(3, 4), torch.tensor([0, 2, 1]), torch.tensor(2.0)
    ir.export(Gathering(), args, target=request.param, path=path, dynamic_shapes=({0: "b"}, {0: "b"}, None))
    return open_artifact(path)


AT, BY = torch.tensor([0, 2, 1]), torch.tensor(2.0)
FORM = (
    r"takes torch tensors or numpy arrays, one for each input in order \(x float32\[b, 4\], at int64\[b\], by float32"
)
WRONG = {
    "a dict": (({"x": R(3, 4)},), FORM + r".*\); a dict is given"),
    "a list": (([R(3, 4), AT, BY],), "a list is given"),
    "a number": ((R(3, 4), AT, 2.0), "a float is given"),
    "nothing": ((), FORM + r".*\); 0 are given"),
    "too many": ((R(3, 4), AT, BY, BY), "4 are given"),
    "another type": ((R(3, 4).double(), AT, BY), r"^x is float64\[3, 4\], and the file takes float32\[b, 4\]"),
    "an array of another type": ((np.zeros((3, 4)), AT, BY), r"^x is float64\[3, 4\]"),
    "an array of texts": ((np.array(["a"]), AT, BY), "x is an array of <U1, and the file takes float32"),
    "another rank": ((R(3, 4, 1), AT, BY), r"^x is float32\[3, 4, 1\], and the file takes float32\[b, 4\]"),
    "another size": ((R(3, 5), AT, BY), r"^x is float32\[3, 5\], and the file takes float32\[b, 4\]"),
    "a vector for a number": ((R(3, 4), AT, R(1)), r"^by is float32\[1\], and the file takes float32\[\]"),
    "a sparse tensor": ((R(3, 4).to_sparse(), AT, BY), "^the input x is a sparse_coo tensor"),
    "two sizes of one name": ((R(4, 4), AT, BY), "^b is 4 in x and 3 in at, and the file takes one size for both"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_in_a_sentence(opened, name):
    args, told = WRONG[name]
    with pytest.raises(ir.RefusedError, match=told):
        opened(*args)


@pytest.mark.parametrize("target", FILES)
def test_tensors_that_cannot_be_read_are_refused_as_by_the_program(target, tmp_path):
    program = ir.export(torch.nn.Conv1d(4, 3, 1), (R(2, 4, 5),), target=target, path=tmp_path / FILES[target])
    opened = open_artifact(program.path)
    opened(R(2, 4, 5))  # sizes and types that were looked at once are not again
    for x in (R(2, 4, 5).to("meta"), R(2, 4, 5).to_sparse()):
        for call in (program, opened):
            with pytest.raises(ir.RefusedError, match=r"^the input input is a (meta|sparse_coo) tensor, the program"):
                call(x)


def test_arrays_of_numpy_are_tensors(opened):
    x = R(4, 3).t()
    expected = x[AT] * 2
    for rows in (x.numpy(), x.numpy()[::-1][::-1]):
        assert torch.allclose(opened(rows, AT.numpy(), np.array(2, np.float32))[0], expected)


@pytest.mark.parametrize("target", FILES)
def test_a_computed_size_is_held_to_the_others(target, tmp_path):
    n = torch.export.Dim("n", max=8)
    path = tmp_path / FILES[target]
    ir.export(
        lambda x, y: x.sum() + y.sum(), (R(3), R(6)), target=target, path=path, dynamic_shapes=({0: n}, {0: 2 * n})
    )
    opened = open_artifact(path)
    opened(R(4), R(8))
    with pytest.raises(ir.RefusedError, match=r"y is float32\[7\], and the file takes float32\[2\*n\], where n is 4"):
        opened(R(4), R(7))


def test_ranges_are_those_of_the_file(tmp_path):
    n = torch.export.Dim("n", min=3, max=8)
    ir.export(lambda x: x * 2, (R(4),), target="eager", path=tmp_path / "m.pt2", dynamic_shapes=({0: n},))
    with pytest.raises(ir.RefusedError, match="3 <= n <= 8"):
        open_artifact(tmp_path / "m.pt2")(R(2))
