"""The numbers that torch's kernels do not look for, and that end the process or never end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ir.importer.torch_api import OpOverload, schema_of
from ir.importer.without_storage import UncheckedError

_MOST_COPIES = 2**27  # of all elements together, and bins of a histogram: 1 GiB of integers
_MOST_STEPS = 1000  # for each element
_MOST_PIECES = 2**16  # of a tensor: each is a tensor, however small
LOOPS = "_polynomial_", "mvlgamma"  # in the names of what takes as many steps as an operand says
DIVISIONS = frozenset({
    "div", "divide", "floor_divide", "fmod", "remainder", "gcd", "lcm", "avg_pool2d", "avg_pool3d",
})  # fmt: skip
_PIECES = frozenset({"chunk", "unsafe_chunk", "tensor_split"})
_POWERS = frozenset({"matrix_power", "linalg_matrix_power"})
_COMPOSITE = _PIECES | _POWERS | {"scaled_dot_product_attention", "histogramdd"}  # no mode sees what these do
_MODES = {"grid_sampler": 3, "grid_sampler_2d": 3, "grid_sampler_3d": 2}  # how many ways there are between two points
_MODES_OF_PADDING = 3


def base_name(overload: OpOverload) -> str:
    """Of `aten::div_.Tensor` and `aten::div.Tensor`: "div"."""
    return str(schema_of(overload).name).rpartition("::")[2].removesuffix("_")


def is_division(overload: Any) -> bool:
    """True if it may divide integers."""
    return isinstance(overload, OpOverload) and base_name(overload).strip("_") in DIVISIONS


def has_limits(overload: OpOverload) -> bool:
    """True if `check_numbers` may refuse the operator for the numbers that it is given."""
    name = base_name(overload)
    return name in _CHECKS or name == "arange" or is_division(overload) or _is_loop(name)


def is_looked_into(overload: OpOverload) -> bool:
    """True of a composite function whose numbers are looked at where it is called."""
    return base_name(overload) in _COMPOSITE


def _is_loop(name: str) -> bool:
    return any(w in name for w in LOOPS)


def check_numbers(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises UncheckedError for the numbers that no kernel looks for.

    The least integer meets -1 in a division, which ends the process; gcd makes that -1. Copies are written before it is
    looked whether a count is below 0. A bag ends before it begins. The pieces of nothing take memory all the same. Of a
    way to sample that is none, the result is what was in the memory. A window's padding is stepped through, and the
    integers up to a pole. Of values there are as many as keys. The power -n of a matrix is the power n of its inverse.
    """
    name = base_name(overload) if isinstance(overload, OpOverload) else ""
    if is_division(overload) or name == "arange":
        _check_division(overload, name, _integers((*args, *kwargs.values())))
    elif _is_loop(name) and any(map(_has_many, _numbers((*args[1:], *kwargs.values())))):
        raise UncheckedError(f"{schema_of(overload).name} of more than {_MOST_STEPS} steps is not computed")
    if name in _CHECKS:
        given = {a.name: a.default_value for a in schema_of(overload).arguments if a.has_default_value()}
        given |= dict(zip((a.name for a in schema_of(overload).arguments), args, strict=False)) | dict(kwargs)
        _CHECKS[name](name, given)


def _check_division(overload: Any, name: str, whole: list[Tensor]) -> None:
    least = any(_has(t, torch.iinfo(t.dtype).min) for t in whole)
    if least and (name in ("gcd", "lcm") or any(_has(t, -1) for t in whole)):
        raise UncheckedError(f"{schema_of(overload).name} of the least integer is not computed")


def _check_pieces(name: str, given: Mapping[str, Any]) -> None:
    count = given.get("chunks", given.get("sections", given.get("tensor_indices_or_sections")))
    if isinstance(count, Tensor):
        count = int(count) if count.dim() == 0 and not count.is_meta else 0
    step = given.get("split_size", 1 if name == "unbind" else None)
    if isinstance(step, int) and -given["self"].dim() <= given["dim"] < given["self"].dim():
        count = given["self"].shape[given["dim"]] // max(step, 1)
    if isinstance(count, int) and count > _MOST_PIECES:
        raise UncheckedError(f"{name} into more than {_MOST_PIECES} pieces is not computed")


def _check_power(name: str, given: Mapping[str, Any]) -> None:
    if given["n"] == torch.iinfo(torch.int64).min:
        raise UncheckedError(f"{name} by the least integer is not computed")


def _check_copies(name: str, given: Mapping[str, Any]) -> None:
    counts = torch.as_tensor(given["repeats"])
    if not _is_whole(counts):
        return
    if bool(((counts < 0) | (counts > _MOST_COPIES)).any()) or int(counts.sum()) > _MOST_COPIES:
        raise UncheckedError(f"{name} of less than 0, or more than {_MOST_COPIES} copies is not computed")


