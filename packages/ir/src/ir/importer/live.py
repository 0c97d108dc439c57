"""The model itself, run beside the program that torch.export made of it.

That program agrees with itself whatever the model's code decided while it was traced: by a size of 0 or 1, which
torch.export takes to be larger, by `torch.compiler.is_exporting()`, by Python state. Only the model's own results show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ir.importer.autocasts import around, casting
from ir.importer.functions import FunctionModule
from ir.importer.ladder import unchanged
from ir.importer.sharded import is_sharded
from ir.importer.torch_api import pytree, storage_key


class Live:
    """A model as it was when it was captured."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._was = list(_signs(model))
        self._casts = around()

    @property
    def is_as_it_was(self) -> bool:
        """False after `train()`, `half()` and the like, which the program has not seen."""
        return self._was == list(_signs(self.model))

    def results(self, args: Any, kwargs: Any, state: Mapping[str, Any]) -> list[Any] | None:
        """The leaves of what the model returns for these arguments; None where it cannot be asked.

        Nothing is changed by asking: buffers are copied, and so are the arguments.

        Args:
            state: stands in for parameters and buffers of these names.

        Raises:
            Exception: the model's own, of any kind.
        """
        own = dict(self.model.named_buffers())
        if not self.is_as_it_was or _share_memory(own.values()):
            return None
        known = {n for n, _ in self.model.named_parameters(remove_duplicate=False)}  # a tied weight has several names
        known |= {n for n, _ in self.model.named_buffers(remove_duplicate=False)}
        given = {k: v.detach().clone() for k, v in own.items()}
        given |= {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items() if k in known}
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (tuple(args), dict(kwargs)))
        with torch.no_grad(), unchanged(self.model), casting(self._casts):
            made = torch.func.functional_call(self.model, given, args, kwargs)
        return list(pytree.tree_leaves(made))


def live(model: Any) -> Live | None:
    """The model or function, if it can be run beside its program."""
    module = model if isinstance(model, torch.nn.Module) else FunctionModule(model)
    return None if is_sharded(module) else Live(module)


def _signs(model: torch.nn.Module) -> Iterator[Any]:
    yield from (m.training for m in model.modules())
    yield from (id(t) for t in (*model.parameters(), *model.buffers()))


def _share_memory(tensors: Any) -> bool:
    """True if copies of these would no longer see each other's writes, or memory is not shown."""
    try:
        keys = [storage_key(t) for t in tensors]
    except (NotImplementedError, RuntimeError):
        return True
    return len(set(keys)) < len(keys)
