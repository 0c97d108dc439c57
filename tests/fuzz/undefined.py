"""What C++ and torch leave undefined, or to the kernel: which elements of a program's results follow from it."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from tests.fuzz.rounding import OF_PRODUCTS, Shaken, at_place, name_of, overlaps, restore, wide_result

CASTS = {"to", "_to_copy", "type_as", "copy_", "copy", "index_put_", "masked_fill_", "fill_"}
RUNS = 25  # in which each of few numbers is drawn somewhere
REFLECTION = 2  # a padding_mode of grid_sampler


class _Undefined(Shaken):
    """The program with something else, drawn anew for each seed, wherever C++ or torch leaves a result undefined.

    Of seed 0 everything is torch's.
    """

    def __init__(self, module: torch.fx.GraphModule, seed: int) -> None:
        super().__init__(module, seed)
        self.any = False
        self.shapeless = False

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        wide = wide_result(target, args, kwargs)
        tensors = [x.clone() for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        shared = name_of(target).endswith("_scatter") and _elements_share_memory(args[0])
        result = torch.fx.Interpreter.call_function(self, target, args, kwargs)
        self.shapeless |= _without_channels(name_of(target), args, result)
        for t in pytree.tree_leaves(result):
            if isinstance(t, Tensor) and t.numel():
                where = torch.zeros(t.shape, dtype=torch.bool)
                parts = _products_beyond(target, args, kwargs, t)
                for found in (shared, parts, *_undefined(name_of(target), args, kwargs, tensors, t, wide)):
                    where |= found if isinstance(found, bool) or found.shape == t.shape else bool(found.any())
                self.any |= bool(where.any())
                self._draw(t, where)
        return result

    def _draw(self, t: Tensor, where: Tensor) -> None:
        drawn = torch.randint(0, 100, t.shape, generator=self.generator)
        kinds = torch.tensor([math.nan, math.inf, -math.inf, 1.0, -1.0, 0.0])
        if t.is_floating_point():
            odd = kinds[drawn % len(kinds)].to(t.dtype)
        else:  # 0 and 1, as conditions, or as far as a search or a count goes
            odd = torch.where(drawn < 60, drawn % 2, drawn % (2 + max(3, int(t.max())))).to(t.dtype)
        if self.seed and not overlaps(t):
            t.copy_(torch.where(where, odd, t))


def undefined(module: torch.fx.GraphModule, names: Sequence[str], args: Sequence[Tensor], place: int | str) -> Tensor:
    """The elements of a result that follow from what is left undefined: those that differ between seeds.

    All of them where another number there is refused, as one that is an index, or where torch's kernel gives another
    shape than its trace.
    """
    runs: list[Tensor] = []
    for seed in range(RUNS):
        state = {k: v.clone() for k, v in module.named_buffers()}
        given = [a.clone() for a in args]
        runner = _Undefined(module, seed)
        try:
            with torch.no_grad():
                leaf = at_place(pytree.tree_leaves(runner.run(*given)), place, module, names, given)
        except Exception:
            if runner.any:
                return torch.ones((), dtype=torch.bool)
            break
        finally:
            restore(module, state)
        if runner.shapeless:
            return torch.ones((), dtype=torch.bool)
        if not runner.any:
            break
        runs.append(leaf.clone())
    found = torch.zeros((), dtype=torch.bool)
    for a, b in itertools.pairwise(runs):
        if a.shape != b.shape:
            return torch.ones((), dtype=torch.bool)
        found = found | ~((a == b) | (a.isnan() & b.isnan())) | (a.signbit() != b.signbit())
    return found


def is_shapeless(module: Any, args: Sequence[Tensor]) -> bool:
    """True if a kernel of torch's gives another shape than its trace: what is computed from it follows neither."""
    state = {k: v.clone() for k, v in module.named_buffers()}
    runner = _Undefined(module, 0)
    with contextlib.suppress(Exception), torch.no_grad():
        runner.run(*(a.clone() for a in args))
    restore(module, state)
    return runner.shapeless


