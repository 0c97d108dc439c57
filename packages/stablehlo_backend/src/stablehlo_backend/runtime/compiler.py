"""IREE's compiler, which runs as a process of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

import iree.compiler.tools as tools

from ir.errors import RuntimeFailure

# i64 and f64 stay what they are, whatever the compiler's own defaults become
FLAGS = ("--iree-input-demote-i64-to-i32=false", "--iree-input-demote-f64-to-f32=false")


def compiled(text: str, cpu: str, flags: Sequence[str] = ()) -> bytes:
    """The module as a .vmfb for this CPU.

    Raises:
        RuntimeFailure: the compiler does not take it.
    """
    options = [f"--iree-llvmcpu-target-cpu={cpu}", *FLAGS, *flags]
    try:
        made = tools.compile_str(text, target_backends=["llvm-cpu"], input_type="auto", extra_args=options)
    except tools.CompilerToolError as error:
        said = re.findall(r"error: (.*)", str(error)) or [" ".join(str(error).split())[:300]]
        raise RuntimeFailure(f"IREE does not compile the module: {said[0]:.500}") from error
    assert isinstance(made, bytes)
    return made
