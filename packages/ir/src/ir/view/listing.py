"""A graph as lines of at most 80 columns: the modules as headings, one op below the other, what is not default."""

from __future__ import annotations

import difflib
import fnmatch
import os
import textwrap
from collections.abc import Iterator

from ir.errors import ExportError
from ir.graph import Arg, Graph, Node, Value
from ir.text import arg_text

WIDTH = 80


def listing(graph: Graph, *, module: str = "", op: str = "", source: bool = True, width: int = WIDTH) -> list[str]:
    """The nodes of a graph that lie in a module and are of an op, under the headings of their modules.

    Args:
        module: a path such as `layer1.0`, which has what lies below it, too; or a pattern such as `layer*.conv1`.
        op: an op's name with or without its namespace, or a pattern such as `*pool*`.
        source: a line names the model's source line where it is another than in the line above.

    Raises:
        ExportError: there is no such module or op; the message has the nearest names.
    """
    weights = {v: w.name for v, w in graph.weights.items()}
    lines: list[str] = []
    heading: str | None = None
    place = ""
    found = list(chosen(graph, module, op))
    if not found and (module or op):
        raise ExportError(_nothing(graph, module, op))
    for node in found:
        if node.origin.module != heading:
            heading, place = node.origin.module, ""
            kind = node.origin.module_class.rpartition(".")[2]
            lines += ["", f"{heading}  {kind}".strip()[:width] or graph.name]
        here = f"{os.path.basename(node.origin.file)}:{node.origin.line}" if source and node.origin.file else ""
        lines += _node(node, weights, here if here != place else "", width)
        place = here
    return lines[1:]


def _nothing(graph: Graph, module: str, op: str) -> str:
    nodes = list(chosen(graph))
    if module and not any(in_module(n.origin.module, module) for n in nodes):
        what, asked, names = "lies in the module", module, {n.origin.module for n in nodes} - {""}
    elif not any(is_op(n, op) for n in nodes):
        what, asked, names = "is of the op", op, {n.op.removeprefix("aten::") for n in nodes}
    else:
        return f"no node of the op {op!r:.60} lies in the module {module!r:.60}"
    near = difflib.get_close_matches(asked, sorted(names), 3, 0.3) or sorted(names)[:3]
    return f"no node {what} {asked!r:.60}" + (f"; the nearest are {', '.join(near)}" if near else "")


def chosen(graph: Graph, module: str = "", op: str = "") -> Iterator[Node]:
    """The nodes that lie in a module and are of an op; see `listing`."""
    for node in graph.nodes:
        if (not module or in_module(node.origin.module, module)) and (not op or is_op(node, op)):
            yield node
        for inner in node.graphs:
            yield from chosen(inner, module, op)


def in_module(path: str, pattern: str) -> bool:
    """Whether a module's path is this one, lies below it, or fits the pattern."""
    return path == pattern or path.startswith(f"{pattern}.") or fnmatch.fnmatchcase(path, pattern)


def is_op(node: Node, pattern: str) -> bool:
    """Whether a node is of this op: `aten::add`, `add`, `aten::add.Tensor` or a pattern."""
    names = (node.op, node.overload, node.op.rpartition("::")[2])
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def kept_args(node: Node) -> dict[str, Arg]:
    """The arguments that are not the schema's defaults."""
    return {k: a for k, a in node.args.items() if not _default(node, k, a)}


def named_args(node: Node, weights: dict[Value, str]) -> list[str]:
    """Them as text, weights by their names in the model."""
    return [
        f"{k}={weights.get(a, a.name) if isinstance(a, Value) else arg_text(a)}" for k, a in kept_args(node).items()
    ]


def _default(node: Node, key: str, arg: Arg) -> bool:
    default = node.defaults.get(key, node)
    plain = arg is None or isinstance(arg, (bool, int, float, str, tuple))
    return arg is default or (plain and type(arg) is type(default) and bool(arg == default))


def _node(node: Node, weights: dict[Value, str], place: str, width: int) -> list[str]:
    made = ", ".join(v.name for v in node.outputs) or "-"
    types = ", ".join(str(v.type) for v in node.outputs)
    call = f"{made} = {node.short_op}({', '.join(named_args(node, weights))})"
    lines = textwrap.wrap(call, width - 2, subsequent_indent="    ", break_long_words=True, break_on_hyphens=False)
    said = f"{types}  {place}".rstrip()
    if len(lines[-1]) + len(said) + 4 <= width:
        return [f"  {line}" for line in lines[:-1]] + [f"  {lines[-1]:<{width - 2 - len(said)}}{said}"]
    more = textwrap.wrap(said, width - 8) or [""]
    return [f"  {line}" for line in lines] + [f"{line:>{width}}" for line in more]
