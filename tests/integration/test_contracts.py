"""What passes require and ensure (ir.passes.contract), looked at before and after each pass of each target."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ir
from ir.passes.contract import CONTRACTS, IMPORTED, PROPERTIES, broken, contract_of
from ir.plugins import find_target
from ir.preparation import prepared
from tests.cases import ALL
from tests.harness import captured
from tests.zoo import ALSO, FIRST, get

OPTIONS: dict[str, dict[str, Any]] = {
    "onnx": {}, "onnx, functions": {"functions": True}, "onnx, reference": {"external_data": "reference"},
    "onnx, 13": {"opset": 13}, "nnef": {}, "nnef, float32": {"bfloat16": "float32"},
    "nnef, rounded": {"bfloat16": "rounded"},
}  # fmt: skip
TARGETS = {name: find_target(name.partition(",")[0], options) for name, options in OPTIONS.items()}
PREPARED = (*IMPORTED, "real", "without checks")  # what ir.preparation does before a target's own passes


def watched(rewrite: Any, held: set[str], graph: ir.Graph) -> ir.Graph:
    """The pass between the looks; what was ensured before holds behind it too, if it does not say otherwise."""
    contract, name = contract_of(rewrite), getattr(rewrite, "__name__", str(rewrite))
    assert not broken(graph, contract.requires), f"{name} requires {broken(graph, contract.requires)}"
    made = ir.check(rewrite(graph))
    held.difference_update(contract.undoes)
    held.update(contract.ensures)
    assert not broken(made, tuple(sorted(held))), f"behind {name}: {broken(made, tuple(sorted(held)))}"
    return made


def check(graph: ir.Graph, name: str) -> None:
    """The target's passes on the graph, each looked at."""
    target, held = TARGETS[name], set(PREPARED)
    passes = [partial(watched, rewrite, held) for rewrite in target.passes]
    flags = {k: getattr(target, k) for k in ("has_sparse", "has_collectives", "has_checks", "has_complex", "version")}
    try:
        prepared(graph, SimpleNamespace(name=target.name, passes=passes, **flags), target.registry, graph.context)
    except ir.RefusedError:  # of a graph that the target does not take
        return


@pytest.mark.parametrize("name", TARGETS)
def test_the_order_of_passes(name: str) -> None:
    """What a pass requires, the importer or an earlier pass ensures, and no pass between undoes."""
    held = set(PREPARED)
    for rewrite in TARGETS[name].passes:
        contract = contract_of(rewrite)
        assert held.issuperset(contract.requires), f"{rewrite} requires {set(contract.requires) - held}"
        held = held.difference(contract.undoes).union(contract.ensures)
    assert "promoted" in held


def test_contracts_name_properties() -> None:
    assert len(CONTRACTS) >= 16
    for contract in CONTRACTS.values():
        assert PROPERTIES.keys() >= {*contract.requires, *contract.ensures, *contract.undoes}


def test_a_broken_contract_is_found() -> None:
    graph = ir.capture(lambda x, n: x + n, (torch.ones(2), torch.ones(2, dtype=torch.int64)))
    assert broken(graph, ("functional", "promoted")) == ["promoted"]
    assert broken(ir.capture(lambda x: x * 1j, (torch.ones(2),)), ("real", "flat")) == ["real"]


@pytest.mark.parametrize("case", ALL[::24], ids=lambda case: case.name)
def test_cases(case: Any) -> None:
    for name in TARGETS:
        check(captured(case), name)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for i, c in enumerate(ALL) if i % 24], ids=lambda case: case.name)
def test_all_other_cases(case: Any) -> None:
    test_cases(case)


@pytest.mark.parametrize("model", ["mobilenet_v3_small"])
def test_models(model: str) -> None:
    made = get(model, small=True)
    args, kwargs = made.inputs(made.sizes)
    graph = ir.capture(made.build(), args, kwargs, dynamic_shapes=made.dynamic_shapes)
    for name in TARGETS:
        check(graph, name)


@pytest.mark.slow
@pytest.mark.parametrize("model", [m for m in (*FIRST, *ALSO) if m != "mobilenet_v3_small"])
def test_all_other_models(model: str) -> None:
    test_models(model)
