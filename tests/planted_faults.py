"""Faults planted in handlers of one node of a whole model, which the debugger must find: `nox -s debug`.

Forty of them, in ten models of the zoo on three targets. For each: does the table of nodes have the faulty node at rank
1 by own error, and does `ir.debug.reduce` make a script of it that fails in a fresh process. The table goes to
docs/planted-faults.md: `python -m tests.planted_faults --write`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ir
from ir.debug.running import Runs
from ir.debug.values import Values
from tests.zoo import models

PAGE = Path(__file__).parents[1] / "docs" / "planted-faults.md"
MODELS = (
    "resnet18", "mobilenet_v3_small", "efficientnet_b0", "vit_b_16", "convnext_tiny", "bert", "gpt2", "llama",
    "t5_encoder", "swin_v2_t",
)  # fmt: skip
TARGETS = ("onnx", "nnef", "eager")
A_MODEL = 4
COLUMNS = (
    "model", "target", "fault", "op", "own error, of scale", "rank", "nodes left", "lines", "fails", "table, s",
    "reduce, s",
)  # fmt: skip

Call = Callable[..., Any]


@dataclass(frozen=True)
class Fault:
    """A way to be wrong: `plant(call, h, **arguments)` is the handler, and `call` the target's own for any op."""

    name: str
    op: str
    plant: Callable[..., Any]
    fits: Callable[[Mapping[str, Any]], bool] = lambda args: True


def _args(**changes: Callable[[Any], Any]) -> Callable[..., Any]:
    """The op itself with some arguments changed."""

    def plant(call: Call, h: Any, op: str, arguments: dict[str, Any]) -> Any:
        return call(h, op, **arguments | {k: fn(arguments[k]) for k, fn in changes.items()})

    return plant


def _through_half(name: str) -> Callable[..., Any]:
    def plant(call: Call, h: Any, op: str, arguments: dict[str, Any]) -> Any:
        narrow = h.cast(h.cast(arguments[name], ir.DType.float16), ir.DType.float32)
        return call(h, op, **arguments | {name: narrow})

    return plant


def _result_through_half(call: Call, h: Any, op: str, arguments: dict[str, Any]) -> Any:
    return h.cast(h.cast(call(h, op, **arguments), ir.DType.float16), ir.DType.float32)


def _swapped(one: str, two: str) -> Callable[..., Any]:
    def plant(call: Call, h: Any, op: str, arguments: dict[str, Any]) -> Any:
        return call(h, op, **arguments | {one: arguments[two], two: arguments[one]})

    return plant


def _as(other: str, **given: Any) -> Callable[..., Any]:
    """Another op in place of this one."""
    return lambda call, h, op, arguments: call(h, other, self=arguments["self"], **given)


def _padded_at_one_side(call: Call, h: Any, op: str, arguments: dict[str, Any]) -> Any:
    below, beside = (2 * p for p in arguments["padding"])
    moved = call(h, "aten::constant_pad_nd", self=arguments["input"], pad=[beside, 0, below, 0], value=0.0)
    return call(h, op, **arguments | {"input": moved, "padding": [0, 0]})


def _later(arguments: Mapping[str, Any]) -> bool:
    value, dim = arguments["self"], arguments["dim"]
    size, end = value.type.shape[dim], arguments.get("end")
    return isinstance(size, int) and isinstance(end, int) and 0 <= (arguments.get("start") or 0) < end < size


def _square(arguments: Mapping[str, Any]) -> bool:
    return arguments["query"].type == arguments["key"].type


