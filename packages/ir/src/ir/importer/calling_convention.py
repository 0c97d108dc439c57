"""The model's own calling convention: nested arguments to flat tensors, flat results to nested outputs."""

from __future__ import annotations

import dataclasses
import difflib
import operator
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from ir.bounds import Range
from ir.errors import ExportError
from ir.importer.nesting import Builder, OtherNestingError, Reader, builder, reader
from ir.importer.torch_api import pytree


@dataclass(frozen=True)
class Fixed:
    """An output that is no tensor of the graph: a constant of the capture."""

    value: Any


@dataclass(frozen=True)
class ScalarOutput:
    """An output that is a Python number in the model and a 0-d tensor in the graph."""

    index: int


@dataclass(frozen=True)
class TensorOutput:
    """An output that is the graph's result at `index`."""

    index: int


@dataclass(frozen=True)
class Integer:
    """An argument that is a Python int in the model, whatever its value, and a 0-d tensor in the graph."""

    name: str
    range: Range

    def tensor(self, leaf: Any) -> torch.Tensor:
        """The argument as the graph takes it.

        Raises:
            ExportError: it is no integer, or out of the range that torch.export found.
        """
        try:
            number = operator.index(leaf)
        except TypeError as error:
            raise ExportError(
                f"the argument {self.name} is {leaf!r:.60}, the model was captured with an int"
            ) from error
        low, high = self.range.min, self.range.max
        if (low is not None and number < low) or (high is not None and number > high):
            ends = f"from {low} on" if high is None else f"from {low} to {high}"
            way = "; torch.export takes a number for no less while it traces: give it as a tensor" if low == 0 else ""
            raise ExportError(f"the argument {self.name} is {number}, and the model holds {ends}{way}")
        return torch.tensor(number)


_OF_LAYER = re.compile(r"\d+\.(decoder\.|encoder\.)?(key|value)$")


def _call(spec: Any) -> str:
    """The arguments of a call as somebody writes them, a star for each tensor or number."""
    args, kwargs = spec.children()
    named = [f"{key}={_nested(c)}" for key, c in zip(kwargs.context or (), kwargs.children(), strict=True)]
    return f"({', '.join([*map(_nested, args.children()), *named])})"


def _nested(spec: Any) -> str:
    inner = list(map(_nested, spec.children()))
    if spec.is_leaf():
        return "*"
    if issubclass(spec.type, dict) and (keys := field_names(spec.context, len(inner))) is not None:
        text = "{" + ", ".join(f"{key!r}: {c}" for key, c in zip(keys, inner, strict=True)) + "}"
        return text if spec.type is dict else f"{spec.type.__name__}({text})"
    if spec.type in (list, tuple):
        return ", ".join(inner).join("[]" if spec.type is list else ("(", ",)" if len(inner) == 1 else ")"))
    return f"{spec.type.__name__}({', '.join(inner)})"


def _difference(made: Any, given: Any) -> str:
    """What two objects hold beside tensors, where they first differ: "is_initialized=True and not False"."""
    if isinstance(made, pytree.TreeSpec):
        inner = zip(made.children(), given.children(), strict=False)
        return _difference(made.context, given.context) or next(filter(None, (_difference(*c) for c in inner)), "")
    if isinstance(made, dict) and isinstance(given, dict):
        found = ((k, _difference(made.get(k), given.get(k))) for k in made)
        return next((f"{k}{text}" if text[0] in "=." else f"{k}.{text}" for k, text in found if text), "")
    if isinstance(made, (list, tuple)) and isinstance(given, (list, tuple)) and len(made) == len(given):
        return next(filter(None, map(_difference, made, given)), "")
    return "" if made == given else f"={made!r:.60} and not {given!r:.60}"


def wrong_arguments(spec: Any, names: Sequence[str], count: int, given: Sequence[str]) -> Iterator[str]:
    """What is wrong with a call of so many arguments by position, and these by name, in the model's own words."""
    args, kwargs = spec.children()
    wanted, keys = args.num_children, list(kwargs.context or ())
    known = [*names[:wanted], *(f"argument {i + 1}" for i in range(len(names), wanted))]
    missing = [k for k in (*known[count:], *keys) if k not in given]
    if missing:
        yield f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if count > wanted:
        named = f", {', '.join(keys)} by name" if keys else ""
        yield f"it takes {wanted or 'none'} by position{named}"
    for key in (k for k in given if k not in keys):
        near = difflib.get_close_matches(key, keys, 1)
        if key in known:
            yield f"{key} is given by position, as at the capture"
        else:
            yield f"it has no argument {key!r}" + (f"; did you mean {near[0]}?" if near else "")


