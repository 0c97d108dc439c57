"""Damaged and hostile .safetensors files beside which a model is exported, with references into them.

The format has no checksum. What is referred to was compared with the model's own bytes, so that a file that was damaged
before the export is refused or not referred to; one that is damaged later no reader can tell, and that is not tried.
"""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

from tests.fuzz.mutants.kind import NAMES, Kind, changed_bytes, changed_document, emptied, no_file

_LEAVES: tuple[Any, ...] = (
    None, 0, 1, -1, 64, 2**31, 2**63, 2**64, 10**30, 0.5, 1e308, float("inf"), float("nan"), "", "F32", "F16", "BF16",
    "I64", "F8_E4M3", "F4", "X", "__class__", "../x", True, [], {}, [[[]]], [0, 0], [0, 4096], [4096, 0], [-4096, 0],
    [64] * 100, "a\"'\n\\b", "\udcff", "\ud800", "x" * 3000,
)  # fmt: skip


class Mutants(Kind):
    """One file, with another element type, or two of them."""

    name = "safetensors"
    models = ("floats", "halves", "shards")

    def __init__(self, folder: Path) -> None:
        import torch

        import ir

        super().__init__(folder)
        self.place = folder / "export"
        torch.manual_seed(0)
        layers = [torch.nn.Linear(32, 48), torch.nn.ReLU(), torch.nn.Linear(48, 32, bias=False)]
        model = torch.nn.Sequential(*layers, torch.nn.LayerNorm(32)).eval()
        self.x = torch.randn(2, 32)
        self.graphs, self.expected, self.headers = {}, {}, {}
        for name in self.models:
            x = self.x.half() if name == "halves" else self.x
            self.graphs[name] = ir.capture(model.half() if name == "halves" else model.float(), (x,))
            self.expected[name] = model(x).detach()
            state = {k: v.clone() for k, v in model.state_dict().items()}
            half = len(state) // 2 if name == "shards" else len(state)
            self.headers[name] = [_parts(dict(part)) for part in _split(list(state.items()), half)]

    def mutant(self, rng: random.Random, model: str) -> str:
        emptied(self.place)
        files = [self.place / f"model-{i}.safetensors" for i in range(len(self.headers[model]))]
        for file, (header, data) in zip(files, self.headers[model], strict=True):
            file.write_bytes(_file(header, data))
        file, (header, data) = rng.choice(list(zip(files, self.headers[model], strict=True)))
        kind = rng.choice(("bytes", "bytes", "header", "header", "header", "length", "names", "place"))
        if kind == "bytes":
            file.write_bytes(changed_bytes(rng, file.read_bytes()))
        elif kind == "header":
            file.write_bytes(_file(changed_document(rng, header, _LEAVES, ()), data))
        elif kind == "length":
            size = rng.choice((0, 1, len(header) - 1, len(header) + 1, 2**31, 2**63, 2**64 - 1, rng.randrange(2**64)))
            file.write_bytes(struct.pack("<Q", size) + header + data[: rng.choice((0, 1, len(data)))])
        elif kind == "names":
            file.write_bytes(_file(_names_changed(rng, header), data))
        else:
            self._moved(rng, file)
        return kind

    def _moved(self, rng: random.Random, file: Path) -> None:
        """Another name, or no file there."""
        if rng.random() < 0.5:
            os.rename(file, self.place / f"{rng.choice(NAMES)}.safetensors")
        else:
            no_file(rng, file)

    def outcome(self, model: str, kind: str) -> str:
        import numpy as np
        import onnxruntime

        import ir

        before = _contents(self.place)
        path = self.place / "m.onnx"
        refused = False
        try:
            ir.export(self.graphs[model], target="onnx", path=path, external_data="reference", verify=True)
        except ir.ExportError:
            refused = True
        if {n: c for n, c in _contents(self.place).items() if n not in (b"m.onnx", b"m.onnx.data")} != before:
            return "FOREIGN: other files were touched"
        if refused:
            return "refused"
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        x = self.x.half() if model == "halves" else self.x
        found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
        same = np.allclose(found, self.expected[model].numpy(), 2e-2 if model == "halves" else 1e-4, 1e-2)
        return "right numbers" if same else "WRONG: other numbers than torch's"


def _split(items: list[Any], size: int) -> list[list[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def _parts(state: dict[str, Any]) -> tuple[bytes, bytes]:
    """Header and data of these tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, t in state.items():
        raw = t.numpy().tobytes()
        kind = "F16" if t.element_size() == 2 else "F32"
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return json.dumps(header).encode(), data


def _file(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def _names_changed(rng: random.Random, header: bytes) -> bytes:
    """A tensor under a name that means something elsewhere, twice, or below a million brackets."""
    document = json.loads(header)
    name = rng.choice([n for n in document if n != "__metadata__"])
    kind = rng.randrange(4)
    if kind == 0:
        document[rng.choice((*NAMES, "../../x", "/x", "__metadata__", "", "\0", "x" * 100_000))] = document.pop(name)
    elif kind == 1:
        return header[:-1] + b"," + json.dumps({name: document[name]}).encode()[1:]
    elif kind == 2:
        return header[:-1] + b',"deep":' + b"[" * rng.choice((100, 10**5)) + b"]" * 100 + b"}"
    else:
        document |= {f"{name}.{i}": {**document[name], "shape": [0], "data_offsets": [0, 0]} for i in range(20_000)}
    return json.dumps(document).encode()


def _contents(folder: Path) -> dict[bytes, bytes]:
    """What is in a folder; of anything but a plain file only that it is there."""
    found = {}
    for entry in os.scandir(os.fsencode(folder)):
        found[entry.name] = Path(os.fsdecode(entry.path)).read_bytes() if entry.is_file(follow_symlinks=False) else b""
    return found
