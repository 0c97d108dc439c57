"""Places that are counted from the end where a size says so, and from the front where that comes out as 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ir

TARGETS = ["onnx", "nnef", "eager"]
SIZES = (0, 1, 2, 3, 4, 6, 7, 9, 11)
X = torch.randn(8, 2)


def begins(x: Tensor) -> Tensor:
    return x[-(x.shape[0] % 3) :]


def ends(x: Tensor) -> Tensor:
    return x[: -(x.shape[0] % 3)]


def both(x: Tensor) -> Tensor:
    at = -(x.shape[0] % 3)
    return x[at : at + 2]


def in_a_minimum(x: Tensor) -> Tensor:
    return torch.cat([x, x[-min(x.shape[0] // 5, 2) :]])


def split(x: Tensor) -> Tensor:
    return torch.tensor_split(x, [-(x.shape[0] % 3)])[1]


def between(x: Tensor) -> Tensor:
    return x[x.shape[0] - 12 : x.shape[0] - 9]


def of_one(x: Tensor) -> Tensor:
    return x[-(x.shape[0] // 2)]


def from_either(x: Tensor) -> Tensor:
    return x.select(0, x.shape[0] - 5)


def written(x: Tensor) -> Tensor:
    z = x.clone()
    z[-(x.shape[0] % 3) :] += 1
    return z


def filled(x: Tensor) -> Tensor:
    z = x.clone()
    z[-((x.shape[0] + 1) % 2) :] = 1
    return z


MODELS = [begins, ends, both, in_a_minimum, split, between, of_one, from_either, written, filled]


@pytest.mark.filterwarnings("ignore:the model branches:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.export takes:UserWarning")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", MODELS)
def test_right_or_refused(model: Callable[[Tensor], Tensor], target: str) -> None:
    program = ir.export(model, X, target=target, dynamic_shapes=({0: "n"},))
    torch.testing.assert_close(program(X), model(X))
    for n in SIZES:
        given = torch.randn(n, 2)
        try:
            made = program(given)
        except (ir.ExportError, IndexError, RuntimeError):
            continue
        torch.testing.assert_close(made, model(given))


def test_the_side_of_the_example_is_said() -> None:
    with pytest.warns(
        UserWarning, match=r"right only where\n  \(-\(n % 3\)\) < 0  \(a slice at .*from_the_end.py:\d+\)"
    ):
        program = ir.export(written, X, target="onnx", dynamic_shapes=({0: "n"},), verify=True)
    torch.testing.assert_close(program(X[:5]), written(X[:5]))
    with pytest.raises(ir.RefusedError, match=r"not captured for n=6: .* a slice at .* branched on that"):
        program(X[:6])


@pytest.mark.parametrize("target", TARGETS)
def test_a_write_to_the_last_of_as_many_as_another_has(target: str) -> None:
    """With none of the other `z[-0:]` is all of z, and the trace has a write from `a - b` on."""

    def model(x: Tensor, y: Tensor) -> Tensor:
        z = x.clone()
        z[-y.shape[0] :] = 0
        return z

    with pytest.warns(UserWarning, match=r"the program refuses these\n  -b < 0 is True .*, but not at b = 0"):
        program = ir.export(model, (X, torch.ones(4)), target=target, dynamic_shapes=({0: "a"}, {0: "b"}))
    for b in (1, 4, 8):
        torch.testing.assert_close(program(X, torch.ones(b)), model(X, torch.ones(b)))
    with pytest.raises(ir.RefusedError, match=r"where -b < 0 is True"):
        program(X, torch.ones(0))
