"""The operations that may be emitted: parameters, extension, first version of tract."""

from __future__ import annotations

from typing import Any

from ir.types import DType


def check_operation(h: Any, op: str, inputs: Any, attributes: Any) -> str:
    """The extension that declares the operation, "" for NNEF's own."""
    for prefix, extension in _EXTENSIONS.items():
        if op.startswith(prefix):
            return extension
    return ""


_EXTENSIONS = {
    "tract_core_": "tract_registry tract_core",
    "tract_extra_": "tract_registry tract_extra",
    "tract_transformers_": "tract_registry tract_transformers",
    "tract_pulse_": "tract_registry tract_pulse",
    "tract_sh": "tract_registry tract_core",
}
_BOOL = {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "tract_core_is_nan", "tract_core_is_inf"}


def result_dtype(op: str) -> DType | None:
    """The element type of a result that does not follow the inputs."""
    return DType.bool if op in _BOOL else None
