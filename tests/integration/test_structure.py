"""The shape of the monorepo: imports form a DAG, torch has its place, families mirror, signatures fit the schemas."""

from __future__ import annotations

import ast
import graphlib
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ir", "onnx_backend", "nnef_backend", "eager_backend", "stablehlo_backend")
BACKENDS = PACKAGES[1:]
PRODUCTS = ("language_models", "batch_inference")  # which use backends by their targets' names
FAMILIES = {
    "elementwise", "reduce", "matmul", "conv", "pool", "norm", "attention", "shape", "index", "create", "recurrent",
    "control", "quantize",
}  # fmt: skip
ROOMS = {"building", "handlers", "passes", "format", "runtime", "inspection", "compat"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / "packages" / package / "src" / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(path.parents[len(path.parts) - path.parts.index("src") - 2]).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, top_level: bool) -> Iterator[str]:
    """The modules that a file imports: at its top level, or anywhere in it."""
    tree = ast.parse(path.read_text())
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in _statements(tree) if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, *([node.module] if node.module else [])])
            inner = [f"{base}.{a.name}" for a in node.names]
            modules = {m for m in inner if _is_module(m)}
            yield from modules
            if len(modules) < len(inner):
                yield base


def _is_module(name: str) -> bool:
    package, *rest = name.split(".")
    place = (ROOT / "packages" / package / "src" / package).joinpath(*rest)
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those that run when a module is imported, and what a type checker reads beside them."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.If) else [node]


@pytest.mark.parametrize("package", (*PACKAGES, *PRODUCTS))
def test_imports_form_a_dag(package):
    known = {module_name(p): p for p in sources(package)}
    edges = {m: {i for i in imports(p, top_level=True) if i in known and i != m} for m, p in known.items()}
    if package == "ir":
        assert {m.rpartition(".")[0] for m, e in edges.items() if "ir" in e} == {"ir.cli"}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a cycle of imports: {' -> '.join((*path, module))}"
        if module not in done:
            for other in edges[module]:
                visit(other, (*path, module))
            done.add(module)

    for module in edges:
        visit(module, ())


def test_torch_lives_in_the_importer():
    for path in sources("ir"):
        rooms = {"importer", "decompositions", "debug", "runtime", "cli"}
        if not rooms & set(path.parts) and path.name not in ("ops.py", "testing.py"):
            named = {i.split(".")[0] for i in imports(path, top_level=False)}
            assert "torch" not in named, f"{path.name} imports torch"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_the_core_only(package):
    others = {*PACKAGES} - {"ir", package}
    for path in sources(package):
        named = {i.split(".")[0] for i in imports(path, top_level=False)}
        assert not named & others, f"{path} imports {named & others}"


@pytest.mark.parametrize("package", BACKENDS)
def test_families_are_the_same_everywhere(package):
    folder = ROOT / "packages" / package / "src" / package / "handlers"
    assert {p.stem for p in folder.glob("*.py")} - {"__init__"} >= FAMILIES
    assert {p.stem for p in (ROOT / "tests" / "cases").glob("*.py")} >= FAMILIES


@pytest.mark.parametrize("package", BACKENDS)
def test_rooms_are_the_same_everywhere(package):
    """The folders of a backend have the names that DESIGN.md gives, and import one another one way."""
    edges: dict[str, set[str]] = {}
    for path in sources(package):
        room, known = (*module_name(path).split("."), "")[1], imports(path, top_level=True)
        inside = {i.split(".")[1] for i in known if i.startswith(f"{package}.")}
        edges.setdefault(room, set()).update(inside - {room})
    folders = {
        p.name for p in (ROOT / "packages" / package / "src" / package).iterdir() if (p / "__init__.py").exists()
    }
    assert {"building", "handlers", "runtime"} <= folders <= ROOMS
    assert {"helper", "registry", "target"} <= {*edges} - folders
    list(graphlib.TopologicalSorter(edges).static_order())  # raises for a cycle


@pytest.mark.parametrize("package", BACKENDS)
def test_handlers_bind_to_the_schemas(package):
    """A handler's parameters are arguments of the op; one without a default is in every overload that it serves."""
    import torch

    from ir.importer.schema import op_schema, packet_of

    if package == "stablehlo_backend":
        pytest.importorskip("iree.compiler")  # which `nox -s stablehlo` has

    registry = importlib.import_module(f"{package}.registry").load()
    wrong = []
    for name in registry.ops():
        op, _, overload = name.partition(".")
        if not op.startswith("aten::"):
            continue
        packet = packet_of(op)
        if packet is None:
            wrong.append(f"{name}: torch has no such op")
            continue
        overloads = [overload] if overload else packet.overloads()
        schemas = [op_schema(getattr(packet, o or "default")) for o in overloads]
        schemas = [s for s in schemas if not any(n == "out" for n in s.names) and not s.writes]
        known = {n for s in schemas for n in s.names}
        for handler in registry.entries[name]:
            required = [p for p, v in handler.parameters.items() if v.kind != v.VAR_KEYWORD and v.default is v.empty]
            unknown = [p for p in required if p not in known and p.removesuffix("_") not in known]
            if unknown:
                wrong.append(f"{name}: {unknown} of {handler.source} are no arguments of {sorted(known)}")
    assert torch is not None and not wrong, "\n".join(wrong)
