"""Bugs planted in the core's logic, one a file, that the tests which CI runs must notice: `nox -s planted`.

Each is one edit of one file in a copy of the tree; the selection of tests named with it must pass without and fail with
it. A test compares that every text to be replaced still occurs exactly once, so that the list cannot rot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "packages"


@dataclass(frozen=True)
class Bug:
    """`old` becomes `new` in a file below packages/; `tests` is what pytest is called with."""

    file: str
    old: str
    new: str
    tests: str

    @property
    def path(self) -> Path:
        package, _, rest = self.file.partition("/")
        return Path("packages", package, "src", package, rest)

    def occurs(self, root: Path = ROOT) -> int:
        return (root / self.path).read_text().count(self.old)


REWRITES = "tests/ir/test_passes.py tests/ir/test_passes_rewrites.py"
TABLE = "tests/integration/test_cases.py -k "
INPLACE = "eager_backend/passes/inplace.py"
PT2, READER, WRITES = "ir/importer/pt2/", "tests/ir/test_pt2_reader.py", "tests/ir/test_writes.py"
UNSHARED, OWN_STATE = "ir/importer/private_writes.py", "ir/passes/own_state.py"
HELPER, EMISSION = "nnef_backend/helper.py", "nnef_backend/building/emission.py"
FIXED = "tests/integration/test_fixed_numbers.py"
BUGS = (
    # sizes
    Bug("ir/dims.py", "pick(gap, 0) == gap", "pick(gap, 0) != gap", "tests/ir/test_dims.py"),
    Bug("ir/dims.py", "symbol(s.name, s.kind)), apply)", "symbol(s.name)), apply)", "tests/ir/test_dims.py"),
    Bug("ir/bounds.py", "(a[0] - b[1], a[1] - b[0])", "(a[0] - b[0], a[1] - b[1])", "tests/ir/test_dims.py"),
    Bug("ir/importer/symbols.py", "names.get(str(s), \"\")) not in taken:", "names.get(str(s), \"\")):",
        "tests/ir/test_symbols.py"),
    Bug("ir/importer/symbols.py", "}\") in taken", "}\") in ()", "tests/ir/test_importer.py"),
    Bug("ir/passes/promote.py", "functools.reduce(promote_types, types, common)", "common", "tests/ir/test_promote.py"),
    Bug("ir/importer/symbols.py", "low == 2 and name not in", "low == 0 and name not in", "tests/ir/test_importer.py"),
    Bug("ir/importer/trace_context.py", "xreplace(values) == False", "xreplace(values) is None",
        "tests/integration/test_fixed_numbers.py"),
    Bug("ir/specialization.py", "True if not all(r.ok", "True if all(r.ok",
        "tests/integration/test_the_model_itself.py"),
    Bug("ir/importer/input_strides.py", "and uses.tells_copies(node)", "", "tests/ir/test_input_strides.py"),
    Bug("ir/importer/real_views.py", "if met.get(node) is not view:", "if False:", "tests/ir/test_input_strides.py"),
    Bug("ir/importer/copied_sizes.py", "for j in range(len(group)) for i in range(j)]", "for j in () for i in ()]",
        "tests/ir/test_copied_sizes.py"),
    Bug("ir/importer/memory_uses.py", "for one, other in ((made, given), (given, made))",
        "for one, other in ((made, given),)", "tests/ir/test_input_strides.py"),
    Bug("ir/conditions.py", "fits = size == sizes[d.as_symbol] and size >=", "fits = size >=",
        "tests/integration/test_calls.py"),
    Bug("ir/conditions.py", '"aten::_assert_scalar": ("self", "assert_msg")', "", FIXED),
    Bug("ir/importer/guards.py", "if fixed and not kernel", "if fixed and kernel", FIXED),
    Bug("eager_backend/runtime/captured.py", "if _counts_pieces(graph):", "if False:", FIXED),
    # writes
    Bug("ir/importer/functionalize.py", "while overlaps(parent.place, self.number) and parent is not root:",
        "while False:", WRITES),
    Bug("ir/geometry.py", "result[p] = i", "result[i] = p", "tests/ir/test_writes.py"),
    Bug("ir/importer/scatters.py", "end = start + value.type.shape[axis] * by", "end = start + value.type.shape[axis]",
        "tests/ir/test_writes.py"),
    Bug("ir/importer/scatters.py", "value, shape, self=value, shape=shape)", "value, shape, self=base(), shape=shape)",
        "tests/ir/test_writes.py"),
    Bug(UNSHARED, "place[u] < place[node] and _is_operator(u)", "_is_operator(u)", WRITES),
    Bug(UNSHARED, "_is_operator(u) and not may_alias(u.target)", "_is_operator(u)", WRITES),
    Bug(UNSHARED, "and keeps_type(n) for n in writers", "for n in writers", WRITES),
    Bug(UNSHARED, "if n != 1]", "if n != 1 and False]", WRITES),
    Bug(UNSHARED, " or hint < 2", "", "tests/integration/test_own_state.py"),
    Bug(OWN_STATE, "if _memory(weight) in written:", "if weight.name in graph.updates:",
        "tests/integration/test_own_state.py"),
    Bug(OWN_STATE, "if id(weight.tensor) not in copies:", "if True:", "tests/integration/test_own_state.py"),
    # files of torch.export
    Bug(PT2 + "archive.py", "if self._crc(start, size) != crc:", "if self._crc(start, size) is None:",
        READER + " -k flipped"),
    Bug(PT2 + "archive.py", "if name in found:", "if name is found:", "tests/ir/test_pt2.py"),
    Bug(PT2 + "archive.py", "if at != end:", "if at > end:", "tests/ir/test_pt2.py"),
    Bug(PT2 + "weights.py", "as_strided(meta.shape, meta.strides, meta.offset)", "as_strided(meta.shape, meta.strides)",
        READER + " -k mapped"),
    Bug(PT2 + "weights.py", "if (last + 1) * width > size:", "if last > size:", "tests/ir/test_pt2.py " + READER),
    Bug(PT2 + "values.py", '"-Infinity": -math.inf', '"-Infinity": math.inf', READER),
    Bug(PT2 + "expressions.py", "Fraction(int(values[0]), int(values[1]))", "Fraction(int(values[1]), int(values[0]))",
        READER + " -k sizes"),
    Bug(PT2 + "expressions.py", "if terms > _MOST_TERMS:", "if not terms:", READER + " -k power"),
    Bug(PT2 + "graphs.py", "tag in _NAMED and not lone", "tag in _NAMED", READER),
    Bug(PT2 + "graphs.py", "if identifier(name) in self.nodes:", "if not identifier(name):", READER),
    Bug(PT2 + "operators.py", "and number < least)", "and number < 0)", READER),
    Bug(PT2 + "operators.py", "if not outside and", "if", "tests/ir/test_pt2.py"),
    Bug(PT2 + "consistency.py", "made.dtype or not fits", "made.dtype",
        READER),
    Bug(PT2 + "program.py", "(t.dtype, tuple(t.shape), t.layout) for t in", "(t.dtype, (), t.layout) for t in",
        "tests/ir/test_pt2.py"),
    Bug(PT2 + "trees.py", '_FACTORIES[factory], _keys(context["dict_context"], specs)', "_FACTORIES[factory], context",
        READER),
    Bug(PT2 + "symbols.py", "low, high = self._ranges.get(s, (None, None))", "low, high = None, None", READER),
    # the driver, its registry, what is compared, how a program is called
    Bug("ir/lower.py", 'if handler.layer != "builtin" or context is None', "if context is None",
        "tests/ir/test_driver.py tests/ir/test_promote.py"),
    Bug("ir/registry.py", "in reversed(undo or ()):", "in undo or ():", "tests/ir/test_registry.py"),
    Bug("ir/verify.py", "np.where(np.isnan(gap), np.inf, gap)", "np.where(np.isnan(gap), 0.0, gap)",
        "tests/ir/test_verify.py"),
    Bug("ir/importer/nesting.py", "for key, part in parts.items():\n            part(given[key], found)",
        "for part, one in zip(parts.values(), given.values(), strict=True):\n            part(one, found)",
        "tests/integration/test_calls.py"),
    Bug("ir/importer/calling_convention.py", "if kwargs.children() or not", "if not",
        "tests/integration/test_calls.py"),
    Bug("ir/lower.py", "node.defaults[name] != arg", "node.defaults[name] == arg", "tests/ir/test_driver.py"),
    Bug("ir/registry.py", "key=lambda e: e.since_version)", "key=lambda e: -e.since_version)",
        "tests/ir/test_registry.py"),
    Bug("ir/verify.py", "max(scale, known, _LEAST)", "max(scale, known, 1.0)", "tests/ir/test_verify.py"),
    # passes
    Bug("ir/passes/collapse_casts.py", "a.bits <= _SIGNIFICANT[b]", "a.bits <= 2 * _SIGNIFICANT[b]", REWRITES),
    Bug("ir/passes/cse.py", "if graph.random:", "if graph.random and not graph.nodes:", REWRITES),
    Bug("ir/passes/simplify_arithmetic.py", 'return (op in _SUBTRACT) == (math.copysign(1, zero) > 0)',
        "return True", REWRITES),
    Bug("ir/passes/collapse_views.py", ' and "dtype" not in node.args', "", REWRITES),
    Bug("ir/passes/exact_sizes.py", "return [large, others, *small, *alone]", "return [large, others, *small]",
        "tests/onnx/test_exact_sizes.py"),
    Bug("ir/passes/promote.py", "_CATEGORY[c.kind] > _CATEGORY", "_CATEGORY[c.kind] >= _CATEGORY",
        "tests/ir/test_promote.py"),
    # backends
    Bug("onnx_backend/building/emission.py", "float(np.float32(value)) != value", "value != value",
        "tests/onnx/test_double.py"),
    Bug("onnx_backend/building/emission.py", "through.get(v, m.type.dtype)", "cast_back.get(v, m.type.dtype)",
        TABLE + "'onnx and f16'"),
    Bug("onnx_backend/building/sizes.py", 'return self._floordiv(*args)', 'return self.emit("Div", *args)',
        TABLE + "'onnx and zeros_rounded'"),
    Bug("nnef_backend/building/exact.py", "return h.cast(made, dtype)", 'return h.emit("tract_core_cast", x, to=dtype)',
        TABLE + "'nnef and floats_to_u8'"),
    Bug("nnef_backend/building/verbs.py", 'self.emit("lt", r, 0), self.emit("lt", b, 0)',
        'self.emit("lt", r, 0), self.emit("lt", a, 0)', TABLE + "'nnef and (floor or remainder)'"),
    Bug("nnef_backend/building/steps.py", "exact = float(np.float32(number)) == number", "exact = True",
        "tests/nnef/test_numbers.py"),
    Bug(HELPER, "not in (DType.int32, DType.int64):\n            x =", "not in (dtype,):\n            x =",
        "tests/nnef/test_numbers.py -k low_bits"),
    Bug(HELPER, "or any(result is o for o in outputs)", "", "tests/nnef/test_numbers.py"),
    Bug(HELPER, "not in self.scope.made or is_source or", "not in self.scope.made or",
        "tests/nnef/test_io.py tests/nnef/test_numbers.py"),
    Bug(EMISSION, "fixed=all(v.fixed", "fixed=any(v.fixed", "tests/nnef/test_numbers.py"),
    Bug(HELPER, "if 0 in value.type.shape and", "if False and", TABLE + "'nnef and empty_batch'"),
    Bug(EMISSION, "made[0].may_be(made[1])", "made[0] is None", "tests/nnef/test_numbers.py -k squares"),
    Bug("nnef_backend/format/archive.py", "padding = -size % TAR_BLOCK", "padding = size % TAR_BLOCK",
        "tests/nnef/test_io.py"),
    Bug(INPLACE, "own = owned - aliased", "own = owned", "tests/eager/test_passes.py"),
    Bug(INPLACE, "tags.pop() if len(tags) == 1 else None", "max(tags, key=bool) if tags else None",
        "tests/eager/test_passes.py"),
    Bug(INPLACE, "and target.type == result.type", "", "tests/eager/test_passes.py"),
    Bug(INPLACE, "            once\n            and target", "            target", "tests/eager/test_passes.py"),
)  # fmt: skip


def copy_to(folder: Path) -> None:
    """The tree without what is built, cached or ignored."""
    for part in ("packages", "tests", "examples", "docs", "pyproject.toml", "README.md", "DESIGN.md"):
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
        else:
            shutil.copy(source, folder / part)


def passes(folder: Path, tests: str) -> bool:
    """True if these tests pass on the tree in this folder."""
    paths = [str(p) for p in sorted(folder.glob("packages/*/src"))]
    command = f"{sys.executable} -m pytest -q -x -p no:cacheprovider -m 'not slow' {tests}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode in (3, 4, 5):  # a bug may show when the tests are collected, or end the process
        raise RuntimeError(f"pytest did not run {tests}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def survivors(bugs: Sequence[Bug] = BUGS) -> list[Bug]:
    """The bugs that no test notices."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_to(folder)
        for tests in dict.fromkeys(b.tests for b in bugs):
            if not passes(folder, tests):
                raise RuntimeError(f"{tests} fails without a bug")
        for bug in bugs:
            file = folder / bug.path
            text = file.read_text()
            file.write_text(text.replace(bug.old, bug.new))
            survived = passes(folder, bug.tests)
            file.write_text(text)
            print("SURVIVED" if survived else "noticed ", bug.file, repr(bug.old[:60]), flush=True)
            if survived:
                found.append(bug)
    return found


def main() -> int:
    chosen = [b for b in BUGS if not sys.argv[1:] or any(a in b.file for a in sys.argv[1:])]
    return int(bool(survivors(chosen)))


if __name__ == "__main__":
    sys.exit(main())
