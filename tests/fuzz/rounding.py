"""Whether a result that differs from torch's is one that rounding alone explains.

Two runtimes round after different operations, and a floor, a comparison or a cancelling sum behind that may show it
in the first digit. No tolerance says which: so the program is run several times with each operation's result moved by
about what rounding took from it, and what lies among these results is right. An operation whose float64 result equals
its own rounds nothing and is not moved: exact arithmetic is held to exact results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

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
    tiny = torch.finfo(expected.dtype).tiny  # a runtime may flush what is below to 0
    a, e = actual.double(), expected.double()
    finite = e[e.isfinite()].abs()
    scale = min(1.0, float(finite.max())) if finite.numel() else 1.0
    near = (a - e).abs() <= rtol * e.abs() + atol * scale + tiny
    return (a == e) | (a.isnan() & e.isnan()) | (near & e.isfinite())  # every number is within a part of infinity


class Shaken(torch.fx.Interpreter):
    """A captured program whose results are moved by what rounding took from them."""

    def __init__(self, module: torch.fx.GraphModule, seed: int, pools_skip_nan: bool = False) -> None:
        super().__init__(module)
        self.seed = seed
        self.pools_skip_nan = pools_skip_nan
        self.generator = torch.Generator().manual_seed(seed)
        self.halves: set[torch.fx.Node] = set()  # computed, and rounded to a half
        self.node: torch.fx.Node | None = None
        self.attributes: dict[Any, Any] = {}  # the module's tensors that the run has of its own

    def own(self, x: Tensor) -> Tensor:
        """An input as the run writes to it."""
        return x

    def run_node(self, n: torch.fx.Node) -> Any:
        self.node = n
        return super().run_node(n)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return None if "guards" in str(target) else super().call_module(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if self.pools_skip_nan and "max_pool" in name_of(target):
            lowest = torch.finfo(args[0].dtype).min
            args = (args[0].nan_to_num(lowest, math.inf, lowest), *args[1:])
        wide = wide_result(target, args, kwargs)
        tied = name_of(target) in EXTREMES and _has_both_zeros((args, kwargs))
        # of -0.0 alone, from 0.0 or from the first of them; torch's softshrink: by lane; ORT has no Where of -0.0
        signless = ("sum", "cumsum", "mean", "avg_pool", "softshrink", "where", "var_mean", "std_mean")
        tied |= name_of(target).removeprefix("adaptive_").startswith(signless) or "polynomial" in name_of(target)
        tied |= name_of(target) in ("add", "add_") and _has_zeros_alone(args)  # ORT: x + 0 is x
        result = self._of_ties(target, args, kwargs) or self._called(target, self._reordered(target, args), kwargs)
        self._take_other_kernel(target, args, kwargs, result)
        if self._widens(target, args, result):
            self._move(result, result.abs() * torch.finfo(args[0].dtype).eps)
            return result
        leaves, others = pytree.tree_leaves(result), pytree.tree_leaves(wide)
        for t, w in zip(leaves, others if len(others) == len(leaves) else [None] * len(leaves), strict=True):
            if isinstance(t, Tensor) and t.is_floating_point() and t.numel() and not _view(target):
                if keys := _blended(target, args, kwargs):
                    value = args[2] if len(args) > 2 else kwargs["value"]  # what cancels is rounding's alone
                    lost = value[value.isfinite()].abs().amax().item() if value.isfinite().any() else 0.0
                    lost *= torch.finfo(t.dtype).eps * keys
                    part = torch.rand(t.shape, generator=self.generator) if self.seed % 4 else torch.ones(t.shape)
                    self._move(t, lost * part.to(t.dtype))  # a quotient by what is left is large beside 0 alone
                    self._put(t, torch.zeros_like(t), (t.abs() <= lost) & (self.seed % 6 == 4))
                else:
                    self.shake(t, w, _ulps(target, t.dtype))
                    if name_of(target) in ("softmax", "_softmax") and self.seed % 5 == 2 and t.dim():
                        # tract's exponentials of f32 do not fall below 0.7 to 1.5 times the smallest normal number
                        part = 0.7 + 0.8 * torch.rand(t.shape, generator=self.generator)
                        least = t.amax(args[1], keepdim=True) * torch.finfo(t.dtype).tiny * part.to(t.dtype)
                        self._put(t, least, t < least)
                    if _rounds_products(target, args, t):
                        self._move(t, t.abs() * torch.finfo(t.dtype).eps)
                    if t is leaves[0] and (noise := _of_equals(target, args, t)):
                        part = torch.rand(t.shape, generator=self.generator) * 2 - 1
                        t.add_(part.clamp(min=0).to(t.dtype) * noise)
                    if "polynomial" in name_of(target):  # cos(n acos(x)) to some kernels, a recurrence to others
                        steps = torch.as_tensor(args[1]).abs().clamp(8, 64)  # acos(x) is rounded, n of it n times
                        least = steps.to(t.dtype) * torch.finfo(t.dtype).eps
                        self._put(t, self._below(t, least), t.abs() < least * (self.seed % 2))
                    if name_of(target) in ("var_mean", "std_mean") and t is leaves[-1] and self.seed % 3 == 1:
                        # a running mean, which of numbers whose sum is 0 is next to it
                        large = args[0][args[0].isfinite()].abs().amax() if args[0].isfinite().any() else 0.0
                        self._put(t, torch.zeros_like(t), t.abs() <= 4 * torch.finfo(t.dtype).eps * large)
                    if name_of(target) in ("mean", "var_mean") and t is leaves[-1]:  # a sum times 1 / n to tract
                        self._move(t, t.abs() * torch.finfo(t.dtype).eps)
                    if name_of(target) == "gelu":  # x (1 + erf(x)) / 2: of what cancels, torch's too is rounding's
                        self._move(t, args[0].abs() * torch.finfo(t.dtype).eps)
                    if name_of(target) == "tanh":  # onnxruntime's of f64 is 1 where 1 - 4e-16 is right
                        self._move(t, 2 * t.abs() * torch.finfo(t.dtype).eps)
                    if name_of(target) in ("lstm", "gru"):  # gates of the runtimes' kernels are right beside 1 alone
                        least = 4 if name_of(target) == "lstm" else 1  # of tract's LSTM they are 4e-7 at least
                        self._move(t, torch.full_like(t, least * torch.finfo(t.dtype).eps))
                        if self.seed % 3 == 1:  # and 0 far below it
                            self._put(t, torch.zeros_like(t), t.abs() <= least * torch.finfo(t.dtype).eps)
                    if name_of(target) in ("sigmoid", "silu"):  # as are its sigmoids
                        part = args[0].abs() if name_of(target) == "silu" else torch.ones_like(t)
                        least = part.to(t.dtype) * torch.finfo(t.dtype).eps
                        self._move(t, least)
                        if name_of(target) == "silu" and self.seed % 3 == 1:  # onnxruntime's is 0 from -18 down
                            self._put(t, torch.zeros_like(t), t.abs() <= least)
                if tied and not overlaps(t):  # of 0.0 and -0.0, which are equal, either is the result
                    signs = torch.randint(0, 2, t.shape, generator=self.generator).to(torch.bool)
                    t.copy_(torch.where((t == 0) & signs, -t, t))
        return result

    def _called(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The result; what torch composes of other operations rounds after each of them, which are moved as well.

        The cosine of a vector with itself is 1 in float64 and, as it turns out, in float32: of divisions and roots that
        were rounded all the same, and of which other runtimes make the number beside 1. Every third seed does the same
        with those that torch has a decomposition of beside its kernel: the norm of equal numbers is 0 to the kernel.
        """
        if target in QUOTIENTS and kwargs.get("rounding_mode") == "trunc" and args[0].is_floating_point():
            divisor = torch.as_tensor(args[1], dtype=None if isinstance(args[1], Tensor) else args[0].dtype)
            return self.call_function(_ATEN.div.Tensor, (args[0], divisor), {}).trunc()
        if target in WINDOWS and self.seed % 2:
            return self._of_windows(target, args, kwargs)
        if _composed(target) and not target._schema.is_mutable:
            whole = super().call_function(target, args, kwargs)
            if _shares_memory(whole, args):  # a dropout that does nothing, say: writes show in both
                return whole
        if not _composed(target):
            other = decomposition_table.get(target) if self.seed % 3 == 1 else None
            if other is None or _view(target) or target._schema.is_mutable or "attention" in name_of(target):
                return super().call_function(target, args, kwargs)
            with _Parts(self):
                return other(*args, **kwargs)
        with _Parts(self):  # called as it stands, some come back to the mode whole
            return target.decompose(*args, **kwargs)

    def _of_ties(self, target: Any, args: Any, kwargs: Any) -> Any:
        """An extreme and its place, looked for in another order: torch does not say which of equal elements it is."""
        if target not in FIRST_OF_EQUALS or not args[0].dim():
            return None
        named = dict(zip((a.name for a in target._schema.arguments), args, strict=False)) | kwargs
        row = named["self"]
        dim = named.get("dim", -1)
        order = torch.randperm(row.shape[dim], generator=self.generator)
        values, at = target(**{**named, "self": row.index_select(dim, order)})
        return values, order[at]

    def _reordered(self, target: Any, args: Any) -> Any:
        """The operands; those of a sum in another order, for of 1, 1e38 and -1e38 it gives 0 or 1 by the order.

        So does a product of 0, 1e38 and 10 give 0 or nan.
        """
        if target in CONTRACTIONS:
            at = CONTRACTIONS[target]
            left, right = args[at : at + 2]
            order = torch.randperm(left.shape[-1], generator=self.generator)
            right = right.index_select(max(right.dim() - 2, 0), order)
            return (*args[:at], left.index_select(-1, order), right, *args[at + 2 :])
        if target not in SUMS:
            return args
        x, dims = args[0], args[1] if len(args) > 1 else None
        for dim in ([dims] if isinstance(dims, int) else dims) or range(x.dim()):
            if x.dim():
                x = x.index_select(dim, torch.randperm(x.shape[dim], generator=self.generator))
        return (x, *args[1:])

    def _of_windows(self, target: Any, args: Any, kwargs: Any) -> Tensor:
        """An average pool whose windows are added up in another order."""
        named = dict(zip((a.name for a in target._schema.arguments), args, strict=False)) | kwargs
        x = named["self"]
        rank = 2 if target is _ATEN.avg_pool2d.default else 3
        size, pad = (_by_axis(named.get(k) or 0, rank) for k in ("kernel_size", "padding"))
        step = _by_axis(named.get("stride") or size, rank)
        ones = torch.ones_like(x)
        share = target(**{**named, "self": ones})  # of the divisor, which lies inside of the tensor
        reach = [(n - 1) * s + k for n, s, k in zip(share.shape[-rank:], step, size, strict=True)]
        behind = [max(0, r - n - p) for r, n, p in zip(reach, x.shape[-rank:], pad, strict=True)]
        around = [p for both in zip(pad, behind, strict=True) for p in both]
        borders = [p for i in reversed(range(rank)) for p in around[2 * i : 2 * i + 2]]
        x, ones = (torch.nn.functional.pad(t, borders) for t in (x, ones))
        total, inside = torch.zeros_like(share), torch.zeros_like(share)
        places = list(itertools.product(*map(range, size)))
        for i in torch.randperm(len(places), generator=self.generator).tolist():
            at = [slice(p, p + r - k + 1, s) for p, r, k, s in zip(places[i], reach, size, step, strict=True)]
            total, inside = total + x[(..., *at)], inside + ones[(..., *at)]
        return total / (inside / share).round()  # by the divisor

    def _take_other_kernel(self, target: Any, args: Any, kwargs: Any, result: Any) -> None:
        """What the other kernel of a pointwise operation gives where one of the two gives nan.

        Torch has a vector and a scalar one, and takes the latter for what is left of a row and for what does not lie
        in a row: of `fmod(1.8e308, 1e-3)` in float64 the quotient is infinite to the vector kernel, as `gelu` of
        infinity is nan to it alone.
        """
        pointwise = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
        if not pointwise or target._schema.is_mutable or not isinstance(result, Tensor) or overlaps(result):
            return
        if result.is_floating_point() and not bool(result.isfinite().all()):
            lay = Tensor.contiguous if self.seed % 2 else _apart
            other = target(*pytree.tree_map_only(Tensor, lay, tuple(args)), **kwargs)
            result.copy_(torch.where(result.isnan() != other.isnan(), other, result))

    def _widens(self, target: Any, args: Any, result: Any) -> bool:
        """True of a computed half that is read in a wider type, where a runtime may not have rounded it.

        One without kernels for halves computes in float32, and onnxruntime leaves out the casts between the operation
        and one that reads its result in float32.
        """
        operand = args[0] if args else None
        if self.node is None or not isinstance(result, Tensor) or not isinstance(operand, Tensor):
            return False
        computed = any(n in self.halves for n in self.node.all_input_nodes)
        if result.dtype in HALVES and (computed or not _view(target)):
            self.halves.add(self.node)
        wider = result.is_floating_point() and result.dtype not in HALVES
        return computed and operand.dtype in HALVES and wider and result.shape == operand.shape

    def shake(self, t: Tensor, wide: Any, ulps: int) -> None:
        """Move a result in place: by twice what rounding took from it, to what float64 makes of it, or not at all."""
        lost = t.abs() * torch.finfo(t.dtype).eps * ulps
        if isinstance(wide, Tensor) and wide.dtype is torch.float64 and wide.shape == t.shape:
            beyond = t.isinf() & wide.to(t.dtype).isfinite()  # a product on the way was, as that of hardswish(3.4e38)
            if bool(beyond.any()) and not overlaps(t) and bool(torch.rand((), generator=self.generator) < 0.5):
                t.copy_(torch.where(beyond, wide.to(t.dtype), t))
            gap = (wide - t.double()).abs()
            noise = 16 * gap * torch.finfo(wide.dtype).eps / torch.finfo(t.dtype).eps  # what float64 rounded, by that
            wide = torch.where(wide.abs() <= noise, 0.0, wide)
            if bool(torch.rand((), generator=self.generator) < 0.25):
                # what cancels to 0 there is a 0 to a kernel that rounds elsewhere, which no multiple of the gap gives
                return self._put(t, wide.to(t.dtype), gap > 0)
            lost = torch.where(gap > 0, torch.maximum(2 * gap.to(t.dtype), lost), torch.zeros_like(t))
            least, tiny = t.abs() < 2**8 * torch.finfo(t.dtype).tiny, torch.finfo(t.dtype).tiny
            if bool(torch.rand((), generator=self.generator) < 0.125):  # a factor of the result was flushed
                return self._put(t, torch.zeros_like(t), least)
            if ulps > 1:  # or lost its last digits below the smallest normal number, as in onnxruntime's tanh
                lost = torch.where(least & (t != 0), lost.clamp(min=2**6 * tiny * torch.finfo(t.dtype).eps), lost)
        elif t.dtype is torch.float64:  # there is no wider type: multiples of a large power of two were not rounded
            exact = (t * 2**20).frac() == 0
            lost = torch.where(exact & (t.abs() < 2**20), torch.zeros_like(t), lost)
        return self._move(t, lost)

    def _move(self, t: Tensor, lost: Tensor) -> None:
        """Up, down or not at all: by `lost`, or by one unit in the last place, as to the -1 beside a tanh."""
        signs = torch.randint(-1, 2, t.shape, generator=self.generator).to(t.dtype)
        if bool(torch.rand((), generator=self.generator) < 0.25):
            return self._put(t, torch.nextafter(t, t + signs * math.inf), (lost > 0) & (signs != 0))
        return self._put(t, t + signs * lost, lost > 0)

    def _below(self, t: Tensor, least: Tensor) -> Tensor:
        """In the place of what only rounding tells from 0: 0, or in some runs smaller numbers of either sign."""
        signs, powers = (torch.rand(t.shape, generator=self.generator, dtype=torch.float64) for _ in range(2))
        return ((2 * signs - 1) * least * 2 ** (-25 * powers) * (self.seed % 8 == 5)).to(t.dtype)

    @staticmethod
    def _put(t: Tensor, moved: Tensor, where: Tensor) -> None:
        if not overlaps(t):
            t.copy_(torch.where(t.isfinite() & where, moved, t))


