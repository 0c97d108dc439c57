"""Which calls torch answers in its default dtype, and the arguments that say that type in its place.

The default decides where nothing else does: `torch.ones(3)`, integers divided, `torch.where` of two numbers. A process
may change it between the capture and a call. A factory can be told its dtype; integers can be converted before, which
is what torch does with them itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ir.importer.torch_api import FakeTensorMode, pytree, schema_of, unlogged

SIZE = 2  # what every dimension is taken for


class Kind(NamedTuple):
    """A tensor among the arguments."""

    dtype: torch.dtype
    rank: int


def arguments_in_default(
    overload: Any, given: Mapping[str, Any], results: Sequence[torch.dtype]
) -> tuple[torch.dtype | None, list[str]]:
    """The type that the default was, and the names of the arguments to give in it: "dtype", or operands.

    Args:
        overload: an op of torch.
        given: its arguments by name, a Kind for each tensor, `SIZE` for each dynamic size.
        results: what they were when it was captured.

    Returns:
        (None, []) where the default decides nothing.
    """
    wanted = next((d for d in results if _floats(d)), None)
    tensors = [a for a in _leaves(list(given.values())) if isinstance(a, Kind)]
    follows = any(_floats(t.dtype) for t in tensors)
    if "dtype" in given:
        told = given["dtype"] is not None or (follows and "self" in given)  # softmax, zeros_like
        return (None, []) if wanted is None or told else (wanted, ["dtype"])
    packet = overload.overloadpacket  # torch.where has the tag at one overload
    if not any(torch.Tag.pointwise in getattr(packet, name).tags for name in packet.overloads()):
        return None, []  # others may compute in integers before: torch.trapezoid wraps around
    if wanted is None or follows or not tensors or not _asks_default(overload, given, results, wanted):
        return None, []
    names = [n for n in given if _takes(overload, given, n, results, wanted)]
    numbers = [a.name for a in schema_of(overload).arguments if str(a.type) == "number"]
    return wanted, names or [n for n in numbers if type(given[n]) in (bool, int, float, complex)]


def _floats(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _leaves(arg: Any) -> list[Any]:
    return pytree.tree_leaves(arg, is_leaf=lambda a: isinstance(a, Kind))


def _asks_default(overload: Any, given: Mapping[str, Any], results: Sequence[torch.dtype], wanted: torch.dtype) -> bool:
    """False of ops that say the type themselves: torch.float_power is in float64, whatever the default is."""
    whole = torch.empty((), dtype=torch.int64)
    return wanted in [torch.result_type(whole, n) for n in (1.0, 1j)] or _made(overload, given) != list(results)


def _takes(
    overload: Any, given: Mapping[str, Any], name: str, results: Sequence[torch.dtype], wanted: torch.dtype
) -> bool:
    """True of an operand that torch takes in this type for the same results: not of a condition, nor of indices."""
    if not any(isinstance(a, Kind) for a in _leaves(given[name])):
        return False
    in_type = pytree.tree_map_only(Kind, lambda k: Kind(wanted, k.rank), given[name], is_leaf=_is_kind)
    return _made(overload, {**given, name: in_type}) == list(results)


def _is_kind(arg: Any) -> bool:
    return isinstance(arg, Kind)


def _made(overload: Any, given: Mapping[str, Any]) -> list[torch.dtype] | None:
    """The types that the op makes of small fake tensors; None where it refuses them.

    No kernel is run: the arguments may be those of a file.
    """
    named = {a.name for a in schema_of(overload).arguments if a.kwarg_only}
    try:
        with torch.no_grad(), unlogged(), FakeTensorMode():
            own = pytree.tree_map_only(Kind, _tensor, dict(given), is_leaf=_is_kind)
            made = overload(*(a for n, a in own.items() if n not in named), **{n: own[n] for n in named})
    except Exception:
        return None
    return [t.dtype for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]


def _tensor(kind: Kind) -> torch.Tensor:
    return torch.ones([SIZE] * kind.rank, dtype=kind.dtype, device="cpu")
