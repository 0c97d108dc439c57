"""`ir.debug.reduce` of a model that torch.export refuses: modules are left out, then sizes cut."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ir.debug.calls import Call, Described, recorded, with_axes
from ir.debug.child import Trials
from ir.debug.reduced import Reduced
from ir.debug.refused_script import write_script
from ir.debug.search import OK, Verdict
from ir.errors import ExportError
from ir.importer import ladder
from ir.importer.functions import FunctionModule

_TRIAL = 60.0  # seconds that one trial may take, beside the first
_PATIENCE = 1 / 4  # of the seconds of the search: what one may take once it is a hang that is looked for
_KIND = "capture"
# without the script's folder on the path, where `import torch` would find what anybody called so
_RUN = "import runpy, sys; sys.path[:] = filter(None, sys.path); runpy.run_path(sys.argv[1], run_name='__main__')"


def reduce_refused(
    error: ExportError,
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
    path: str | Path | None,
    seconds: float,
    code: Sequence[str],
) -> Reduced:
    """The smallest module of the model that torch.export refuses in the same way, as a script.

    Raises:
        ExportError: `error`, where torch.export by itself takes the model; or the model fails without torch.export.
    """
    search = _Refusal(error, model, args, kwargs, dynamic_shapes, seconds, code)
    try:
        return search.run(path)
    finally:
        search.trials.close()


class _Refusal:
    """One search."""

    def __init__(
        self,
        error: ExportError,
        model: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        dynamic_shapes: Any,
        seconds: float,
        code: Sequence[str],
    ) -> None:
        self.error, self.code = error, tuple(code)
        self.model: nn.Module = model if isinstance(model, nn.Module) else FunctionModule(model)
        self.is_function = not isinstance(model, nn.Module)
        self.start = time.monotonic()
        self.seconds, self.patience = seconds, _TRIAL
        self.trials = Trials(self.model)
        ran = self.trials.run(seconds, run_once, self.model, args, kwargs)
        if isinstance(ran, Verdict) and ran.kind == "error":
            raise ExportError(f"torch itself fails on these arguments: {ran.what}: {ran.text}") from error
        calls = self.trials.run(seconds, recorded, self.model, args, kwargs)
        if isinstance(calls, Verdict):
            raise error
        self.calls = with_axes(self.model, calls, dynamic_shapes)

    @property
    def left(self) -> float:
        return self.start + self.seconds - time.monotonic()

    def run(self, path: str | Path | None) -> Reduced:
        """The whole way down."""
        self.wanted, inside = self._tried("", self.calls[""][0], self.seconds)
        if self.wanted.kind == "hang":
            self.patience = min(_TRIAL, self.seconds * _PATIENCE)
            self.wanted = Verdict.hang(self.patience)
            self.start = time.monotonic()  # the wait for it was no search
        if self.wanted.kind == "ok":
            raise self.error
        name, call = self._smallest(inside)
        call = self._shrunk(name, call)
        with tempfile.TemporaryDirectory(prefix="ir-reduce-") as folder:
            write = partial(write_script, self.model, name, call, self.wanted, self.code, self.is_function)
            _, paths = write(Path(folder, "reduced.py") if path is None else Path(path))
            script = paths[0].read_text()
            note = self._note(paths[0])
        kind = type(self.model.get_submodule(name)).__name__ if not self.is_function else "function"
        said = f"the smallest module that is refused: {name or 'the whole model'} ({kind})"
        return Reduced(
            self.wanted, script, "", (), paths if path is not None else (), self.trials.count,
            time.monotonic() - self.start, name, said + note,
        )  # fmt: skip

    def _note(self, script: Path) -> str:
        """What a fresh process says to the script, where it does not fail in this way."""
        if "module = ..." in script.read_text():
            return "\nit cannot be saved: the script needs what makes it, or call `ir reduce module:callable`"
        if self.wanted.kind == "hang":  # as the last trial was, which ran these calls
            return ""
        self.trials.count += 1
        try:
            done = subprocess.run(
                [sys.executable, "-c", _RUN, str(script.resolve())],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                capture_output=True, text=True, timeout=max(_TRIAL, self.left),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "\nthe script does not come to an end in a process of its own"
        if done.returncode and self.wanted.kind != _KIND:
            return ""
        lines = done.stderr.strip().splitlines()
        if done.returncode and any(_pattern(self.wanted.text.partition("\n")[0]) in _pattern(x) for x in lines):
            return ""
        return f"\nthe script does something else in a process of its own: {lines[-1] if lines else 'it ends well'}"

    # -- modules ---------------------------------------------------------------------------------------------------

    def _tried(self, name: str, call: Call, seconds: float = 0.0) -> tuple[Verdict, tuple[str, ...]]:
        found = self.trials.run(seconds or self.patience, refusal, self.model, name, call)
        return found if isinstance(found, tuple) else (found, ())

    def _fails(self, name: str, call: Call) -> bool:
        return self._tried(name, call)[0].same(self.wanted)

    def _smallest(self, inside: Sequence[str]) -> tuple[str, Call]:
        """The module, from those that the error names to those inside of it that fail as well."""
        found = "", self.calls[""][0]
        for name in inside:
            better = self._failing(name)
            if better is not None:
                found = better
                break
        while self.left > self.seconds / 3:
            better = next(filter(None, map(self._failing, self._parts(found[0]))), None)
            if better is None:
                break
            found = better
        return found

    def _failing(self, name: str) -> tuple[str, Call] | None:
        for call in self.calls.get(name, ()):
            if self.left > self.seconds / 3 and self._fails(name, call):
                return name, call
        return None

    def _parts(self, name: str) -> Iterator[str]:
        """The nearest modules inside of this one that were called."""
        for child, _ in self.model.get_submodule(name).named_children():
            path = f"{name}.{child}" if name else child
            if path in self.calls:
                yield path
            else:
                yield from self._parts(path)

    # -- sizes -----------------------------------------------------------------------------------------------------

    def _shrunk(self, name: str, call: Call) -> Call:
        """The call with smaller extents, on which the module still runs where it did, and is refused in this way."""
        runs = self.trials.run(_TRIAL, _runs, self.model, name, call) is True
        changed = True
        while changed and self.left > 0:
            changed = False
            for smaller in _smaller(call):
                if self.left <= 0:
                    break
                if runs and self.trials.run(_TRIAL, _runs, self.model, name, smaller) is not True:
                    continue
                if self._fails(name, smaller):
                    call, changed = smaller, True
                    break
        return call


def refusal(model: nn.Module, name: str, call: Call) -> tuple[Verdict, tuple[str, ...]]:
    """How torch.export refuses a module, by itself and in every way that ir has; and the modules that it was in.

    A module that another way of capture takes is not what is looked for.
    """
    module = model.get_submodule(name)
    args, kwargs = call.given
    shapes = call.dynamic_shapes(module)
    try:
        torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:
        text, inside = _said(error), tuple(_inside(model, error))
    else:
        return OK, ()
    try:
        ladder.exported(module, args, kwargs, shapes)
    except Exception:
        return Verdict(_KIND, _pattern(text.partition("\n")[0]), text), inside
    return OK, ()


def _runs(model: nn.Module, name: str, call: Call) -> bool:
    args, kwargs = call.given
    with torch.no_grad():
        model.get_submodule(name)(*args, **kwargs)
    return True


def run_once(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """The model as it is; its exception is the caller's."""
    with torch.no_grad():
        model(*args, **kwargs)