def _check_bins(name: str, given: Mapping[str, Any]) -> None:
    x, bins = given["self"], given.get("bins", given.get("minlength"))
    axes = [bins] * x.shape[-1] if name == "histogramdd" and isinstance(bins, int) else bins
    each = axes if isinstance(axes, list | tuple) else [axes]
    count = math.prod(b if isinstance(b, int) else b.numel() for b in each)
    if name == "bincount" and x.numel() and _is_whole(x):
        count = max(count, int(x.max()))
    if count > _MOST_COPIES:
        raise UncheckedError(f"{name} of more than {_MOST_COPIES} bins is not computed")


def _check_windows(name: str, given: Mapping[str, Any]) -> None:
    windows = [w] if isinstance(w := given["kernel_size"], int) else w
    if any(w > max(_MOST_STEPS, 2 * size) for w, size in zip(windows[::-1], given["self"].shape[::-1], strict=False)):
        raise UncheckedError(f"{name} of windows {list(windows)} over {list(given['self'].shape)} is not computed")


def _check_attention(name: str, given: Mapping[str, Any]) -> None:
    keys, values = given["key"].shape, given["value"].shape
    if keys[-2:-1] != values[-2:-1]:
        raise UncheckedError(f"{name} of keys {list(keys)} and values {list(values)} is not computed")


def _check_poles(name: str, given: Mapping[str, Any]) -> None:
    """The recurrence goes up from the number, one step for each integer below 0."""
    at = given["other" if name == "special_zeta" else "self"]
    if any(bool(((t < -_MOST_STEPS) & (t != t.floor())).any()) for t in _numbers((at,)) if t.is_floating_point()):
        raise UncheckedError(f"{name} below -{_MOST_STEPS} is not computed")


def _check_modes(name: str, given: Mapping[str, Any]) -> None:
    modes = given["interpolation_mode"], given["padding_mode"]
    if not (0 <= modes[0] < _MODES[name] and 0 <= modes[1] < _MODES_OF_PADDING):
        raise UncheckedError(f"{name} has no modes {modes[0]} and {modes[1]}")


def _check_bags(name: str, given: Mapping[str, Any]) -> None:
    if not _is_a_bag(given):
        raise UncheckedError("embedding_bag of bags that overlap, or reach beyond what is there, is not computed")


def _is_a_bag(given: Mapping[str, Any]) -> bool:
    """Whether all that torch's kernels of bags trust is so."""
    indices, offsets, weights = given["indices"], given["offsets"], given["per_sample_weights"]
    if indices.is_meta or indices.dim() != 1 or offsets.dim() != 1 or given["weight"].dim() != 2:
        return bool(indices.is_meta)  # torch asks for these, but it is not known when
    rows, count = given["weight"].shape[0], indices.numel()
    ends = torch.cat([offsets, offsets.new_tensor([count])]) if offsets.numel() else offsets
    return (
        rows > 0
        and offsets.numel() > 0
        and int(offsets[0]) == 0
        and bool((ends[1:] >= ends[:-1]).all())
        and (not given["include_last_offset"] or int(offsets[-1]) == count)
        and bool(((indices >= 0) & (indices < rows)).all())
        and 0 <= given["mode"] <= 2
        and -1 <= given["padding_idx"] < rows
        and (weights is None or weights.shape == indices.shape)
    )


def _integers(arguments: tuple[Any, ...]) -> list[Tensor]:
    """The signed integers among these, each as a tensor."""
    given = [a for a in arguments if isinstance(a, (Tensor, int)) and not isinstance(a, bool)]
    return [t for a in given if _is_signed(t := a if isinstance(a, Tensor) else torch.tensor(a))]


def _numbers(arguments: tuple[Any, ...]) -> list[Tensor]:
    """The real numbers among these, each as a tensor."""
    wide = (torch.tensor(a, dtype=torch.float64) if isinstance(a, float) else a for a in arguments)  # not rounded
    given = [torch.as_tensor(a) for a in wide if isinstance(a, (Tensor, int))]
    return [t for t in given if not (t.is_complex() or t.is_meta)]


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.is_meta)


def _is_signed(tensor: Tensor) -> bool:
    return tensor.dtype.is_signed and _is_whole(tensor)


def _has_many(steps: Tensor) -> bool:
    return bool(((steps > _MOST_STEPS) | (steps < -_MOST_STEPS)).any())


def _has(tensor: Tensor, number: int) -> bool:
    return bool((tensor == number).any())


_CHECKS = {
    **dict.fromkeys(_PIECES, _check_pieces), **dict.fromkeys(_MODES, _check_modes),
    **dict.fromkeys(_POWERS, _check_power),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _check_bags),
    **dict.fromkeys(("unbind", "split", "unsafe_split"), _check_pieces),
    **dict.fromkeys(("special_zeta", "polygamma"), _check_poles),
    **dict.fromkeys(("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"), _check_attention),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), _check_windows),
    **dict.fromkeys(("bincount", "histc", "histogram", "histogramdd"), _check_bins),
    "repeat_interleave": _check_copies,
}  # fmt: skip
