"""docs/versions.md: the tests on other versions of torch and Python, `python -m tests.versions [3.10 ...]`.

Each pair has an environment of its own (6 GB), which is made, used and deleted before the next one. Rows of pairs that
are not run stay on the page as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "versions.md"
PACKAGES = ("ir", "onnx_backend", "nnef_backend", "eager_backend")
LIBRARIES = ("onnx", "onnx_ir", "onnxruntime", "nnef", "nnef-tools", "tract", "numpy", "ml_dtypes")
OTHERS = ("torchvision", "timm", "transformers", "onnxscript", "pytest", "expecttest", "hypothesis", "ninja")

# Every version of torch and every version of Python at least once: a run costs a quarter of an hour.
PAIRS = {
    "3.10": "2.11.0",
    "3.11": "2.13.0",
    "3.12": "2.12.1",
    "3.13": "2.14.1",
}
# On the first pair the other libraries are the oldest that the packages admit, on the others the newest.
OLDEST = ("3.10", "2.11.0")

SUITES: dict[str, tuple[str, ...]] = {
    "core": ("tests/ir",),
    "custom ops": (
        "tests/integration/test_custom_ops.py",
        "tests/integration/test_custom_op_signatures.py",
        "tests/integration/test_torch_library.py",
        "tests/integration/test_symbolic_deform_conv.py",
    ),
    "models": ("tests/integration/test_models.py",),
}
COLUMNS = ("Python", "torch", *LIBRARIES, *SUITES)
_BOUND = re.compile(r'"([\w-]+)>=([\w.]+)"')


def bounds() -> dict[str, str]:
    """The lower bounds in the packages' own metadata, by library."""
    texts = [(ROOT / "packages" / p / "pyproject.toml").read_text() for p in PACKAGES]
    return {name: version for text in texts for name, version in _BOUND.findall(text)}


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


def run(python: str, torch: str) -> list[str]:
    """The row of one pair."""
    start = interpreter(python)
    if start is None:
        return [python, torch, *["no such Python here"], *[""] * (len(COLUMNS) - 3)]
    with tempfile.TemporaryDirectory(prefix="ir_versions_") as folder:
        subprocess.run([start, "-m", "venv", folder], check=True)
        command = str(Path(folder, "bin", "python"))
        _install(command, python, torch)
        installed = json.loads(_output(command, "-m", "pip", "list", "--format", "json"))
        known = {p["name"].lower().replace("-", "_"): p["version"] for p in installed}
        libraries = [known[name.lower().replace("-", "_")] for name in LIBRARIES]
        return [python, torch, *libraries, *(_suite(command, paths) for paths in SUITES.values())]


def _install(command: str, python: str, torch: str) -> None:
    pip = [command, "-m", "pip", "install", "-q", "--no-cache-dir"]
    oldest = [f"{name}=={v}" for name, v in bounds().items() if name in LIBRARIES] if (python, torch) == OLDEST else []
    local = [f"./packages/{p}{'[cli]' if p == 'ir' else ''}" for p in PACKAGES]
    subprocess.run([*pip, f"torch=={torch}", *LIBRARIES, *oldest, *OTHERS, *local], check=True, cwd=ROOT)


def _suite(command: str, paths: Sequence[str]) -> str:
    """How many tests passed, and what failed, of some files."""
    options = ("-rfE", "-m", "not slow", "-p", "no:cacheprovider")
    out = _output(command, "-m", "pytest", *options, *paths)
    failed = re.findall(r"^(?:FAILED|ERROR) \S+/(\S+)", out, flags=re.M)
    counted = out.strip().splitlines()[-1]
    print(out[-3000:] if failed else counted, flush=True)
    passed = re.search(r"(\d+) passed", counted)
    return f"{passed[1] if passed else 0} passed" + (f", failed: {', '.join(failed)}" if failed else "")


def _output(*command: str) -> str:
    """What a command prints; tests take the packages that are installed there, and one thread."""
    settings = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False).stdout


def rows() -> dict[str, list[str]]:
    """The rows of the page by version of Python."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if re.match(r"\| \d", line)]
    return {row[0]: row for row in cells if PAIRS.get(row[0]) == row[1] and row[2] != "not run yet"}


def page(found: dict[str, list[str]]) -> str:
    """The page's text."""
    admitted = ", ".join(f"{name} {version}" for name, version in sorted(bounds().items()))
    unknown = {p: [p, torch, "not run yet", *[""] * (len(COLUMNS) - 3)] for p, torch in PAIRS.items()}
    table = [f"| {' | '.join((unknown | found)[python])} |" for python in PAIRS]
    lines = [
        "# Versions",
        "",
        "The core's tests, the custom-op tests and 21 small models on every target, in an environment of its own for",
        "each pair. Written by `nox -s versions`, or a row of it: `python -m tests.versions 3.12`.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *table,
        "",
        *textwrap.wrap(
            f"The packages ask for at least {admitted}: the oldest version of each in a row above. `import ir` refuses "
            "an older torch in a sentence, and warns once of one that is newer than those above. Every version of "
            "Python that is not installed where this is run has a row that says so.",
            width=118,
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", choices=[*PAIRS, []], help="versions of Python; all by default")
    for python in parser.parse_args().pythons or PAIRS:
        row = run(python, PAIRS[python])
        found = rows() | {python: row}  # another process may have written meanwhile
        print(" | ".join(found[python]), flush=True)
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
