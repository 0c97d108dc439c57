"""transformers' caches as pytrees: their tensors are inputs and outputs of a program, the rest stands in the spec.

A class is taken apart by what its objects hold, not by a list of classes: a tensor is a leaf, and so is the count of
tokens seen so far, which differs from call to call; other numbers, texts and truth values say which program it is. The
context of a spec is plain JSON, as torch.export.save wants it. transformers is never imported: who holds a cache has.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ir.errors import CaptureError, warn
from ir.importer.torch_api import pytree

_PACKAGE = "transformers"
_COUNT = "cumulative_length"  # tokens so far, by name or as its beginning
_SIZES = {"batch_size": ("keys", 0), "num_heads": ("keys", 1), "k_head_dim": ("keys", -1), "v_head_dim": ("values", -1)}
_NAMES = {"keys": "key", "values": "value", "self_attention_cache": "decoder", "cross_attention_cache": "encoder"}
_SIDES = ("decoder", "encoder")
_PLAIN = (bool, int, float, str, type(None))


def register(model: Any = None) -> None:
    """Make pytrees of transformers' caches, if this process has imported it; classes that are registered stay so.

    Args:
        model: its module may define caches of its own, which need not be subclasses of transformers' `Cache`.
    """
    root = getattr(sys.modules.get(f"{_PACKAGE}.cache_utils"), "Cache", None)
    if root is None:
        return
    for cls in (root, *_subclasses(root), *_of_module(model)):
        if cls not in pytree.SUPPORTED_NODES:
            pytree.register_pytree_node(
                cls,
                flatten,
                unflatten,
                serialized_type_name=_path(cls),
                flatten_with_keys_fn=_flatten_with_keys,
            )


def classes() -> list[Any]:
    """What the example of a saved program may hold of caches, for torch.load; none without transformers."""
    module = sys.modules.get(f"{_PACKAGE}.cache_utils")
    found = [c for c in vars(module).values() if isinstance(c, type)] if module else []
    return [c for c in found if c.__module__.partition(".")[0] == _PACKAGE]


def is_cache(value: Any) -> bool:
    """True for an object whose class `register` registered."""
    node = pytree.SUPPORTED_NODES.get(type(value))
    return node is not None and node.flatten_fn is flatten


def _subclasses(cls: Any) -> Iterator[type]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def _of_module(model: Any) -> Iterator[type]:
    """The classes called caches beside the model's class."""
    name = type(model).__module__
    if name.partition(".")[0] == _PACKAGE:
        yield from (
            c
            for c in vars(sys.modules[name]).values()
            if isinstance(c, type) and c.__name__.endswith("Cache") and c.__module__ == name
        )


@dataclass
class _Watch:
    """The caches that a model was given, each with its leaves, and which of them went out with other leaves."""

    given: list[tuple[Any, list[Any]]] = field(default_factory=list)
    returned: set[int] = field(default_factory=set)

    def flattened(self, cache: Any, leaves: Sequence[Any]) -> None:
        self.returned.update(id(c) for c, before in self.given if c is cache and not _alike(before, leaves))

    def lost(self) -> list[str]:
        """The classes of caches that the model changed and did not return."""
        kept = [(c, before) for c, before in self.given if id(c) not in self.returned]
        changed = [c for c, before in kept if not _alike(before, [leaf for _, leaf in _leaves(c)[0]])]
        return sorted({type(c).__name__ for c in changed})


def _alike(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True))


_WATCHING: list[_Watch] = []


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """A block in which torch.export traces a model.

    Warns:
        UserWarning: the model puts other tensors into a cache that it was given, and does not return it.
    """
    watch = _Watch()
    _WATCHING.append(watch)
    try:
        yield
    finally:
        _WATCHING.remove(watch)
    for name in watch.lost():
        what = f"the model changes the {name} that it is given and does not return it: its new contents are no output"
        warn(f"{what}; return it from forward")


# -- an object as leaves and a context ---------------------------------------------------------------------------------


def flatten(cache: Any) -> tuple[list[Any], list[Any]]:
    """The tensors and counts of a cache, and a context `[names, structure]` to make it of them again."""
    found, structure = _leaves(cache)
    leaves = [leaf for _, leaf in found]
    for watch in _WATCHING:
        watch.flattened(cache, leaves)
    return leaves, [[name for name, _ in found], structure]


def _leaves(cache: Any) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    found: list[tuple[str, Any]] = []
    return found, _object(cache, (), found)


def _flatten_with_keys(cache: Any) -> tuple[list[tuple[Any, Any]], list[Any]]:
    leaves, context = flatten(cache)
    return [(pytree.MappingKey(name), leaf) for name, leaf in zip(context[0], leaves, strict=True)], context


