"""Goldens of the text form; `python -m tests.ir.test_text` rewrites them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import ir

GOLDENS = Path(__file__).parent / "goldens"


class Block(nn.Module):
    """A block with weights, a dynamic batch, a write and a branch."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.steps += 1
        y = self.conv(x).relu_()
        y[:, 0] = 1
        return {"pooled": y.mean((-2, -1)), "flat": y.flatten(1)[:, ::2]}


class Branches(nn.Module):
    def forward(self, x, y):
        return torch.cond(x.sum() > 0, lambda a, b: a @ b, lambda a, b: (a * 2).relu() @ b, (x, y))


CASES = {
    "block": lambda: ir.capture(Block(), (torch.ones(2, 3, 8, 8),), dynamic_shapes={"x": {0: "batch"}}),
    "branches": lambda: ir.capture(Branches(), (torch.ones(2, 4), torch.ones(4, 3))),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    assert ir.to_text(CASES[name](), source=False) + "\n" == (GOLDENS / f"{name}.txt").read_text()


def test_source_lines_come_last():
    line = next(t for t in str(CASES["block"]()).splitlines() if "aten::conv2d" in t)
    assert line.endswith(" conv") and "test_text.py:" in line


if __name__ == "__main__":
    for name, make in CASES.items():
        GOLDENS.mkdir(exist_ok=True)
        (GOLDENS / f"{name}.txt").write_text(ir.to_text(make(), source=False) + "\n")
    sys.exit(0)
