"""Sizes that torch refuses and a target computes for: `python -m tests.refused_sizes [--family index] [--part 0/2]`.

Each axis of each input of a case is dynamic. One after the other gets the sizes 0, 1, 2 and one more than it had. Where
torch's own program raises, by something else than the guards of its export, a program of ours must raise as well.
Kernels of torch end the process at some of these sizes: each case runs in a child.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

import ir
from ir.conditions import sizes_of
from ir.dims import evaluate
from tests.cases import TRACED, Case
from tests.harness import select

SECONDS = 120  # for a case
TORCH_ENDED = "torch was asked"  # a line of the child
# What is found and left: torch has other answers there by its version, or for its own reasons.
KNOWN = {
    **dict.fromkeys(("control/scan", "control/while_with_scan"), "a scan of no steps, which torch takes since 2.14"),
    "shape/pad_to_blocks_rounded": "a size over a quotient that is 0 is simplified",
    "matmul/grouped_mm_bf16": "strides that no multiple of 16 bytes are, which torch's kernel wants",
    "index/embedding_bag_weighted": "offsets that descend, which is data",
    "other_names/determinants": "a singular matrix, which is data",
    "other_names/factors": "no rows",
    "conv/conv2d_uneven": "no rows: eager's kernel convolves the padding",
}


def exported(case: Case) -> ExportedProgram | None:
    """The case with every axis dynamic as far as torch allows; None where torch takes it in no such way."""
    args = case.args(TRACED)
    dims = pytree.tree_map(
        lambda a: dict.fromkeys(range(a.ndim), Dim.AUTO) if isinstance(a, torch.Tensor) else None, args
    )
    try:
        return torch.export.export(case.module(), args, dynamic_shapes=dims, strict=False)
    except Exception:
        return None


def resized(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The tensor cut or repeated to these sizes: its elements stay those of the example."""
    for axis, size in enumerate(shape):
        if x.shape[axis] != size:
            x = x.index_select(axis, torch.arange(size) % x.shape[axis]) if x.shape[axis] else x.new_zeros(shape)
    return x


def trials(graph: ir.Graph, inputs: Sequence[torch.Tensor]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Inputs with one symbol at another size, and with all."""
    traced = sizes_of(graph, inputs)
    others = [traced | {name: size} for name in traced for size in (0, 1, 2, traced[name] + 1)]
    others += [dict.fromkeys(traced, size) for size in (0, 1, 2)]
    for sizes in (s for i, s in enumerate(others) if s != traced and s not in others[:i]):
        shapes = [[evaluate(d, sizes) for d in v.type.shape] for v in graph.inputs]
        if min((n for s in shapes for n in s), default=0) >= 0:
            yield str(sizes), [resized(x, s) for x, s in zip(inputs, shapes, strict=True)]


def findings(case: Case, targets: Sequence[str]) -> Iterator[str]:
    """What a target computes and torch does not."""
    program = exported(case)
    args = case.args(TRACED)
    tensors, spec = pytree.tree_flatten(args)
    if program is None or not all(isinstance(a, torch.Tensor) for a in tensors):
        return
    graph, reference = ir.capture(program), program.module()
    refused = [(*trial, said) for trial in trials(graph, tensors) if (said := raised(reference, trial[1], spec))]
    yield TORCH_ENDED
    for target in targets if refused else ():
        try:
            made = ir.export(graph, target=target)
        except ir.ExportError:
            continue
        for sizes, inputs, said in refused:
            try:
                result = made(*pytree.tree_unflatten([x.clone() for x in inputs], spec))
            except Exception:
                continue
            shapes = [list(t.shape) for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
            if any(0 not in s for s in shapes):
                yield f"{target} {case.name} at {sizes} gives {shapes}, torch: {said}"


def raised(reference: Any, inputs: Sequence[torch.Tensor], spec: Any) -> str:
    """The text of what torch's program raises; "" where it computes, and where a guard of the export stops it."""
    try:
        with torch.no_grad():
            reference(*pytree.tree_unflatten([x.clone() for x in inputs], spec))
    except Exception as error:
        return "" if "Guard failed" in str(error) else str(error).strip().partition("\n")[0][:150] or repr(error)
    return ""


def apart(case: Case, targets: Sequence[str]) -> list[str]:
    """The findings, computed by a child: kernels end a process at sizes that nobody tried."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(SECONDS)
        with os.fdopen(writing, "w") as out:
            try:
                for line in findings(case, targets):
                    print(line, file=out, flush=True)
            except BaseException as error:
                print(f"{case.name}: {type(error).__name__}: {error}", file=out, flush=True)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        lines = answer.read().splitlines()
    _, status = os.waitpid(child, 0)
    found = [line for line in lines if line != TORCH_ENDED]
    return [*found, f"{case.name}: ended by signal {status}"] if status and TORCH_ENDED in lines else found


def main() -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default="onnx,nnef,eager")
    parser.add_argument("--family")
    parser.add_argument("--match")
    parser.add_argument("--part", default="0/1", help="which part of the cases, of how many")
    options = parser.parse_args()
    targets = options.targets.split(",")
    for target in targets:  # what children would import and build each for itself
        ir.export(torch.nn.Linear(2, 2), (torch.ones(3, 2),), dynamic_shapes=({0: Dim.AUTO},), target=target)
    part, parts = map(int, options.part.split("/"))
    counts = [0, 0]  # those that are not known, and those that are
    for case in [c for i, c in enumerate(select(options.family, options.match)) if i % parts == part]:
        for line in apart(case, targets):
            reason = next((r for name, r in KNOWN.items() if case.name.startswith(name)), "")
            counts[bool(reason)] += 1
            print(line + (f" (known: {reason})" if reason else ""), flush=True)
    print("{} found, {} known".format(*counts))
    return int(counts[0] > 0)


if __name__ == "__main__":
    sys.exit(main())