class Unrounded(Shaken):
    """The program in float32 where it has halves: a runtime without kernels for them rounds at the end alone.

    Or after those operations alone that have a kernel; every second seed draws which. One moves nothing: beside 1 and 0
    a movement takes a sigmoid out of the domain of its inverse.
    """

    STILL = 3  # the seed, the first that explained() takes

    def own(self, x: Tensor) -> Tensor:
        return _single(x)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.attributes.setdefault(target, _single(super().get_attr(target, args, kwargs)))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(torch.dtype, lambda d: torch.float32 if d in HALVES else d, (args, kwargs))
        if self.seed == self.STILL:
            return torch.fx.Interpreter.call_function(self, target, args, kwargs)
        result = super().call_function(target, args, kwargs)
        if self.seed % 8 == 3 and bool(torch.rand((), generator=self.generator) < 0.5):
            self._round(result)
        return result

    def _round(self, result: Any) -> None:
        said = self.node.meta.get("val") if self.node is not None else None
        for t, v in zip(pytree.tree_leaves(result), pytree.tree_leaves(said), strict=False):
            if isinstance(t, Tensor) and isinstance(v, Tensor) and v.dtype in HALVES and t.dtype is torch.float32:
                self._put(t, t.to(v.dtype).float(), torch.ones((), dtype=torch.bool))


