"""Damaged and hostile ONNX models in the place of an export: what lies there is read for the files that go with it.

The export must be right whatever was there, and no file may go that is not the old model's own data file.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.fuzz.mutants.kind import Kind, changed_bytes, emptied, no_file

STRANGERS = {"n.onnx.data": b"another model's", "notes.txt": b"notes", "x.data": b"x", "m.onnx.data.bak": b"kept"}
_PLACES = ("n.onnx.data", "../outside.d", "notes.txt", "x.data", "m.onnx", ".", "/etc/passwd", "m.onnx.data.bak", "")


class Mutants(Kind):
    """A model with a data file, changed, and exported over with and without a data file."""

    name = "onnx"
    models = ("data file", "in one")

    def __init__(self, folder: Path) -> None:
        import torch

        import ir

        super().__init__(folder)
        self.place = folder / "export"
        self.outside = folder / "outside.d"
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.ReLU(), torch.nn.Linear(48, 32)).eval()
        self.x = torch.randn(2, 32)
        self.graph, self.expected = ir.capture(model, (self.x,)), model(self.x).detach().numpy()
        path = emptied(self.place) / "m.onnx"
        ir.export(self.graph, target="onnx", path=path, external_data=True)
        self.whole, self.data = path.read_bytes(), (self.place / "m.onnx.data").read_bytes()

    def mutant(self, rng: random.Random, model: str) -> str:
        emptied(self.place)
        self.outside.write_bytes(b"outside")
        for name, content in {**STRANGERS, "m.onnx.data": self.data}.items():
            (self.place / name).write_bytes(content)
        path = self.place / "m.onnx"
        kind = rng.choice(("bytes", "bytes", "locations", "locations", "lengths", "place"))
        if kind == "bytes":
            path.write_bytes(changed_bytes(rng, self.whole))
        elif kind == "locations":
            path.write_bytes(_located(rng, self.whole))
        elif kind == "lengths":
            at = self.whole.find(b"location") - rng.randrange(1, 40)
            number = rng.choice((b"\xff" * 9, b"\x00", b"\x7f", b"\xff\xff\x03"))
            path.write_bytes(self.whole[:at] + number + self.whole[at:])
        else:
            no_file(rng, path)
        return kind

    def outcome(self, model: str, kind: str) -> str:
        import ir

        path = self.place / "m.onnx"
        try:
            ir.export(self.graph, target="onnx", path=path, external_data=model == "data file")
            done = "replaced"
        except ir.ExportError:
            done = "refused"
        if any((self.place / n).read_bytes() != c for n, c in STRANGERS.items()) or not self.outside.exists():
            return "FOREIGN: a stranger's file is gone"
        return done if done == "refused" or self._right(path) else "WRONG: other numbers than torch's"

    def _right(self, path: Path) -> bool:
        import numpy as np
        import onnxruntime

        session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = session.run(None, {session.get_inputs()[0].name: self.x.numpy()})[0]
        return bool(np.allclose(found, self.expected, 1e-4, 1e-5))


def _located(rng: random.Random, whole: bytes) -> bytes:
    """Weights that lie somewhere else, by names of the old name's length and of others."""
    old = b"m.onnx.data"
    parts = whole.split(old)
    made = parts[0]
    for part in parts[1:]:
        name = rng.choice(_PLACES).encode()
        made += rng.choice((name, name.ljust(len(old), b"/")[: len(old)], old, b"\xff" * len(old))) + part
    return made
