"""An op whose kernel gives another number of tensors than its fake says."""

from __future__ import annotations

import re
import traceback

from ir.errors import RuntimeFailure

_SAID = re.compile(r"(not enough|too many) values to unpack \(expected (\d+)(?:, got (\d+))?\)")


def unpacked(error: Exception) -> RuntimeFailure | None:
    """What a line of a program's own source says that could not take apart an op's results; None of another error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    found = _SAID.fullmatch(str(error))
    if found is None or not last.filename.startswith("<eager program"):
        return None
    _, expected, got = found.groups()
    op = (last.line or "").rpartition("# ")[2] or f"line {last.lineno} of the program"
    given = f"{got} tensors" if got else "more tensors"
    return RuntimeFailure(f"{op}: the kernel gives {given}, its fake says {expected}: let the two agree")
