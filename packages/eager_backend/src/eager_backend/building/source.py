"""Blocks -> Python source: one line a step, locals as slots, dead values deleted behind their last use.

Straight-line source beat closures and a step loop when measured: benchmarks/choices.md has the numbers.
"""

from __future__ import annotations

import linecache
import traceback
import weakref
from collections.abc import Iterable
from itertools import count
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType
from typing import Any

import torch

from eager_backend.building.steps import Block, Entry, Formula, Function, Names, Number, Slot, Step, leaves
from eager_backend.registry import Kernel
from ir import dims
from ir.dim_functions import FUNCTIONS
from ir.dims import Dim
from ir.importer.conditions import PIECES

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "truediv": "/", "eq": "==",
    "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "and", "or": "or",
}  # fmt: skip
_SERIAL = count()


class Source:
    """Collects functions as text together with the objects that their free names stand for."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.globals: dict[str, Any] = {}
        self.texts: list[str] = []
        self.used: set[str] = set()  # the names that the compiled functions read
        self._bound: dict[Any, str] = {}
        self._keep: list[Any] = []  # what `_bound` knows by id must stay alive

    # -- names -----------------------------------------------------------------------------------------------------

    def bind(self, value: Any, wish: str) -> str:
        """The global name of an object, given on first use."""
        key = id(value)
        name = self._bound.get(key)
        if name is None:
            name = self._bound[key] = self.names.take(wish)
            self._keep.append(value)
            self.globals[name] = value.call if isinstance(value, Kernel) else value
        return name

    def literal(self, arg: Any) -> str:
        """An argument as text."""
        if isinstance(arg, (Slot, Number, Function)):
            return arg.name
        if isinstance(arg, tuple):
            inner = ", ".join(map(self.literal, arg))
            return f"({inner},)" if len(arg) == 1 else f"({inner})"
        if arg is None or arg is ... or isinstance(arg, (bool, int, str)):
            return repr(arg)
        if isinstance(arg, float):
            return repr(arg) if arg - arg == 0 else self.bind(arg, f"float_{arg}")
        return self.bind(arg, _wish(arg))

    # -- steps -----------------------------------------------------------------------------------------------------

    def expression(self, step: Step) -> str:
        """The right-hand side of a step."""
        if isinstance(step.fn, Formula):
            return self.formula(step.fn)
        if step.fn is torch.Tensor.__getitem__:
            return f"{self.literal(step.args[0])}[{self.subscript(step.args[1])}]"
        arguments = [self.literal(a) for a in step.args]
        arguments += [f"{k}={self.literal(v)}" for k, v in step.kwargs.items()]
        method = _method(step)
        if method is not None:
            return f"{arguments[0]}.{method}({', '.join(arguments[1:])})"
        return f"{self.literal(step.fn)}({', '.join(arguments)})"

    def subscript(self, index: tuple[Any, ...]) -> str:
        """What stands between the brackets; an index without slots or numbers is one constant."""
        if len(index) > 1 and not any(leaves(index)):
            return self.bind(index, "index")
        if len(index) == 1 and not isinstance(index[0], slice):
            return self.literal(index[0])
        parts = []
        for i in index:
            if isinstance(i, slice):
                start, stop, step = ("" if x is None else self.literal(x) for x in (i.start, i.stop, i.step))
                parts.append(f"{start}:{stop}:{step}" if step else f"{start}:{stop}")
            else:
                parts.append(self.literal(i))
        return ", ".join(parts)

    def formula(self, formula: Formula) -> str:
        """A size expression as Python."""

        def apply(fn: str, args: list[str]) -> str:
            if fn in _INFIX:
                return f"({f' {_INFIX[fn]} '.join(args)})"
            if fn == "not":
                return f"(not {args[0]})"
            if fn == "where":
                return f"({args[1]} if {args[0]} else {args[2]})"
            return f"{self.bind(FUNCTIONS[fn], fn)}({', '.join(args)})"

        return dims.visit(formula.expr, self.literal, lambda s: formula.numbers[s.name].name, apply)

    def function(self, block: Block) -> str:
        """Add a block as a function and return its name."""
        lines = [f"def {block.name}({', '.join(block.parameters)}):", *self.entries(block)]
        for step, dead in zip(block.steps, _last_uses(block), strict=True):
            lines += [self.line(step), *_deletion(dead)]
        lines.append(f"    return {self.literal(tuple(block.results))}")
        self.texts.append("\n".join(lines))
        return block.name

    def watched(self, block: Block) -> CodeType:
        """A block as a function that takes a hook before its parameters: `hook(place, made)` behind each step.

        The step's operands are freed before the hook is called: that is part of its time.
        """
        name, hook = self.names.take(f"{block.name}_watched"), self.names.take("hook")
        lines = [f"def {name}({', '.join((hook, *block.parameters))}):", *self.entries(block)]
        for place, (step, dead) in enumerate(zip(block.steps, _last_uses(block), strict=True)):
            made = tuple(o.name for o in step.outputs)
            lines += [self.line(step), *_deletion(n for n in dead if n not in made)]
            lines += [f"    {hook}({place}, {self.literal(step.outputs)})", *_deletion(n for n in dead if n in made)]
        lines.append(f"    return {self.literal(tuple(block.results))}")
        return _loaded("\n".join(lines), {}, name).__code__

    def entries(self, block: Block) -> list[str]:
        """The checks of the inputs as lines; a call would cost more than the check."""
        dynamic = [e for e in block.entries if not e.is_static]
        read = [f"    {e.local} = {e.slot.name}.shape" for e in dynamic]
        return [*read, *map(self._entry, block.entries)]

    def _entry(self, entry: Entry) -> str:
        x, wrong = entry.slot.name, []
        if entry.is_static:
            wrong.append(f"{x}.shape != {self.literal(tuple(entry.shape))}")
        else:
            wrong.append(f"len({entry.local}) != {len(entry.shape)}")
            sizes = [self._size(d, axis, entry) for axis, d in enumerate(entry.shape)]
            wrong += [f"{entry.local}[{i}] != {s}" for i, s in enumerate(sizes) if s is not None]
        for axis, (least, most) in entry.limits.items():
            low, high = f"{least} <= " if least else "", "" if most is None else f" <= {most}"
            wrong.append(f"not {low}{entry.local}[{axis}]{high}")
        dtypes = [self.literal(d) for d in entry.dtypes]
        wrong.append(f"{x}.dtype is not {dtypes[0]}" if len(dtypes) == 1 else f"{x}.dtype not in ({', '.join(dtypes)})")
        given = ", ".join((x, *entry.others))
        return f"    if {' or '.join(wrong)}: {self.bind(entry.refuse, f'refuse_{x}')}({given})"

    def _size(self, dim: Dim, axis: int, entry: Entry) -> str | None:
        """A size that an input must have, in terms of others; None for the one that it may choose."""
        if isinstance(dim, int):
            return str(dim)
        if not all(s in entry.sizes for s in dim.symbols):
            return None
        texts = {}
        for symbol in dim.symbols:
            local, source = entry.sizes[symbol]
            size = f"{local}[{source.axis}]"
            plain = source.scale == 1 and source.offset == 0
            if plain and dim.as_symbol is not None and (local, source.axis) == (entry.local, axis):
                return None
            texts[symbol] = size if plain else f"(({size} - {source.offset}) // {source.scale})"
        return self.formula(Formula(dim, {s: Number(t) for s, t in texts.items()}))

    def line(self, step: Step) -> str:
        """A step as a line."""
        return f"    {_targets(step)}{self.expression(step)}{_comment(step)}"

    def called(self, step: Step) -> str:
        """What a step calls, by its name in the source; "size" for arithmetic on sizes."""
        if isinstance(step.fn, Formula):
            return "size"
        return _method(step) or ("[]" if step.fn is torch.Tensor.__getitem__ else self.literal(step.fn))

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        return "\n\n\n".join(self.texts) + "\n"

    def compile(self, entry: str) -> FunctionType:
        """The function `entry`."""
        run = _loaded(self.text, self.globals, entry)
        self.used = set().union(*(f.__code__.co_names for f in self.globals.values() if isinstance(f, FunctionType)))
        return run

    def settle(self) -> None:
        """Let go of tensors: from here on a program's constants hold them, and may hold others."""
        self.globals = {}
        self._keep = [v for v in self._keep if not isinstance(v, torch.Tensor)]
        self._bound = {id(v): self._bound[id(v)] for v in self._keep}


