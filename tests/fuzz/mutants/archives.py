"""Damaged and hostile NNEF artifacts, as directories, .tar and .tgz, that `nnef_backend.load` opens.

Bytes that were turned over may not change a number: gzip, tensor files and a .tar's text have checksums. The text of a
directory is there to be edited, and an archive that was packed anew was edited as well: these are other programs, which
may run, fail in tract, or be refused.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

from tests.fuzz.mutants.fragments import tract
from tests.fuzz.mutants.kind import NAMES, Kind, changed_bytes, changed_words, emptied, no_file

FORMS = ("m", "m.tar", "m.tgz")
GRAPH = "graph.nnef"


class Mutants(Kind):
    """Three models: convolutions, a dynamic attention, and one with fragments and a loop."""

    name = "archives"
    models = ("convolutions", "attention", "loop")

    def __init__(self, folder: Path) -> None:
        import numpy as np
        import torch

        import ir
        import nnef_backend

        super().__init__(folder)
        self.place = folder / "artifacts"
        self.path = self.place
        self.inputs, self.members, self.whole, self.expected = {}, {}, {}, {}
        for name, (model, x, shapes) in _models().items():
            graph = ir.capture(model, (x,), dynamic_shapes=shapes)
            self.inputs[name] = [x.numpy()]
            for form in FORMS:
                path = ir.export(graph, target="nnef", path=emptied(folder / "whole") / form).path
                if form == "m":
                    files = [f for f in sorted(path.rglob("*")) if f.is_file()]
                    self.members[name] = {f.relative_to(path).as_posix(): f.read_bytes() for f in files}
                else:
                    self.whole[name, form] = path.read_bytes()
            with nnef_backend.load(path) as program:
                self.expected[name] = program.run(self.inputs[name])
            torch.testing.assert_close(torch.from_numpy(np.array(self.expected[name][0])), model(x).detach())

    def mutant(self, rng: random.Random, model: str) -> str:
        emptied(self.place)
        self.path = self.place / rng.choice(FORMS)
        kind = rng.choice(("bytes", "bytes", "bytes", "text", "text", "text", "tensor", "members", "tar", "place"))
        members = dict(self.members[model])
        if kind == "bytes":
            return self._damaged(rng, model, members)
        if kind == "tar":
            self.path = self.place / rng.choice(FORMS[1:])
            self.path.write_bytes(_packed(self.path, _hostile_tar(rng, members, self.canary)))
            return kind
        if kind == "text":
            members[GRAPH] = changed_words(rng, members[GRAPH].decode()).encode(errors="surrogateescape")
        elif kind == "tensor":
            name = rng.choice([n for n in members if n != GRAPH])
            members[name] = _changed_tensor(rng, members[name])
        elif kind == "members":
            members = _changed_members(rng, members)
        self._written(members)
        if kind == "place":
            self._moved(rng)
        return kind

    def _damaged(self, rng: random.Random, model: str, members: dict[str, bytes]) -> str:
        """Bytes of a file turned over; of a directory's text that is an edit."""
        if self.path.name == "m":
            name = rng.choice(list(members))
            members[name] = changed_bytes(rng, members[name])
            self._written(members)
            return "text" if name == GRAPH else "bytes"
        self.path.write_bytes(changed_bytes(rng, self.whole[model, self.path.name]))
        return "bytes"

    def _written(self, members: dict[str, bytes]) -> None:
        if self.path.name == "m":
            for name, data in members.items():
                file = self.path / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        else:
            self.path.write_bytes(_packed(self.path, _tar(list(members.items()))))

    def _moved(self, rng: random.Random) -> None:
        """Another name, something that is no file in its place, or in the place of a member."""
        if rng.random() < 0.5:
            moved = self.place / rng.choice(NAMES)
            os.rename(self.path, moved)
            self.path = moved
        elif self.path.is_dir():
            no_file(rng, rng.choice([f for f in sorted(self.path.rglob("*")) if f.is_file()]))
        else:
            no_file(rng, self.path)

    def outcome(self, model: str, kind: str) -> str:
        import numpy as np

        import nnef_backend
        from nnef_backend.runtime.tract import shared_worker

        with nnef_backend.load(self.path) as program:
            assert shared_worker().alive
            program.timeout, program.memory = 2, 512 << 20
            found = program.run(self.inputs[model])
        expected = self.expected[model]
        if len(found) == len(expected) and all(map(np.array_equal, found, expected)):
            return "the same numbers"
        return "WRONG: other numbers, and no sum noticed" if kind == "bytes" else "another program"

    def processes(self) -> list[int]:
        return tract()


