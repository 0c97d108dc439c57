"""Random programs of views and writes through them: a base of one to four axes, chains of views, in-place ops of every
kind, reads of the base and of sibling views. `source(seed)` is the text of a module."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

WRITES = (
    "{v}.add_(1.5)", "{v}.mul_(-2)", "{v}.fill_(3.)", "{v}.zero_()", "{v}.gt_(0.5)", "{v}.relu_()", "{v}[...] = 7.",
    "{v}.copy_({v}.flip(0) if {v}.dim() else {v} * 3)", "{v}.masked_fill_({v} > 0, 0.25)", "{v}[{v} < 0] = 1.25",
    "{v}.sub_({v}.detach().clone())", "{v}.add_(torch.ones((), dtype=torch.float64))", "{v}.clamp_(-1, 1)",
    "torch._foreach_add_([{v}], 2.0)", "torch.mul({v}, 3., out={v})", "{v}.copy_(torch.ones(1, dtype=torch.int32))",
    "{v}.pow_(2)", "{v}.le_({v}.mean())", "{v}.sigmoid_()", "{v}.lerp_({v} * 2, 0.5)", "{v}.div_(2)", "{v}.t_()",
    "{v}.index_fill_(0, torch.tensor([0]), 5.)", "{v}.cumsum_(0)", "{v}.unsqueeze_(0)", "{v}.squeeze_()",
    "{v}.transpose_(0, -1)", "{v}.swapaxes_(0, -1)", "{v}.add_(b.sum())",
)  # fmt: skip
TEXT = """
class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("held", {held})

    def forward(self, x):
        {body}
"""
MOVES = ("unsqueeze_", "t_()", "transpose_", "squeeze_", "swapaxes_")


def views(r: random.Random, shape: list[int]) -> Iterator[str]:
    """Views of a tensor of this shape; some that it may not have."""
    rank = len(shape)
    yield f".unsqueeze({r.randrange(rank + 1)})"
    yield from (".view_as({v})", ".contiguous()", ".to(torch.float32)", ".detach()", ".reshape(-1)", ".view(-1)")
    if not rank:
        return
    d, e = r.randrange(rank), r.randrange(rank)
    n, order, before = shape[d], list(range(rank)), ":, " * d
    r.shuffle(order)
    yield from (f".permute({order})", f".transpose({d - rank}, {e})", f".movedim({d}, {e})", ".mT", ".expand_as({v})")
    yield from (f".flatten({min(d, e)}, {max(d, e)})", f".diagonal({r.choice([0, 1, -1])}, {d}, {e})", ".t()")
    if n == 1:
        yield f".squeeze({d})"
    if n > 1:
        start = r.randrange(n)
        stop, at, part = r.randrange(start, n) + 1, r.randrange(1, n), r.choice([0, 1])
        yield from (f"[{before}{start}:{stop}:{r.choice([1, 2])}]", f".narrow({d}, {start}, {stop - start})")
        yield from (f".select({d - rank}, {start})", f".unbind({d})[{start}]", f".chunk(2, {d})[{part}]")
        yield from (f".split_with_sizes([{at}, {n - at}], {d})[{part}]", f".tensor_split(2, {d})[{part}]")
        yield from (f".unfold({d}, {at}, {at})", f".as_strided(({at},), (1,), {start})")
    if n % 2 == 0 and n:
        yield f".unflatten({d}, (2, {n // 2}))"


def source(seed: int) -> tuple[str, list[int], str]:
    """A module's text, the shape of its input, and what it writes to: fresh memory, its input or a buffer."""
    r = random.Random(seed)
    shape = [r.choice([1, 2, 3, 4, 4]) for _ in range(r.randrange(1, 5))]
    kind = r.choice(["fresh", "fresh", "input", "buffer"])
    made = {"fresh": "x * 2 + 1", "input": "x", "buffer": "self.held"}[kind]
    lines = [f"b = {made}"]
    live: dict[str, Any] = {"torch": torch, "b": torch.zeros(shape)}
    names = ["b"]

    def runs(line: str) -> bool:
        trial = {k: v.clone() if isinstance(v, Tensor) else v for k, v in live.items()}
        try:
            exec(line, trial)  # first on copies: a line that fails has done nothing
            exec(line, live)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False
        lines.append(line)
        return True

    for block in range(r.randrange(1, 4)):
        for _ in range(r.randrange(1, 5)):
            old, new = r.choice(names[-3:]), f"v{len(names)}"
            view = r.choice(list(views(r, list(live[old].shape)))).replace("{v}", old)
            guard = "with torch.no_grad(): " if r.random() < 0.15 else ""
            if runs(f"{guard}{new} = {old}{view}"):
                names.append(new)
        write = r.choice(WRITES).replace("{v}", target := r.choice(names[-4:]))
        if target != "b" or kind == "fresh" or not any(m in write for m in MOVES):
            runs(write)
        if r.random() < 0.4 and runs(f"r{block} = {(old := r.choice(names))} * 2"):
            names.append(f"r{block}")
    results = [n if r.random() < 0.5 else f"{n} * 1" for n in names if r.random() < 0.6] or ["b"]
    held = f"torch.arange({torch.Size(shape).numel()}.).view({shape}) / 3 - 1"
    body = "\n        ".join([*lines, f"return ({', '.join(results)},)"])
    return TEXT.format(held=held, body=body), shape, kind


def module(text: str) -> nn.Module:
    """The module of a text."""
    space: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(text, space)
    made: nn.Module = space["Chain"]()
    return made