def _said(error: BaseException) -> str:
    kind = type(error)
    place = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{place}{kind.__qualname__}: {str(error).strip()}"


def _pattern(line: str) -> str:
    """A message without what a smaller module changes: names of symbols and inputs, numbers."""
    line = re.sub(r"\(.*\)|L\[.*?\](\.\w+)*|'[^']*'", "", line)
    return re.sub(r"\s+", " ", re.sub(r"\b[usz]*f?\d+\b|\d+", "", line)).strip()


def _inside(model: nn.Module, error: BaseException) -> Iterator[str]:
    """The modules of the model in whose code the error came up, the innermost first."""
    names = {id(m): n for n, m in model.named_modules()}
    found: list[str] = []
    open_: list[BaseException | None] = [error]
    for current in open_:
        if current is None:
            continue
        frame = current.__traceback__
        while frame is not None:
            name = names.get(id(frame.tb_frame.f_locals.get("self")))
            if name and name not in found:
                found.append(name)
            frame = frame.tb_next
        open_ += [e for e in (current.__cause__, current.__context__) if e not in open_]
    return iter(sorted(found, key=lambda n: -n.count(".")))


def _smaller(call: Call) -> Iterator[Call]:
    """The call with one extent cut wherever it stands, then axis by axis; dynamic ones stay above 1."""
    extents = sorted({n for d in call.described for n in d.shape if n > 1}, reverse=True)
    for n in extents:
        dynamic = any(m == n and i in d.axes for d in call.described for i, m in enumerate(d.shape))
        for m in _cuts(n, dynamic):
            yield call.changed(partial(_cut, old=n, new=m))
    for place, described in enumerate(call.described):
        for axis, n in enumerate(described.shape):
            for m in _cuts(n, axis in described.axes):
                yield _one(call, place, axis, m)


def _cut(described: Described, old: int, new: int) -> Described:
    return replace(described, shape=tuple(new if n == old else n for n in described.shape))


def _cuts(n: int, dynamic: bool) -> Iterator[int]:
    least = 2 if dynamic else 1  # torch.export fixes a dimension of 1
    return (m for m in dict.fromkeys((least, 4, n // 2)) if least <= m < n)


def _one(call: Call, place: int, axis: int, size: int) -> Call:
    places = iter(range(len(call.described)))

    def change(d: Described) -> Described:
        if next(places) != place:
            return d
        return replace(d, shape=tuple(size if i == axis else n for i, n in enumerate(d.shape)))

    return call.changed(change)
