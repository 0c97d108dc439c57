"""Damaged and hostile .pt2 files: `python -m tests.fuzz.pt2_mutants COUNT SEED` makes that many and reads each.

A mutant must be refused with an ir.ExportError, or be a program that torch computes as we do: bytes that were turned
over may not change a graph or a weight, and a changed document is another program, whose numbers are compared with
torch's own where torch takes it. Each is read in a child process that is watched: 10 seconds, 1 GB, and a file that
no mutant may make.
"""

from __future__ import annotations

import json
import random
import resource
import select
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS, MEGABYTES = 10, 1024
ROOT = Path(__file__).parents[2]


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


def _places(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        at = pending.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        found += [(at, k) for k in keys]
        pending += [at[k] for k in keys]
    return found


def _mutate_json(rng: random.Random, data: bytes, canary: Path) -> tuple[bytes, bool]:
    """Some places of a document changed; whether code was put in, which torch must not be asked about."""
    document = json.loads(data)
    places = _places(document)
    hostile = rng.random() < 0.2
    code = f"__import__('os').system('touch {canary}')"
    exploits = (code, f"x={code}", f"'+{code}+'", f'" + {code} + "', f"Symbol('s0', {code})", "torchx.os.system")
    for at, key in rng.sample(places, k=min(len(places), rng.choice((1, 1, 1, 2, 4)))):
        kind = rng.randrange(5)
        if hostile:
            at[key] = rng.choice(exploits)
        elif kind == 0 and isinstance(at, dict):
            at.pop(key, None)
        elif kind == 1 and isinstance(at[key], int) and not isinstance(at[key], bool):
            at[key] += rng.choice((-1, 1, 2, 1000))
        elif kind == 2:  # what stands under the same key elsewhere
            at[key] = rng.choice([a[k] for a, k in places if k == key and type(a) is type(at) and k in _keys(a)])
        elif kind == 3 and isinstance(at, list):
            rng.shuffle(at)
        else:
            at[key] = rng.choice(_LEAVES)
    try:
        return json.dumps(document).encode(), hostile
    except (ValueError, RecursionError):  # a place that now holds itself
        return data[:-1], hostile


def _keys(container: Any) -> Any:
    return container if isinstance(container, dict) else range(len(container))


def _bytes_changed(rng: random.Random, whole: bytes) -> bytes:
    data = bytearray(whole)
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        for _ in range(rng.choice((2, 16, 256))):
            data[rng.randrange(len(data))] = rng.randrange(256)
    else:
        at = rng.randrange(len(data))
        data[at:at] = rng.randbytes(rng.choice((1, 22, 64)))
    return bytes(data)


def mutant(rng: random.Random, whole: bytes, parts: dict[str, bytes], path: Path, canary: Path) -> str:
    """Write one mutant; what kind it is."""
    from tests.ir.pt2_files import write

    kind = rng.choice(("bytes", "bytes", "document", "document", "document", "members"))
    if kind == "bytes":
        path.write_bytes(_bytes_changed(rng, whole))
    elif kind == "document":
        name = rng.choice([n for n in parts if n.endswith(".json")])
        data, hostile = _mutate_json(rng, parts[name], canary)
        write(path, {**parts, name: data})
        kind = "hostile" if hostile else kind
    else:
        name, other = rng.sample(list(parts), 2)
        rest = {k: v for k, v in parts.items() if k != name}
        changed = [
            rest,
            {**rest, name: parts[other]},
            {**rest, name: parts[name][:-3]},
            {**rest, f"{name}x": parts[name]},
        ]
        changed.append({**parts, name: rng.randbytes(rng.randrange(1, 400))})
        write(path, rng.choice(changed), rng.choice((zipfile.ZIP_STORED,) * 7 + (zipfile.ZIP_DEFLATED,)))
    return kind


# -- the child ---------------------------------------------------------------------------------------------------------


def _content(graph: Any) -> Any:
    return str(graph), [w.numpy().tobytes() for w in graph.weights.values()]


def _outcome(kind: str, path: Path, x: Any, whole: Any) -> str:
    """What became of a mutant: refused, the same, as torch, torch refuses, or a word for what must not be."""
    import torch

    import ir
    from eager_backend import Eager

    try:
        graph = ir.capture(path)
        if _content(graph) == whole:
            return "the same"
        if kind == "bytes":
            return "WRONG: other content, and no sum noticed"
        if kind == "hostile":
            return "another program"
        program = ir.export(graph, target=Eager(optimize=False))
        ours = torch.utils._pytree.tree_leaves(program(x))
    except ir.ExportError:
        return "refused"
    except Exception as error:
        return f"FOREIGN {type(error).__name__}: {error!s:.300}"
    try:
        theirs = torch.utils._pytree.tree_leaves(torch.export.load(path).module(check_guards=False)(x.clone()))
    except Exception:
        return "torch refuses"
    same = len(ours) == len(theirs) and all(
        torch.allclose(a, b, 1e-4, 1e-4, equal_nan=True) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(ours, theirs, strict=True)
    )
    return "as torch" if same else "WRONG: other numbers than torch's"


def _child(folder: Path, seed: int, start: int, stop: int) -> None:
    import logging
    import warnings

    import torch

    import ir

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    names = list(models())
    graphs = {n: _content(ir.capture(folder / f"{n}.pt2")) for n in names}
    files = {n: (folder / f"{n}.pt2").read_bytes() for n in names}
    parts = {n: _members(folder / f"{n}.pt2") for n in names}
    inputs = {n: torch.load(folder / f"{n}.pt") for n in names}
    limit = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 + MEGABYTES) * 1024
    for index in range(start, stop):
        rng = random.Random(f"{seed} {index}")
        name = rng.choice(names)
        path = folder / "mutant.pt2"
        print(json.dumps({"start": index}), flush=True)
        kind = mutant(rng, files[name], parts[name], path, folder / "canary")
        outcome = _outcome(kind, path, inputs[name], graphs[name])
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > limit:
            outcome = f"MEMORY over {MEGABYTES} MB"
        print(json.dumps({"index": index, "model": name, "kind": kind, "outcome": outcome}), flush=True)


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}


