"""Damaged and hostile fragments, as texts and as .nnef files, that a handler calls.

What is accepted runs in tract and is compared with torch (`verify`): it must come out as the op's own function does, or
be told of.
"""

from __future__ import annotations

import functools
import os
import random
from pathlib import Path
from typing import Any

from tests.fuzz.mutants.kind import NAMES, Kind, changed_bytes, changed_words, emptied, no_file

TEXTS = {
    "gated": """# a gate
fragment gate(x: tensor<scalar>, beta: scalar = 1.0) -> (y: tensor<scalar>) { y = sigmoid(x * beta); }
fragment mutant_gated(x: tensor<scalar>, beta: scalar = 1.0) -> (y: tensor<scalar>) { y = x * gate(x, beta = beta); }
""",
    "windows": """version 1.0;
extension tract_registry tract_core;
fragment mutant_windows(x: tensor<scalar>) -> (y: tensor<scalar>)
{
    a = slice(x, axes = [1], begin = [0], end = [4]);
    b = slice(x, axes = [1], begin = [4], end = [8]);
    c = concat([a + b, a - b, max(a, b)], axis = 1);
    d = reshape(c, shape = [3, 3, 4]);
    e = transpose(d, axes = [1, 0, 2]);
    y = sum_reduce(e, axes = [1]) / (1.0 + mean_reduce(e * e, axes = [1]));
}
""",
    "powers": """fragment squared(x: tensor<scalar>) -> (y: tensor<scalar>) { y = x * x; }
fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>) { a = squared(x); y = squared(a); }
fragment mutant_powers(x: tensor<scalar>, k: scalar = 0.5) -> (y: tensor<scalar>) {
    s = twice(x); t = select(s > k, s ^ 0.5, neg(s)); y = (t + 3.0) * -1.0;
}
""",
}


@functools.cache
def _ops() -> dict[str, Any]:
    """The ops by fragment: their functions in torch are what a fragment must come to."""
    import torch

    import ir

    def gated(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x * 2.0)

    def windows(x: torch.Tensor) -> torch.Tensor:
        a, b = x[:, :4], x[:, 4:]
        e = torch.cat([a + b, a - b, torch.maximum(a, b)], 1).reshape(3, 3, 4).transpose(0, 1)
        return e.sum(1, keepdim=True) / (1 + (e * e).mean(1, keepdim=True))

    def powers(x: torch.Tensor) -> torch.Tensor:
        s = x**4
        return -(torch.where(s > 0.5, s**0.5, -s) + 3)

    made = {}
    for name, fn in (("gated", gated), ("windows", windows), ("powers", powers)):
        op = made[name] = ir.custom_op(f"mutants::{name}", schema="(Tensor x) -> Tensor")(fn)
        arguments = {"beta": 2.0} if name == "gated" else {}
        op.handler("nnef")(functools.partial(_call, name=f"mutant_{name}", arguments=arguments))
    return made


def _call(h: Any, x: Any, *, name: str, arguments: dict[str, Any]) -> Any:
    return h.emit(name, x, **arguments)


class Mutants(Kind):
    """Three texts, changed."""

    name = "fragments"
    models = tuple(TEXTS)

    def __init__(self, folder: Path) -> None:
        import torch

        import ir

        super().__init__(folder)
        self.place = folder / "fragments"
        self.source: Any = ""
        self.graphs = {n: ir.capture(op, (torch.randn(3, 8),)) for n, op in _ops().items()}
        for name in self.models:  # the texts are right before they are changed
            self.source = TEXTS[name]
            assert self.outcome(name, "whole") == "right numbers"

    def mutant(self, rng: random.Random, model: str) -> str:
        emptied(self.place)
        text = TEXTS[model]
        kind = rng.choice(("words", "words", "words", "bytes", "hostile", "place"))
        self.source = self.place / "f.nnef"
        if kind == "words":
            changed = changed_words(rng, text)
            if rng.random() < 0.5:
                self.source = changed
            else:
                self.source.write_text(changed, errors="surrogateescape")
        elif kind == "bytes":
            self.source.write_bytes(changed_bytes(rng, text.encode()))
        elif kind == "hostile":
            self.source = _hostile(rng, f"mutant_{model}")
        elif rng.random() < 0.5:
            self.source = self.place / rng.choice(NAMES)
            self.source.write_text(text)
        else:
            no_file(rng, self.source)
        return kind

    def outcome(self, model: str, kind: str) -> str:
        import ir
        from nnef_backend import Tract

        source = os.fspath(self.source)
        target = Tract(fragments=[source], run_timeout=2, memory=512 << 20)
        try:
            ir.export(self.graphs[model], target=target, verify=True)
        except ir.MismatchError:
            return "other numbers, told by verify"
        return "right numbers"

    def processes(self) -> list[int]:
        return tract()


def tract() -> list[int]:
    """The process of tract, if it runs."""
    from nnef_backend.runtime.tract import shared_worker

    process = shared_worker()._process
    return [process.pid] if process is not None else []


def _hostile(rng: random.Random, name: str) -> str:
    """Fragments that are right as a text and much too much: recursion, calls of calls, length, depth, sizes."""
    head = "(x: tensor<scalar>) -> (y: tensor<scalar>)"
    whole = f"fragment {name}{head} {{ y = %s; }}"
    n, m = rng.choice((5, 20, 60)), rng.choice((100, 3000, 40_000))
    times = rng.choice((2, 5, 10))
    chain = f"fragment f0{head} {{ y = neg(x); }}\n"
    for i in range(n):
        steps = "".join(f"a{k + 1} = f{i}({f'a{k}' if k else 'x'}); " for k in range(times))
        chain += f"fragment f{i + 1}{head} {{ {steps}y = neg(a{times}); }}\n"
    size = rng.choice((2**12, 2**16, 2**31, 2**62, 2**64, 10**40))
    return rng.choice((
        whole % f"{name}(x)", chain + whole % f"f{n}(x)", whole % " + ".join(["x"] * m), whole % ("-" * n + "x"),
        whole % ("neg(" * n + "x" + ")" * n), whole % f"concat([{', '.join(['x'] * m)}], axis = 0)",
        whole % f"x + tile([[1.0]], repeats = [{size}, {size}])", whole % f"x + [{', '.join(['1.0'] * m)}]",
        whole % f"reshape(x, shape = [{size}, {size}])", whole % f"x + {'9' * m}.0", whole % f"x + 1e{m}",
        whole % f"tile(x, repeats = [{size}, 1])", whole % f"x # {'c' * m}\n", whole % (" " * m + "x"),
        f"fragment {name}(x: {'(' * n}scalar{')' * n}) -> (y: tensor<scalar>) {{ y = x; }}",
        f"fragment {name}(x: tensor<scalar>{'[]' * m}) -> (y: tensor<scalar>) {{ y = x; }}",
        "".join(f"extension tract_symbol S{i};\n" for i in range(m)) + whole % "neg(x)",
        f"extension {'x' * m};\n" + whole % "neg(x)",
        f"fragment {'n' * m}{head} {{ y = x; }}\n" + whole % f"{'n' * m}(x)",
        "fragment neg" + head + " { y = x; }\n" + whole % "neg(x)", whole.replace("{", "{ " + "y = neg(x); " * 2) % "x",
    ))  # fmt: skip
