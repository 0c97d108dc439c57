"""Mutants of every kind in turn, in one child: the fixed slice of the tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import ClassVar

from tests.fuzz.mutants import archives, fragments, onnx, pt2, safetensors
from tests.fuzz.mutants.kind import Kind

KINDS: tuple[type[Kind], ...] = (pt2.Mutants, safetensors.Mutants, fragments.Mutants, archives.Mutants, onnx.Mutants)


class Mutants(Kind):
    """Models are named "kind/model"; what was done is counted by kind alone."""

    name = "mixed"
    models: ClassVar[tuple[str, ...]] = tuple(f"{kind.name}/{model}" for kind in KINDS for model in kind.models)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kinds = {}
        self.done = ""
        for kind in KINDS:
            own = folder / kind.name
            own.mkdir(exist_ok=True)
            self.kinds[kind.name] = kind(own)
            self.kinds[kind.name].canary = self.canary

    def mutant(self, rng: random.Random, model: str) -> str:
        kind, _, name = model.partition("/")
        self.done = self.kinds[kind].mutant(rng, name)
        return kind

    def outcome(self, model: str, kind: str) -> str:
        return self.kinds[kind].outcome(model.partition("/")[2], self.done)

    def processes(self) -> list[int]:
        return fragments.tract()