FAULTS = (
    Fault("padding at one side", "aten::conv2d", _padded_at_one_side, lambda a: any(a["padding"])),
    Fault("no bias", "aten::conv2d", _args(bias=lambda b: None), lambda a: a["bias"] is not None),
    Fault("a weight in half precision", "aten::conv2d", _through_half("weight")),
    Fault("another epsilon", "aten::batch_norm", _args(eps=lambda e: 1e-3)),
    Fault("mean and variance swapped", "aten::batch_norm", _swapped("running_mean", "running_var")),
    Fault("relu for hardswish", "aten::hardswish", _as("aten::relu")),
    Fault("sigmoid for hardsigmoid", "aten::hardsigmoid", _as("aten::sigmoid")),
    Fault("relu for silu", "aten::silu", _as("aten::relu")),
    Fault("a lost relu", "aten::relu", lambda call, h, op, a: a["self"]),
    Fault("the tanh form of gelu", "aten::gelu", _args(approximate=lambda a: "tanh"),
          lambda a: a["approximate"] == "none"),
    Fault("another epsilon", "aten::layer_norm", _args(eps=lambda e: 1e-3)),
    Fault("no bias", "aten::layer_norm", _args(bias=lambda b: None), lambda a: a["bias"] is not None),
    Fault("no bias", "aten::linear", _args(bias=lambda b: None), lambda a: a["bias"] is not None),
    Fault("a weight in half precision", "aten::linear", _through_half("weight")),
    Fault("query and key swapped", "aten::scaled_dot_product_attention", _swapped("query", "key"), _square),
    Fault("no mask", "aten::scaled_dot_product_attention", _args(attn_mask=lambda m: None),
          lambda a: a["attn_mask"] is not None),
    Fault("another scale", "aten::scaled_dot_product_attention", _args(scale=lambda s: 0.2)),
    Fault("another mask value", "aten::masked_fill", _args(value=lambda v: 0.0)),
    Fault("the wrong axis", "aten::softmax", _args(dim=lambda d: 0)),
    Fault("the wrong axis", "aten::mean", _args(dim=lambda d: [0]), lambda a: a.get("keepdim") and len(a["dim"]) == 1),
    Fault("a slice one off", "aten::slice", _args(start=lambda s: (s or 0) + 1, end=lambda e: e + 1), _later),
    Fault("an index one off", "aten::select", _args(index=lambda i: i + 1),
          lambda a: isinstance(n := a["self"].type.shape[a["dim"]], int) and 0 <= a["index"] < n - 1),
    Fault("operands swapped", "aten::sub", _swapped("self", "other"),
          lambda a: isinstance(a["other"], ir.Value) and a["other"].type == a["self"].type),
    Fault("a lost cast to float32", "aten::rsqrt", _result_through_half),
    Fault("a lost cast to float32", "aten::pow", _result_through_half),
    Fault("a sum in half precision", "aten::add", _result_through_half),
    Fault("sine for cosine", "aten::cos", _as("aten::sin")),
    Fault("a tanh in half precision", "aten::tanh", _result_through_half),
)  # fmt: skip


@dataclass(frozen=True)
class Planted:
    """A fault at a node of a model on a target."""

    model: str
    target: str
    fault: Fault
    node: str

    @property
    def handlers(self) -> dict[str, Any]:
        """What `ir.export` takes."""
        target = ir.plugins.find_target(self.target, {})

        def call(h: Any, op: str, **arguments: Any) -> Any:
            name = op.partition(".")[0]
            found = target.registry.lookup(name, op, target.version)
            named = {p.name: v for k, v in arguments.items() if (p := found.parameter(k)) is not None}
            return found.fn(h, **(arguments if found.takes_all else named))

        def handler(h: Any, **arguments: Any) -> Any:
            if self.node in {v.name for v in h.node.outputs}:
                return self.fault.plant(call, h, h.node.overload, arguments)
            return call(h, h.node.overload, **arguments)

        return {self.fault.op: handler}


@cache
def captured(model: str) -> ir.Graph:
    """The small variant of a model."""
    made = models.get(model, small=True)
    args, kwargs = made.inputs(made.sizes)
    return ir.capture(made.build(), args, kwargs, dynamic_shapes=made.dynamic_shapes)


