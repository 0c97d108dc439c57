"""Run torch's kernels on what they may not take, in children of this process: `python -m tests.ir.probe_kernels WHAT`.

Prints a line for each that ended its child, or gave a view that reaches beyond its memory.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

import ir
from ir.importer.checked import Checked, verifying
from ir.importer.torch_api import OpOverload, OpOverloadPacket, decompositions, operator_names, schema_of
from ir.passes.fold_constants import fold_constants
from tests.ir.unchecked_kernels import CALLS, FAR, LEAST, model, saved, survives

_NUMBERS = {"List[int]": [[400], [1], [-1]], "int": [0, 1, 400], "bool": [True]}


def operators() -> Iterator[OpOverload]:
    """The overloads of torch's own operators without `out`."""
    for name in operator_names():
        namespace, _, base = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), base, None) if namespace in ("aten", "prims") else None
        if isinstance(packet, OpOverloadPacket):
            found = (getattr(packet, o) for o in packet.overloads() if not o.startswith("prim_") and "out" not in o)
            yield from (o for o in found if isinstance(o, OpOverload))


def views() -> None:
    """What gives of four elements a view that torch's as_strided refuses: it reaches beyond the memory."""
    for overload in operators():
        schema = schema_of(overload)
        kinds = [str(a.real_type) for a in schema.arguments if not a.kwarg_only]
        gives = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if gives and kinds[:1] == ["Tensor"] and {*kinds[1:]} <= _NUMBERS.keys():
            choices = itertools.product(*(_NUMBERS[k] for k in kinds[1:]))
            if any(_reaches_beyond(overload, numbers) for numbers in choices):
                print(schema.name)


def _reaches_beyond(overload: Any, numbers: tuple[Any, ...]) -> bool:
    given = torch.ones(4)
    try:
        made = overload(given, *numbers)
    except Exception:
        return False
    for t in made if isinstance(made, (list, tuple)) else [made]:
        if isinstance(t, torch.Tensor) and t.layout is torch.strided:
            try:
                t.as_strided(t.shape, t.stride(), t.storage_offset())
            except RuntimeError:
                return True
    return False


def divisions() -> None:
    """The operators of integers that end the process for some of these numbers."""
    numbers = LEAST, -1, 2**63 - 1, 0
    pairs = [torch.tensor(p, dtype=torch.int64).unbind() for p in itertools.product(numbers, numbers)]
    for overload in operators():
        schema = schema_of(overload)
        kinds = [str(a.real_type) for a in schema.arguments if not a.has_default_value()]
        two = kinds[:2] in (["Tensor", "Tensor"], ["Tensor", "number"])
        if not schema.name.startswith("aten::") or not two or kinds[2:] not in ([], ["Optional[str]"]):
            continue
        modes = [{}] if len(kinds) == 2 else [{"rounding_mode": "trunc"}, {"rounding_mode": "floor"}]
        pointwise = torch.Tag.pointwise in overload.tags or schema.name.strip("_").endswith("divide")
        if pointwise and survives(lambda o=overload, m=modes, n=kinds[1] == "number": _each(o, pairs, m, n)):
            print(schema.name)


def _each(overload: Any, pairs: Any, modes: Any, number: bool) -> None:
    for (a, b), mode in itertools.product(pairs, modes):
        try:
            overload(a.clone(), int(b) if number else b.clone(), **mode)
        except Exception:
            continue


def _in_range(*sizes: int) -> torch.Tensor:
    return torch.arange(max(1, torch.Size(sizes).numel())).reshape(sizes) % 2


X, IMAGE = torch.ones(4, 4), torch.ones(1, 1, 4, 4)
A: Any = torch.ops.aten
# Core operators with operands that point somewhere, and what they point with.
_POINTING: dict[str, Callable[[Any], Any]] = {
    "embedding": lambda i: A.embedding(X, i),
    "gather": lambda i: A.gather(X, 0, i),
    "index": lambda i: A.index.Tensor(X, [i, None]),
    "index_both": lambda i: A.index.Tensor(X, [i, i]),
    "index_put": lambda i: A.index_put(X, [i], torch.ones(1), True),
    "index_select": lambda i: A.index_select(X, 0, i.reshape(-1)),
    "scatter": lambda i: A.scatter.src(X, 0, i, X),
    "scatter_value": lambda i: A.scatter.value(X, 0, i, 1.0),
    "scatter_add": lambda i: A.scatter_add(X, 0, i, X),
    "scatter_reduce": lambda i: A.scatter_reduce.two(X, 0, i, X, "prod"),
    "select_scatter": lambda i: A.select_scatter(X, X[0], 0, int(i.max())),
    "slice_scatter": lambda i: A.slice_scatter(X, X, 0, int(i.min()), 4),
    "select": lambda i: A.select.int(X, 0, int(i.max())),
    "slice": lambda i: A.slice.Tensor(X, 0, int(i.min()), int(i.max()), 1),
    "as_strided": lambda i: A.as_strided(X, [2, 2], [int(i.max()), 1], int(i.min())).sum(),
    "diagonal": lambda i: A.diagonal(X, int(i.min())),
    "col2im": lambda i: A.col2im(torch.ones(1, 4, 9), [4, 4], [2, 2], [1, 1], [int(i.min()), 0], [1, 1]),
    "topk": lambda i: A.topk(X, int(i.max())),
    "reflection": lambda i: A.reflection_pad2d(IMAGE, [int(i.max()), int(i.min()), 0, 0]),
    "replication": lambda i: A.replication_pad2d(IMAGE, [int(i.max()), int(i.min()), 0, 0]),
    "constant_pad": lambda i: A.constant_pad_nd(X, [-abs(int(i.max())) >> 20, 0]),
    "grid": lambda i: A.grid_sampler_2d(IMAGE, i.double().float().reshape(1, 2, 4, 2) * 1e30, 2, 1, True),
    "masked_scatter": lambda i: A.masked_scatter(X, i.to(torch.uint8).view(torch.bool), torch.ones(8)),
    "pool": lambda i: A.max_pool2d_with_indices(IMAGE, [2, 2], [2, 2], [int(i.min()), 1], [1, 1]),
    "average": lambda i: A.avg_pool2d(IMAGE, [2, 2], [2, 2], [int(i.min()), 1]),
    "cumsum": lambda i: A.cumsum(X, int(i.min())),
    "flip": lambda i: A.flip(X, [int(i.min())]),
    "groups": lambda i: A.native_group_norm(X, None, None, 4, 4, int(i.max()), 2, 1e-5),
    "split": lambda i: A.split_with_sizes(X, [int(i.min()), 4 - int(i.min())]),
    "repeat": lambda i: A.repeat(X, [int(i.min()), 1]),
    "permute": lambda i: A.permute(X, [int(i.min()), 1]),
}


