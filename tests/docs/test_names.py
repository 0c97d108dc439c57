"""The pages name only what exists: nox sessions, files, links, options, helper verbs, cases and tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer

import ir
from ir.cli.app import app
from tests.cases import ALL

ROOT = Path(__file__).parents[2]
SOURCES = [p for top in ("packages", "tests", "benchmarks", "examples") for p in (ROOT / top).rglob("*.py")]
PAGES = [ROOT / "README.md", ROOT / "DESIGN.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
NAMES = [str(p.relative_to(ROOT)) for p in sorted(PAGES)]
CASES = {case.name for case in ALL}
FAMILIES = {case.name.partition("/")[0] for case in ALL}
SHORT = [ROOT, *(ROOT / "packages").glob("*/src"), *(ROOT / "packages").glob("*/src/*")]  # what a path may start from
NOT_OURS = {
    "config.py",
    "my_first.py",
    "my_model.py",
    "my_quantised.py",
    "reduced.py",
    "reduced_ir.py",
}  # files of the reader's

# Pages about one target alone: `h` is that target's helper there.
HELPERS = {"docs/nnef.md": "nnef", "docs/quirks/tract.md": "nnef", "docs/quirks/onnxruntime.md": "onnx"}


def sessions() -> set[str]:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    decorated = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    return {node.name for node in decorated if "session" in ast.unparse(node.decorator_list[0])}


def codes(text: str) -> Iterator[str]:
    """What stands in backticks, and the lines of code blocks."""
    for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
        yield from block.splitlines()
    for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        yield " ".join(code.split())


def helper(page: str) -> set[str]:
    """The names on `h`: those of every helper, or of the one that the page is about."""
    kind: type = ir.OpHelper
    if page in HELPERS:
        kind = type(ir.plugins.find_target(HELPERS[page], {}).helper(ir.capture(torch.sin, (torch.ones(1),))))
    annotated = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", ())}
    return {*dir(kind), *annotated}


def module_file(name: str) -> Path | None:
    place = Path(*name.split("."))
    ends = (place.with_suffix(".py"), place / "__main__.py")
    return next((base / end for base in SHORT for end in ends if (base / end).exists()), None)


def wrong_file(code: str, page: Path) -> bool:
    path, _, test = code.partition("::")
    if not re.fullmatch(r"[\w./-]+\.py", path) or Path(path).name in NOT_OURS:
        return False
    found = [base / path for base in (*SHORT, page.parent) if (base / path).exists()]
    if "/" not in path:
        found += [p for p in SOURCES if p.name == path]
    return not found or (bool(test) and not any(f"def {test}(" in p.read_text() for p in found))


def wrong_options(code: str) -> list[str]:
    """Modules that do not exist, and options that the text of a module does not have."""
    found = re.search(r"python -m ([\w.]+)(.*)", code)
    if found is None or found[1] in ("venv", "pip", "nox", "pytest"):
        return []
    file = module_file(found[1])
    if file is None:
        return [found[1]]
    words = found[2].partition(" -- ")[0].split("#")[0].split()
    options = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    if found[1] != "ir":
        return [o for o in options if not any(f'"{o}"' in p.read_text() for p in (file, *file.parent.glob("*.py")))]
    group = typer.main.get_command(app)
    command = group.commands.get(words[0]) if words else group  # type: ignore[attr-defined]
    if command is None:
        return [words[0]]
    return [o for o in options - {"--help"} if not any(o in (*p.opts, *p.secondary_opts) for p in command.params)]


def wrong_names(text: str, page: str) -> list[str]:
    place, known, verbs = ROOT / page, sessions(), helper(page)
    wrong = [f"nox -s {name}" for name in re.findall(r"nox -s (\w+)", text) if name not in known]
    wrong += [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (place.parent / link).exists()]
    for code in codes(text):
        wrong += [code] if wrong_file(code, place) else []
        wrong += [f"{code}: {what}" for what in wrong_options(code)]
        wrong += [f"h.{verb}" for verb in re.findall(r"(?<![\w.])h\.([a-z_]\w*)", code) if verb not in verbs]
        if re.fullmatch(r"[a-z]+/\w+", code) and code.partition("/")[0] in FAMILIES and code not in CASES:
            wrong.append(code)
    return wrong


@pytest.mark.parametrize("page", NAMES)
def test_what_a_page_names_exists(page):
    assert wrong_names((ROOT / page).read_text(), page) == []


@pytest.mark.parametrize(
    "text",
    [
        "`nox -s no_such_session`",
        "`writer_of_nothing.py`",
        "`tests/ir/toy.py::test_of_nothing`",
        "[page](docs/nothing.md)",
        "```bash\npython -m ir export model.pt2 --no-such-option\n```",
        "`python -m ir nothing`",
        "`python -m tests.fuzz --no-such-option`",
        "`python -m tests.nothing`",
        "`h.nothing(x)`",
        "`norm/no_such_case`",
    ],
)
def test_what_does_not_exist_is_noticed(text):
    assert wrong_names(text, "README.md")


def test_sources_name_sessions_that_exist():
    known = sessions()
    for path in (*SOURCES, ROOT / "pyproject.toml", ROOT / "noxfile.py"):
        if path != Path(__file__):
            assert {*re.findall(r"nox -s (\w+)", path.read_text())} <= known, path


def test_a_session_runs_the_slow_tests():
    assert '"-m", "slow"' in (ROOT / "noxfile.py").read_text()