@dataclass(frozen=True)
class Structure:
    """`inputs` has one entry for each leaf of the arguments: TENSOR, an Integer, or the constant that it must equal."""

    in_spec: Any
    out_spec: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Fixed | ScalarOutput | TensorOutput, ...]
    input_names: tuple[str, ...]
    argument_names: tuple[str, ...] = ()  # of the model's arguments by position, as far as they are known

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # without the functions made of them

    @cached_property
    def _flat(self) -> int:
        """How many arguments the program takes where all are tensors by position, else -1."""
        if self.in_spec is not None:
            args, kwargs = self.in_spec.children()
            if kwargs.children() or not all(c.is_leaf() for c in args.children()):
                return -1
        return len(self.inputs) if all(i is TENSOR for i in self.inputs) else -1

    @cached_property
    def _read(self) -> tuple[Reader, Reader]:
        args, kwargs = self.in_spec.children()
        return reader(args), reader(kwargs)

    @cached_property
    def _build(self) -> Builder | None:
        return None if self.out_spec is None else builder(self.out_spec)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors among the arguments, in the graph's order.

        Raises:
            ExportError: the arguments are nested differently, or a constant differs from the captured one.
        """
        if len(args) == self._flat and not kwargs and all(isinstance(a, torch.Tensor) for a in args):
            return list(args)
        leaves: list[Any] = []
        try:
            for read, given in zip(self._read, (tuple(args), dict(kwargs)), strict=True):
                read(given, leaves)
        except OtherNestingError:
            raise self._other(args, kwargs) from None
        tensors = []
        for index, (leaf, expected) in enumerate(zip(leaves, self.inputs, strict=True)):
            if expected is TENSOR and isinstance(leaf, torch.Tensor):
                tensors.append(leaf)
            elif not pytree.tree_structure(leaf).is_leaf():
                raise self._other(args, kwargs)
            elif expected is TENSOR:
                tensors.append(_as_tensor(leaf))
            elif isinstance(expected, Integer):
                tensors.append(expected.tensor(leaf))
            elif not _same(leaf, expected):
                raise self._other_constant(index, leaf)
        return tensors

    def _other_constant(self, index: int, leaf: Any) -> ExportError:
        name = argument_names(self.in_spec, ())[index]
        what = f"the model was captured with the constant argument {self.inputs[index]!r}, not {leaf!r:.60}"
        return ExportError(
            f"{what}, as {name}: say dynamic_shapes of the cache to have it as an input" if name else what
        )

    def _other(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ExportError:
        spec = pytree.tree_structure((tuple(args), self.ordered(kwargs)))
        made, called = _call(self.in_spec), _call(spec)
        if made == called and (differs := _difference(self.in_spec, spec)):
            return ExportError(f"the program was made for arguments that hold {differs}; capture the model anew")
        wrong = wrong_arguments(self.in_spec, self.argument_names, len(args), list(kwargs))
        return ExportError("; ".join([f"the program was made for {made} and is called with {called}", *wrong]))

    def restore(self, results: Sequence[torch.Tensor]) -> Any:
        """The model's own output from the graph's outputs."""
        leaves: list[Any] = []
        for o in self.outputs:
            match o:
                case TensorOutput(index):
                    leaves.append(results[index])
                case ScalarOutput(index):
                    leaves.append(results[index].item())
                case Fixed(value):
                    leaves.append(value)
        return leaves[0] if self._build is None else self._build(iter(leaves))

    def ordered(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments in the order of the capture: pytrees of dicts are order sensitive."""
        if self.in_spec is None:
            return dict(kwargs)
        known = self.in_spec.children()[1].context
        return {k: kwargs[k] for k in known if k in kwargs} | {k: v for k, v in kwargs.items() if k not in known}


