"""A small document as its text, to be run in tract: what one attaches to an issue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ir.errors import ExportError
from nnef_backend.format.dat import ITEM_TYPES
from nnef_backend.format.document import Document, without_comments

_WIDTH = 300  # an issue shows long lines
_DAT = (
    "def dat(label, a, item):",
    '    head = struct.pack("<2s2B11I2H76x", b"\\x4e\\xef", 1, 0, a.nbytes, a.ndim, '
    "*a.shape, *[0] * (8 - a.ndim), a.itemsize * 8, item, 0)",
    '    (folder / f"{label}.dat").write_bytes(head + np.ascontiguousarray(a).tobytes())',
)


def script(document: Document, literal: Callable[[Any], str]) -> tuple[list[str], list[str]]:
    """The modules to import, and lines that define `run`.

    Raises:
        ExportError: a tensor is stored in blocks of 4 bits.
    """
    imports = ["pathlib", "struct", "tempfile", "tract"]
    lines = ["folder = pathlib.Path(tempfile.mkdtemp())", 'folder.joinpath("graph.nnef").write_text("""']
    lines += [*_text(document), '""")']
    if document.tensors:
        lines += [*_DAT, *_tensors(document, literal)]
    return imports, [
        *lines,
        "def run(*tensors):",
        "    loader = tract.nnef().with_tract_extra().with_tract_transformers().with_onnx()",
        "    return [t.to_numpy() for t in loader.load(folder).into_runnable().run([t.numpy() for t in tensors])]",
    ]


def _text(document: Document) -> Iterator[str]:
    """The document with several statements on a line."""
    line = ""
    for statement in without_comments(document.to_text()).splitlines():
        words = statement.strip()
        if line and (len(line) + len(words) + 1 > _WIDTH or line.startswith("version")):
            yield line
            line = ""
        line = f"{line} {words}".strip()
    yield line.replace("\\", "\\\\")


def _tensors(document: Document, literal: Callable[[Any], str]) -> Iterator[str]:
    for label, source in document.tensors.items():
        array = source() if callable(source) else source
        if not isinstance(array, np.ndarray):
            raise ExportError("a tensor in blocks of 4 bits has no form in numpy")
        yield f"dat({label!r}, {literal(array)}, {ITEM_TYPES[array.dtype.kind]})"
