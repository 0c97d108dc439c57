"""Builds a wheel and an sdist of each package, twice, and holds the two to be the same bytes: FOLDER PACKAGE...

Each build is of a copy of the sources, for hatchling puts a repository's .gitignore into its sdists; the files of the
second copy are younger and have other permissions.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(package: Path, folder: Path) -> None:
    """A wheel and an sdist, by the build backend that is installed here."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(package)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{package.name} is not built:\n{done.stdout}{done.stderr}")


def copied(package: Path, folder: Path, mode: int, time: int) -> Path:
    """The package elsewhere, as another checkout may have it."""
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "dist")
    place = Path(shutil.copytree(package, folder / package.name, ignore=skipped, copy_function=shutil.copyfile))
    for file in place.rglob("*"):
        if file.is_file():
            file.chmod(mode)
            os.utime(file, (time, time))
    return place


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def main(folder: Path, packages: list[str]) -> None:
    """Build, build again, compare."""
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch, "dist")
        for name in packages:
            package = ROOT / "packages" / name
            build(copied(package, Path(scratch, "first"), 0o644, 1_700_000_000), folder)
            build(copied(package, Path(scratch, "second"), 0o600, 2_000_000_000), again)
        first, second = digests(folder), digests(again)
    different = sorted(n for n in first.keys() | second.keys() if first.get(n) != second.get(n))
    if different:
        raise SystemExit(f"not the same at each build: {', '.join(different)}")
    print(f"{len(first)} files, the same at each build")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
