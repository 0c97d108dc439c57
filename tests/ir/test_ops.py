"""What ops.py says of operators beyond their schemas, against torch: all operators of torch's own database run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ir.importer import ops
from ir.importer.schema import op_schema

aten = torch.ops.aten
X, ROW, EDGES = torch.randn(4, 4), torch.randn(4), torch.arange(4.0)

# Calls of ops whose results lie in their arguments; torch's database has the others or calls them by Python functions.
VIEWS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "alpha_dropout": lambda: (X, aten.alpha_dropout(X, 0.5, False)),
    "dropout": lambda: (X, aten.dropout(X, 0.5, False)),
    "feature_alpha_dropout": lambda: (X, aten.feature_alpha_dropout(X, 0.5, False)),
    "feature_dropout": lambda: (X, aten.feature_dropout(X, 0.5, False)),
    "atleast_1d": lambda: (X, aten.atleast_1d(X)),
    "atleast_2d": lambda: (X, aten.atleast_2d(X)),
    "atleast_3d": lambda: (X, aten.atleast_3d(X)),
    "broadcast_tensors": lambda: (X, aten.broadcast_tensors([X, ROW])),
    "cartesian_prod": lambda: (ROW, aten.cartesian_prod([ROW])),
    "conj_physical": lambda: (X, aten.conj_physical(X)),
    "data": lambda: (X, aten.data(X)),
    "einsum": lambda: (X, aten.einsum("ij->ji", [X])),
    "histogramdd": lambda: (EDGES, aten.histogramdd(X[:, :1], [EDGES])),
    "lift": lambda: (X, aten.lift(X)),
    "meshgrid": lambda: (ROW, aten.meshgrid([ROW, ROW])),
    "sum_to_size": lambda: (X, aten.sum_to_size(X, [4, 4])),
    "type_as": lambda: (X, aten.type_as(X, X)),
    "unsafe_chunk": lambda: (X, aten.unsafe_chunk(X, 2)),
    "unsafe_split": lambda: (X, aten.unsafe_split(X, 2)),
    "unsafe_split_with_sizes": lambda: (X, aten.unsafe_split_with_sizes(X, [1, 3])),
    "_unsafe_view": lambda: (X, aten._unsafe_view(X, [16])),
}


def share(given: Any, made: Any) -> bool:
    """True if a result lies in the memory of an argument."""
    memory = [{t.untyped_storage()._cdata for t in tree_leaves(x) if isinstance(t, Tensor)} for x in (given, made)]
    return not memory[0].isdisjoint(memory[1])


@pytest.mark.parametrize("name", sorted(op.removeprefix("aten::") for op in ops.UNANNOTATED_VIEWS))
def test_views_that_no_schema_tells(name: str) -> None:
    packet = getattr(aten, name)
    schemas = [op_schema(getattr(packet, overload)) for overload in packet.overloads()]
    assert any(not s.views and not s.writes for s in schemas), "its schema tells"
    given, made = VIEWS[name]()
    assert share(given, made), "it is no view"


def test_no_other_view_of_torch_goes_untold() -> None:
    """Each entry of torch's database, called as the operator of its name."""
    from torch.testing._internal.common_methods_invocations import op_db

    untold, ran = set(), 0
    for entry in op_db:
        packet = getattr(aten, entry.aten_name or entry.name, None)
        if packet is None or torch.float32 not in entry.dtypes:
            continue
        told = any(ops.may_be_view(op_schema(getattr(packet, overload))) for overload in packet.overloads())
        if told or f"aten::{entry.aten_name or entry.name}" in ops.UNANNOTATED_VIEWS:
            continue
        for sample in itertools.islice(entry.sample_inputs("cpu", torch.float32), 6):
            given = sample.input, *sample.args
            try:
                made = packet(*tree_map_only(Tensor, Tensor.detach, given), **sample.kwargs)
                ran += 1
                if share((given, sample.kwargs), made):
                    untold.add(packet)
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                break
    assert ran > 150 and not untold


@pytest.mark.parametrize("name", sorted(ops.COPIES - {"aten::pin_memory", "aten::native_dropout"}))
def test_copies_hold_what_they_are_made_of(name: str) -> None:
    namespace, op = name.split("::")
    arguments = {
        "repeat": [[1, 1]], "tile": [[1, 1]], "view_copy": [[4, 4]], "expand_copy": [[4, 4]], "_reshape_copy": [[4, 4]],
        "squeeze_copy": [], "unsqueeze_copy": [0], "convert_element_type": [torch.float32],
    }  # fmt: skip
    made = getattr(getattr(torch.ops, namespace), op)(X, *arguments.get(op, []))
    assert torch.equal(made.view(X.shape), X) and (op == "_lazy_clone" or not share(X, made))


@pytest.mark.parametrize(("op", "twin"), {
    "add_.Tensor": "add.Tensor", "gt_.Scalar": "gt.Scalar", "_foreach_add_.Scalar": "_foreach_add.Scalar",
    "add.out": "add.Tensor", "max.dim_max": "max.dim", "arange.out": "arange.default",
    "__ior__.Tensor": "__or__.Tensor",
    "polygamma_.default": "polygamma.default", "dropout_.default": "dropout.default", "t_.default": "t.default",
    "normal_.default": "normal_functional.default", "bernoulli_.float": "bernoulli.p", "fill_diagonal_.default": None,
    "rrelu_with_noise_.default": "rrelu_with_noise_functional.default",
}.items())  # fmt: skip
def test_functional_twins(op: str, twin: str | None) -> None:
    packet, _, overload = op.partition(".")
    found = op_schema(getattr(getattr(aten, packet), overload)).functional
    assert (found and str(found.target)) == (twin and f"aten.{twin}")


def test_most_ops_that_write_have_a_twin() -> None:
    """By signature, as torch generates them; what has none stands in the graph itself."""
    packets = [getattr(aten, name) for name in dir(aten) if name.endswith("_") and not name.startswith("_")]
    packets = [p for p in packets if isinstance(p, torch._ops.OpOverloadPacket)]
    schemas = [op_schema(getattr(p, overload)) for p in packets for overload in p.overloads()]
    without = {s.op for s in schemas if s.writes and s.tensors and s.functional is None and not s.moves}
    known = {
        "aten::fill_diagonal_",
        "aten::requires_grad_",
        "aten::copy_",  # has an overload for scripts
        "aten::shallow_copy_data_",  # since 2.14: `x.data = y`
    }
    assert without <= known
