"""What the inputs and outputs of a graph are called: as the model or the caller says, and each name once.

Names that the model gives (arguments, keys of the result) are told apart by a number; of those that the caller gives
none is changed, so what does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ir.errors import CaptureError
from ir.importer import calling_convention as st
from ir.importer.dim_names import signature_names
from ir.importer.private_writes import writes
from ir.importer.pt2.expressions import Size
from ir.importer.tensor_meta import Tensors


def input_names(program: Any, given: Sequence[str] | None) -> list[str]:
    """The names of the tensors and numbers that the program takes.

    Raises:
        CaptureError: a name that was given is none, stands twice, is a buffer's that is written, or is one too many.
    """
    specs = zip(program.graph_signature.input_specs, program.graph.find_nodes(op="placeholder"), strict=True)
    users = [n for s, n in specs if s.kind == InputKind.USER_INPUT]
    held = st.argument_names(program.call_spec.in_spec, signature_names(program))
    own = [name or n.name for name, n in zip(held, users, strict=True) if _is_data(n.meta.get("val"))]
    chosen = _checked("input_names", given, len(own))
    # what an input and a buffer are changed to is told apart by their names
    written = _written(program)
    if clash := sorted(written.intersection(chosen)):
        raise CaptureError(f"input_names: {clash[0]!r} is a buffer that the model writes; choose another name")
    return [*chosen, *st.unique(own[len(chosen) :], {*chosen, *written})]


def output_names(program: Any, kinds: Sequence[Any], inputs: Sequence[str], given: Any) -> tuple[str, ...]:
    """The names of the graph's outputs.

    Raises:
        CaptureError: a name that was given is none, stands twice, is an input's, or is one too many.
    """
    spec = program.call_spec.out_spec
    every = st.names_of(spec) if spec is not None else ["output"] * len(kinds)
    own = [n for n, k in zip(every, kinds, strict=True) if not isinstance(k, st.Fixed)]
    chosen = _checked("output_names", given, len(own))
    if clash := sorted({*chosen}.intersection(inputs)):
        raise CaptureError(f"output_names: {clash[0]!r} is the name of an input; choose another one")
    return (*chosen, *st.unique(own[len(chosen) :], {*chosen, *inputs}))


def _checked(option: str, given: Any, count: int) -> list[str]:
    if isinstance(given, str):
        raise CaptureError(f"{option}={given!r:.100} is one name: give a list of names")
    names = list(given or ())
    wrong = next((n for n in names if not isinstance(n, str) or not n.strip() or not n.isprintable()), None)
    if wrong is not None:
        raise CaptureError(f"{option}: {wrong!r:.100} is no name")
    if long := next((n for n in names if len(n) > 1000), None):
        raise CaptureError(f"{option}: {long:.40}... is {len(long)} letters long; 1000 are enough")
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise CaptureError(f"{option}: {twice!r:.100} stands there twice")
    if len(names) > count:
        raise CaptureError(f"{option}: {len(names)} names for {count} of the model's tensors")
    return names


def _is_data(fake: Any) -> bool:
    return isinstance(fake, (*Tensors, torch.SymInt, Size))


def _written(program: Any) -> set[str]:
    """The parameters and buffers that the program writes, or may write where it still has ops that do."""
    signature = program.graph_signature
    if writes(program.graph_module):
        return {*signature.buffers, *signature.parameters}
    kinds = (OutputKind.BUFFER_MUTATION, getattr(OutputKind, "PARAMETER_MUTATION", None))
    return {str(s.target) for s in signature.output_specs if s.kind in kinds}