def _object(held: Any, path: tuple[Any, ...], found: list[tuple[str, Any]]) -> dict[str, Any]:
    first = len(found)
    state = {name: _again(held, name) or _part(value, (*path, name), found) for name, value in vars(held).items()}
    own = next((leaf for _, leaf in found[first:] if _is_float(leaf)), None)
    for name, value in vars(held).items():
        if own is not None and isinstance(value, (torch.dtype, torch.device)) and value in (own.dtype, own.device):
            state[name] = {"same": type(value).__name__}
    if state.get("layers"):  # what more layers than it has would be made of
        state["layer_class_to_replicate"] = None
    return {"class": _path(type(held)), "state": state}


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _again(held: Any, name: str) -> dict[str, Any] | None:
    """Where else an object has this: a size of one of its tensors, or the number that a tensor was made of."""
    tensor, axis = _SIZES.get(name, ("", 0))
    if isinstance(getattr(held, tensor, None), torch.Tensor):
        return {"size": [tensor, axis]}
    number = re.fullmatch(r"_(\w+)_tensor", name)
    return {"number": number[1]} if number and number[1] in vars(held) else None


def _part(value: Any, path: tuple[Any, ...], found: list[tuple[str, Any]]) -> Any:
    counts = isinstance(value, int) and str(path[-1]).startswith(_COUNT)
    if isinstance(value, (torch.Tensor, torch.SymInt)) or counts:
        found.append((_name(path), value))
        return {"leaf": True}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        parts = [_part(v, (*path, i), found) for i, v in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    if type(value) is dict:
        return {"dict": [[k, _part(v, (*path, k) if len(value) > 1 else path, found)] for k, v in value.items()]}
    if isinstance(value, (torch.dtype, torch.device)):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if isinstance(value, type):
        return {"type": _path(value)}
    if type(value).__module__.partition(".")[0] == _PACKAGE and hasattr(value, "__dict__"):
        return _object(value, path, found)
    found.append((_name(path), value))  # what pytree.tree_map put there, or torch.export is to refuse
    return {"leaf": True}


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _name(path: Sequence[Any]) -> str:
    """ "0.key" of `layers[0].keys`, "0.decoder.key" where a cache holds two."""
    parts = [_NAMES.get(p, str(p)) for p in path if p != "layers"]
    if parts[0] in _SIDES and len(parts) > 1:
        parts[:2] = parts[1], parts[0]
    return ".".join(parts)


# -- and back ----------------------------------------------------------------------------------------------------------


def unflatten(leaves: Any, context: Any) -> Any:
    """The cache of its leaves and the context that `flatten` gave."""
    held = list(leaves)
    cache = _made(context[1], iter(held), [])
    for watch in _WATCHING:
        watch.given.append((cache, held))
    return cache


def _made(part: Any, leaves: Iterator[Any], taken: list[Any]) -> Any:
    if isinstance(part, list):
        return [_made(p, leaves, taken) for p in part]
    if not isinstance(part, dict):
        return part
    if "class" in part:
        return _instance(part, leaves, taken)
    ((kind, inner),) = part.items()
    match kind:
        case "leaf":
            taken.append(next(leaves))
            return taken[-1]
        case "dict":
            return {key: _made(p, leaves, taken) for key, p in inner}
        case "tuple":
            return tuple(_made(inner, leaves, taken))
        case "type":
            return _class(inner)
        case "device":
            return torch.device(inner)
        case "dtype":
            return getattr(torch, inner)
    return part  # what it says again is known when the object has everything else


def _instance(part: Mapping[str, Any], leaves: Iterator[Any], taken: list[Any]) -> Any:
    cls: Any = _class(part["class"])
    first = len(taken)
    made = cls.__new__(cls)
    state = vars(made)
    state.update({name: _made(p, leaves, taken) for name, p in part["state"].items()})
    own = next(filter(_is_float, taken[first:]), None)
    for name, value in state.items():
        match value:
            case {"same": attribute}:
                state[name] = getattr(own, attribute)
            case {"size": [tensor, axis]}:
                state[name] = state[tensor].shape[axis]
            case {"number": number}:
                state[name] = torch.tensor(state[number], device=getattr(own, "device", None))
    return made


def _class(path: str) -> type:
    """A class by its name, which a file may say: of transformers, beside one that `register` registered."""
    module, _, name = path.rpartition(".")
    cls = getattr(sys.modules.get(module), name, None)
    known = {c.__module__ for c, node in pytree.SUPPORTED_NODES.items() if node.flatten_fn is flatten}
    if module not in known or not isinstance(cls, type):
        raise CaptureError(f"the cache was made of a {path}, which this process does not have: import {module}")
    return cls
