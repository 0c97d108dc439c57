"""Sizes where torch's functions take plain numbers: `torch.linspace(0, 1, x.shape[1])` fixes a size to the example's.

The `Sizes` mode stands around a model that torch.export runs, and around fakes and bodies of ops. A function that is
given a symbolic size, and would ask it for its value, is written here in functions that take one; all other calls are
left alone.

The tensor that `x.data` gives is seen by no tracer, and would become a constant without data: it is `x.detach()` here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ir.geometry import ntuple
from ir.importer.torch_api import NN, expression, pytree, tensor_of_numbers, unnoted_file

_SYMBOLIC = (torch.SymInt, torch.SymFloat)
_DATA: Any = cast("Any", torch.Tensor.data).__get__


class Sizes(TorchFunctionMode):
    """Inside of the block sizes stay symbols in the functions below."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _DATA:
            return args[0].detach()
        rule = _RULES.get(func)
        if rule is not None and any(isinstance(a, _SYMBOLIC) for a in pytree.tree_leaves((args, kwargs))):
            made = rule(*args, **kwargs)
            if made is not None:
                return made
        return func(*args, **kwargs)


def around_model() -> Sizes:
    """The mode for a model, of which torch is to note the model's lines and not those here."""
    unnoted_file(__file__)
    return Sizes()


def _as_tensor(data: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return None if isinstance(data, torch.Tensor) else tensor_of_numbers(data, dtype=dtype, device=device)


def _linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """From both ends to the middle, as torch's kernel counts."""
    if any(isinstance(a, (torch.Tensor, complex)) for a in (start, end)):
        return None
    dtype = dtype or torch.get_default_dtype()
    count = torch.arange(steps, device=device)
    step = (end - start) / torch.sym_max(steps - 1, 1)
    counted = count.to(dtype if dtype.is_floating_point else torch.float32)
    front, back = start + counted * step, end - (steps - 1 - counted) * step
    return torch.where(count < torch.sym_max(steps // 2, 1), front, back).to(dtype)


def _one_hot(input: Any, num_classes: Any = -1) -> Any:
    return (input.unsqueeze(-1) == torch.arange(num_classes, device=input.device)).long()


def _mean(axes: int) -> Callable[..., Any]:
    def rule(input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
             count_include_pad: bool = True, divisor_override: Any = None) -> Any:  # fmt: skip
        whole = divisor_override is None and _is_whole(input.shape[-axes:], kernel_size, stride, padding)
        return torch.mean(input, tuple(range(-axes, 0)), keepdim=True) if whole else None

    return rule


def _most(axes: int) -> Callable[..., Any]:
    def rule(input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
             ceil_mode: bool = False, return_indices: bool = False) -> Any:  # fmt: skip
        plain = not return_indices and all(d == 1 for d in ntuple(dilation, axes))
        whole = plain and _is_whole(input.shape[-axes:], kernel_size, stride, padding)
        return torch.amax(input, tuple(range(-axes, 0)), keepdim=True) if whole else None

    return rule


def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    """A value that is a size: pad would ask for it."""
    if mode != "constant" or not isinstance(value, _SYMBOLIC):
        return None
    inside = functional.pad(torch.ones_like(input, dtype=torch.bool), pad)
    filled = tensor_of_numbers(value, dtype=input.dtype, device=input.device)
    return torch.where(inside, functional.pad(input, pad), filled)


def _is_whole(sizes: Any, kernel: Any, stride: Any, padding: Any) -> bool:
    """True of a pool with one window, which is the whole map."""
    count = len(sizes)
    windows, steps = (ntuple(a, count) for a in (kernel, stride or kernel))
    padded = any(ntuple(padding, count))
    return not padded and all(map(_same, windows, sizes)) and all(map(_same, steps, sizes))


def _same(one: Any, other: Any) -> bool:
    sides = [expression(s) if isinstance(s, torch.SymInt) else s for s in (one, other)]
    return bool(sides[0] == sides[1])


_RULES: dict[Any, Callable[..., Any]] = {
    torch.tensor: _as_tensor,  # torch.export does the same for a model, and not for the bodies of ops
    torch.as_tensor: _as_tensor,
    torch.asarray: _as_tensor,
    torch.linspace: _linspace,
    functional.one_hot: _one_hot,
    functional.pad: _pad,
    NN.pad: _pad,
    torch.avg_pool1d: _mean(1),
    NN.avg_pool2d: _mean(2),
    NN.avg_pool3d: _mean(3),
    functional.max_pool1d: _most(1),
    functional.max_pool2d: _most(2),
    functional.max_pool3d: _most(3),
}
