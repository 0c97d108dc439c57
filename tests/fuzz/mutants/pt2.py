"""Damaged and hostile .pt2 files.

A mutant must be refused with an ir.ExportError, or be a program that torch computes as we do: bytes that were turned
over may not change a graph or a weight, and a changed document is another program, whose numbers are compared with
torch's own where torch takes it.
"""

from __future__ import annotations

import contextlib
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.mutants.kind import Kind, changed_bytes, changed_document

# -- the models --------------------------------------------------------------------------------------------------------


def models() -> dict[str, Callable[[], tuple[Any, Any, Any]]]:
    """What is saved: a branch and a derived size; convolutions with fixed sizes; attention that writes a buffer."""
    import torch

    from tests.ir.pt2_files import Small

    dynamic = torch.export.Dim.DYNAMIC

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.register_buffer("calls", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.calls[1:] += 1
            return {"out": self.layer(x), "calls": self.calls * 2}

    def convolutions() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(16, 5),
        ).eval()  # fmt: skip

    return {
        "branch": lambda: (Small(), torch.randn(4, 8), ({0: torch.export.Dim("n", min=3)},)),
        "convolutions": lambda: (convolutions(), torch.randn(2, 3, 8, 8), None),
        "attention": lambda: (
            Attention().eval(),
            torch.randn(2, 5, 8),
            ({0: dynamic, 1: dynamic},),
        ),
    }


def save(folder: Path) -> None:
    """The whole files, and the inputs that they are compared on."""
    import torch

    for name, make in models().items():
        torch.manual_seed(0)
        model, x, shapes = make()
        shapes = shapes and tuple(
            {k: torch.export.Dim(d) if isinstance(d, str) else d for k, d in s.items()} for s in shapes
        )
        torch.export.save(torch.export.export(model, (x,), dynamic_shapes=shapes), folder / f"{name}.pt2")
        torch.save(x, folder / f"{name}.pt")


# -- the mutations -----------------------------------------------------------------------------------------------------

_LEAVES: tuple[Any, ...] = (
    None, 0, 1, 2, -1, 3, 7, 2**31, 2**40, 2**63, 10**30, 0.5, 1e308, "", "x", "../x", True, False, [], {}, [[[]]],
    "torch.ops.aten.relu.default", "torch.ops.aten.sub.Tensor", "Symbol('s0', integer=True)", "Integer(5)", "NaN",
    "Pow(Integer(9), Pow(Integer(9), Integer(99)))", "Mul(Integer(2), Symbol('s77', positive=True, integer=True))",
)  # fmt: skip


class Mutants(Kind):
    """Files of three models, changed."""

    name = "pt2"
    models = ("branch", "convolutions", "attention")

    def __init__(self, folder: Path) -> None:
        import torch

        import ir

        super().__init__(folder)
        save(folder)
        self.path = folder / "mutant.pt2"
        whole = {m: folder / f"{m}.pt2" for m in self.models}
        self.files = {m: p.read_bytes() for m, p in whole.items()}
        self.parts = {m: _members(p) for m, p in whole.items()}
        self.graphs = {m: _content(ir.capture(p)) for m, p in whole.items()}
        self.inputs = {m: torch.load(folder / f"{m}.pt") for m in self.models}
        code = f"__import__('os').system('touch {self.canary}')"
        lines = (f"x\n    {code}\n    #", f"\r    {code}\r#", f"\n{code}\n")  # for source that is made of names
        self.exploits = (
            *lines,
            code,
            f"x={code}",
            f"'+{code}+'",
            f'" + {code} + "',
            f"Symbol('s0', {code})",
            "torchx.os.system",
        )

    def mutant(self, rng: random.Random, model: str) -> str:
        from tests.ir.pt2_files import write

        parts = self.parts[model]
        kind = rng.choice(("bytes", "bytes", "document", "document", "document", "members"))
        if kind == "bytes":
            self.path.write_bytes(changed_bytes(rng, self.files[model]))
        elif kind == "document":
            name = rng.choice([n for n in parts if n.endswith(".json")])
            hostile = self.exploits if rng.random() < 0.2 else ()
            write(self.path, {**parts, name: changed_document(rng, parts[name], _LEAVES, hostile)})
            kind = "hostile" if hostile else kind
        else:
            compression = rng.choice((zipfile.ZIP_STORED,) * 7 + (zipfile.ZIP_DEFLATED,))
            write(self.path, _members_changed(rng, parts), compression)
        return kind

    def outcome(self, model: str, kind: str) -> str:
        import torch

        import ir
        from eager_backend import Eager

        graph = ir.capture(self.path)
        if _content(graph) == self.graphs[model]:
            return "the same"
        if kind == "bytes":
            return "WRONG: other content, and no sum noticed"
        x = self.inputs[model]
        program = ir.export(graph, target=Eager(optimize=False))
        ours = torch.utils._pytree.tree_leaves(program(x))
        if kind == "hostile":  # torch.export.load must not be asked about it; torch's own module is made without
            for guarded in (False, True):
                with contextlib.suppress(Exception):
                    graph.context.reference(graph, (x,), {}, guarded=guarded)
            return "another program"
        try:
            theirs = torch.utils._pytree.tree_leaves(torch.export.load(self.path).module(check_guards=False)(x.clone()))
        except Exception:
            return "torch refuses"
        same = len(ours) == len(theirs) and all(
            torch.allclose(a, b, 1e-4, 1e-4, equal_nan=True) if isinstance(a, torch.Tensor) else a == b
            for a, b in zip(ours, theirs, strict=True)
        )
        return "as torch" if same else "WRONG: other numbers than torch's"


def _members_changed(rng: random.Random, parts: dict[str, bytes]) -> dict[str, bytes]:
    name, other = rng.sample(list(parts), 2)
    rest = {k: v for k, v in parts.items() if k != name}
    return rng.choice((
        rest, {**rest, name: parts[other]}, {**rest, name: parts[name][:-3]}, {**rest, f"{name}x": parts[name]},
        {**parts, name: rng.randbytes(rng.randrange(1, 400))}, {**parts, name.upper(): parts[other]},
    ))  # fmt: skip


def _content(graph: Any) -> Any:
    return str(graph), [w.numpy().tobytes() for w in graph.weights.values()]


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
