"""Decisions of a model's code that torch.export makes for all sizes: it traces dynamic sizes as 2 or more.

`if x.size(0) == 1` is False in its program, also at a size of 1, and `max(x.size(0), 1)` is the size, also at 0; torch
notes no guard of either.
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
from ir.importer import assertions, size_arguments
from ir.importer.swapping import swapped
from ir.importer.symbols import Symbols
from ir.importer.torch_api import expression, files_of_modes, hints, unnoted_file

NOT_THE_MODEL = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_SIGNS = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


def _copied(x: Any) -> Any:
    return x


# methods of tensors that ask of sizes how a tensor lies in memory: whether to copy it, or for the code
_LAYOUTS = {"contiguous": _copied, "is_contiguous": operator.truth}


class Decision(NamedTuple):
    """A truth value, or the larger or smaller of two sizes, that the model's code asked for; or how a tensor lies."""

    asked: Callable[..., Any]  # of operator, `max`, `min`
    of: tuple[Any, ...]  # expressions of sympy
    answer: Any  # a truth value, or an expression of sympy
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
        for larger in (max, min):
            stack.enter_context(_recording(torch.SymInt, f"__sym_{larger.__name__}__", larger, met))
        for name, of_layout in _LAYOUTS.items():
            stack.enter_context(_recording(torch.Tensor, name, of_layout, met))
        for name in ("_check", "_assert"):
            stack.enter_context(_recording_check(name, met))
        yield


def _recording(cls: Any, name: str, asked: Callable[..., Any], met: list[Decision]) -> Any:
    ask = getattr(cls, name)

    @functools.wraps(ask)
    def recording(*given: Any, **options: Any) -> Any:
        answer = ask(*given, **options)
        if not (place := _place_of(inspect.currentframe())):
            return answer
        if name in _LAYOUTS:
            met.append(Decision(asked, (), None, place))
        elif (known := _known(answer)) is not None:
            met.append(Decision(asked, tuple(expression(n) if hasattr(n, "node") else n for n in given), known, place))
        return answer

    return swapped(cls, name, recording)


def _recording_check(name: str, met: list[Decision]) -> Any:
    """As `_recording`, of a function of torch that raises where a condition is false."""
    ask = getattr(torch, name)

    @functools.wraps(ask)
    def recording(*given: Any, **options: Any) -> Any:
        answer = ask(*given, **options)
        asked = next(iter((*given, *options.values())), None)
        if isinstance(asked, torch.SymBool) and (place := _place_of(inspect.currentframe())):
            met.append(Decision(operator.truth, (expression(asked),), True, place))
        return answer

    return swapped(torch, name, recording)


def _place_of(frame: Any) -> str:
    """The line that called the recording function of this frame; empty where torch or this package did."""
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename in _between():
        caller = caller.f_back
    file = caller.f_code.co_filename if caller is not None else ""
    # torch's own guards lie in no file and no module, the code of `python -c` and of `exec` in no file
    guards = file == "<string>" and caller.f_code.co_name == "guard" and "__name__" not in caller.f_globals
    return "" if not file or guards or file.startswith(NOT_THE_MODEL) else f"{file}:{caller.f_lineno}"


@functools.cache
def _between() -> frozenset[str]:
    """The files that a call of `max` or `torch._assert` in a model passes."""
    modules = (torch, torch.overrides, size_arguments, assertions)
    return frozenset((*(str(m.__file__) for m in modules), *files_of_modes()))


def _known(answer: Any) -> Any:
    """The size, or the truth value where torch has it without asking: it takes a size to be positive."""
    if isinstance(answer, torch.SymInt):
        return expression(answer)
    if isinstance(answer, torch.SymBool):
        return {"True": True, "False": False}.get(str(expression(answer)))
    return answer if isinstance(answer, int) else None


def conditions(met: Iterable[Decision]) -> set[Any]:
    """What was asked, of sympy; of a comparison that the two are equal."""
    import sympy

    return {sympy.Eq(*d.of) if len(d.of) == 2 else d.of[0] for d in met if d.of and d.asked not in (max, min)}


def copies(met: Sequence[Decision]) -> Callable[[Any, str], bool]:
    """Tells of a condition of sympy and its place whether torch asked it there to copy a tensor, and nobody else."""
    import sympy

    places = {d.place for d in met if d.asked is _copied}
    asked = conditions(met)
    if any(d.asked is operator.truth and not d.of for d in met):  # the code did
        places.clear()

    def is_of_copy(condition: Any, place: str) -> bool:
        known = condition in asked or sympy.Not(condition) in asked
        return place in places and isinstance(condition, sympy.Ne) and not known

    return is_of_copy


def specialized(met: Iterable[Decision], needed: Sequence[Any], env: Any, symbols: Symbols) -> tuple[Specialized, ...]:
    """The decisions that are others at a size of 0 or 1, where nothing else says that the graph does not hold there.

    Args:
        needed: conditions on sizes that the graph is known to need.
        env: torch's `ShapeEnv`, which knows sizes that turned out equal.
    """
    found: dict[Specialized, None] = {}
    for decision in dict.fromkeys(met):
        numbers = (*decision.of, decision.answer)
        *of, given = [env.replace(a) if hasattr(a, "free_symbols") else a for a in numbers]
        symbols_of = set().union(*(getattr(a, "free_symbols", ()) for a in of))
        for name, size, at in _other_sizes(symbols_of, env, symbols):
            excluded = any(_value(operator.truth, (c,), at) is False for c in needed)
            made, answer = _value(decision.asked, of, at), _value(_itself, [given], at)
            if not excluded and made is not None and answer is not None and made != answer:
                asked = _shown(decision.asked, of, symbols)
                found[Specialized(asked, _text(given, symbols), decision.place, name, size)] = None
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


def _itself(x: Any) -> Any:
    return x


def _value(asked: Callable[..., Any], of: Sequence[Any], sizes: dict[Any, int]) -> Any:
    """The answer at these sizes; None if it depends on more, or there is none."""
    try:
        values = [a.subs(sizes) if hasattr(a, "subs") else a for a in of]
        return None if any(getattr(v, "free_symbols", ()) for v in values) else asked(*values)
    except (ZeroDivisionError, TypeError):  # sympy's infinity is not compared
        return None


def _shown(asked: Callable[..., Any], of: Sequence[Any], symbols: Symbols) -> str:
    texts = [_text(a, symbols) for a in of]
    if asked in (max, min):
        return f"{asked.__name__}({', '.join(texts)})"
    return f" {_SIGNS[asked]} ".join(texts) if len(texts) > 1 else texts[0]


def _text(number: Any, symbols: Symbols) -> str:
    return symbols.text(number) if hasattr(number, "free_symbols") else str(number)
