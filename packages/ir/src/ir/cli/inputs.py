"""Example inputs from their description: `--input image=float32[batch,3,height:224,width:224]`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ir.cli.wrong import WrongCall

_FORM = re.compile(r"(?:(?P<name>[^\W\d]\w*)=)?(?P<dtype>\w+)\[(?P<sizes>[^\[\]]*)\](?:<(?P<below>\d+))?")
_SIZE = re.compile(r"\d+|(?P<name>[^\W\d]\w*)(?::(?P<example>\d+))?")
_EXAMPLES = (2, 7, 11, 13, 17, 19)  # of named sizes that say none: no two alike, none of them 0 or 1
_HELP = "write NAME=DTYPE[SIZES], such as 'image=float32[batch,3,224,224]' or 'ids=int64[batch,sequence:16]<30522'"


@dataclass(frozen=True)
class Input:
    """One tensor: `sizes` are numbers, or (name, example) of a dynamic dimension, 0 for no example of its own.

    `below` bounds integers, which are drawn from 0 on; `values` makes the tensor in another way, of its shape.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[int | tuple[str, int], ...]
    below: int = 10
    values: Callable[[Sequence[int]], torch.Tensor] | None = None

    @property
    def dynamic(self) -> dict[int, str] | None:
        """Names by axis, as in `dynamic_shapes`."""
        return {axis: size[0] for axis, size in enumerate(self.sizes) if isinstance(size, tuple)} or None

    def tensor(self, examples: dict[str, int]) -> torch.Tensor:
        """Random data: normal floats, integers in [0, below), any bools."""
        shape = [examples[size[0]] if isinstance(size, tuple) else size for size in self.sizes]
        if self.values is not None:
            return self.values(shape).to(self.dtype)
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(shape).to(self.dtype)
        return torch.randint(0, 2 if self.dtype is torch.bool else self.below, shape).to(self.dtype)


def parse(text: str) -> Input:
    """The input that a description means.

    Raises:
        WrongCall: it has another form, or names no type of torch.
    """
    found = _FORM.fullmatch(text.replace(" ", ""))
    if found is None:
        raise WrongCall(f"--input {text!r:.100}: {_HELP}")
    dtype = getattr(torch, found["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise WrongCall(f"--input {text!r:.100}: torch has no type {found['dtype']!r:.40}; {_HELP}")
    sizes: list[int | tuple[str, int]] = []
    for part in filter(None, found["sizes"].split(",")):
        size = _SIZE.fullmatch(part)
        if size is None:
            raise WrongCall(f"--input {text!r:.100}: {part!r:.40} is no size; {_HELP}")
        sizes.append((size["name"], int(size["example"] or 0)) if size["name"] else int(part))
    return Input(found["name"] or "", dtype, tuple(sizes), int(found["below"] or 10))


def arguments(inputs: Sequence[Input]) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Positional arguments, those by name, and `dynamic_shapes` of both.

    Raises:
        WrongCall: a name stands twice, or an input without a name behind one that has one.
    """
    names = [i.name for i in inputs if i.name]
    if len(set(names)) < len(names):
        raise WrongCall(f"--input: {next(n for n in names if names.count(n) > 1)!r} is given twice")
    if any(later.name == "" for later in itertools.dropwhile(lambda i: not i.name, inputs)):
        raise WrongCall("--input: one without a name stands behind one that has a name; give them all names")
    examples = _examples(inputs)
    made = [(i.name, i.tensor(examples), i.dynamic) for i in inputs]
    args = tuple(t for name, t, _ in made if not name)
    kwargs = {name: t for name, t, _ in made if name}
    shapes = tuple(d for *_, d in made)
    if not any(shapes):
        return args, kwargs, None
    return args, kwargs, {name: d for name, _, d in made} if not args else shapes


def in_dtype(inputs: Iterable[Input], dtype: torch.dtype | None) -> list[Input]:
    """The inputs, those of float types in another one."""
    return [replace(i, dtype=dtype) if dtype and i.dtype.is_floating_point else i for i in inputs]


def _examples(inputs: Sequence[Input]) -> dict[str, int]:
    said: dict[str, int] = {}
    for size in (s for i in inputs for s in i.sizes if isinstance(s, tuple)):
        said[size[0]] = size[1] or said.get(size[0], 0)
    free = (n for n in itertools.chain(_EXAMPLES, itertools.count(23)) if n not in said.values())
    return {name: example or next(free) for name, example in said.items()}