def _loaded(text: str, namespace: dict[str, Any], entry: str) -> FunctionType:
    """The function `entry` of this text, whose lines are known to tracebacks for as long as its code lives."""
    filename = f"<eager program {next(_SERIAL)}>"
    exec(compile(text, filename, "exec"), namespace)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    run: FunctionType = namespace[entry]
    weakref.finalize(run.__code__, linecache.cache.pop, filename, None)
    return run


def failed_step(error: BaseException, run: FunctionType) -> str:
    """The line of the generated source, with the model's own line behind it, at which this error was raised, or ""."""
    lines = [f.line or "" for f in traceback.extract_tb(error.__traceback__) if f.filename == run.__code__.co_filename]
    return lines[-1].strip() if lines else ""


def rebound(run: FunctionType, namespace: dict[str, Any]) -> FunctionType:
    """A compiled function over the objects of `namespace`, which takes in the functions beside it as well."""
    file = run.__code__.co_filename
    for name, fn in namespace.items():
        if isinstance(fn, FunctionType) and fn.__code__.co_filename == file:
            namespace[name] = FunctionType(fn.__code__, namespace, name)
    moved: FunctionType = namespace[run.__name__]
    return moved


def _deletion(names: Iterable[str]) -> list[str]:
    listed = ", ".join(names)
    return [f"    del {listed}"] if listed else []


