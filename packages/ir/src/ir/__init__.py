"""ir: one graph for PyTorch models, one call to export it, one definition of a custom op for every target.

>>> import ir
>>> program = ir.export(model, args, target="onnx", path="model.onnx", verify=True)  # doctest: +SKIP
"""

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
from ir.export import Exported, export
from ir.graph import Body, Graph, Node, Origin, Range, Value
from ir.helper import OpHelper
from ir.importer.autograd_functions import op_from_function
from ir.importer.capture import capture
from ir.importer.custom_ops import CustomOp, custom_op, op
from ir.lower import lower
from ir.registry import Handler, Registry
from ir.target import Runner, Target
from ir.text import to_text
from ir.types import DType, TensorType
from ir.verify import Report, compare

__version__ = "1.0.0"

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
    "PluginError",
    "Range",
    "RefusedError",
    "Registry",
    "Report",
    "Runner",
    "RuntimeFailure",
    "Target",
    "TensorType",
    "UnsupportedOpsError",
    "Value",
    "capture",
    "check",
    "compare",
    "custom_op",
    "export",
    "lower",
    "op",
    "op_from_function",
    "to_text",
]
