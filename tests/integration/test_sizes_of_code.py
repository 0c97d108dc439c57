"""Files of at most 400 lines, functions of at most 40 beside their docstring; ruff looks at their complexity."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "packages"
LINES, FUNCTION = 400, 40

# function -> why it is longer. One that is no longer so fails.
LONGER = {
    "ir/export.py: export": "an argument a line in the signature and the same again where they are handed on",
    "language_models/exporting.py: export": "an argument a line in the signature, and the steps of one folder in order",
    "ir/cli/app.py: export": "a command line: typer reads each option with its help out of the signature",
    "ir/cli/graph_commands.py: show": "a command line: typer reads each option with its help out of the signature",
    "ir/cli/llm.py: llm": "a command line: typer reads each option with its help out of the signature",
}


def sources() -> list[Path]:
    return sorted(PACKAGES.glob("*/src/**/*.py"))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file and how many lines each has beside its docstring, those inside it included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            told = (first.end_lineno or 0) - first.lineno + 1 if documented and ast.get_docstring(node) else 0
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - told


def test_files_can_be_read_in_one_sitting():
    long = {str(p.relative_to(PACKAGES)): n for p in sources() if (n := len(p.read_text().splitlines())) > LINES}
    assert not long


def test_functions_can_be_read_in_one_piece():
    long = {
        f"{path.relative_to(next(p for p in path.parents if p.name == 'src'))}: {name}": lines
        for path in sources() for name, lines in functions(path) if lines > FUNCTION
    }  # fmt: skip
    assert not long.keys() - LONGER.keys(), f"split these: { ({k: n for k, n in long.items() if k not in LONGER}) }"
    assert not LONGER.keys() - long.keys(), f"take these out of the list: {LONGER.keys() - long.keys()}"