def pointing() -> None:
    """Checked kernels that do not look at where their operands point."""
    for name, call in _POINTING.items():
        call(_in_range(4, 4))  # as the operator wants them
        for number in (FAR, -FAR, 4, -5, LEAST, 2**63 - 1):
            indices = _in_range(4, 4)
            indices[1, 1] = number
            if ended := survives(lambda c=call, i=indices: c(i)):
                print(name, number, ended)


def bare() -> None:
    """The calls that end the process where torch runs them, and those that do within `Checked`."""
    decompositions()  # whose import takes seconds
    for name, (call, buffers) in CALLS.items():
        for block in (nullcontext, Checked):

            def run(c: Any = call, b: Any = buffers, within: Any = block) -> None:
                with within():
                    made = c(*b)
                    (made[0] if isinstance(made, tuple) else made).sum()

            if survives(run):
                print(name, block.__name__)


def folding() -> None:
    """The files, and models in this process, whose constants end it when they are folded."""
    with tempfile.TemporaryDirectory() as folder:
        for name in CALLS:
            path = saved(name, Path(folder))
            if ended := survives(lambda p=path: _fold(ir.capture(p))):
                print("file", name, ended)
            live = name.startswith("least") or name == "lcm"
            if live and (ended := survives(lambda n=name: _fold(ir.capture(model(n), (torch.ones(3),))))):
                print("live", name, ended)


def verified() -> None:
    """The files whose program ends this process when it is run for verification."""
    with tempfile.TemporaryDirectory() as folder:
        for name in CALLS:
            graph = ir.capture(saved(name, Path(folder)))
            if ended := survives(lambda g=graph: _verify(g)):
                print(name, ended)


def bags() -> None:
    """The bags of chance that end the process within `verifying`."""
    for seed in range(0, 2000, 100):
        if ended := survives(lambda s=seed: [*map(_bag, range(s, s + 100))]):
            print(seed, ended)


def _bag(seed: int) -> None:
    r = random.Random(seed)
    count, kind = r.choice([0, 1, 3, 8, 64]), r.choice([torch.int64, torch.int32])
    indices = torch.tensor([r.choice([0, 1, 2, 3, 4]) for _ in range(count)], dtype=kind)
    offsets = torch.tensor([0, *sorted(r.randint(0, count) for _ in range(r.choice([0, 1, 2, 8])))], dtype=kind)
    for t in (indices, offsets):
        if t.numel() and r.random() < 0.2:
            t[r.randrange(t.numel())] = r.choice([-1, 5, 10**9, -(10**9)])
    dtype = r.choice([torch.float32, torch.float64, torch.float16, torch.bfloat16])
    weight = torch.ones(r.choice([5, 0]), r.choice([3, 1, 16]), dtype=dtype)
    each = torch.ones(r.choice([count, 0, 1]), dtype=dtype) if r.random() < 0.3 else None
    pad, mode = r.choice([None, 0, -1, 3, 99, -(10**9)]), r.choice([0, 1, 2, 7, -1])
    with suppress(Exception), torch.no_grad(), verifying():
        A.embedding_bag.padding_idx(weight, indices, offsets, False, mode, False, each, r.random() < 0.5, pad)


def _verify(graph: Any) -> None:
    for run in (graph.context.reference, graph.context.exact):
        with suppress(Exception):
            run(graph, (torch.ones(3),), {})


def _fold(graph: Any) -> None:
    for weight in fold_constants(graph).weights.values():
        weight.numpy()


if __name__ == "__main__":
    torch.set_num_threads(1)
    {f.__name__: f for f in (views, divisions, pointing, bare, folding, verified, bags)}[sys.argv[1]]()