def _models() -> dict[str, tuple[Any, Any, Any]]:
    import torch

    torch.manual_seed(0)
    nn = torch.nn
    convolutions = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    )
    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(8, 6, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cell(x)[0] * 2

    return {
        "convolutions": (convolutions.eval(), torch.randn(2, 3, 8, 8), None),
        "attention": (attention.eval(), torch.randn(2, 5, 8), ({0: "batch", 1: "length"},)),
        "loop": (Loop().eval(), torch.randn(2, 5, 8), None),
    }


# -- tensors and members -----------------------------------------------------------------------------------------------


def _changed_tensor(rng: random.Random, data: bytes) -> bytes:
    """A header that says something else, with the right checksum, none or an old one."""
    head = bytearray(data[:128])
    for _ in range(rng.choice((1, 1, 2, 3))):
        place, form = rng.choice(((4, "<I"), (8, "<I"), (12, "<I"), (16, "<I"), (20, "<I"), (40, "<I"), (44, "<I"),
                                  (48, "<H"), (50, "<H"), (2, "B"), (3, "B")))  # fmt: skip
        most = 1 << (8 * struct.calcsize(form))
        value = rng.choice((0, 1, 2, 3, 4, 5, 8, 9, 16, 32, 64, 0x3040, 0x5452, most - 1, most // 2)) % most
        struct.pack_into(form, head, place, value)
    body = data[128:] if rng.random() < 0.7 else data[128 : 128 + rng.randrange(len(data) - 127)]
    sums = (zlib.crc32(body, zlib.crc32(bytes(head[:124]))), 0, int.from_bytes(data[124:128], "little"))
    return bytes(head[:124]) + rng.choice(sums).to_bytes(4, "little") + body


def _changed_members(rng: random.Random, members: dict[str, bytes]) -> dict[str, bytes]:
    name, other = rng.sample(list(members), 2)
    rest = {k: v for k, v in members.items() if k != name}
    return rng.choice((
        rest, {**rest, f"{name}x": members[name]}, {**rest, name: members[name][:-3]}, {**rest, name: members[other]},
        {**rest, name: b""}, {**members, "stray.dat": members[other]}, {**members, "code.py": b"import os"},
        {**members, name: rng.randbytes(rng.randrange(1, 400))}, {**members, "graph.quant": rng.randbytes(50)},
    ))  # fmt: skip


# -- tar ---------------------------------------------------------------------------------------------------------------


def _entry(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.linkname = size, kind, link
    return entry


def _tar(members: list[tuple[str, bytes]], *more: tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of these files, and of entries without content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for entry in more[::2]:
            tar.addfile(entry)
        for name, data in members:
            tar.addfile(_entry(name, len(data)), io.BytesIO(data))
        for entry in more[1::2]:
            tar.addfile(entry)
    return stream.getvalue()


def _packed(path: Path, tar: bytes) -> bytes:
    return gzip.compress(tar, 1) if path.name == "m.tgz" else tar


def _hostile_tar(rng: random.Random, members: dict[str, bytes], canary: Path) -> bytes:
    """Links, devices, names that lead out, names of every length, sizes that lie, members by the thousand."""
    items = list(members.items())
    name = rng.choice(list(members))
    out = rng.choice((f"../{canary.name}", str(canary), f"a/../../{canary.name}", f"./{'x/' * 50}../{canary.name}"))
    kinds = (
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.DIRTYPE,
        b"S",
        b"V",
    )
    strange = rng.choice((*NAMES, "x" * 3000, "/".join("d" * 300), ".", "/", "", "graph.nnef/x", f"{name}/x"))
    lie = rng.choice((0, 1, 2**20, 2**31, 2**33, 2**40))
    made = rng.randrange(8)
    if made == 0:
        return _tar([*items, (out, b"x")])
    if made == 1:
        kind = rng.choice(kinds)
        return _tar(
            items, _entry(rng.choice((out, "link", strange or "x")), 0, kind, rng.choice((str(canary), "/etc/passwd")))
        )
    if made == 2:
        return _tar([*items, (strange or "x", b"x")], form=rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)))
    if made == 3:  # a size in an extended header, which readers need not take alike
        entry = _entry("more", 0)
        entry.pax_headers = {rng.choice(("size", "path", "GNU.sparse.size", "linkpath", "hdrcharset")): str(lie)}
        return _tar(items, entry)
    if made == 4:
        return _tar(items, *(_entry(f"f{i}") for i in range(rng.choice((10, 20_000)))))
    if made == 5:
        return _tar([*items, *items[:1]])
    if made == 6:
        data = _tar([(n, bytes(1 << 20) if n == name else d) for n, d in items])
        return data + bytes(rng.choice((0, 1 << 20, 1 << 28)))
    whole = bytearray(_tar(items))  # a size that lies, with the header's own checksum right
    entry = tarfile.TarInfo.frombuf(bytes(whole[:512]), "utf-8", "strict")
    entry.size = lie
    whole[:512] = entry.tobuf(tarfile.GNU_FORMAT)
    return bytes(whole)
