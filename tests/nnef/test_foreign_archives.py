"""Archives from elsewhere that would hold up their reader, and texts in which tract's stack ends."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from nnef_backend.errors import DocumentError, TractCrash
from nnef_backend.format import unpack
from nnef_backend.runtime import tract

GRAPH = "version 1.0;\ngraph g(x) -> (y) { x = external(shape = [1]); y = %s; }\n"
ITSELF = "fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = f(x); }\n"


def packed(path: Path, text: str, folders: int = 0, zeros: int = 0) -> Path:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        for _ in range(folders):
            tar.addfile(folder)
        entry = tarfile.TarInfo("graph.nnef")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
    path.write_bytes(gzip.compress(made.getvalue() + bytes(zeros), 1))
    return path


def test_zeros_behind_an_archive_and_folders_in_it_are_bounded(tmp_path):
    text = GRAPH % "relu(x)"
    sound = packed(tmp_path / "a.nnef.tgz", text, folders=100, zeros=1 << 20)
    assert unpack.checked(sound) == text
    with pytest.raises(DocumentError, match="more than 16 MB stand behind the end of the tar archive"):
        unpack.checked(packed(tmp_path / "b.nnef.tgz", text, zeros=1 << 25))
    with pytest.raises(DocumentError, match="more than 16384 members"):
        unpack.checked(packed(tmp_path / "c.nnef.tgz", text, folders=20_000))


@pytest.mark.parametrize("kind", ["itself", "deep"])
def test_a_text_in_which_tracts_stack_ends(kind, tmp_path):
    text = GRAPH % ("f(x)" if kind == "itself" else "relu(" * 20_000 + "x" + ")" * 20_000)
    version, _, rest = text.partition("\n")
    path = packed(tmp_path / "a.nnef.tgz", f"{version}\n{ITSELF if kind == 'itself' else ''}{rest}")
    with pytest.raises(TractCrash, match="may nest too deep for tract's parser, or a fragment may call itself"):
        tract.load(path)