def _undefined(
    name: str, args: Any, kwargs: Any, tensors: Sequence[Tensor], result: Tensor, wide: Any
) -> Iterator[bool | Tensor]:
    """What an operation leaves undefined: elements of its result, or of an operand, by which all of the result is."""
    yield _cast_beyond(name, tensors, result)
    yield _sign_of_nan(name, tensors)
    yield _bits_of_nan(name, tensors, result)
    yield _in_disorder(name, tensors)
    yield _said_to_be_unique(name, kwargs, tensors)
    yield _overflowed(result, wide)
    yield _endless_scores(name, tensors, result)
    yield _beyond_images(name, args, result)
    yield _beyond_on_the_way(name, args, result)
    yield _zeros_of_both_signs(name, args, kwargs, result)
    if "polynomial" in name:  # of nan: torch returns a variable that it never set
        yield from (t.isnan() for t in tensors if t.is_floating_point())
    scaled = name in ("add", "sub", "rsub") and kwargs.get("alpha", 1) != 1
    if (scaled or name in OF_PRODUCTS) and _are_large(tensors, result):
        yield ~result.isfinite()
    if name.endswith("_norm") and _are_large(tensors[:1], result):
        yield result.isnan()  # of sums beyond the largest number, in the order of the kernel
    if name.startswith(("var_mean", "std_mean")):  # nan where the sum of its rows is infinite
        yield not bool(tensors[0].isfinite().all())


def _products_beyond(target: Any, args: Any, kwargs: Any, result: Tensor) -> bool | Tensor:
    """Sums of products of which one lies beyond the largest number: torch's bmm makes 6e37 of 1.6e76 and less.

    Or near it: onnxruntime multiplies the sum by the factor of an operand, such as the scale of attention.
    """
    if name_of(target) not in OF_PRODUCTS or not result.is_floating_point():
        return False
    sizes = pytree.tree_map_only(Tensor, lambda t: t.abs() if t.is_floating_point() else t, (args, kwargs))
    total = wide_result(target, *sizes)
    known = isinstance(total, Tensor) and total.shape == result.shape
    return total.isfinite() & (total > torch.finfo(result.dtype).max / 16) if known else False


def _without_channels(name: str, args: Any, result: Any) -> bool:
    """A convolution of no channels, whose result has none in torch's kernel, and as many as its weight in its trace."""
    return name.startswith("conv") and len(args) > 1 and args[1].shape[:1] != result.shape[1:2] and not args[1].numel()


def _in_disorder(name: str, tensors: Sequence[Tensor]) -> bool:
    """A search among boundaries that do not ascend, where it matters in which order a search looks at them."""
    place = {"bucketize": -1, "searchsorted": 0}.get(name)
    return place is not None and bool((tensors[place].double().diff() < 0).any())  # of uint8 none is


def _said_to_be_unique(name: str, kwargs: Any, tensors: Sequence[Tensor]) -> bool | Tensor:
    """Elements that are there twice though `isin` is told that each is there once: torch then finds them in them."""
    if name != "isin" or not kwargs.get("assume_unique"):
        return False
    flat = tensors[0].flatten()
    return ((flat[:, None] == flat).sum(1) > 1).reshape(tensors[0].shape)


def _elements_share_memory(t: Tensor) -> bool:
    """Windows that overlap, say, into which torch writes all the same."""
    return t.numel() > 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))


def _endless_scores(name: str, tensors: Sequence[Tensor], result: Tensor) -> bool | Tensor:
    """Rows of an attention with scores beyond all numbers: 0 or nan, by the kernel and the length of the row."""
    if name != "scaled_dot_product_attention":
        return False
    query, key = tensors[:2]
    if not key.isfinite().all():
        return True
    largest = query.abs().amax(-1, keepdim=True).double() * key.abs().amax().double() * query.shape[-1]
    return (~(largest < torch.finfo(query.dtype).max)).expand(result.shape)