def _as_tensor(leaf: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(leaf)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ExportError(f"the argument {leaf!r:.60} stands where the model was captured with a tensor") from error


def _same(leaf: Any, expected: Any) -> bool:
    """True for the constant that was captured, of its type: `x * 1`, `x * 1.0` and `x * True` are three programs.

    numpy's scalars are numbers like Python's; nan is itself.
    """
    if type(leaf) is not type(expected) and isinstance(leaf, (np.bool_, np.integer, np.float64)):
        leaf = leaf.item()
    return type(leaf) is type(expected) and bool(leaf == expected or (leaf != leaf and expected != expected))


class _Tensor:
    def __repr__(self) -> str:
        return "TENSOR"

    def __reduce__(self) -> str:
        return "TENSOR"  # it is compared by identity, in another process as well


TENSOR = _Tensor()


def names_of(spec: Any, prefix: str = "") -> list[str]:
    """A readable name for each leaf of an output spec: keys and fields as they are, positions as numbers."""
    if spec is None or spec.is_leaf():
        return [re.sub(r"\W", "_", prefix) or "output"]
    if (held := cache_names(spec)) is not None:
        return [f"present.{n}" for n in held]
    keys = keys_of(spec)
    names: list[str] = []
    for key, child in zip(keys, spec.children(), strict=True):
        top = str(key) if not prefix else f"{prefix}_{key}"
        names += names_of(child, f"output_{key}" if not prefix and isinstance(key, int) else top)
    return names


def argument_names(spec: Any, positional: Sequence[str]) -> list[str | None]:
    """The names of those leaves of a call's spec that a cache holds, None for all others."""
    args, kwargs = spec.children()
    ordered = zip_longest(positional[: args.num_children], args.children(), fillvalue="args")
    named = [*ordered, *zip(kwargs.context or (), kwargs.children(), strict=True)]
    return [name for key, child in named for name in _names_in(child, str(key))]


def _names_in(spec: Any, prefix: str) -> list[str | None]:
    if spec.is_leaf():
        return [None]
    if (held := cache_names(spec)) is not None:
        return [f"{prefix}.{n}" for n in held]
    return [
        name
        for key, child in zip(keys_of(spec), spec.children(), strict=True)
        for name in _names_in(child, f"{prefix}_{key}")
    ]


def cache_names(spec: Any) -> list[str] | None:
    """What the tensors of a cache are called, "0.key" and so on; None for anything else."""
    names = field_names(spec.context, spec.num_children)
    if names == ["key_cache", "value_cache"]:  # as transformers registers a DynamicCache itself
        of_kind = zip(("key", "value"), spec.children(), strict=True)
        return [f"{layer}.{kind}" for kind, held in of_kind for layer in range(held.num_children)]
    structure = spec.context[-1] if isinstance(spec.context, list) and spec.context else None
    by_class = isinstance(structure, dict) and "class" in structure
    # a dict stands for a class that this process has not imported
    return names if by_class or (spec.type is dict and names and all(map(_OF_LAYER.match, names))) else None


def keys_of(spec: Any) -> list[Any]:
    """The key, field or number of each part of a spec."""
    n = spec.num_children
    if spec.type in (tuple, list) and not spec.context:
        return list(range(n))
    names = field_names(spec.context, n)
    if names is not None:
        return names
    fields = getattr(spec.context, "_fields", None)  # a named tuple, whose context is its class
    if fields is not None:
        return list(fields)
    if dataclasses.is_dataclass(spec.type):
        fields = [f.name for f in dataclasses.fields(spec.type)]
        if len(fields) == n:
            return fields
    return list(range(n))


def field_names(context: Any, count: int) -> list[Any] | None:
    """The keys or fields that a class notes of its parts: a list of that many texts, or one inside of a list."""
    for names in (context, *(context if isinstance(context, (list, tuple)) else ())):
        if isinstance(names, (list, tuple)) and len(names) == count and all(isinstance(k, str) for k in names):
            return list(names)
    return None


def unique(names: Sequence[str], taken: Collection[str] = ()) -> tuple[str, ...]:
    """The names with `_1`, `_2` behind those that were there before or are taken."""
    seen: dict[str, int] = dict.fromkeys(taken, 0)
    result = []
    for name in names:
        made = name
        while made in seen:
            seen[name] += 1
            made = f"{name}_{seen[name]}"
        seen[made] = 0
        result.append(made)
    return tuple(result)
