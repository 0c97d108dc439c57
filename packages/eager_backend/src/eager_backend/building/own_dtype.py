"""Steps of a program with an element type of its own (`dtype=`): in that type, or in float32 and cast to it.

In float32 stays what reads nothing of the program's type (a range, a full tensor), as on the targets that narrow a
graph (`ir.passes.lower_precision`), and what torch has no kernel for in the other. Whether it has one is tried once for
each kind of call, on tensors of the example's sizes: an op that refuses its type and says something else, or nothing,
about float32 has none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from eager_backend.building.steps import Function, Number, Slot, leaves, map_leaves
from ir.dims import Expr, evaluate
from ir.graph import leaves as all_leaves
from ir.importer.checked import Checked
from ir.importer.schema import TORCH_DTYPES
from ir.ops import is_random
from ir.passes.lower_precision import within
from ir.types import DType

_BUILTIN = "builtin"  # the layer of handlers that call torch alone
_SOME = 2  # what a size is taken for that no input carries


class _Sizes(dict[str, int]):
    """The example's sizes, and some size where data decides."""

    def __missing__(self, name: str) -> int:
        return _SOME


class OwnDtype:
    """What the helper does where `target.dtype` is set."""

    target: Any
    node: Any
    driver: Any
    scalar: Any
    _step: Callable[..., None]
    _slot: Callable[..., Slot]
    _hints: Any

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._single: set[Slot] = set()  # in float32, whatever the program's type is
        self._tried: dict[Any, bool] = {}

    def in_type(self, x: Any, dtype: DType) -> Any:
        """A tensor or a number as a tensor of this type, for the node's own call; of float32 as such."""
        if not isinstance(x, Slot):
            return self.scalar(x, dtype)
        made = self._slot(f"{x.name}_{dtype.short}", x.type.with_dtype(dtype))
        single = dtype is DType.float32 and self._narrows
        if single:
            self._single.add(made)
        self._step(Tensor.to, (x, torch.float32 if single else dtype), {}, (made,), True)
        return made

    @property
    def _narrows(self) -> bool:
        return self.target.dtype is not None and torch.finfo(self.target.dtype).bits < torch.finfo(torch.float32).bits

    def _is_own(self, x: Any) -> bool:
        return isinstance(x, Slot) and x.type.dtype is DType.float32 and x not in self._single

    def _own_step(
        self, fn: Any, args: Any, kwargs: dict[str, Any], outputs: tuple[Slot, ...], single: bool
    ) -> tuple[Slot, ...]:
        """The step, and its results in the program's element type."""
        operands = [a for a in leaves((*args, *kwargs.values())) if isinstance(a, Slot)]
        follows = any(self._is_own(o) or o.type.dtype is DType.float64 for o in operands)
        if follows:
            args, kwargs = self._within(args, kwargs, (*operands, *outputs))
        settled = fn is Tensor.to or not self._narrows
        if settled or (follows and not self._lacks_kernel(fn, args, kwargs, operands)):
            self._step(fn, args, kwargs, outputs, single)
            named = any(a is DType.float32 for a in all_leaves((args, tuple(kwargs.values()))))
            return outputs if follows or named else tuple(map(self._to_own, outputs))
        known = {o: self.in_type(o, DType.float32) for o in dict.fromkeys(operands) if self._is_own(o)}
        swap: dict[Any, Any] = {**known, DType.float32: torch.float32}
        args = tuple(map_leaves(a, lambda a: _swapped(a, swap)) for a in args)
        kwargs = {k: map_leaves(a, lambda a: _swapped(a, swap)) for k, a in kwargs.items()}
        self._step(fn, args, kwargs, outputs, single)
        return tuple(map(self._to_own, outputs))

    def _to_own(self, made: Slot) -> Slot:
        """A result that torch made in float32, in the program's type."""
        if made.type.dtype is not DType.float32:
            return made
        converted = self._slot(made.name, made.type)
        self._step(Tensor.to, (made, self.target.dtype), {}, (converted,), True)
        return converted

    def _within(self, args: Any, kwargs: dict[str, Any], beside: tuple[Slot, ...]) -> Any:
        """The arguments with numbers that the type holds, where no float64 is beside them."""
        if any(s.type.dtype is DType.float64 for s in beside):
            return args, kwargs
        limit = torch.finfo(self.target.dtype).max

        def held(arg: Any) -> Any:
            return within(self.node, arg, limit) if isinstance(arg, float) else arg

        return tuple(map_leaves(a, held) for a in args), {k: map_leaves(a, held) for k, a in kwargs.items()}

    def _lacks_kernel(self, fn: Any, args: Any, kwargs: dict[str, Any], operands: list[Slot]) -> bool:
        """True if torch computes this in float32 and not in the program's type."""
        handler = self.driver.handler(self.node) if any(map(self._is_own, operands)) else None
        if handler is None or handler.layer != _BUILTIN or not self.node.op.startswith("aten::"):
            return False  # what is not torch's may do more than compute
        if is_random(self.node) or any(o.type.is_sparse for o in operands) or isinstance(fn, (Function, Number)):
            return False
        key = fn, str(map_leaves((args, *kwargs.items()), _kind))
        if key not in self._tried:
            refused = self._refusal(fn, args, kwargs, self.target.dtype)
            self._tried[key] = refused is not None and refused != self._refusal(fn, args, kwargs, torch.float32)
        return self._tried[key]

    def _refusal(self, fn: Any, args: Any, kwargs: dict[str, Any], own: torch.dtype) -> str | None:
        """What torch says where it does not compute this on tensors of the example's sizes."""
        sizes = _Sizes(self._hints)

        def given(arg: Any) -> Any:
            if isinstance(arg, Slot):
                dtype = own if self._is_own(arg) else TORCH_DTYPES[arg.type.dtype]
                number = 0.5 if dtype.is_floating_point or dtype.is_complex else 0
                shape = [evaluate(d, sizes) for d in arg.type.shape]
                return torch.full(shape, number, dtype=dtype, device=self.target.device)
            if isinstance(arg, Expr):
                return evaluate(arg, sizes)
            return (own if arg is DType.float32 else TORCH_DTYPES[arg]) if isinstance(arg, DType) else arg

        context = self.driver.graph.context
        try:
            with torch.no_grad(), Checked() if context is not None and context.of_file else nullcontext():
                fn(*(map_leaves(a, given) for a in args), **{k: map_leaves(a, given) for k, a in kwargs.items()})
        except Exception as error:
            return str(error)
        return None


def _swapped(arg: Any, known: dict[Any, Any]) -> Any:
    return known.get(arg, arg) if isinstance(arg, (Slot, DType)) else arg


def _kind(arg: Any) -> Any:
    """What tells calls apart: of tensors the type, not the sizes."""
    if isinstance(arg, Slot):
        return arg.type.dtype, arg.type.rank
    return "size" if isinstance(arg, Expr) else arg