def candidates(model: str) -> Iterator[tuple[Fault, str]]:
    """Each fault that a model has a node for, at the middle one of those; not at its first or last node."""
    graph = captured(model)
    inside = graph.nodes[1:-1]
    for fault in FAULTS:
        fitting = [n for n in inside if n.op == fault.op and n.outputs[0].type.dtype.is_float and fault.fits(n.args)]
        if fitting:
            yield fault, fitting[len(fitting) // 2].name


def takes_effect(planted: Planted) -> bool:
    """Whether the target makes other numbers of the node: one that does not is no fault on these inputs."""
    graph = captured(planted.model)
    inputs = graph.structure.flatten(*graph.context.example())
    expected = Values(graph).run(inputs)
    node = next(n for n in graph.nodes if n.name == planted.node)
    target = ir.plugins.find_target(planted.target, {})
    right = Runs(graph, target, target.registry).alone([node], expected.of)
    wrong = Runs(graph, target, target.registry.with_handlers(planted.handlers)).alone([node], expected.of)
    return bool(wrong) and any(not right[v].equal(wrong[v]) for v in right)


def chosen() -> list[Planted]:
    """The faults: of each model those that take effect, no kind twice before every kind that fits was used."""
    used: dict[str, int] = {}
    found = []
    for place, model in enumerate(MODELS):
        options = sorted(candidates(model), key=lambda c: used.get(f"{c[0].name} {c[0].op}", 0))
        mine = 0
        for fault, node in options:
            planted = Planted(model, TARGETS[(place + mine) % 3], fault, node)
            if mine < A_MODEL and takes_effect(planted):
                found.append(planted)
                used[f"{fault.name} {fault.op}"] = used.get(f"{fault.name} {fault.op}", 0) + 1
                mine += 1
    return found


@dataclass(frozen=True)
class Outcome:
    """What the debugger said of one fault."""

    planted: Planted
    rank: int
    own: float
    first: str
    table_seconds: float
    nodes: int = 0
    lines: int = 0
    fails: bool | None = None
    reduce_seconds: float = 0.0


def rank(planted: Planted) -> Outcome:
    """The rank of the faulty node in the table."""
    start = time.perf_counter()
    table = ir.debug.nodes(captured(planted.model), target=planted.target, handlers=planted.handlers)
    names = [r.name for r in table.ranked]
    place = next(i for i, n in enumerate(names) if planted.node == n)
    own = table.ranked[place].own
    return Outcome(planted, place + 1, own.relative if own else float("nan"), names[0], time.perf_counter() - start)


def reduced(outcome: Outcome) -> Outcome:
    """The same with what `ir.debug.reduce` makes of it."""
    planted = outcome.planted
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "reduced.py")
        graph = captured(planted.model)
        # verify passes an error of 1e-4 of scale, and half precision makes less
        limit = None if outcome.own > 1e-2 else outcome.own / 4
        found = ir.debug.reduce(graph, target=planted.target, handlers=planted.handlers, path=path, max_error=limit)
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, cwd=folder)
    fails = done.returncode == 1 and "AssertionError" in done.stderr
    lines = len(found.script.splitlines())
    return Outcome(
        planted, outcome.rank, outcome.own, outcome.first, outcome.table_seconds, len(found.nodes), lines, fails,
        found.seconds,
    )  # fmt: skip


def page(outcomes: list[Outcome]) -> str:
    """The Markdown table."""
    first = sum(o.rank == 1 for o in outcomes)
    made = [o for o in outcomes if o.fails is not None]
    seconds = [o.reduce_seconds for o in made] or [0.0]
    lines = [
        "# Planted faults",
        "",
        f"{len(outcomes)} faults, each in the handler of one node of a model of the zoo (its small variant) on "
        "one target, made by `nox -s debug`.",
        f"`ir debug` has the faulty node at rank 1 by own error in {first} of {len(outcomes)}.",
        f"`ir reduce` gave a script that fails in a fresh process in {sum(bool(o.fails) for o in made)} of "
        f"{len(made)}: {sum(o.lines <= 30 for o in made)} of at most 30 lines, the longest has "
        f"{max((o.lines for o in made), default=0)}; median {statistics.median(seconds):.1f} s, longest "
        f"{max(seconds):.1f} s.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for o in outcomes:
        p = o.planted
        fails = {None: "", True: "yes", False: "no"}[o.fails]
        cells = [p.model, p.target, p.fault.name, p.fault.op.removeprefix("aten::"), f"{o.own:.2g}", o.rank]
        cells += [o.nodes or "", o.lines or "", fails, f"{o.table_seconds:.1f}", f"{o.reduce_seconds:.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="the page in docs/")
    parser.add_argument("--ranks", action="store_true", help="the table alone, without reducing")
    options = parser.parse_args()
    outcomes = []
    for planted in chosen():
        found = rank(planted)
        if not options.ranks:
            try:
                found = reduced(found)
            except ir.ExportError as error:
                print("not reduced:", str(error).splitlines()[0])
        outcomes.append(found)
        said = (planted.model, planted.target, planted.fault.name, planted.node, found.rank, f"{found.own:.2g}")
        print(*said, found.first, found.lines, found.fails, f"{found.reduce_seconds:.1f}", flush=True)
    text = page(outcomes)
    if options.write:
        PAGE.write_text(text)
    print(text)
    return int(sum(o.rank == 1 for o in outcomes) < len(outcomes) - 1)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main())