def _beyond_images(name: str, args: Any, result: Tensor) -> bool | Tensor:
    """Samples at nan, which torch documents as -1 and its kernels compute otherwise, at infinity, or reflected so often
    that the place is rounding's.
    """
    if not name.startswith("grid_sampler"):
        return False
    bad = ~(args[1].abs() < (2**15 if args[3] == REFLECTION else math.inf)).all(-1)
    return bad.unsqueeze(1).expand(result.shape)


def _cast_beyond(name: str, tensors: Sequence[Tensor], result: Tensor) -> bool | Tensor:
    """A cast of numbers that the integer type does not hold."""
    if result.is_floating_point() or result.dtype is torch.bool or name not in CASTS:
        return False
    beyond = [~(t.double().abs() < 2**31) for t in tensors if t.is_floating_point()]
    return next((b for b in beyond if b.any()), False)


def _beyond_on_the_way(name: str, args: Any, result: Tensor) -> bool | Tensor:
    """A product of which a part lies beyond all numbers, or below: infinite, nan, 0 or right, by the kernel's order."""
    if name != "prod" or not result.is_floating_point():
        return False
    known, dims = torch.finfo(result.dtype), args[1:3] if len(args) > 1 and isinstance(args[1], int) else ()
    sizes = args[0].double().abs().log2()
    return (sizes.clamp(min=0).sum(*dims) > math.log2(known.max)) | (
        sizes.clamp(max=0).sum(*dims) < math.log2(known.tiny)
    )


def _zeros_of_both_signs(name: str, args: Any, kwargs: Any, result: Tensor) -> bool | Tensor:
    """Extremes of what is scattered that are 0.0 and -0.0 alike: kernels keep the first or the last of equal ones."""
    scatters = name in ("scatter_reduce", "index_reduce") and args[4] in ("amax", "amin")
    if not scatters or not result.is_floating_point():
        return False
    farther = 2.0 if args[4] == "amax" else -2.0

    def has(negative: bool) -> Tensor:
        def marked(x: Any) -> Any:
            is_number = not isinstance(x, Tensor) or not x.is_floating_point()
            return x if is_number else torch.where((x == 0) & (x.signbit() == negative), farther, x)

        # of zeros alone, all else is on the other side of them where the result is one
        return getattr(torch, name)(*map(marked, args), **kwargs) == farther

    return (result == 0) & has(False) & has(True)


def _sign_of_nan(name: str, tensors: Sequence[Tensor]) -> bool | Tensor:
    """The sign of a nan, which IEEE 754 leaves to whoever makes it."""
    read = {"signbit": 0, "copysign": 1, "copysign_": 1}.get(name, len(tensors))
    return read < len(tensors) and tensors[read].is_floating_point() and tensors[read].isnan()


def _bits_of_nan(name: str, tensors: Sequence[Tensor], result: Tensor) -> bool | Tensor:
    """A nan that is read as another type: its sign, and which of many it is."""
    if name != "view" or result.dtype == tensors[0].dtype or not tensors[0].is_floating_point():
        return False
    odd = tensors[0].isnan()
    return odd if odd.shape == result.shape else bool(odd.any())


def _overflowed(result: Tensor, wide: Any) -> bool | Tensor:
    """A nan that float64 has not: an infinity on the way met another, in the order of the kernel's own sums.

    Or a float16 beyond its range, which is a number to a runtime that computes halves in float32 (see Shaken._widens).
    """
    if not isinstance(wide, Tensor) or result.shape != wide.shape:
        return False
    beyond = result.isinf() & wide.isfinite() if result.dtype is torch.float16 else torch.zeros((), dtype=torch.bool)
    return result.isnan() & ~wide.isnan() | beyond


def _are_large(tensors: Sequence[Tensor], result: Any) -> bool:
    """True of numbers whose products may lie beyond the largest."""
    large = math.sqrt(torch.finfo(result.dtype).max) if result.is_floating_point() else math.inf
    return any(bool((t.isfinite() & (t.abs() > large)).any()) for t in tensors)