# -- the watch ---------------------------------------------------------------------------------------------------------


def run(count: int, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Every mutant's outcome; a child that hangs or dies is one, and the next goes on behind it."""
    save(folder)
    index = 0
    while index < count:
        arguments = [
            sys.executable,
            "-m",
            "tests.fuzz.pt2_mutants",
            "child",
            str(folder),
            str(seed),
            str(index),
            str(count),
        ]
        child = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert child.stdout is not None
        at, limit = index, 120.0  # what it imports comes first
        while index < count:
            ready, _, _ = select.select([child.stdout], [], [], limit)
            line = child.stdout.readline() if ready else ""
            if not line:
                child.kill()
                code = child.wait()
                yield {"index": at, "outcome": f"CRASH with {code}" if ready else f"HANG over {limit} s", "kind": "?"}
                index = at + 1
                break
            if not line.startswith("{"):
                continue  # torch prints
            found = json.loads(line)
            limit = SECONDS
            if "start" in found:
                at = found["start"]
            else:
                index = found["index"] + 1
                yield found
        child.kill()
        child.wait()


def summary(count: int, seed: int) -> tuple[Counter[tuple[str, str]], list[Any], bool]:
    """Outcomes by kind, those that must not be, and whether code ran."""
    counts: Counter[tuple[str, str]] = Counter()
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        for found in run(count, seed, Path(folder)):
            counts[found["kind"], found["outcome"].partition(":")[0]] += 1
            if found["outcome"][:1].isupper():
                bad.append(found)
        return counts, bad, (Path(folder) / "canary").exists()


if __name__ == "__main__":
    if sys.argv[1] == "child":
        _child(Path(sys.argv[2]), *map(int, sys.argv[3:6]))
    else:
        counts, bad, ran = summary(int(sys.argv[1]), int(sys.argv[2]))
        for (kind, outcome), number in sorted(counts.items()):
            print(f"{kind:10s} {outcome:30s} {number}")
        for found in bad:
            print(json.dumps(found))
        print("code ran" if ran else "no code ran")
        sys.exit(bool(bad) or ran)
