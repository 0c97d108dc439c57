"""A saved program as torch's own ExportedProgram, for stages and what only a retrace undoes: autocast, vmap and grad.

torch makes Python source of a graph's names and texts. So every text of the file that reaches torch here is held to a
grammar in which nothing can end a name or a string; the rest (guards, trees, notes) stays behind and comes back
afterwards.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ir.errors import CaptureError
from ir.importer.pt2.expressions import Size, parse, torch_value
from ir.importer.pt2.operators import target_text
from ir.importer.pt2.values import text
from ir.importer.size_rules import known
from ir.importer.torch_api import deserialized, pytree

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PATH = re.compile(r"(?!self$)[^\"'\\\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # what is no name stands in quotes
_KEY = re.compile(r"[^\"'\\\x00-\x1f\x7f-\x9f\u2028\u2029]*")
_KEYWORD = re.compile(r"([A-Za-z_]\w*)?", re.ASCII)  # of an operator, `from` among them; empty for a place
_TEXT = re.compile(r"[\w .,:/+\-<>=()*\[\]]*", re.ASCII)
_MODULES = re.compile(r"[\w.,;@$\[\]()-]*", re.ASCII)
_ARGUMENT_NAME = "the name of an argument"
_NAMED = {"name", "as_name", "user_input_name"}
_PATHS = {"parameter_name", "buffer_name", "tensor_constant_name"}
_GROUPS = ("tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values")
_CHECKED = ("torch.ops.aten._assert_scalar.", "torch.ops.aten._assert_async.")  # their texts are messages


def rebuilt(
    document: Any, tensors: Mapping[str, Any], constants: Mapping[str, Any]
) -> tuple[ExportedProgram, dict[str, str]]:
    """The program, with flat arguments and results and without guards, and the source lines by their stand-ins.

    Raises:
        CaptureError: a name or a text of the file is more than a name or a word.
    """
    module = document["graph_module"]
    lines: dict[str, str] = {}
    signature = {k: module["signature"][k] for k in ("input_specs", "output_specs")}
    clean: dict[str, Any] = {
        "graph_module": {"graph": _graph(module["graph"], lines), "signature": signature},
        "range_constraints": document["range_constraints"],
    }
    _check(clean)
    arguments = sum(not s.keys() & {"parameter", "buffer", "tensor_constant"} for s in signature["input_specs"])
    results = sum("user_output" in s for s in signature["output_specs"])
    flat = {"inputs": [], "outputs": [], "in_spec": _call(arguments), "out_spec": json.dumps([1, _tuple(results)])}
    clean["graph_module"] |= {"module_call_graph": [{"fqn": "", "signature": flat}], "metadata": {}}
    clean |= {"verifiers": ["TRAINING"], "guards_code": []}
    return deserialized(clean, dict(tensors), dict(constants)), lines


def _graph(graph: Any, lines: dict[str, str]) -> Any:
    """A graph without what nobody needs of it, sub-graphs included."""
    return {
        "inputs": graph["inputs"], "outputs": graph["outputs"], "nodes": [_node(n, lines) for n in graph["nodes"]],
        "is_single_tensor_return": graph.get("is_single_tensor_return", False),
        **{g: graph.get(g, {}) for g in _GROUPS},
    }  # fmt: skip


def _node(node: Any, lines: dict[str, str]) -> Any:
    notes = {}
    if "stack_trace" in node["metadata"]:
        notes["stack_trace"] = f"line {len(lines)}"
        lines[notes["stack_trace"]] = text(node["metadata"]["stack_trace"])
    stack = node["metadata"].get("nn_module_stack", "")
    if stack and _MODULES.fullmatch(stack):
        notes["nn_module_stack"] = stack
    message = node["target"].startswith(_CHECKED)
    return {
        "target": target_text(node["target"]), "outputs": node["outputs"], "metadata": notes, "name": node.get("name"),
        "is_hop_single_tensor_return": node.get("is_hop_single_tensor_return"),
        "inputs": [i | {"arg": _argument(i["arg"], lines, message)} for i in node["inputs"]],
    }  # fmt: skip


def _argument(argument: Any, lines: dict[str, str], message: bool) -> Any:
    if "as_graph" in argument:
        inner = argument["as_graph"]
        return {"as_graph": {"name": inner["name"], "graph": _graph(inner["graph"], lines)}}
    return {"as_string": "a check of the model failed"} if message and "as_string" in argument else argument


def _check(document: Any) -> None:
    """Every text in it: names are names, expressions are arithmetic, and no other ends a string."""
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        key, found = pending.pop()
        if isinstance(found, dict):
            pattern = _NAME if key in _GROUPS or key == "range_constraints" else _TEXT
            for inner, value in found.items():
                _fullmatch(pattern, inner)
                pending.append((_ARGUMENT_NAME if (inner, "arg" in found) == ("name", True) else inner, value))
        elif isinstance(found, list):
            pending += [(key, value) for value in found]
        elif isinstance(found, str) and key == "expr_str":
            torch_value(Size(found))  # of functions that are known, and not too large
            unknown = [f for f in parse(found).functions if not known(f)]
            if unknown:
                raise CaptureError(f"a size of the file uses {', '.join(unknown)}, unknown to the IR")
        elif isinstance(found, str) and key == "nn_module_stack":
            _fullmatch(_MODULES, found)
        elif isinstance(found, str) and key == _ARGUMENT_NAME:
            _fullmatch(_KEYWORD, found)
        elif isinstance(found, str):
            _fullmatch(_NAME if key in _NAMED and found else _PATH if key in _PATHS else _TEXT, found)


def put_arguments(program: ExportedProgram, spec: pytree.TreeSpec, given: Sequence[str]) -> None:
    """Nest the arguments of a rebuilt program as this spec says, under these names; torch makes parameters of them.

    Raises:
        CaptureError: one is no plain name, or two arguments have one.
    """
    positional, keywords = spec.children()
    count = positional.num_children
    names = [*given[:count], *(f"arg_{i}" for i in range(len(given), count)), *(keywords.context or ())]
    for name in names:
        if not text(name).isidentifier() or keyword.iskeyword(name):
            raise _no_plain(name)
    if len(set(names)) != len(names):
        raise CaptureError("two of its arguments have one name")
    call: Any = program.module_call_graph[0].signature
    call.in_spec, call.forward_arg_names = spec, names


def check_paths(arguments: Any) -> None:
    """That the keys of the arguments' parts, which torch puts into a text of source, end none.

    Raises:
        CaptureError: one may.
    """
    for path, _ in pytree.tree_flatten_with_path(arguments)[0]:
        for part in path:
            key = next((getattr(part, k) for k in ("key", "name", "idx") if hasattr(part, k)), "")
            _fullmatch(_NAME if isinstance(part, pytree.GetAttrKey) else _KEY, str(key))


def _fullmatch(pattern: re.Pattern[str], found: str) -> None:
    named = pattern in (_NAME, _PATH)
    if not pattern.fullmatch(found) or (named and any(map(keyword.iskeyword, found.split(".")))):
        raise _no_plain(found)


def _no_plain(found: str) -> CaptureError:
    return CaptureError(
        "torch makes code of the file's names and texts where a program casts by itself (autocast), transforms "
        f"functions (vmap, grad), is split or verified, and {found!r:.80} is no plain one"
    )


def _tuple(count: int) -> Any:
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    return {"type": "builtins.tuple", "context": "null", "children_spec": [leaf] * count}


def _call(count: int) -> str:
    keywords = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    both = {"type": "builtins.tuple", "context": "null", "children_spec": [_tuple(count), keywords]}
    return json.dumps([1, both])