def _single(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype in HALVES else x


class _Parts(TorchDispatchMode):
    """The operations that torch makes another one of, each of which a Shaken calls."""

    def __init__(self, shaken: Shaken) -> None:
        super().__init__()
        self.shaken = shaken

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.shaken.call_function(func, args, kwargs or {})


def _composed(target: Any) -> bool:
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd
    return isinstance(target, torch._ops.OpOverload) and target.has_kernel_for_dispatch_key(implicit)


_ATEN = torch.ops.aten
FIRST_OF_EQUALS = (_ATEN.topk.default, _ATEN.kthvalue.default, _ATEN.median.dim, _ATEN.nanmedian.dim)
SUMS = (_ATEN.sum.default, _ATEN.sum.dim_IntList, _ATEN.nansum.default, _ATEN.mean.default, _ATEN.mean.dim,
        _ATEN.prod.default, _ATEN.prod.dim_int)  # fmt: skip
# the place of the first of two factors; torch makes these of matmul, linear and einsum
CONTRACTIONS = {_ATEN.dot.default: 0, _ATEN.mv.default: 0, _ATEN.mm.default: 0, _ATEN.bmm.default: 0,
                _ATEN.addmv.default: 1, _ATEN.addmm.default: 1, _ATEN.baddbmm.default: 1}  # fmt: skip
WINDOWS = (_ATEN.avg_pool2d.default, _ATEN.avg_pool3d.default)
QUOTIENTS = (_ATEN.div.Tensor_mode, _ATEN.div.Scalar_mode)  # cut off behind the division, which rounds
HALVES = (torch.float16, torch.bfloat16)
# each result a sum of products, which a kernel may fuse: of a product beyond the largest number and -inf, -inf or nan
OF_PRODUCTS = {"cross", "linalg_cross", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "linear", "dot", "vdot",
               "mv", "addmv", "inner", "tensordot", "einsum", "bilinear", "addr", "chain_matmul", "linalg_vecdot",
               "linalg_multi_dot", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"}  # fmt: skip


def _by_axis(x: Any, rank: int) -> list[int]:
    x = [x] if isinstance(x, int) else list(x)
    return x * rank if len(x) == 1 else x


def _apart(x: Tensor) -> Tensor:
    """The tensor, whose elements do not lie side by side."""
    return torch.stack([x, x], -1)[..., 0]


def restore(module: torch.nn.Module, state: dict[str, Tensor]) -> None:
    """Buffers and parameters as they were."""
    with torch.no_grad():
        for k, v in (*module.named_buffers(), *module.named_parameters()):
            if k in state:
                v.copy_(state[k])


def name_of(target: Any) -> str:
    return str(target).split(".")[1] if str(target).startswith("aten.") else ""


def _has_both_zeros(args: Any) -> bool:
    numbers = [torch.as_tensor(x) for x in pytree.tree_leaves(args) if isinstance(x, Tensor | float | int)]
    signs = [x.signbit()[x == 0].unique() for x in numbers]
    return len(torch.cat(signs).unique()) == 2


def _has_zeros_alone(args: Any) -> bool:
    """True if an operand is nothing but zeros."""
    return any(not torch.as_tensor(x).any() for x in args if isinstance(x, Tensor | float | int))


EXTREMES = {"max", "min", "amax", "amin", "aminmax", "maximum", "minimum", "fmax", "fmin", "clamp", "cummax", "cummin",
            "median", "nanmedian", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d",
            "adaptive_max_pool2d"}  # fmt: skip


def _ulps(target: Any, dtype: torch.dtype) -> int:
    """By how many units in the last place two runtimes' results of one operation may differ.

    IEEE 754 has the basic operations rounded correctly. Of functions of f32 OpenCL C (7.4, "Relative error as ULPs")
    asks for 16 units at the most (erf, pow), and no runtime here promises more.
    """
    return 1 if dtype is not torch.float32 or name_of(target).rstrip("_") in BASIC else 16


def _of_equals(target: Any, args: Any, result: Tensor) -> float:
    """What a variance or deviation of equal numbers may be: their mean is rounded, by a few units."""
    name = name_of(target)
    if not name.startswith(("var", "std")) or not isinstance(args[0], Tensor) or not args[0].numel():
        return 0.0
    largest = args[0].abs().max().nan_to_num(0.0, 0.0, 0.0).item() * 4 * torch.finfo(result.dtype).eps
    return largest if name.startswith("std") else largest**2


def _rounds_products(target: Any, args: Any, result: Tensor) -> bool:
    """Whether products in a sum have more digits than their type: a kernel that fuses them gives the exact sum, by
    chance one that float64 gives too, and another kernel the number beside it.
    """
    if name_of(target) not in OF_PRODUCTS or result.dtype is torch.float64:
        return False
    digits = sorted(_digits(x) for x in pytree.tree_leaves(args) if isinstance(x, Tensor) and x.is_floating_point())
    return sum(digits[-2:]) > 1 - math.log2(torch.finfo(result.dtype).eps)


def _digits(x: Tensor) -> int:
    """How many binary digits the numbers of a tensor have at the most."""
    mantissas = (x.double()[x.isfinite()].frexp().mantissa.abs() * 2**53).long()
    lowest = (mantissas & -mantissas)[mantissas != 0]
    return 53 - int(lowest.min().double().log2()) if lowest.numel() else 0


def _shares_memory(result: Any, args: Any) -> bool:
    """Whether a result is an operand, or lies in one."""
    here, there = (
        {t.untyped_storage().data_ptr() for t in pytree.tree_leaves(x) if isinstance(t, Tensor) and t.numel()}
        for x in (result, args)
    )
    return bool(here & there)


def _blended(target: Any, args: Any, kwargs: Any) -> int:
    """How many rounded weights each element of an attention's result sums over; 0 where it rounds nothing by that.

    The weights of several keys are quotients of exponentials, so that their sum is 1 up to one rounding for each, also
    where all values are alike and a result happens to equal the one of float64. The one weight of one key is 1.
    """
    if name_of(target) != "scaled_dot_product_attention":
        return 0
    keys = (args[1] if len(args) > 1 else kwargs["key"]).shape[-2]
    return keys if keys > 1 else 0


BASIC = {"add", "sub", "rsub", "mul", "div", "sqrt", "reciprocal", "addcmul", "addcdiv", "to", "_to_copy", "copy"}


def _view(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def overlaps(t: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(t.stride(), t.shape))


def _sinc(x: Tensor) -> Tensor:
    """0 at all integers but 0, where torch's is what rounding took from pi."""
    return torch.where((x == x.round()) & (x != 0), 0.0, torch.sinc(x))


EXACT = {_ATEN.sinc.default: _sinc, _ATEN.special_sinc.default: _sinc}


def wide_result(target: Any, args: Any, kwargs: Any) -> Any:
    """The result in float64; None of an operation that has no wider type than its own."""
    if target in EXACT:
        return EXACT[target](args[0].double())
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if any(x.dtype is torch.float64 for x in tensors):
        return None
    whole = bool(tensors) and not any(x.is_floating_point() for x in tensors)  # torch then computes in its default type

    def widen(x: Any) -> Any:
        if isinstance(x, Tensor):
            given = x.to(torch.get_default_dtype()) if whole and x.dtype is not torch.bool else x
            return given.double() if given.dtype in (torch.float32, torch.float16, torch.bfloat16) else x.clone()
        return x

    try:
        if whole and _of(target, args, kwargs).dtype is not torch.get_default_dtype():
            return None
        return target(*pytree.tree_map(widen, args), **pytree.tree_map(widen, kwargs))
    except Exception:
        return None


def _of(target: Any, args: Any, kwargs: Any) -> Tensor:
    """The result of a call that writes to none of its arguments."""
    args, kwargs = pytree.tree_map_only(Tensor, torch.clone, (args, kwargs))
    return target(*args, **kwargs)


def after(module: torch.nn.Module, names: Sequence[str], args: Sequence[Any]) -> dict[str, Tensor]:
    """What a call may have written to: buffers, parameters and inputs by name."""
    return {**dict(module.named_buffers()), **dict(module.named_parameters()), **dict(zip(names, args, strict=True))}


def at_place(leaves: Sequence[Any], place: int | str, module: Any, names: Sequence[str], given: Sequence[Any]) -> Any:
    return leaves[place] if isinstance(place, int) else after(module, names, given)[place]
