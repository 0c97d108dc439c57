"""The names of targets: which backends are installed, which are known, and what a misspelt name was meant to be."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points

from ir.errors import UnknownName
from ir.registry import registries

TARGETS = "ir.targets"  # entry points of backends: target name -> "package:TargetClass"
KNOWN = {
    "onnx": "onnx_backend",
    "nnef": "nnef_backend",
    "khronos": "nnef_backend",
    "eager": "eager_backend",
    "stablehlo": "stablehlo_backend",
}

RUNTIMES = {  # what somebody may call a target who thinks of what runs it
    "tract": "nnef",
    "onnxruntime": "onnx",
    "ort": "onnx",
    "torch": "eager",
    "pytorch": "eager",
    "pt2": "eager",
    "iree": "stablehlo",
}


def targets() -> dict[str, str]:
    """The installed target names and the "package:Class" behind each."""
    return {e.name: e.value for e in entry_points(group=TARGETS)}


def likely(name: str) -> str | None:
    """The target that a name which is none was meant to be: in other letters, by its runtime, or misspelt."""
    names = [*KNOWN, *targets()]
    near = [n for n in names if n.lower() == name.lower()] or difflib.get_close_matches(name, names, 1)
    return RUNTIMES.get(name.lower()) or (near[0] if near else None)


def refuse_misspelt(name: str, what: str) -> None:
    """Whether a handler may be for a target of this name: of one that is not installed too, if it is no other misspelt.

    Raises:
        UnknownName: no target has the name, and one has nearly this name.
    """
    if name in KNOWN or name in {r.target for r in registries()} or name in targets():
        return
    if (near := likely(name)) is not None:
        raise UnknownName(f"{what}: there is no target {name!r:.80}; did you mean {near}?")
