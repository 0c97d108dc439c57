"""Builds a wheel and an sdist of each package, twice, and holds the two to be the same bytes: FOLDER PACKAGE...

Each build is of a copy of the sources, for hatchling puts a repository's .gitignore into its sdists; the files of the
second copy are younger and have other permissions. --homepage URL is the address that the packages are released at: it
stands in their metadata with its pages, and no pyproject.toml of the repository has to know it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(package: Path, folder: Path) -> None:
    """A wheel and an sdist, by the build backend that is installed here."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(package)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{package.name} is not built:\n{done.stdout}{done.stderr}")


def copied(package: Path, folder: Path, mode: int, time: int, homepage: str | None) -> Path:
    """The package elsewhere, as another checkout may have it."""
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "dist")
    place = Path(shutil.copytree(package, folder / package.name, ignore=skipped, copy_function=shutil.copyfile))
    if homepage is not None:
        with (place / "pyproject.toml").open("a") as project:
            project.write(f"\n[project.urls]\n{urls(homepage)}")
    for file in place.rglob("*"):
        if file.is_file():
            file.chmod(mode)
            os.utime(file, (time, time))
    return place


def urls(homepage: str) -> str:
    """The lines of a [project.urls] table, for a repository at this address."""
    pages = {
        "Homepage": "",
        "Documentation": "/tree/main/docs",
        "Issues": "/issues",
        "Changelog": "/blob/main/CHANGELOG.md",
    }
    return "".join(f'{name} = "{homepage.rstrip("/")}{page}"\n' for name, page in pages.items())


def check_urls(scratch: Path) -> None:
    """A wheel that is built for an address has it in its metadata."""
    build(
        copied(ROOT / "packages" / "ir", scratch / "third", 0o644, 1_700_000_000, "https://example.org/ir"),
        scratch / "at",
    )
    with zipfile.ZipFile(next((scratch / "at").glob("*.whl"))) as wheel:
        metadata = wheel.read(next(n for n in wheel.namelist() if n.endswith("/METADATA"))).decode()
    if "Project-URL: Issues, https://example.org/ir/issues" not in metadata:
        raise SystemExit("--homepage is not in the metadata of the wheel")


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def main() -> None:
    """Build, build again, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--homepage", metavar="URL", help="the address of the repository")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch, "dist")
        for name in given.packages:
            package = ROOT / "packages" / name
            build(copied(package, Path(scratch, "first"), 0o644, 1_700_000_000, given.homepage), given.folder)
            build(copied(package, Path(scratch, "second"), 0o600, 2_000_000_000, given.homepage), again)
        first, second = digests(given.folder), digests(again)
        check_urls(Path(scratch))
    different = sorted(n for n in first.keys() | second.keys() if first.get(n) != second.get(n))
    if different:
        raise SystemExit(f"not the same at each build: {', '.join(different)}")
    print(f"{len(first)} files, the same at each build")


if __name__ == "__main__":
    main()
