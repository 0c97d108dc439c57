"""Decisions of a model's code that torch.export makes for all sizes: it traces dynamic sizes as 2 or more.

`if x.size(0) == 1` is False in its program, also at a size of 1, and torch notes no guard of it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ir.graph import Specialized
from ir.importer.swapping import swapped
from ir.importer.symbols import Symbols
from ir.importer.torch_api import expression, hints, unnoted_file

_NOT_THE_MODEL = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_GENERATED = "<string>"  # torch's own code that asks of sizes lies in no file
_SIGNS = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


class Decision(NamedTuple):
    """A truth value that the model's code asked of sizes."""

    asked: Callable[..., Any]  # of operator
    of: tuple[Any, ...]  # expressions of sympy
    answer: bool
    place: str


@contextlib.contextmanager
def recorded(met: list[Decision]) -> Iterator[None]:
    """Inside of the block `met` receives what code outside of torch asks of symbolic sizes."""
    unnoted_file(__file__)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_recording(torch.SymBool, "__bool__", operator.truth, met))
        stack.enter_context(_recording(torch.SymInt, "__bool__", operator.truth, met))
        for asked in _SIGNS:
            stack.enter_context(_recording(torch.SymInt, f"__{asked.__name__}__", asked, met))
        yield


def _recording(cls: Any, name: str, asked: Callable[..., Any], met: list[Decision]) -> Any:
    ask = getattr(cls, name)

    @functools.wraps(ask)
    def recording(*numbers: Any) -> Any:
        answer = ask(*numbers)
        caller: Any = getattr(inspect.currentframe(), "f_back", None)
        file = caller.f_code.co_filename if caller is not None else ""
        of_model = file not in ("", _GENERATED) and not file.startswith(_NOT_THE_MODEL)
        if of_model and (known := _known(answer)) is not None:
            place = f"{file}:{caller.f_lineno}"
            met.append(
                Decision(asked, tuple(expression(n) if hasattr(n, "node") else n for n in numbers), known, place)
            )
        return answer

    return swapped(cls, name, recording)


def _known(answer: Any) -> bool | None:
    """The truth value, where torch has it without asking: it takes a size to be positive."""
    if isinstance(answer, torch.SymBool):
        return {"True": True, "False": False}.get(str(expression(answer)))
    return answer if isinstance(answer, bool) else None


def specialized(met: Iterable[Decision], needed: Sequence[Any], env: Any, symbols: Symbols) -> tuple[Specialized, ...]:
    """The decisions that are others at a size of 0 or 1, where nothing else says that the graph does not hold there.

    Args:
        needed: conditions on sizes that the graph is known to need.
        env: torch's `ShapeEnv`, which knows sizes that turned out equal.
    """
    found: dict[Specialized, None] = {}
    for decision in dict.fromkeys(met):
        of = [env.replace(a) if hasattr(a, "free_symbols") else a for a in decision.of]
        symbols_of = set().union(*(getattr(a, "free_symbols", ()) for a in of))
        for name, size, at in _other_sizes(symbols_of, env, symbols):
            excluded = any(_value(operator.truth, (c,), at) is False for c in needed)
            if not excluded and _value(decision.asked, of, at) is (not decision.answer):
                found[Specialized(_shown(decision.asked, of, symbols), decision.answer, decision.place, name, size)] = (
                    None
                )
    return tuple(found)


def _other_sizes(asked: Iterable[Any], env: Any, symbols: Symbols) -> Iterator[tuple[str, int, dict[Any, int]]]:
    """The name of each of those asked for, 0 and 1, and the sizes of the example with that in its place."""
    ranges = symbols.ranges
    example = {s: int(n) for s, n in hints(env).items()}
    for s in sorted(asked, key=str):
        known = ranges.get(symbols.names.get(s, ""))
        for size in (0, 1):
            if known is not None and s in example and example[s] > 1 and (known.min or 0) <= size:
                yield symbols.names[s], size, {**example, s: size}


def _value(asked: Callable[..., Any], of: Sequence[Any], sizes: dict[Any, int]) -> bool | None:
    """The answer at these sizes; None if it depends on more, or there is none."""
    try:
        values = [a.subs(sizes) if hasattr(a, "subs") else a for a in of]
    except ZeroDivisionError:
        return None
    return None if any(getattr(v, "free_symbols", ()) for v in values) else bool(asked(*values))


def _shown(asked: Callable[..., Any], of: Sequence[Any], symbols: Symbols) -> str:
    texts = [symbols.text(a) if hasattr(a, "free_symbols") else str(a) for a in of]
    return f" {_SIGNS[asked]} ".join(texts) if len(texts) > 1 else texts[0]
