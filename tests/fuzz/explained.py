"""Whether a result that differs from torch's is one that rounding, or what torch leaves undefined, explains."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from tests.fuzz.rounding import HALVES, Shaken, Unrounded, at_place, close, name_of, restore
from tests.fuzz.undefined import undefined

RUNS, EACH = 120, 24  # runs at the most, and after how many it is looked whether they suffice


def explained(
    module: torch.fx.GraphModule,
    names: Sequence[str],
    args: Sequence[Tensor],
    place: int | str,
    actual: Tensor,
    expected: Tensor | None = None,
    pools_skip_nan: bool = False,
) -> bool:
    """True if each element of `actual` is torch's or lies among those of the shaken runs.

    `place` is the number of a result or the name of a buffer. onnxruntime's `MaxPool` skips nan, which
    docs/quirks/onnxruntime.md says; with `pools_skip_nan` every second run does.
    """
    counts = isinstance(place, int) and _counts(module, place)
    same = expected is not None and actual.shape == expected.shape and close(actual, expected)
    ok = torch.zeros(actual.shape, dtype=torch.bool) | same | undefined(module, names, args, place)
    seen: list[Tensor] = []
    for seed in range(RUNS):
        if ok.all():
            break
        leaf = _shaken(module, names, args, place, seed, pools_skip_nan and seed % 2 == 1)
        if isinstance(leaf, Tensor) and leaf.shape == actual.shape:
            leaf = leaf.to(actual.dtype) if actual.dtype in HALVES else leaf.clone()
            seen += [leaf] if leaf.dtype == actual.dtype else []
        if seen and seed % EACH == EACH - 1:
            ok = ok | _among(actual, seen, counts)
    return bool(ok.all())


def _shaken(
    module: torch.fx.GraphModule,
    names: Sequence[str],
    args: Sequence[Tensor],
    place: int | str,
    seed: int,
    pools_skip_nan: bool,
) -> Tensor | None:
    """The result of one run; None where what was moved is refused."""
    state = {k: v.clone() for k, v in module.named_buffers()}
    runner = (Unrounded if seed % 4 == 3 else Shaken)(module, seed, pools_skip_nan)
    given = [runner.own(a.clone()) for a in args]
    try:
        with torch.no_grad():
            leaves = pytree.tree_leaves(runner.run(*given))
            leaf: Tensor = runner.attributes[place] if place in runner.attributes else at_place(
                leaves, place, module, names, given)  # fmt: skip
            return leaf.clone()
    except Exception:
        return None
    finally:
        restore(module, state)


def _counts(module: torch.fx.GraphModule, place: int) -> bool:
    """True of a result that counts elements: each of them may be on the other side of 0 by itself."""
    results = pytree.tree_leaves(module.graph.output_node().args)
    node = results[place] if place < len(results) else None
    return isinstance(node, torch.fx.Node) and name_of(node.target) == "count_nonzero"


def _among(actual: Tensor, seen: Sequence[Tensor], counts: bool = False) -> Tensor:
    """Which elements are close to one that was seen, or between those if they are no integers, or counts."""
    ok = torch.zeros(actual.shape, dtype=torch.bool)
    for leaf in seen:
        ok |= close(actual, leaf)
    if counts:
        ok |= (actual >= torch.stack(list(seen)).amin(0)) & (actual <= torch.stack(list(seen)).amax(0))
    if actual.is_floating_point():
        stacked = torch.stack(list(seen)).double()
        low, high = (torch.where(stacked.isfinite(), stacked, n) for n in (math.inf, -math.inf))
        low, high = low.amin(0), high.amax(0)  # of the finite ones: a quotient by what is rounding's alone may be any
        spread = (high - low).nan_to_num(0.0, 0.0, 0.0)
        ok |= (actual.double() >= low - spread) & (actual.double() <= high + spread) & (spread > 0)
    return ok
