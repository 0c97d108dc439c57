"""Composite functions of torch's, run where the numbers of their tensors are out of their own reach.

Most of these functions of C++ only call others, which look at what they read. Some read an operand by its address
(lengths of sequences, say) and trust what stands there. Nothing tells which. So they get tensors without memory:
what they call runs on the numbers all the same, and what they read themselves ends in torch's own error.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ir.errors import RefusedError
from ir.importer.torch_api import DispatchKey, OpOverload, disable_current_modes, has_kernel, pytree, schema_of, wrapper

# They trust more than numbers: how many tensors a list has, and that torch.func runs.
UNCHECKED = frozenset({"quantized_lstm_cell", "_remove_batch_dim"})  # tests/ir/probe_composites.py finds them
NO_MEMORY = "data is not allocated"  # torch's words


class UncheckedError(RefusedError):
    """A kernel was not run on these numbers: what it does with them is not known to be safe."""


class WithoutStorage(Tensor):
    """A tensor of the same shape and type, and without memory, in the place of another."""

    own: Tensor

    @staticmethod
    def __new__(cls, own: Tensor) -> WithoutStorage:
        made: WithoutStorage = wrapper(
            cls, own.shape, own.stride(), own.storage_offset(), dtype=own.dtype, device=own.device
        )
        made.own = own
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _without_storage(func(*_with_storage(args), **_with_storage(kwargs or {})))


def _without_storage(values: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t if isinstance(t, WithoutStorage) else WithoutStorage(t), values)


def _with_storage(values: Any) -> Any:
    return pytree.tree_map_only(WithoutStorage, lambda t: t.own, values)


@cache
def is_composite(overload: Any) -> bool:
    """True for a function of C++ that torch runs before any mode sees it, and is no documented method.

    Nor is it one of Python's operators, which are made of such methods: `__and__`.
    """
    if not isinstance(overload, OpOverload):
        return False
    namespace, _, name = schema_of(overload).name.partition("::")
    if namespace == "aten" and name.startswith("__") and hasattr(operator, name):
        return False
    public = namespace == "aten" and not name.startswith("_") and getattr(torch.Tensor, name, None)
    try:
        composite = has_kernel(overload.name(), DispatchKey.CompositeImplicitAutograd.name)
    except RuntimeError:  # what TorchScript alone runs
        return False
    return composite and not (callable(public) and public.__doc__)


def may_end_the_process(overload: Any, args: Any, kwargs: Any) -> bool:
    """True if a composite function may, before it comes to what tensors without memory refuse.

    The address of no elements is none, and torch lets it be read. Backward functions trust that what they may do
    without is there.
    """
    name = str(schema_of(overload).name)
    if name.endswith("_backward") or name.rpartition("::")[2] in UNCHECKED:
        return True
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    if any(t.layout is not torch.strided or t.is_quantized for t in given):
        return True
    return not all(t.numel() for t in given) and not _reads_nothing(overload, args, kwargs)


def _reads_nothing(overload: Any, args: Any, kwargs: Any) -> bool:
    """Whether a composite function comes to its end without a number, where each size of 0 is 1."""

    def some(t: Tensor) -> Tensor:
        return torch.empty([max(size, 1) for size in t.shape], dtype=t.dtype, device="meta")

    try:
        with disable_current_modes():
            overload(*pytree.tree_map_only(Tensor, some, args), **pytree.tree_map_only(Tensor, some, kwargs))
    except Exception:  # of any kind: then nobody knows
        return False
    return True


def run_without_storage(call: Any, overload: Any, args: Any, kwargs: Any) -> Any:
    """What a composite function gives, if it reads no number itself; `call` is the function, or its kernel.

    Raises:
        UncheckedError: it does, or it is not known to do nothing worse.
    """
    if may_end_the_process(overload, args, kwargs):
        raise UncheckedError(f"{overload} is not run on these numbers")
    try:
        return _with_storage(call(*_without_storage(args), **_without_storage(kwargs)))
    except RuntimeError as error:
        if NO_MEMORY in str(error):
            raise UncheckedError(f"{overload} reads numbers itself and is not run on these") from error
        raise


def run_with_storage(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """What a kernel gives that may make tensors of an operand's memory itself: `_unsafe_view`."""
    if not any(isinstance(t, WithoutStorage) for t in pytree.tree_leaves((args, kwargs))):
        return kernel(*args, **kwargs)
    return _without_storage(kernel(*_with_storage(args), **_with_storage(kwargs)))
