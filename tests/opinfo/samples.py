"""Entries of the operator database and their samples, as modules that torch.export takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import ir
from ir.dims import Expr, evaluate

PREFERRED = (torch.float32, torch.int64, torch.bool, torch.complex64)
CONSIDERED = 20  # of so many samples the largest is taken, or all


class Sample(torch.nn.Module):
    """One sample of an operator, its tensors as inputs and everything else fixed."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__()
        self.op = op
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.places = [i for i, x in enumerate(self.leaves) if isinstance(x, Tensor)]

    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(self.leaves[i].detach().clone() for i in self.places)

    def call(self, *tensors: Tensor) -> tuple[list[Any], dict[str, Any]]:
        """The operator's arguments with these tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return [first, *args], kwargs

    def forward(self, *tensors: Tensor) -> Any:
        args, kwargs = self.call(*tensors)
        return self.op(*args, **kwargs)

    @property
    def elements(self) -> int:
        return sum(self.leaves[i].numel() for i in self.places)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def database() -> list[Any]:
    """Every entry; importing it needs expecttest and takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def samples_of(op: Any, dtype: torch.dtype, which: str = "first") -> list[Sample]:
    """The first sample of the entry, the largest of the first few, all of those, or ("varying") the first of them
    that has a first dimension which may vary: torch.export fixes sizes of 0 and 1. The first if none has.
    """
    torch.manual_seed(0)
    samples = (Sample(op.op, s) for s in op.sample_inputs("cpu", dtype, requires_grad=False))
    if which == "first":
        return list(islice(samples, 1))
    found = list(islice(samples, CONSIDERED))
    if which == "varying":
        return [s for s in found if any(t.dim() and t.shape[0] > 1 for t in s.inputs())][:1] or found[:1]
    return [max(found, key=lambda s: s.elements)] if which == "largest" and found else found


def first_dtype(op: Any) -> torch.dtype | None:
    """float32, else the first that the entry takes of int64, bool and complex64, else any; None: nothing on the CPU."""
    supported = op.supported_dtypes("cpu")
    return next((d for d in (*PREFERRED, *sorted(supported, key=str)) if d in supported), None)


# -- one dynamic dimension a tensor ------------------------------------------------------------------------------------


def dynamic_shapes(inputs: tuple[Tensor, ...]) -> Any:
    """The first dimension of each tensor that has one, for torch.export to say whether it may vary."""
    auto = torch.export.Dim.AUTO
    return (tuple({0: auto} if t.dim() else None for t in inputs),) if inputs else None


def other_sizes(graph: ir.Graph, sample: Sample) -> Iterator[tuple[Tensor, ...]]:
    """Inputs whose dynamic first dimensions have another size, built by repeating or leaving out rows.

    Only those that torch takes, in the operator and in the program that torch.export made of it (whose guards may ask
    for more). Dimensions that share a symbol change together, derived ones follow.
    """
    traced = sample.inputs()
    firsts = [v.type.shape[0] if v.type.rank else None for v in graph.inputs]
    known = {
        d.as_symbol: t.shape[0] for d, t in zip(firsts, traced, strict=True) if isinstance(d, Expr) and d.as_symbol
    }
    guarded = graph.context.program.module()  # type: ignore[union-attr]
    for change in (lambda n: n + 1, lambda n: 2 * n, lambda n: n + 2, lambda n: n - 1, lambda n: n + 16):
        env = {name: change(n) for name, n in known.items()}
        try:
            sizes = [evaluate(d, env) if isinstance(d, Expr) else None for d in firsts]
            inputs = tuple(_rows(t, n) for t, n in zip(traced, sizes, strict=True))
            for take in (sample, guarded):
                take(*(t.clone() for t in inputs))
        except Exception:  # torch does not take this size
            continue
        yield inputs


def _rows(t: Tensor, count: int | None) -> Tensor:
    """So many rows, over and over; a vector that was sorted (offsets, boundaries) still is."""
    if count is None:
        return t
    more = t[torch.arange(count) % t.shape[0]]
    return more.sort()[0] if t.dim() == 1 and not t.is_complex() and torch.equal(t, t.sort()[0]) else more
