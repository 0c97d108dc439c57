"""A program's state as the module has it: names, tensors, and new ones taken in with torch's own checks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eager_backend.building.constants import Constants
from ir.errors import ExportError
from ir.graph import Graph
from ir.importer.torch_api import put


class Keys(NamedTuple):
    """What `load_state_dict` did not find, and did not know; as torch.nn.Module's returns them."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def places(graph: Graph, constants: Constants) -> dict[str, str | None]:
    """For each name of the module's state_dict the name of its tensor in the source; None where nothing reads it."""
    program = getattr(graph.context, "program", None)
    if program is None:
        return dict(constants.model_names)
    read = {_memory(w.tensor): constants.model_names[w.name] for w in graph.weights.values()}
    # a tied weight has several names, of which the graph may read one
    return {n: constants.model_names.get(n, read.get(_memory(t))) for n, t in program.state_dict.items()}


def changes(captured: Any, current: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A program's tensors that differ from the captured program's, by more than device or element type."""
    changed: dict[str, Tensor] = {}
    for name, own in captured.state_dict.items():
        new = current.get(name, own)
        plain = type(own) in (Tensor, torch.nn.Parameter) and own.layout is torch.strided
        if plain and not torch.equal(own.detach().to(new), new.detach()):
            moved = taken(new, own, assign=False)
            is_parameter = isinstance(own, torch.nn.Parameter)
            changed[name] = torch.nn.Parameter(moved, own.requires_grad) if is_parameter else moved
    return changed


def with_changes(captured: Any, changed: Mapping[str, Tensor]) -> Any:
    """The captured program with these tensors in the place of its own."""
    if not changed:
        return captured
    other = copy.copy(captured)
    put(other, state_dict={**captured.state_dict, **changed})
    return other


def _memory(tensor: Tensor) -> Any:
    if tensor.layout is not torch.strided or not tensor.numel():
        return id(tensor)
    try:
        return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
    except RuntimeError:  # a subclass without memory of its own
        return id(tensor)


def unread(graph: Graph, named: Mapping[str, str | None]) -> dict[str, Tensor]:
    """The module's tensors that no step reads; they are kept, so that a state goes in and comes out whole."""
    program = getattr(graph.context, "program", None)
    return {} if program is None else {n: program.state_dict[n].detach() for n, place in named.items() if place is None}


def compare_keys(name: str, current: Mapping[str, Tensor], given: Mapping[str, Any], strict: bool) -> Keys:
    """The keys that differ, as torch.nn.Module.load_state_dict reports them.

    Raises:
        RuntimeError: a shape differs, or `strict` and there are such keys; nothing was loaded then.
        TypeError: it is no mapping.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(given)}.")
    keys = Keys([n for n in current if n not in given], [n for n in given if n not in current])
    errors: list[str] = []
    for what, listed in (("Missing", keys.missing_keys), ("Unexpected", keys.unexpected_keys)) if strict else ():
        if listed:
            quoted = ", ".join(f'"{n}"' for n in listed)
            errors.append(f"{what} key(s) in state_dict: {quoted}. ")
    errors += _wrong_tensors({n: (t, given[n]) for n, t in current.items() if n in given})
    if errors:
        lines = "\n\t".join(errors)
        raise RuntimeError(f"Error(s) in loading state_dict for {name}:\n\t{lines}")
    return keys


def _wrong_tensors(pairs: Mapping[str, tuple[Tensor, Any]]) -> Iterator[str]:
    for name, (own, new) in pairs.items():
        if not isinstance(new, Tensor):
            wanted = "expected torch.Tensor or Tensor-like object from checkpoint"
            yield f'While copying the parameter named "{name}", {wanted} but received {type(new)}'
        elif new.shape != own.shape:
            yield (
                f"size mismatch for {name}: copying a param with shape {new.shape} from checkpoint, "
                f"the shape in current model is {own.shape}."
            )


def taken(new: Tensor, old: Tensor, assign: bool) -> Tensor:
    """A tensor in the place of another: on its device, in its element type and with its strides.

    A copy, unless `assign` and it is so already.
    """
    with torch.inference_mode(False), torch.no_grad():
        fits = new.device == old.device and new.dtype == old.dtype and _layout(new) == _layout(old)
        made = new.detach() if assign and fits else _copied(new, old)
        # kernels of matmul are chosen by this flag, in inference as well
        return made.requires_grad_(old.requires_grad)


def _layout(tensor: Tensor) -> Any:
    return tensor.stride() if tensor.layout is torch.strided else tensor.layout


def _copied(new: Tensor, old: Tensor) -> Tensor:
    if old.layout is torch.strided:
        return torch.empty_like(old).copy_(new)
    if new.layout is not old.layout:  # the elements of a sparse tensor lie wherever the new one has some
        new = new.to_dense().to_sparse(layout=old.layout)
    return new.detach().to(old.device, old.dtype, copy=True)


def opened_subclasses(named: Mapping[str, str | None], constants: Constants) -> None:
    """Refuse names whose tensors the graph reads in parts.

    Raises:
        ExportError: a weight is of a tensor subclass (torchao's), which torch.export has opened.
    """
    parts = {n.rpartition(".")[0] for n in constants.model_names if n not in named}
    opened = [n for n, place in named.items() if place is None and n in parts]
    if opened:
        what = f"{opened[0]} is a tensor of several parts (a quantised weight), which this program reads one by one"
        raise ExportError(f"{what}: export the model again for new weights")
