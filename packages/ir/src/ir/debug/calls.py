"""What the modules of a model are called with, described: shapes, types, dynamic axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from ir.debug.shrink import seed_of
from ir.importer.torch_api import pytree

_KEPT = 4  # calls of one module that are kept: the first ones


@dataclass(frozen=True)
class Described:
    """A tensor of a call; of integers the largest and the smallest count, for they may be indices."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: int = 0
    high: int = 0
    axes: Mapping[int, Any] = field(default_factory=dict)  # the dynamic ones, each with its torch.export.Dim

    @classmethod
    def of(cls, tensor: Tensor) -> Described:
        """The description of a tensor."""
        shape, dtype = tuple(tensor.shape), tensor.dtype
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool or not tensor.numel():
            return cls(shape, dtype)
        return cls(shape, dtype, int(tensor.min()), int(tensor.max()))

    def tensor(self, name: str) -> Tensor:
        """A tensor of this kind."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(name))
            fn, args = self._draw
            made: Tensor = getattr(torch, fn)(*args) if fn == "rand" else getattr(torch, fn)(*args, dtype=self.dtype)
        return made > 0.5 if fn == "rand" else made

    @property
    def text(self) -> str:
        """The call that makes it, after its seed."""
        fn, args = self._draw
        dtype = "" if fn == "rand" or self.dtype == torch.float32 else f", dtype={self.dtype}"
        return f"torch.{fn}({', '.join(map(repr, args))}{dtype})" + (" > 0.5" if fn == "rand" else "")

    @property
    def _draw(self) -> tuple[str, list[Any]]:
        shape = list(self.shape)
        if self.dtype == torch.bool:
            return "rand", [shape]
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return "randn", [shape]
        return "randint", [min(0, self.low), self.high + 1, shape]


@dataclass(frozen=True)
class Call:
    """The arguments of one call, a Described in the place of each tensor."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def described(self) -> list[Described]:
        """Its tensors, in order."""
        return [a for a in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(a, Described)]

    def changed(self, change: Callable[[Described], Any]) -> Call:
        """The call with other descriptions, or other things, in the place of its tensors."""
        args, kwargs = pytree.tree_map_only(Described, change, (self.args, self.kwargs))
        return Call(args, kwargs)

    @property
    def given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments to call a module with."""
        names = iter(f"x{i}" for i in range(len(self.described)))
        made = self.changed(lambda d: d.tensor(next(names)))
        return made.args, made.kwargs

    def dynamic_shapes(self, module: nn.Module) -> dict[str, Any] | None:
        """torch.export's argument, by the names of the module's parameters; None where no axis is dynamic."""
        if not any(d.axes for d in self.described):
            return None
        bound = inspect.signature(module.forward).bind(*self.args, **self.kwargs).arguments
        found: dict[str, Any] = pytree.tree_map(lambda a: dict(a.axes) if isinstance(a, Described) else None, bound)
        return found


def recorded(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, list[Call]]:
    """The first calls of each module in a run of the model, by its path, as far as the run comes."""
    found: dict[str, list[Call]] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            calls = found.setdefault(name, [])
            if len(calls) < _KEPT:
                calls.append(Call(*pytree.tree_map_only(Tensor, Described.of, (given, named))))

        return hook

    hooks = [m.register_forward_pre_hook(note(n), with_kwargs=True) for n, m in model.named_modules()]
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception:  # what ran up to here is known
        found.setdefault("", [Call(*pytree.tree_map_only(Tensor, Described.of, (args, dict(kwargs))))])
    finally:
        for hook in hooks:
            hook.remove()
    return found


def with_axes(model: nn.Module, calls: Mapping[str, list[Call]], dynamic_shapes: Any) -> dict[str, list[Call]]:
    """The calls with their dynamic axes: those that have another size where the model's inputs have.

    Where the model does not run at another size up to some call, the axes of that one are those of a size that is
    dynamic.
    """
    (whole, *_), named = calls[""], _spread(model, calls[""][0], dynamic_shapes)
    if not named:
        return dict(calls)
    sizes = {n: _other(n, dim) for (i, a), dim in named.items() for n in [whole.described[i].shape[a]]}
    places = iter(range(len(whole.described)))

    def resized(d: Described) -> Described:
        i = next(places)
        return replace(d, shape=tuple(sizes[n] if (i, a) in named else n for a, n in enumerate(d.shape)))

    args, kwargs = whole.changed(resized).given
    again = recorded(model, args, kwargs)
    known = {(n, sizes[n]): dim for (i, a), dim in named.items() for n in [whole.described[i].shape[a]]}

    def marked(d: Described, other: Described | None, own: Mapping[int, Any]) -> Described:
        shape = tuple(sizes.get(n, n) for n in d.shape) if other is None else other.shape
        axes = {
            a: known.get((n, m), Dim.DYNAMIC) for a, (n, m) in enumerate(zip(d.shape, shape, strict=False)) if n != m
        }
        return replace(d, axes=axes | dict(own))

    def call(name: str, i: int) -> Call:
        one = calls[name][i]
        others = again.get(name, [])[i : i + 1]
        beside: list[Any] = [*others[0].described] if others else [None] * len(one.described)
        pairs = enumerate(beside)

        def mark(d: Described) -> Described:
            place, other = next(pairs)
            own = {a: dim for (p, a), dim in named.items() if p == place} if name == "" else {}
            return replace(d, axes=own) if name == "" else marked(d, other, own)

        return one.changed(mark)

    return {n: [call(n, i) for i in range(len(cs))] for n, cs in calls.items()}


def _other(n: int, dim: Any) -> int:
    """Another size of this dimension."""
    top = getattr(dim, "max", None)
    return n - 1 if isinstance(top, int) and n + 1 > top else n + 1


def _spread(model: nn.Module, call: Call, shapes: Any) -> dict[tuple[int, int], Any]:
    """The Dim of each dynamic axis of the call's tensors: (place among them, axis) -> Dim."""
    if shapes is None:
        return {}
    bound = dict(inspect.signature(model.forward).bind(*call.args, **call.kwargs).arguments)
    if not isinstance(shapes, Mapping):
        shapes = dict(zip(bound, shapes, strict=False))
    place = {id(d): i for i, d in enumerate(call.described)}
    found = {}
    for name, arg in bound.items():
        for described, spec in _pairs(arg, shapes.get(name)):
            items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
            for axis, dim in items:
                if dim is not None and not isinstance(dim, int) and dim is not Dim.STATIC:
                    found[place[id(described)], axis] = Dim.DYNAMIC if isinstance(dim, str) else dim
    return found


def _pairs(arg: Any, spec: Any) -> Iterator[tuple[Described, Any]]:
    if spec is None:
        return
    if isinstance(arg, Described):
        yield arg, spec
    elif isinstance(arg, Mapping) and isinstance(spec, Mapping):
        for key in arg:
            yield from _pairs(arg[key], spec.get(key))
    elif isinstance(arg, (tuple, list)) and isinstance(spec, (tuple, list)):
        for a, s in zip(arg, spec, strict=False):
            yield from _pairs(a, s)