def _method(step: Step) -> str | None:
    """The method's name where the step is a call of a tensor method: `x.view(...)` beats `Tensor.view(x, ...)`."""
    fn = step.fn
    of_tensor = isinstance(fn, MethodDescriptorType) and issubclass(torch.Tensor, fn.__objclass__)
    return fn.__name__ if of_tensor and isinstance(step.args[0], Slot) else None


def _wish(value: Any) -> str:
    if isinstance(value, Kernel):
        return value.name
    if isinstance(value, (BuiltinFunctionType, FunctionType, MethodDescriptorType)):
        module = getattr(value, "__module__", None) or "torch"
        return f"{module.rpartition('.')[2].lstrip('_')}_{value.__name__.lstrip('_')}"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    return type(value).__name__.lower()


def _targets(step: Step) -> str:
    if not step.outputs:
        return ""
    names = ", ".join(o.name for o in step.outputs)
    if step.single:
        return f"{names} = "
    # of nothing torch makes more pieces than in the trace, which are all empty; Python takes 255 names before a star
    rest = "*_, " if step.node is not None and step.node.op in PIECES else ""
    return f"({rest}{names},) = "


def _comment(step: Step) -> str:
    node = step.node
    if node is None or node.origin.line is None:
        return ""
    place = f"{node.origin.file}:{node.origin.line}".rpartition("/")[2]
    # as a literal: a module may have any name, and a comment must not end in the middle of it and go on as code
    return f"  # {repr(f'{node.origin.module or node.op} {place}')[1:-1]}"


def _last_uses(block: Block) -> Iterable[list[str]]:
    """For each step the tensors that nothing reads after it."""
    kept = {id(v) for v in (*block.inputs, *block.results)}
    dead: list[list[str]] = []
    for step in reversed(block.steps):
        found: dict[str, None] = {}
        for v in (*step.reads(), *step.outputs):
            if isinstance(v, Slot) and v.home is block and id(v) not in kept:
                kept.add(id(v))
                found[v.name] = None
        dead.append(list(found))
    return reversed(dead)
