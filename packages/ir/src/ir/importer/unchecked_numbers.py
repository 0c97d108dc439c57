"""The numbers that torch's kernels do not look for, and that end the process or never end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ir.importer.torch_api import OpOverload, schema_of
from ir.importer.without_storage import UncheckedError

_MOST_COPIES = 2**40  # of an element
_MOST_STEPS = 1000  # for each element
_MOST_PIECES = 2**16  # of a tensor: each is a tensor, however small
LOOPS = "_polynomial_", "mvlgamma", "matrix_power"  # in the names of what takes as many steps as an operand says
DIVISIONS = frozenset({
    "div", "divide", "floor_divide", "fmod", "remainder", "gcd", "lcm", "avg_pool2d", "avg_pool3d",
})  # fmt: skip
PIECES = frozenset({"chunk", "unsafe_chunk", "tensor_split"})  # are cut by composite functions, which no mode sees
_BAGS = frozenset({"_embedding_bag", "_embedding_bag_forward_only"})
_MODES = {"grid_sampler": 3, "grid_sampler_2d": 3, "grid_sampler_3d": 2}  # how many ways there are between two points
_MODES_OF_PADDING = 3


def base_name(overload: OpOverload) -> str:
    """Of `aten::div_.Tensor` and `aten::div.Tensor`: "div"."""
    return str(schema_of(overload).name).rpartition("::")[2].removesuffix("_")


def is_division(overload: Any) -> bool:
    """True if it may divide integers."""
    return isinstance(overload, OpOverload) and base_name(overload).strip("_") in DIVISIONS


def check_numbers(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises UncheckedError for the numbers that no kernel looks for.

    The least integer meets -1 in a division, which ends the process; gcd makes that -1. Of copies of elements, the sum
    of their counts is beyond all integers. A bag ends before it begins. The pieces of nothing take memory all the same.
    Of a way to sample that is none, the result is what was in the memory.
    """
    name = base_name(overload) if isinstance(overload, OpOverload) else ""
    if is_division(overload) or name == "arange":
        _check_division(overload, name, _integers((*args, *kwargs.values())))
    elif name == "repeat_interleave":
        if any(bool((t > _MOST_COPIES).any()) for t in _integers((*args, *kwargs.values()))):
            raise UncheckedError(f"{schema_of(overload).name} of more than {_MOST_COPIES} copies is not computed")
    elif any(w in name for w in LOOPS):
        if any(bool((t > _MOST_STEPS).any()) for t in _numbers((*args[1:], *kwargs.values()))):
            raise UncheckedError(f"{schema_of(overload).name} of more than {_MOST_STEPS} steps is not computed")
    elif name in PIECES or name in _BAGS or name in _MODES:
        given = {a.name: a.default_value for a in schema_of(overload).arguments if a.has_default_value()}
        given |= dict(zip((a.name for a in schema_of(overload).arguments), args, strict=False)) | dict(kwargs)
        if name in PIECES:
            _check_pieces(name, given)
        elif name in _MODES:
            _check_modes(name, given)
        elif not _is_a_bag(given):
            raise UncheckedError("embedding_bag of bags that overlap, or reach beyond what is there, is not computed")


def _check_division(overload: Any, name: str, whole: list[Tensor]) -> None:
    least = any(_has(t, torch.iinfo(t.dtype).min) for t in whole)
    if least and (name in ("gcd", "lcm") or any(_has(t, -1) for t in whole)):
        raise UncheckedError(f"{schema_of(overload).name} of the least integer is not computed")


def _check_pieces(name: str, given: Mapping[str, Any]) -> None:
    count = given.get("chunks", given.get("sections", given.get("tensor_indices_or_sections")))
    if isinstance(count, Tensor):
        count = int(count) if count.dim() == 0 and not count.is_meta else 0
    if isinstance(count, int) and count > _MOST_PIECES:
        raise UncheckedError(f"{name} into more than {_MOST_PIECES} pieces is not computed")


def _check_modes(name: str, given: Mapping[str, Any]) -> None:
    modes = given["interpolation_mode"], given["padding_mode"]
    if not (0 <= modes[0] < _MODES[name] and 0 <= modes[1] < _MODES_OF_PADDING):
        raise UncheckedError(f"{name} has no modes {modes[0]} and {modes[1]}")


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
    given = [torch.as_tensor(a) for a in arguments if isinstance(a, (Tensor, int, float))]
    return [t for t in given if not (t.is_complex() or t.is_meta)]


def _is_signed(tensor: Tensor) -> bool:
    dtype = tensor.dtype
    return dtype.is_signed and not (dtype.is_floating_point or dtype.is_complex or tensor.is_meta)


def _has(tensor: Tensor, number: int) -> bool:
    return bool((tensor == number).any())
