"""Whether torch's kernels give a view where its fake tensors do: they choose the strides of what they compute."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from ir.errors import CaptureError
from ir.importer.checked import UncheckedError, kernels_of_file, verifying
from ir.importer.fx_ops import VANISH
from ir.importer.input_strides import Layouts
from ir.importer.origins import origin_of
from ir.importer.schema import op_schema
from ir.importer.torch_api import HigherOrderOperator, OpOverload, pytree, storage_key
from ir.ops import CHECKS


def check_views(
    module: torch.nn.Module,
    given: Callable[[], Mapping[FxNode, Any]],
    layouts: Layouts,
    of_file: bool,
) -> None:
    """Run the program on its example, up to the last node in question.

    Of a file first as it is verified: there, torch's decompositions stand for kernels that are not known to look at
    their operands, and may choose other strides. So it runs once more without them, on the same numbers.

    Args:
        module: a program, in torch's own form.
        given: gives what its placeholders are in the example.
        layouts: the nodes in question, and what it writes to.
        of_file: it is one of a file, which may be anyone's.

    Raises:
        CaptureError: a kernel gives the other, or the example cannot be run.
    """
    if not layouts.views:
        return
    met: dict[FxNode, bool] = {}
    why = "torch.export's fake tensors and torch's kernels differ in it"
    try:
        values = given()
        if of_file:
            _run(module, values, layouts, verifying(), of_file)
        kernels = kernels_of_file() if of_file else contextlib.nullcontext()
        met = _run(module, values, layouts, kernels, of_file)
    except Exception as error:  # of any kind: the model's own code is in it
        why = f"the example, which tells, does not run: {str(error).partition(chr(10))[0]:.200}"
    for node, view in layouts.views.items():
        if met.get(node) is not view:
            raise CaptureError(
                f"whether {op_schema(node.target).op} gives a view or a copy of what the program computes matters, as "
                f"one of the two is written to and the other read, and {why}; write .clone() behind it, or in its "
                f"place .view()\n  at {origin_of(node)}"
            )


_SKIPPED = CHECKS | VANISH | {"aten::detach_"}  # they compute nothing


class _Done(Exception):
    """All nodes in question have run."""


def _run(
    module: torch.nn.Module,
    values: Mapping[FxNode, Any],
    layouts: Layouts,
    running: AbstractContextManager[Any],
    of_file: bool,
) -> dict[FxNode, bool]:
    """Which of the nodes in question give a view."""
    run = _Run(module, layouts.views, of_file)
    placeholders = [n for n in run.graph.nodes if n.op == "placeholder"]
    args = [_own(values[n]) if n in layouts.written else values[n] for n in placeholders]
    with torch.no_grad(), torch.random.fork_rng(devices=[]), running, contextlib.suppress(_Done):
        run.run(*args)
    return run.met


class _Run(torch.fx.Interpreter):
    def __init__(self, module: torch.nn.Module, views: Mapping[FxNode, bool], of_file: bool) -> None:
        super().__init__(module, graph=module.graph)  # type: ignore[arg-type]
        self.views, self.of_file = views, of_file
        self.met: dict[FxNode, bool] = {}

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, OpOverload) and op_schema(target).op in _SKIPPED:
            return args[0]
        if self.of_file and isinstance(target, HigherOrderOperator):  # a loop takes what time it wants
            raise UncheckedError(f"{target} of a file is not run")
        return super().call_function(target, args, kwargs)

    def run_node(self, n: FxNode) -> Any:
        made = super().run_node(n)
        if n in self.views:
            keys = {storage_key(t) for t in pytree.tree_leaves(self.fetch_args_kwargs_from_env(n)) if _is_plain(t)}
            self.met[n] = _is_plain(made) and storage_key(made) in keys
            if len(self.met) == len(self.views):
                raise _Done
        return made


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _own(value: Any) -> Any:
    """A tensor in memory of its own, as it lies there: the program may write to it."""
    if not _is_plain(value) or value.is_meta:
        return value
    place = value.storage_offset(), value.shape, value.stride()
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage().clone(), *place)
