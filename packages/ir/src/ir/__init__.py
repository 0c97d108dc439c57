"""ir: one graph for PyTorch models, one call to export it, one definition of a custom op for every target.

>>> import ir
>>> program = ir.export(model, args, target="onnx", path="model.onnx", verify=True)
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ir.bounds import Range
    from ir.check import check
    from ir.dims import Dim, Expr
    from ir.errors import (
        CaptureError,
        DuplicateHandlerError,
        ExportError,
        GraphError,
        HandlerError,
        MismatchError,
        MissingOp,
        OutputError,
        PluginError,
        RefusedError,
        RuntimeFailure,
        UnsupportedOpsError,
    )
    from ir.export import export
    from ir.exported import Exported
    from ir.graph import Body, Graph, Node, Origin, Value
    from ir.helper import OpHelper
    from ir.importer.autograd_functions import op_from_function
    from ir.importer.capture import capture
    from ir.importer.checkpoint import load_weights, stored_tensors, without_weights
    from ir.importer.custom_ops import CustomOp, custom_op, op
    from ir.importer.stages import Split, split
    from ir.lower import lower
    from ir.plan import Plan
    from ir.registry import Handler, Registry
    from ir.runtime.runner import FileRunner, runner
    from ir.target import Runner, Target
    from ir.text import to_text
    from ir.types import DType, TensorType
    from ir.verify import Report, compare

__version__ = "1.0.0"

_NAMES = {
    "ir.bounds": ("Range",),
    "ir.check": ("check",),
    "ir.dims": (
        "Dim",
        "Expr",
    ),
    "ir.errors": (
        "CaptureError",
        "DuplicateHandlerError",
        "ExportError",
        "GraphError",
        "HandlerError",
        "MismatchError",
        "MissingOp",
        "OutputError",
        "PluginError",
        "RefusedError",
        "RuntimeFailure",
        "UnsupportedOpsError",
    ),
    "ir.export": ("export",),
    "ir.exported": ("Exported",),
    "ir.graph": (
        "Body",
        "Graph",
        "Node",
        "Origin",
        "Value",
    ),
    "ir.helper": ("OpHelper",),
    "ir.importer.autograd_functions": ("op_from_function",),
    "ir.importer.capture": ("capture",),
    "ir.importer.checkpoint": (
        "load_weights",
        "stored_tensors",
        "without_weights",
    ),
    "ir.importer.custom_ops": (
        "CustomOp",
        "custom_op",
        "op",
    ),
    "ir.importer.stages": (
        "Split",
        "split",
    ),
    "ir.lower": ("lower",),
    "ir.plan": ("Plan",),
    "ir.registry": (
        "Handler",
        "Registry",
    ),
    "ir.runtime.runner": (
        "FileRunner",
        "runner",
    ),
    "ir.target": (
        "Runner",
        "Target",
    ),
    "ir.text": ("to_text",),
    "ir.types": (
        "DType",
        "TensorType",
    ),
    "ir.verify": (
        "Report",
        "compare",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


_INSTEAD = {  # what stands elsewhere, or is a command
    "load": "ir.opening.open_artifact(path)",
    "open": "ir.opening.open_artifact(path)",
    "run": "ir.opening.open_artifact(path)(*tensors), or the command `ir run`",
    "show": "print(graph), or the command `ir show`",
    "diff": "the command `ir diff`",
    "bench": "the command `ir bench`",
    "verify": "ir.export(..., verify=True), or program.verify()",
}


def _instead(name: str) -> str:
    from ir.words import meant

    near = meant(name, _HOMES)
    said = _INSTEAD.get(name) or ("ir.export(..., target=...)" if "export" in name or name.startswith("to_") else "")
    return f"; write {said}" if said else near


class _Package(ModuleType):
    """A package whose names, and torch with them, are imported at their first use: `ir --help` needs none of them."""

    def __getattr__(self, name: str) -> Any:
        if name in _HOMES:
            found = getattr(importlib.import_module(_HOMES[name]), name)
            self.__dict__[name] = found
            return found
        if not name.startswith("_"):
            try:
                return importlib.import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_instead(name)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):  # `ir.export` is the function, not its file
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *_HOMES})

    def __reduce__(self) -> Any:  # functions that name the package travel by cloudpickle, which knows plain modules
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package

__all__ = [
    "Body",
    "CaptureError",
    "CustomOp",
    "DType",
    "Dim",
    "DuplicateHandlerError",
    "ExportError",
    "Exported",
    "Expr",
    "FileRunner",
    "Graph",
    "GraphError",
    "Handler",
    "HandlerError",
    "MismatchError",
    "MissingOp",
    "Node",
    "OpHelper",
    "Origin",
    "OutputError",
    "Plan",
    "PluginError",
    "Range",
    "RefusedError",
    "Registry",
    "Report",
    "Runner",
    "RuntimeFailure",
    "Split",
    "Target",
    "TensorType",
    "UnsupportedOpsError",
    "Value",
    "capture",
    "check",
    "compare",
    "custom_op",
    "export",
    "load_weights",
    "lower",
    "op",
    "op_from_function",
    "runner",
    "split",
    "stored_tensors",
    "to_text",
    "without_weights",
]
