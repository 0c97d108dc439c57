"""Every error that an export can end in: one class a stage, all under ExportError."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ir.words import counted


class ExportError(Exception):
    """The base of all errors raised by ir and its backends."""


class CaptureError(ExportError):
    """torch.export refused the model, or its graph holds something that the IR cannot say."""


class GraphError(ExportError):
    """A graph breaks one of the rules in ir.check; a defect of ours or of a pass."""


class RefusedError(ExportError):
    """The op is known, this argument, dtype or shape of it is not."""


class NotComputed(RefusedError, ZeroDivisionError):
    """A size, or a condition on sizes, has no value here: it divides by zero, or is beyond all numbers."""


class MismatchError(ExportError):
    """The artifact ran and gave numbers that differ from torch's."""


class RuntimeFailure(ExportError):
    """The artifact's own runtime failed to load or run it.

    `exit_code` is that of the process that the runtime had to itself, where it ended it.
    """

    exit_code: int | None = None


class PluginError(ExportError):
    """A target or a handler module could not be found or imported."""


class UnknownName(PluginError):
    """No target has this name, installed or not, or no module that of a plugin."""


class HandlerError(ExportError):
    """A handler raised something else than an error of ours, which is its cause.

    It is an error of the same builtin class as well, where it came from one.
    """

    @classmethod
    def of(cls, cause: BaseException, message: str) -> HandlerError:
        """The error for this cause."""
        kind = type(cause)
        if kind.__module__ == "builtins" and isinstance(cause, (TypeError, ValueError, LookupError, ArithmeticError)):
            with contextlib.suppress(TypeError):  # a class that wants more than a message, as UnicodeDecodeError
                error: HandlerError = type(cls.__name__, (cls, kind), {})(message)
                return error
        return cls(message)

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError's own would quote it

    def __reduce__(self) -> tuple[type[HandlerError], tuple[str]]:
        return HandlerError, (str(self),)


class OutputError(ExportError, OSError):
    """A path is not ours to write, or the disk refused."""


class DuplicateHandlerError(ExportError):
    """Two handlers claim one op and version in one layer."""


@dataclass(frozen=True)
class MissingOp:
    """One op that a target cannot express: where the model uses it and what to write."""

    op: str
    location: str
    nearest: tuple[str, ...]
    skeleton: str
    needs: tuple[str, ...] = ()  # what its decomposition uses that the target does not know either
    why: str = ""  # why its decomposition cannot be used
    count: int = 1
    real_only: bool = False  # known, but not on the complex numbers that it is given here
    random: bool = False  # it draws from torch's generator


class UnsupportedOpsError(ExportError):
    """Every op of the model without handler and body, all at once; `.missing` lists them."""

    def __init__(self, target: str, missing: Sequence[MissingOp]) -> None:
        self.target = target
        self.missing = tuple(missing)
        lines = [f"target {target!r} cannot express {counted(len(self.missing), 'op')} of this model:"]
        for m in self.missing:
            times = f" ({m.count} times)" if m.count > 1 else ""
            lines.append(f"\n  {m.op}{times}\n    at {m.location}")
            if m.real_only:
                lines.append("    known on real tensors only: write it with real and imaginary parts")
            if m.random:
                lines.append(f"    it draws random numbers as {target!r} does not: draw them outside of the model")
            if m.needs:
                lines.append(f"    its decomposition needs: {', '.join(m.needs)}")
            if m.why:
                lines.append(f"    its decomposition cannot be used: {m.why}")
            if m.nearest:
                lines.append(f"    nearest known names: {', '.join(m.nearest)}")
            lines.append("    write a body or a handler:")
            lines += [f"      {line}" for line in m.skeleton.splitlines()]
        super().__init__("\n".join(lines))


def note(error: BaseException, text: str) -> None:
    """`error.add_note(text)`, which Python has since 3.11; 3.10 shows the note only in errors of ours."""
    error.__notes__ = [*getattr(error, "__notes__", ()), text]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it came from, and so on; once each, for torch raises errors again that go round in a circle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


_OURS = (f"{Path(__file__).parent}{os.sep}", contextlib.__file__)


def warn(message: str) -> None:
    """Warn of what the code outside of ir can mend, with its line."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
