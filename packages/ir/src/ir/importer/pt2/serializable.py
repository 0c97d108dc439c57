"""A program as torch.export.save writes it: classes without a name for files are plain ones that hold the same."""

from __future__ import annotations

import copy
import re
from collections import namedtuple
from dataclasses import replace
from typing import Any

from torch.export import ExportedProgram

from ir import errors
from ir.importer.calling_convention import keys_of
from ir.importer.file_guards import sources
from ir.importer.pt2.told_dtypes import with_dtypes
from ir.importer.torch_api import guards_code, put, pytree


def serializable(program: ExportedProgram, warns: bool = True) -> ExportedProgram:
    """The program with a tuple in the place of a named tuple, and a dict in that of another class with fields.

    A file names a class that the reader has to have registered under this name; nobody has for what `x.max(1)` gives.
    The names of the fields stand beside the tuple, where torch's loader passes over them.

    Warns:
        UserWarning: what was a class, and no tuple, is a dict or a tuple in the file; where `warns` is set.
    """
    program = with_dtypes(program)
    changed: list[str] = []
    entries = []
    for entry in program.module_call_graph:
        call = entry.signature
        if call is not None:
            plain = {"in_spec": _plain(call.in_spec, False, changed), "out_spec": _plain(call.out_spec, True, changed)}
            call = replace(call, **plain)
        entries.append(replace(entry, signature=call))
    if not changed:
        return program
    if warns and (lost := [name for name in dict.fromkeys(changed) if name]):
        errors.warn(
            f"the file has a dict or a tuple in the place of {', '.join(lost)}: torch has no name for it in a file; "
            "register the class with serialized_type_name= before the export, and wherever the file is opened"
        )
    other = copy.copy(program)
    put(other, module_call_graph=entries)
    if entries and entries[0].signature is not None:
        _rename_arguments(other, program, entries[0].signature)
    return other


def _rename_arguments(other: ExportedProgram, program: ExportedProgram, call: Any) -> None:
    """In the conditions, which name a field, and in the example, which torch pickles."""
    names = call.forward_arg_names or ()
    before, now = sources(program.call_spec.in_spec, names), sources(call.in_spec, names)
    code = list(guards_code(program) or ())
    for old, new in zip(before, now, strict=True):
        if old != new:
            code = [new.join(re.split(rf"{re.escape(old)}(?!\w)", text)) for text in code]
    put(other, guards_code=code)
    if program.example_inputs is not None:
        other.example_inputs = pytree.tree_unflatten(pytree.tree_leaves(program.example_inputs), call.in_spec)


def _plain(spec: Any, results: bool, changed: list[str]) -> Any:
    """The spec, of classes that have names; those that have none are added to `changed`, "" for a tuple."""
    if spec is None or spec.is_leaf():
        return spec
    inner = [_plain(child, results, changed) for child in spec.children()]
    kind = spec.context if spec.type is namedtuple else spec.type
    known = pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    if known is not None and known.serialized_type_name != pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
        return pytree.TreeSpec(spec.type, spec.context, inner)
    is_tuple = issubclass(kind, tuple)
    changed.append("" if is_tuple else kind.__qualname__)
    keys = [k for k in keys_of(spec) if isinstance(k, str)]
    if is_tuple or not keys:
        return pytree.TreeSpec(tuple, keys if keys and results else None, inner)
    return pytree.TreeSpec(dict, keys, inner)
