"""How a .pt2 file nests arguments and results: names and order, made into torch's specs.

A class is taken from the register of torch's pytrees, if the process has it there under the file's name for it, and
never imported. One that is not known, or that reads its context by code of its own, becomes what it holds: a dict of
its keys or fields, else a tuple.
"""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ir.errors import CaptureError
from ir.importer.calling_convention import field_names
from ir.importer.pt2.values import text
from ir.importer.torch_api import pytree

_DEEPEST = 64
_LEAF = pytree.tree_structure(0)
_FACTORIES = {"list": list, "dict": dict, "int": int, "float": float, "set": set, "tuple": tuple}
_MAPPINGS = {"builtins.dict": dict, "collections.OrderedDict": collections.OrderedDict}
_KEYS = (str, int, float, bool, type(None))


def read_tree(document: Any, fields: Mapping[str, Any], results: bool) -> pytree.TreeSpec:
    """The spec in a text of torch's; `fields` are those of the named tuples by name.

    Raises:
        CaptureError: it is no tree that torch writes, or names Python objects to import.
    """
    try:
        protocol, tree = json.loads(text(document))
    except ValueError as error:
        raise CaptureError("the tree of the arguments or results cannot be read") from error
    if protocol != 1:
        raise CaptureError(f"the tree of the arguments or results is of version {protocol!r:.40}, 1 is known")
    return _spec(tree, fields, results, 0)


def _spec(tree: Any, fields: Mapping[str, Any], results: bool, depth: int) -> pytree.TreeSpec:
    name, children = tree["type"], tree["children_spec"]
    if depth > _DEEPEST:
        raise CaptureError("the arguments or results are nested too deep")
    specs = [_spec(c, fields, results, depth + 1) for c in children]
    if name is None:
        if children or tree["context"] is not None:
            raise CaptureError("a leaf of the arguments has parts")
        return _LEAF
    if name == "collections.namedtuple":
        known = _registered(tree["context"])
        if known is not None:
            return pytree.TreeSpec(collections.namedtuple, known, specs)
        fields_of = [text(f) for f in fields.get(tree["context"], {}).get("field_names", ())]
        return pytree.TreeSpec(tuple, fields_of if results and len(fields_of) == len(specs) else None, specs)
    context = _context(tree["context"])
    if name == "builtins.tuple" and results and (names := field_names(context, len(specs))) is not None:
        return pytree.TreeSpec(tuple, names, specs)  # a named tuple: see ir.importer.pt2.serializable
    if name in ("builtins.tuple", "builtins.list"):
        return pytree.TreeSpec(tuple if name == "builtins.tuple" else list, None, specs)
    if name in _MAPPINGS:
        return pytree.TreeSpec(_MAPPINGS[name], _keys(context, specs), specs)
    if name == "collections.deque":
        return pytree.TreeSpec(collections.deque, context if type(context) is int else None, specs)
    if name == "collections.defaultdict":
        factory = context["default_factory_name"]
        if context["default_factory_module"] != "builtins" or factory not in _FACTORIES:
            raise CaptureError(f"the arguments' tree calls {factory!r:.80}, which would have to be imported")
        return pytree.TreeSpec(
            collections.defaultdict, [_FACTORIES[factory], _keys(context["dict_context"], specs)], specs
        )
    known = _registered(name)
    if known is not None and pytree.SUPPORTED_SERIALIZED_TYPES[known].from_dumpable_context is None:
        return pytree.TreeSpec(known, context, specs)
    names = field_names(context, len(specs))
    return pytree.TreeSpec(tuple, None, specs) if names is None else pytree.TreeSpec(dict, names, specs)


def _registered(name: Any) -> Any:
    return pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(text(name))


def _context(document: Any) -> Any:
    """A context: a JSON text inside of the JSON, or what the class writes by code of its own."""
    context = document
    if isinstance(document, str):
        with contextlib.suppress(ValueError):
            context = json.loads(document)
    pending = [context]
    while pending:
        found = pending.pop()
        if isinstance(found, dict) and "__enum__" in found:
            raise CaptureError("the arguments' tree names Python objects to import (an enum)")
        pending += found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    return context


def _keys(context: Any, specs: Sequence[Any]) -> list[Any]:
    if not isinstance(context, list) or len(context) != len(specs) or not all(type(k) in _KEYS for k in context):
        raise CaptureError("a dict among the arguments or results has other keys than values")
    return context
