"""What is private to torch is used in one file, and a torch that nobody ran the tests with is told of."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from ir.importer import versions

PACKAGES = Path(__file__).parents[2] / "packages"
API = PACKAGES / "ir/src/ir/importer/torch_api.py"
FILES = sorted(p for p in PACKAGES.rglob("*.py") if p != API)
# Of other libraries than torch: private as well, and looked after by those who use them.
OTHERS = {
    "os._exit",
    "dask.dataframe.DataFrame._meta",
    "onnxscript._internal",
    "onnxruntime.OrtValue._ortvalue",
    "onnxruntime.InferenceSession._sess",
    "transformers.PreTrainedConfig._attn_implementation",  # set_attn_implementation has no reader
    # which processors generate() makes of which settings, and in which order, nothing public tells
    "transformers.GenerationMixin._get_logits_processor",
    "transformers.GenerationConfig._eos_token_tensor",
    "transformers.GenerationConfig._get_default_generation_params",
}
OTHERS_NAMES = {name.rpartition(".")[2] for name in OTHERS}


def is_private(module: str) -> bool:
    hidden = any(part.startswith("_") and not part.startswith("__") for part in module.split("."))
    return module.split(".")[0] == "torch" and (hidden or module.startswith("torch.fx.experimental"))


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def own_names(tree: ast.Module) -> set[str]:
    """What the file itself defines: in modules and classes, and at `self` and `cls`."""
    names: set[str] = set()
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.ClassDef):
            names |= {n.name for n in scope.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
            names |= {n.id for s in scope.body for n in ast.walk(s) if isinstance(n, ast.Name) and is_store(n)}
        if isinstance(scope, ast.Attribute) and is_store(scope) and dotted(scope.value) in ("self", "cls"):
            names.add(scope.attr)
    return names


def is_store(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def private_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    own = own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if is_private(a.name))
        elif isinstance(node, ast.ImportFrom):
            found = (f"{node.module}.{a.name}" for a in node.names)
            yield from ((node.lineno, name) for name in found if is_private(name))
        elif isinstance(node, ast.Attribute):
            name = dotted(node)
            if name.startswith("torch.ops."):  # the names of operators, of which some start with an underscore
                yield from ((node.lineno, name) for part in name.split(".")[4:] if part.startswith("_"))
            elif is_private(name):
                yield node.lineno, name
            elif node.attr.startswith("_") and not node.attr.startswith("__"):
                is_own = dotted(node.value) in ("self", "cls") or node.attr in own or ".driver." in name
                if not is_own and node.attr not in OTHERS_NAMES:
                    yield node.lineno, name
        elif isinstance(node, ast.Call) and dotted(node.func) in ("getattr", "hasattr", "setattr", "import_module"):
            for text in (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)):
                hidden = text.startswith("_") and not text.startswith("__") and text not in {"_fields", *OTHERS_NAMES}
                if hidden or is_private(text):
                    yield node.lineno, text


def test_private_names_of_torch_lie_in_one_file():
    found = {p: sorted({*private_uses(ast.parse(p.read_text()))}) for p in FILES}
    told = [f"{p.relative_to(PACKAGES)}:{line}: {name}" for p, uses in found.items() for line, name in uses]
    assert not told, f"move to {API.name}:\n" + "\n".join(told)


@pytest.mark.parametrize("code", [
    "import torch._dynamo", "from torch._ops import OpOverload", "from torch.export import _trace",
    "import torch.fx.experimental.symbolic_shapes", "def f():\n    from torch.utils import _pytree",
    "torch._C._nn.gelu(x)", "isinstance(x, torch._ops.OpOverload)", "target._schema", "x.untyped_storage()._cdata",
    "torch.ops.aten.index.Tensor._op", "getattr(target, '_op', None)", "import_module('torch._inductor')",
])  # fmt: skip
def test_every_way_to_a_private_name_is_found(code):
    assert [*private_uses(ast.parse(code))]


@pytest.mark.parametrize("code", ["torch.ops.aten._assert_scalar.default", "self._x", "torch.fx.Graph", "x.__dict__"])
def test_what_is_not_private(code):
    assert not [*private_uses(ast.parse(code))]


def test_every_name_says_what_it_is_for():
    lines = API.read_text().splitlines()
    tree = ast.parse(API.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            assert ast.get_docstring(node), node.name
        elif isinstance(node, ast.ImportFrom) and is_private(f"{node.module}.{node.names[0].name}"):
            renamed = node.names[0].asname is None  # its use is told where it gets its name
            assert renamed or "#" in lines[node.lineno - 1], lines[node.lineno - 1]


@pytest.mark.parametrize("version", ["2.10.1", "2.9.0+cpu", "1.13.1"])
def test_an_older_torch_is_refused_in_a_sentence(version):
    with pytest.raises(ImportError, match=r"^ir needs torch 2\.\d+ or newer, .* is installed: pip install '.*'$"):
        versions.check_torch(version)


def test_a_newer_torch_is_warned_of_and_a_tested_one_is_not():
    major, minor = versions.NEWEST
    with pytest.warns(UserWarning, match="newer than .* the newest that ir was tested with"):
        versions.check_torch(f"{major}.{minor + 1}.0a0+git1234")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for known in (versions.OLDEST, versions.NEWEST):
            versions.check_torch("{}.{}.3+cpu".format(*known))


def test_import_ir_takes_nothing_that_is_slow_to_import():
    slow = (
        "sympy",
        "torch._dynamo",
        "torch._inductor",
        "torch.export._trace",
        "torch._export.serde",
        "torch.onnx",
        "onnx",
    )
    code = f"import sys, ir; print([m for m in {slow!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]", out.stdout


def test_quantised_operators_are_defined_on_demand():
    code = (
        "import torch, ir.importer.torch_api as api; api.register_quantized_decomposed(); "
        "torch.ops.quantized_decomposed.dequantize_per_channel_group"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # a process in which nothing else defines them
