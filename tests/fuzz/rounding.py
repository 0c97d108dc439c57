"""Whether a result that differs from torch's is one that rounding alone explains.

Two runtimes round after different operations, and a floor, a comparison or a cancelling sum behind that may show it
in the first digit. No tolerance says which: so the program is run several times with each operation's result moved by
about what rounding took from it, and what lies among these results is right. An operation whose float64 result equals
its own rounds nothing and is not moved: exact arithmetic is held to exact results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

RUNS = 24
# |a - e| <= rtol |e| + atol, by element type
TOLERANCES = {
    torch.float64: (1e-9, 1e-10),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (4 * 2.0**-10, 4 * 2.0**-10),
    torch.bfloat16: (4 * 2.0**-7, 4 * 2.0**-7),
}


def close(actual: Tensor, expected: Tensor) -> Tensor:
    """Which elements are equal, up to the tolerance of the element type."""
    if not expected.is_floating_point():
        return actual == expected
    rtol, atol = TOLERANCES[expected.dtype]
    a, e = actual.double(), expected.double()
    finite = e[e.isfinite()].abs()
    scale = min(1.0, float(finite.max())) if finite.numel() else 1.0
    return (a == e) | (a.isnan() & e.isnan()) | ((a - e).abs() <= rtol * e.abs() + atol * scale)


class Shaken(torch.fx.Interpreter):
    """A captured program whose results are moved by what rounding took from them."""

    def __init__(self, module: torch.fx.GraphModule, seed: int) -> None:
        super().__init__(module)
        self.generator = torch.Generator().manual_seed(seed)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return None if "guards" in str(target) else super().call_module(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        wide = _wide(target, args, kwargs)
        result = super().call_function(target, args, kwargs)
        leaves, others = pytree.tree_leaves(result), pytree.tree_leaves(wide)
        for t, w in zip(leaves, others if len(others) == len(leaves) else [None] * len(leaves), strict=True):
            if isinstance(t, Tensor) and t.is_floating_point() and t.numel() and not _view(target):
                self.shake(t, w)
        return result

    def shake(self, t: Tensor, wide: Any) -> None:
        """Move a result in place, by twice what rounding took from it, or not at all."""
        lost = t.abs() * torch.finfo(t.dtype).eps
        if (
            isinstance(wide, Tensor)
            and wide.dtype is torch.float64
            and wide.shape == t.shape
            and t.dtype is not wide.dtype
        ):
            gap = (wide - t.double()).abs()
            lost = torch.where(gap > 0, torch.maximum(2 * gap.to(t.dtype), lost), torch.zeros_like(t))
        elif t.dtype is torch.float64:  # there is no wider type: multiples of a large power of two were not rounded
            exact = (t * 2**20).frac() == 0
            lost = torch.where(exact & (t.abs() < 2**20), torch.zeros_like(t), lost)
        signs = torch.randint(-1, 2, t.shape, generator=self.generator).to(t.dtype)
        moved = torch.where(t.isfinite() & (lost > 0), t + signs * lost, t)
        if not _overlaps(t):
            t.copy_(moved)


class _Undefined(Shaken):
    """Looks for casts of numbers that the integer type does not hold, whose results C++ and torch leave undefined."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module, 0)
        self.casts = False

    def found(self, args: Sequence[Tensor]) -> bool:
        state = {k: v.clone() for k, v in self.module.named_buffers()}
        try:
            with torch.no_grad():
                self.run(*[a.clone() for a in args])
        except Exception:
            return False
        finally:
            restore(self.module, state)
        return self.casts

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        beyond = any(t.is_floating_point() and not bool((t.double().abs() < 2**31).all()) for t in tensors)
        result = torch.fx.Interpreter.call_function(self, target, args, kwargs)
        name = str(target).split(".")[1] if str(target).startswith("aten.") else ""
        integers = isinstance(result, Tensor) and not result.is_floating_point() and result.dtype is not torch.bool
        self.casts |= beyond and integers and name in CASTS
        return result


CASTS = {"to", "_to_copy", "type_as", "copy_", "copy", "index_put_", "masked_fill_", "fill_"}


def restore(module: torch.nn.Module, state: dict[str, Tensor]) -> None:
    """Buffers and parameters as they were."""
    with torch.no_grad():
        for k, v in (*module.named_buffers(), *module.named_parameters()):
            if k in state:
                v.copy_(state[k])


def _view(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _overlaps(t: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(t.stride(), t.shape))


def _wide(target: Any, args: Any, kwargs: Any) -> Any:
    def widen(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.double() if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x.clone()
        return x

    try:
        return target(*pytree.tree_map(widen, args), **pytree.tree_map(widen, kwargs))
    except Exception:
        return None


def after(module: torch.nn.Module, names: Sequence[str], args: Sequence[Any]) -> dict[str, Tensor]:
    """What a call may have written to: buffers, parameters and inputs by name."""
    return {**dict(module.named_buffers()), **dict(module.named_parameters()), **dict(zip(names, args, strict=True))}


def explained(
    module: torch.fx.GraphModule, names: Sequence[str], args: Sequence[Tensor], place: int | str, actual: Tensor
) -> bool:
    """True if each element of `actual` lies among those of the shaken runs; a result by place, a buffer by name."""
    if _Undefined(module).found(args):
        return True
    seen = []
    for seed in range(RUNS):
        state = {k: v.clone() for k, v in module.named_buffers()}
        try:
            with torch.no_grad():
                given = [a.clone() for a in args]
                leaves = pytree.tree_leaves(Shaken(module, seed).run(*given))
                leaf = leaves[place] if isinstance(place, int) else after(module, names, given)[place]
        except Exception:
            continue
        finally:
            restore(module, state)
        if isinstance(leaf, Tensor) and leaf.shape == actual.shape and leaf.dtype == actual.dtype:
            seen.append(leaf.clone())
    if not seen:
        return False
    ok = torch.zeros(actual.shape, dtype=torch.bool)
    for leaf in seen:
        ok |= close(actual, leaf)
    if actual.is_floating_point():
        stacked = torch.stack(seen).double()
        low, high = stacked.nan_to_num(math.inf).amin(0), stacked.nan_to_num(-math.inf).amax(0)
        spread = (high - low).nan_to_num(0.0, 0.0, 0.0)
        ok |= (actual.double() >= low - spread) & (actual.double() <= high + spread) & (spread > 0)
    return bool(ok.all())
