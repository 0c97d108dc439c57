"""A program of an element type of its own: numbers that it has not, and ops that torch does not compute in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ir

ROWS = torch.linspace(-2, 2, 16).reshape(4, 4)
MASK = torch.ones(4, 4, dtype=torch.bool).tril()
LARGEST = torch.finfo(torch.float16).max


# -- numbers that float16 has not --------------------------------------------------------------------------------------


def in_halves(fn: Any, *args: Tensor) -> Any:
    return ir.export(fn, args, target="eager", dtype="float16", verify=False)(*args)


@pytest.mark.parametrize(
    ("fn", "number"),
    [
        (lambda x, m: x.masked_fill(~m, -1e9), -LARGEST),
        (lambda x, m: torch.where(m, x, -1e9), -LARGEST),
        (lambda x, m: x.clamp(min=1e6), LARGEST),
        (lambda x, m: torch.full_like(x, -1e9), -LARGEST),
        (lambda x, m: F.pad(x, (0, 1), value=-1e9), -LARGEST),
        (lambda x, m: (~m).to(x.dtype) * -1e9, -LARGEST),
        (lambda x, m: x * 0 + 1e5, LARGEST),
        # in float32, and then cast, as the other targets have these
        (lambda x, m: x.masked_fill(~m, -(10**9)), -torch.inf),
        (lambda x, m: x + torch.full((4,), -1e9, dtype=torch.float32), -torch.inf),
        (lambda x, m: x + torch.full((4,), -1e9), -torch.inf),
    ],
)
def test_numbers_beyond_float16_are_those_of_the_other_targets(fn: Any, number: float) -> None:
    found = in_halves(fn, ROWS, MASK)
    assert found.dtype is torch.float16 and found[0, -1].item() == number
    onnx = ir.export(fn, (ROWS, MASK), target="onnx", dtype="float16", verify=False)(ROWS, MASK)
    torch.testing.assert_close(onnx, found.float(), rtol=2e-3, atol=2e-3)


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
