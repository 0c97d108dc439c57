"""An op that an opset lacks is refused with the lowest opset that has it; there it is exported and right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ir

_numbers = itertools.count()


@pytest.fixture
def opaque() -> Iterator[tuple[str, torch.library.Library]]:
    """A library for ops that have a kernel and no body, so that nothing but a handler can say them."""
    name = f"lowest{next(_numbers)}"
    with torch.library._scoped_library(name, "DEF") as library:
        yield name, library


def defined(library, schema, kernel):
    """One op whose kernel leaves torch, by way of numpy."""
    library.define(schema)
    name = schema.partition("(")[0]
    library.impl(name, lambda *args: torch.from_numpy(np.array(kernel(*args).detach().numpy())), "CPU")
    library.impl(name, kernel, "Meta")


@pytest.mark.parametrize("opset", [13, 15])
def test_grid_sample(opaque, opset, tmp_path):
    name, library = opaque
    defined(library, "sample(Tensor x, Tensor g) -> Tensor", lambda x, g: F.grid_sample(x, g, align_corners=True))
    refused_below(
        16, opset, "GridSample", getattr(torch.ops, name).sample, (torch.randn(2, 3, 4, 5), torch.rand(2, 6, 7, 2)),
        f"{name}::sample", lambda h, x, g: h.emit("GridSample", x, g, align_corners=1, shape=h.out.shape), tmp_path,
    )  # fmt: skip


@pytest.mark.parametrize("opset", [13, 17, 22])
def test_swish(opaque, opset, tmp_path):
    name, library = opaque
    defined(library, "swish(Tensor x) -> Tensor", lambda x: x * torch.sigmoid(x))
    refused_below(
        24, opset, "Swish", getattr(torch.ops, name).swish, (torch.randn(2, 3),),
        f"{name}::swish", lambda h, x: h.emit("Swish", x), tmp_path,
    )  # fmt: skip


def refused_below(lowest, opset, op, fn, args, key, handler, tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(ir.RefusedError, match=f"it needs {op}, which opset {opset} does not have; use opset={lowest}"):
        ir.export(lambda *x: fn(*x), args, target="onnx", path=path, opset=opset, handlers={key: handler})
    assert not path.exists()
    ir.export(lambda *x: fn(*x), args, target="onnx", path=path, opset=lowest, handlers={key: handler}, verify=True)


@pytest.mark.parametrize(("opset", "error"), [("18", TypeError), (12, ValueError), (99, ValueError)])
def test_what_is_no_opset(opset, error):
    with pytest.raises(error, match="13 to "):
        ir.export(torch.nn.ReLU(), (torch.ones(2),), target="onnx", opset=opset)


def test_what_a_later_opset_has_is_refused_with_it():
    x = torch.randn(3)
    with pytest.raises(ir.RefusedError, match=r"aten::view.dtype: it needs BitCast, .*; use opset=26"):
        ir.export(lambda x: x.view(torch.int32), (x,), target="onnx")
