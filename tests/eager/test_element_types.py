"""Which element type a program computes in: the graph's whatever torch's default is, and that of `dtype=`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ir
from eager_backend import Eager
from ir.opening import open_artifact

from .test_program import Call

WHOLE = torch.arange(1, 5)
ROWS = torch.linspace(-2, 2, 16).reshape(4, 4)
MASK = torch.ones(4, 4, dtype=torch.bool).tril()
LARGEST = torch.finfo(torch.float16).max


# -- torch's default dtype ---------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


ASKING: dict[str, Any] = {
    "factories": lambda i: (torch.ones(3), torch.linspace(0, 1, 3), torch.full((2,), 0.1), torch.arange(0, 1, 0.25)),
    "of_tensors": lambda i: torch.linspace(i[0].double(), i[1].double(), 4),
    "quotient": lambda i: (i / 3, (i > 2) / 2, i / i),
    "functions": lambda i: (i.sqrt(), i.sigmoid(), torch.atan2(i, i), i.clamp(1.5), i**0.5, i * 0.3j),
    "numbers": lambda i: (torch.where(i > 2, 0.1, 0.3), torch.where(i > 2, i, 0.3)),
    "branch": lambda i: torch.cond(i.sum() > 0, lambda x: x / 3, lambda x: torch.ones(4), (i,)),
    "size": lambda i: i * i.shape[0] ** 0.5,
    "always_float64": lambda i: torch.float_power(i, 2),
}


@pytest.mark.parametrize("at_export", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ASKING)
def test_results_do_not_follow_the_default_dtype(name: str, at_export: torch.dtype, tmp_path: Path) -> None:
    model, path = Call(ASKING[name]), tmp_path / "model.pt2"
    torch.set_default_dtype(at_export)
    made = model(WHOLE)
    wanted = list(made) if isinstance(made, tuple) else [made]
    shapes = ({0: torch.export.Dim("n", min=2)},) if name == "size" else None
    programs = [
        ir.export(model, (WHOLE,), target=Eager(optimize=optimize), path=path, dynamic_shapes=shapes)
        for optimize in (False, True)
    ]
    torch.set_default_dtype(torch.float64 if at_export is torch.float32 else torch.float32)
    calls = [*programs, open_artifact(path), torch.export.load(path).module()]
    for call in calls:
        found = call(WHOLE)
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        assert [r.dtype for r in results] == [w.dtype for w in wanted]
        torch.testing.assert_close(results, wanted, rtol=0, atol=0)


def test_a_saved_program_leaves_the_captured_one_alone(tmp_path: Path) -> None:
    captured = torch.export.export(Call(lambda i: (i / 2, torch.ones(2))), (WHOLE,))
    before = str(captured.graph)
    ir.export(captured, target="eager", path=tmp_path / "model.pt2")
    assert str(captured.graph) == before


@pytest.mark.parametrize("model", [lambda i: i / 2, lambda i: torch.ones(3)])
def test_a_file_that_leaves_the_type_to_the_default_names_it(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "other.pt2"
    torch.set_default_dtype(torch.float64)
    torch.export.save(torch.export.export(Call(model), (WHOLE,)), path)
    torch.set_default_dtype(torch.float32)
    with pytest.raises(ir.ExportError, match=r"default dtype, float32 here.*call torch.set_default_dtype\(torch.float"):
        open_artifact(path)
    torch.set_default_dtype(torch.float64)
    assert open_artifact(path)(WHOLE)[0].dtype is torch.float64


# -- numbers that float16 has not --------------------------------------------------------------------------------------


def in_halves(fn: Any, *args: Tensor) -> Any:
    return ir.export(fn, args, target="eager", dtype="float16", verify=False)(*args)


def test_a_number_beyond_float16_is_its_largest() -> None:
    found = in_halves(lambda x, m: x.masked_fill(~m, -1e9), ROWS, MASK)
    assert found.dtype is torch.float16 and found[0, -1].item() == -LARGEST


def test_attention_with_a_mask_of_1e9() -> None:
    def masked(x: Tensor, m: Tensor) -> Tensor:
        return (x @ x.mT).masked_fill(~m, -1e9).softmax(-1)

    torch.testing.assert_close(in_halves(masked, ROWS, MASK).float(), masked(ROWS, MASK), rtol=1e-2, atol=1e-2)


# -- ops without a kernel ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cdist(x, x + 1),
        lambda x: F.multi_margin_loss(x, torch.tensor([0, 1, 2, 3])),
        lambda x: torch.special.airy_ai(x) + torch.special.bessel_j0(x),
        lambda x: torch.stft(x.flatten(), 8, window=torch.hann_window(8), return_complex=True).abs(),
        lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(4) * 4),
        lambda x: F.ctc_loss(x.log_softmax(-1)[:, None], torch.ones(1, 2).long(), (4,), (2,)),
        lambda x: torch.special.airy_ai(x[x > 0]),
    ],
)
def test_what_torch_has_no_kernel_for_is_computed_in_float32(fn: Any, dtype: str) -> None:
    found = ir.export(fn, (ROWS,), target="eager", dtype=dtype, verify=False)(ROWS)
    assert found.dtype is getattr(torch, dtype)
    torch.testing.assert_close(found.float(), fn(ROWS), rtol=0.03, atol=0.03)


def test_what_has_a_kernel_keeps_the_type() -> None:
    listing = ir.export(nn.Linear(4, 4), (ROWS,), target="eager", dtype="float16", verify=False).artifact.listing()
    assert ".to(float32)" not in listing


def test_a_custom_op_without_a_kernel_is_named() -> None:
    @torch.library.custom_op("element_types::airy", mutates_args=())
    def airy(x: Tensor) -> Tensor:
        return torch.special.airy_ai(x)

    airy.register_fake(torch.empty_like)
    with pytest.raises(ir.ExportError, match=r"types::airy test_element_types.py:\d+: torch refuses it in float16"):
        in_halves(lambda x: airy(x), ROWS)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex32_is_verified() -> None:
    """numpy has no such type, and arrays are compared."""
    ir.export(lambda x: x.chalf(), (torch.randn(3),), target="eager", verify=True)
