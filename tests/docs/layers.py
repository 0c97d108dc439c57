"""The drawing in DESIGN.md, made from the import graph: `python -m tests.docs.layers` writes it anew."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.integration.test_structure import BACKENDS, imports, module_name, sources

PAGE = Path(__file__).parents[2] / "DESIGN.md"
START, END = "<!-- drawing: python -m tests.docs.layers -->", "<!-- end of drawing -->"

# The path of the data: what there is, the module that makes the next of it, and how. `ir.export` imports all of them.
PATH = (
    ("module, ExportedProgram or .pt2 file", "ir.importer.capture", "torch.export, then one loop over its graph"),
    ("Graph", "ir.lower", "the target's passes, then for each node its handler, else its body"),
    ("artifact", "ir.target", "write, into a staging folder that is moved in place"),
    ("file", "ir.target", "runner, which loads the file into the target's runtime"),
    ("runner", "ir.trial", "the example and other sizes, compared with torch"),
    ("report", "", ""),
)


def edges() -> dict[str, set[str]]:
    """Which module of `ir` imports which, at run time; a folder counts as one part."""
    known = {module_name(p): p for p in sources("ir")}
    folded: dict[str, set[str]] = {}
    for module, path in known.items():
        found = {_part(i) for i in imports(path, top_level=True) if i in known}
        folded.setdefault(_part(module), set()).update(found)
    return {part: found - {part} for part, found in folded.items()}


def _part(module: str) -> str:
    """`ir.graph` is graph, `ir.passes.promote` is passes/."""
    first, *rest = module.split(".")[1:] or ["__init__"]
    return f"{first}/" if rest or first in ("importer", "passes") else first


def layers() -> list[list[str]]:
    """The parts of `ir`, the lowest first; each imports lower ones alone, or, joined by a +, each other."""
    graph = edges()
    below = {part: _closure(graph, part) for part in graph}
    joined = {p: " + ".join(sorted({p, *(q for q in below[p] if p in below[q])})) for p in graph}
    over = {joined[p]: {joined[q] for q in below[p]} - {joined[p]} for p in graph}

    @cache
    def depth(group: str) -> int:
        return 1 + max((depth(other) for other in over[group]), default=-1)

    found: dict[int, list[str]] = {}
    for group in sorted(over):
        found.setdefault(depth(group), []).append(group)
    return [found[level] for level in sorted(found)]


def _closure(graph: dict[str, set[str]], part: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[part])
    while todo:
        if (one := todo.pop()) not in seen:
            seen.add(one)
            todo += graph[one]
    return seen


def reached(module: str) -> set[str]:
    known = {module_name(p): p for p in sources("ir")}
    return _closure({m: {*imports(p, top_level=True)} & known.keys() for m, p in known.items()}, module)


def drawing() -> str:
    """The path of the data, and the layers of the packages."""
    lines, known = [], reached("ir.export")
    for name, module, how in PATH:
        lines.append(f"    [ {name} ]")
        if module:
            assert module in known, f"ir.export does not import {module}"
            lines += ["        |", f"        |  {module}: {how}", "        v"]
    lines += ["", f"    layers of ir, each over those that it imports; {', '.join(BACKENDS)} import ir alone", ""]
    for level, parts in reversed([*enumerate(layers())]):
        lines.append(f"    {level:3}  {'  '.join(parts)}")
    return "\n".join(lines)


def page(text: str, made: str) -> str:
    """The page with this drawing between its marks."""
    block = f"{START}\n```text\n{made}\n```\n{END}"
    return re.sub(f"{re.escape(START)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), drawing()))
