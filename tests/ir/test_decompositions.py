"""Shared decompositions in float64, beside torch's kernels on the samples of its operator database.

The operator sweeps compare in float32, where a constant that is rounded to it does not show.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ir.decompositions.registry import decomposition_of
from tests.threads import on_short_stack

SAMPLES = 6  # of an entry, the first ones
# factors of singular matrices, and vectors of equal values: torch leaves them free
FREE = {"aten::_linalg_slogdet", "aten::_linalg_det", "aten::_linalg_svd", "aten::_linalg_eigh"}


class Beside(TorchDispatchMode):
    """Runs the decomposition of each op as well, and keeps the worst error of each relative to the result."""

    def __init__(self) -> None:
        super().__init__()
        self.worst: dict[str, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out, name = func(*args, **kwargs), func._schema.name
        made = None if func._schema.is_mutable or name in FREE else self.run(func, args, kwargs)
        if made is not None:
            for one, other in zip(leaves(out), leaves(made)):
                self.worst[name] = max(self.worst.get(name, 0.0), error(one, other))
        return out

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        fn = decomposition_of(func._schema.name, func.name())
        try:
            with _disable_current_modes():
                return None if fn is None else fn(*args, **kwargs)
        except (NotImplementedError, IndexError, ValueError, RuntimeError):  # no form, or only one of a traced call
            return None


def leaves(x: Any) -> Iterator[Tensor]:
    for one in x if isinstance(x, list | tuple) else [x]:
        if isinstance(one, Tensor):
            yield torch.view_as_real(one.resolve_conj()) if one.is_complex() else one


def error(one: Tensor, other: Tensor) -> float:
    """The largest difference, in parts of the number or of a thousandth of the largest number."""
    if one.dtype is not torch.float64 or one.shape != other.shape or one.numel() == 0:
        return 0.0
    assert other.dtype is torch.float64
    assert torch.equal(one.isnan(), other.isnan())
    same = (one == other) | one.isnan()
    scale = torch.where(one.isfinite(), one.abs(), 0.0).max()
    return torch.where(same, 0.0, (one - other).abs() / (one.abs() + 1e-3 * scale)).max().item()


ENTRIES = [op for op in op_db if op.supports_dtype(torch.float64, "cpu") and "jiterator" not in op.name]


@on_short_stack
def test_float64_is_computed_in_float64() -> None:
    with torch.no_grad(), Beside() as beside:
        for op in ENTRIES:
            torch.manual_seed(0)
            with _disable_current_modes():
                samples = [s for s, _ in zip(op.sample_inputs("cpu", torch.float64), range(SAMPLES))]
            for sample in samples:
                op(sample.input, *sample.args, **sample.kwargs)
    assert len(beside.worst) > 120
    assert {name: off for name, off in beside.worst.items() if off > 1e-11} == {}
