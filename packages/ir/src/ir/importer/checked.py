"""Which of torch's kernels may run on numbers that are anyone's: those of a .pt2 file.

Many kernels trust what they are given: `max_pool2d_with_indices_backward` writes to wherever its indices say, and an
integer division of the least number by -1 ends the process. What a file asks for is run by kernels alone that look at
what they read, and by torch's own Python and composite functions over these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import Tensor

from ir.errors import RefusedError
from ir.importer.schema import op_schema
from ir.importer.torch_api import (
    DispatchKey,
    OpOverload,
    TorchDispatchMode,
    decompositions,
    has_kernel,
    overload_name,
    run_kernel,
    schema_of,
)

# These look at no bounds: each with the op that gives the same view, and does (tests/ir/test_checked.py runs them all).
CHECKED_VIEWS = {"aten::_reshape_alias": "as_strided", "aten::_reshape_alias_copy": "as_strided_copy"}
# Kernels behind a public function, which checks for them, and that check all the same.
PRIVATE = frozenset({"_to_copy", "_softmax", "_log_softmax", "_local_scalar_dense"})
_LOOPS = "_polynomial_", "mvlgamma"
DIVISIONS = frozenset({"div", "divide", "floor_divide", "fmod", "remainder", "gcd", "lcm"})


class UncheckedError(RefusedError):
    """A kernel was not run on these numbers: what it does with them is not known to be safe."""


@cache
def is_checked(overload: OpOverload) -> bool:
    """True for kernels that read and write nothing but their tensors' elements, whatever numbers are in them.

    torch's tags tell: what is pointwise moves nothing, and the core operators check; so do its views, and what takes
    no tensor has none to read beside. Private kernels leave that to the function in front of them, backward ones
    believe the indices of the forward ones, and some functions loop as often as an operand says.
    """
    schema, name = schema_of(overload), base_name(overload)
    if not schema.name.startswith("aten::") or name.endswith("_backward") or any(w in name for w in _LOOPS):
        return False
    if torch.Tag.pointwise in overload.tags or is_division(overload):
        return True  # floor_divide has no tag
    if (name.startswith("_") and name not in PRIVATE) or torch.Tag.inplace_view in overload.tags:
        return False
    known = op_schema(overload)
    if known.functional is not None:
        return is_checked(known.functional.target)
    if not {torch.Tag.core, torch.Tag.view_copy}.isdisjoint(overload.tags):  # the second: lift_fresh_copy
        return True
    return not known.writes and (bool(known.views) or not any("Tensor" in str(a.type) for a in schema.arguments))


def base_name(overload: OpOverload) -> str:
    """Of `aten::div_.Tensor` and `aten::div.Tensor`: "div"."""
    return str(schema_of(overload).name).rpartition("::")[2].removesuffix("_")


def is_division(overload: Any) -> bool:
    """True if it may divide integers."""
    return isinstance(overload, OpOverload) and base_name(overload).strip("_") in DIVISIONS


def check_division(overload: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises UncheckedError: the least integer meets -1 in a division, which ends the process; gcd makes that -1."""
    if not is_division(overload):
        return
    given = [a for a in (*args, *kwargs.values()) if isinstance(a, (Tensor, int)) and not isinstance(a, bool)]
    whole = [t for a in given if _is_signed(t := a if isinstance(a, Tensor) else torch.tensor(a))]
    least = any(_has(t, torch.iinfo(t.dtype).min) for t in whole)
    if least and (base_name(overload) in ("gcd", "lcm") or any(_has(t, -1) for t in whole)):
        raise UncheckedError(f"{schema_of(overload).name} of the least integer is not computed")


def _is_signed(tensor: Tensor) -> bool:
    dtype = tensor.dtype
    return dtype.is_signed and not (dtype.is_floating_point or dtype.is_complex or tensor.is_meta)


def _has(tensor: Tensor, number: int) -> bool:
    return bool((tensor == number).any())


class Checked(TorchDispatchMode):
    """Inside of the block torch runs no kernel but checked ones.

    A composite op, and one that torch's table decomposes, is run by its parts, each of them in turn.

    Raises:
        UncheckedError: in the place of running another.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._open: list[Any] = []  # whose parts are run; one that is a part of itself has none

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        check_division(func, args, kwargs)
        if is_checked(func):
            return func(*args, **kwargs)
        parts = _parts(func) if func not in self._open else None
        if parts is None:
            raise UncheckedError(f"{func} is not run on these numbers")
        self._open.append(func)
        try:
            with self:
                return parts(*args, **kwargs)
        finally:
            self._open.pop()


def _parts(overload: OpOverload) -> Callable[..., Any] | None:
    """The function that computes the op by others, None if there is none."""
    if schema_of(overload).name in CHECKED_VIEWS:
        return checked_view(overload)  # type: ignore[no-any-return]
    if has_kernel(overload.name(), DispatchKey.CompositeImplicitAutograd.name):
        return _kernel(overload, DispatchKey.CompositeImplicitAutograd)
    if overload in decompositions():
        return decompositions()[overload]
    key = DispatchKey.CompositeExplicitAutograd
    return _kernel(overload, key) if has_kernel(overload.name(), key.name) else None


def _kernel(overload: OpOverload, key: DispatchKey) -> Callable[..., Any]:
    return overload.py_kernels.get(key) or partial(run_kernel, overload, key)


def checked_view(overload: Any) -> Any:
    """The op that gives the same view and looks at its bounds, where this one looks at none; else this one."""
    if not isinstance(overload, OpOverload):
        return overload
    other = CHECKED_VIEWS.get(schema_of(overload).name)
    return overload if other is None else getattr(getattr(torch.ops.aten, other), overload_name(overload))


def checking(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with no kernels in it but checked ones."""

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        with Checked():
            return fn(*args, **kwargs)

    return run
