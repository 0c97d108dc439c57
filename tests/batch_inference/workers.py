"""Runners that note what their process did, and some that end it in the middle of a batch."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ir
from ir.runtime.runner import FileRunner
from ir.runtime.sessions import opened_here

ROWS = 600
TARGETS = {"onnx": ".onnx", "nnef": ".nnef.tgz", "eager": ".pt2"}


class Model(torch.nn.Module):
    """Small images and a number for each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 5)

    def forward(self, image: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.linear(torch.relu(self.conv(image)).mean((2, 3)))
        return scores, (scores.sum(-1) * weight)


def table(rows: int = ROWS) -> dict[str, np.ndarray]:
    """The same rows for everybody."""
    random = np.random.default_rng(0)
    images = random.standard_normal((rows, 3, 8, 8), np.float32)
    return {"id": np.arange(rows), "image": images, "weight": np.arange(rows, dtype=np.float32)}


def write(folder: Path) -> dict[str, Path]:
    """The model for every target."""
    torch.manual_seed(0)
    model, args = Model().eval(), (torch.randn(4, 3, 8, 8), torch.randn(4))
    paths = {target: folder / f"model{suffix}" for target, suffix in TARGETS.items()}
    for target, path in paths.items():
        shapes, names = ({0: "batch"}, {0: "batch"}), ["scores", "total"]
        ir.export(model, args, target=target, path=path, dynamic_shapes=shapes, output_names=names, verify=True)
    return paths


def runner(path: Path, **options: Any) -> FileRunner:
    """A .pt2 file keeps no names of outputs."""
    outputs = {"output_0": "scores", "output_1": "total"} if path.suffix == ".pt2" else None
    return ir.runner(path, outputs=outputs, batch_size=16, **options)


@dataclass(frozen=True)
class Noted(FileRunner):
    """Notes a file for each session that a process opened; ends its process `deaths` times, once each at a batch."""

    folder: str = ""
    deaths: int = 0

    def tensors(self, table: Any) -> dict[str, Any]:
        found = super().tensors(table)
        place = Path(self.folder)
        if not (place / "parent").exists() or (place / "parent").read_text() != str(os.getpid()):
            for number in range(opened_here().count(self._key)):
                (place / f"opened-{os.getpid()}-{number}-{self.program.threads}").touch()
            if next(iter(found.values())).shape[0] > 1:  # not one that asks for the types alone
                self._die(place)
        return found

    def _die(self, place: Path) -> None:
        for number in range(self.deaths):
            try:
                (place / f"died-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            time.sleep(0.2)
            os._exit(1)


def noted(found: FileRunner, folder: Path, deaths: int = 0) -> Noted:
    """A runner that notes, of one that does not."""
    folder.mkdir(exist_ok=True)
    (folder / "parent").write_text(str(os.getpid()))
    return Noted(**vars(found), folder=str(folder), deaths=deaths)


def check(ids: Any, scores: Any, total: Any, path: Path) -> None:
    """Every row once, with what the plain loop gives."""
    ids = np.asarray(ids)
    assert sorted(ids.tolist()) == list(range(ROWS))
    wanted = runner(path, threads=1)(table())
    order = np.argsort(ids)
    scores = np.stack(list(map(np.asarray, scores)))
    np.testing.assert_allclose(scores[order], wanted["scores"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.asarray(total)[order], wanted["total"], rtol=1e-5, atol=1e-4)


def check_sessions(folder: Path, workers: int, deaths: int = 0) -> None:
    """One session for each process, one thread each."""
    notes = [p.name.split("-")[1:] for p in folder.glob("opened-*")]
    assert {n for _, n, _ in notes} == {"0"}, "a process opened two sessions"
    assert len({pid for pid, *_ in notes}) <= workers + deaths
    assert {t for *_, t in notes} == {"1"}
    assert len(list(folder.glob("died-*"))) == deaths
