"""What the NNEF files and their runtimes raise, every class in one place; all are errors of ir.

Each is also the builtin class that fits, for those who call the runtimes without an export.
"""

from __future__ import annotations

import re

import ir.errors


class DocumentError(ir.errors.ExportError, ValueError):
    """A document, a tensor or an archive cannot be written (or read) as NNEF."""


class PathError(DocumentError, ir.errors.OutputError):
    """A path whose name, or what lies there, does not let an artifact be written."""


class InputError(ir.errors.ExportError, ValueError):
    """A program was called with inputs that its graph does not declare."""


class RuntimeFailure(ir.errors.RuntimeFailure, RuntimeError):
    """A runtime refused a model or failed on it.

    `model` is the path of the model, `operation` the operation at fault where the runtime told.
    """

    def __init__(self, message: str, *, model: str = "", operation: str = "") -> None:
        super().__init__(message)
        self.model = model
        self.operation = operation


class TractError(RuntimeFailure):
    """tract refused a model, failed on it, or died on it (`crashed`)."""

    crashed = False


class TractCrash(TractError):
    """tract panicked or was killed; the worker process is gone and the next call starts another one.

    `printed` is what it printed, with its stack.
    """

    crashed = True
    printed = ""


class TractTimeout(TractError):
    """A call took longer than it was given; the worker process was killed."""


class KhronosError(RuntimeFailure):
    """The Khronos parser, shape inference or interpreter refused a model."""


# -- what tract says of itself -----------------------------------------------------------------------------------------


def refused_operation(error: str) -> str:
    """The result and operation that an error of tract's names, as "y = conv"."""
    results = re.findall(r'Plugging in assignement for "([^"]+)"', error)
    operations = re.findall(r"Resolving invocation Identifier\(\"([^\"]+)\"\)", error)
    return " = ".join(found[0] for found in (results, operations) if found)


def panic(stderr: str) -> tuple[str, str]:
    """What a panic said, and the innermost of tract's operations on the stack."""
    said = re.search(r"panicked at ([^\n]*)\n([^\n]*)", stderr)
    reason = f"{said.group(2)} ({said.group(1).rstrip(':')})" if said else ""
    frames = re.findall(r"^\s*\d+: <?(tract_\w+(?:::\w+)*::ops::[\w:]+)", stderr, re.MULTILINE)
    return reason, frames[0] if frames else ""
