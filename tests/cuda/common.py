"""A program on the GPU beside torch's own module there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

import ir

GPU = "cuda:0"
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2, torch.complex64: 1e-4}


def there(values: Any) -> Any:
    """The same values with every tensor on the GPU; dense tensors are copies of their own."""
    return pytree.tree_map_only(Tensor, lambda t: t.to(GPU, copy=True), values)


class Reference:
    """The captured program as torch itself moves it to the GPU.

    Where torch's module fails there for the strides of the GPU's kernels (a view that only those of the CPU allow), it
    is the module on the CPU, `on_cpu`, whose results equal to rounding.
    """

    def __init__(self, graph: ir.Graph) -> None:
        program: Any = graph.context.program  # type: ignore[union-attr]
        self.module_on_cpu = program.module(check_guards=False)  # made first: the move is in place
        self.module = move_to_device_pass(program, GPU).module(check_guards=False)
        self.on_cpu = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Results on the GPU, random numbers from seed 0.

        Raises:
            RuntimeError: torch has no such kernel on a GPU.
        """
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                return self.module(*args, **kwargs)
        except RuntimeError as error:
            if "view size is not compatible" not in str(error):
                raise
            self.on_cpu = True
        with torch.no_grad():
            args, kwargs = pytree.tree_map_only(Tensor, Tensor.cpu, (args, kwargs))
            return there(self.module_on_cpu(*args, **kwargs))


def assert_equal(actual: Any, expected: Any, exact: bool = False) -> None:
    """Equal structure, devices, dtypes, shapes, and values: bits, or to rounding relative to the largest value."""
    found, wanted = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(found) == len(wanted)
    for a, e in zip(found, wanted, strict=True):
        if not isinstance(e, Tensor):
            assert type(a) is type(e) and a == e
            continue
        assert a.device == e.device
        bound = 0.0 if exact else ROUNDING.get(e.dtype, 0.0)
        finite = e[e.isfinite()] if e.layout is torch.strided and bound else e
        largest = float(finite.abs().max()) if bound and finite.numel() else 0.0
        torch.testing.assert_close(a, e, rtol=bound, atol=bound * largest, equal_nan=True)
