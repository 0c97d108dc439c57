"""Nested arguments to leaves and leaves to nested results, by functions that are made once for a program.

torch's pytree walks classes that it looks up, at every call anew. Here a spec becomes closures over what it says:
tuples, lists and dicts are taken apart by hand, all other classes by torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ir.importer.torch_api import pytree

Reader = Callable[[Any, list[Any]], None]
Builder = Callable[[Iterator[Any]], Any]


class OtherNestingError(Exception):
    """What was given is nested otherwise than the spec says."""


def reader(spec: Any) -> Reader:
    """A function that appends the leaves of what it is given to a list; those of a dict by key, as torch's own does.

    Raises:
        OtherNestingError: what it is given is nested otherwise.
    """
    if spec.is_leaf():
        return lambda given, found: found.append(given)
    parts = [reader(child) for child in spec.children()]
    if spec.type in (tuple, list):
        return _of_sequence(spec.type, parts)
    if spec.type is dict:
        return _of_dict(dict(zip(spec.context, parts, strict=True)))
    return _of_class(spec)


def turned(value: Any) -> Any:
    """The arguments with the keys of every dict in the other order; those of other classes stay as they are."""
    if type(value) is dict:
        return {key: turned(value[key]) for key in reversed(value)}
    return type(value)(map(turned, value)) if type(value) in (list, tuple) else value


def keeps_keys(spec: Any) -> bool:
    """True if there is a dict, or a class that may hold one, in what a spec nests."""
    plain = spec is None or spec.is_leaf() or spec.type in (list, tuple)
    return not plain or any(map(keeps_keys, () if spec is None or spec.is_leaf() else spec.children()))


def _of_sequence(kind: type[Sequence[Any]], parts: list[Reader]) -> Reader:
    count = len(parts)
    is_tuple = kind is tuple  # as is a named tuple, for which a file may have no class

    def read(given: Any, found: list[Any]) -> None:
        if not (type(given) is kind or (is_tuple and isinstance(given, kind))) or len(given) != count:
            raise OtherNestingError
        for part, one in zip(parts, given, strict=True):
            part(one, found)

    return read


def _of_dict(parts: dict[Any, Reader]) -> Reader:
    def read(given: Any, found: list[Any]) -> None:
        if type(given) is not dict or given.keys() != parts.keys():
            raise OtherNestingError
        for key, part in parts.items():
            part(given[key], found)

    return read


def _of_class(spec: Any) -> Reader:
    """By torch's own flattening; a file keeps no class, so specs may also be equal as texts alone."""

    def read(given: Any, found: list[Any]) -> None:
        leaves, given_spec = pytree.tree_flatten(given)
        if given_spec != spec and str(given_spec) != str(spec):
            raise OtherNestingError
        found += leaves

    return read


def builder(spec: Any) -> Builder:
    """A function that makes the nested result of leaves that it takes one after the other."""
    if spec.is_leaf():
        return next
    parts = [builder(child) for child in spec.children()]
    if spec.type is tuple:
        return lambda leaves: tuple([part(leaves) for part in parts])
    if spec.type is list:
        return lambda leaves: [part(leaves) for part in parts]
    if spec.type is dict:
        named = list(zip(spec.context, parts, strict=True))
        return lambda leaves: {key: part(leaves) for key, part in named}
    return lambda leaves: pytree.tree_unflatten([next(leaves) for _ in range(spec.num_leaves)], spec)
