"""Models that decide by the length of a text: a program has one side of such a branch, and would refuse other texts."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

from ir.conditions import holds
from ir.dims import Expr
from ir.errors import CaptureError
from ir.graph import symbols_in
from language_models.contract import Contract

BATCH = "batch_size"
MOST = 2048  # lengths that are tried
_DECIDED = r"torch\.export takes dynamic sizes to be 2 or more, and what the model's code asked .*"
_EXPECTED = (
    "the model branches on dynamic sizes",  # a mask is as long as its text; the rest is checked here
    rf"(?s){_DECIDED}\n[^\n]* the model gives the same there",
    rf"{_DECIDED}(\n.* = 0)+\nthe model was not run there",  # a text has a token, and a batch a text
)


@contextlib.contextmanager
def without_expected_warnings() -> Iterator[None]:
    """Ignore warnings of sizes at which the program is right, or that no text has, inside of the block."""
    with warnings.catch_warnings():
        for message in _EXPECTED:
            warnings.filterwarnings("ignore", message=message)
        yield


def check_lengths(model: Any, graph: Any, positions: int | None = None) -> None:
    """Refuse a program of texts of some lengths alone; a shortest length is none of that, for texts can be padded.

    Of one that takes all texts up to some length a warning tells that length.

    Args:
        positions: the longest text that any model of these weights takes, where a table limits it.

    Raises:
        CaptureError: the model decides by the length; what it says is where.
    """
    longest = min(MOST, positions or MOST)
    known = sizes_in(graph)
    for condition, said in _conditions(graph):
        names = sorted(condition.symbols - {BATCH}) or [BATCH]
        if len(names) > 1 or names[0] not in known:  # that masks are as long as their texts is the contract
            continue
        fits = [holds(condition, {BATCH: 2, names[0]: length}) for length in range(1, longest + 1)]
        if True in fits and all(fits[fits.index(True) :]):
            continue
        most = fits.index(True) + fits[fits.index(True) :].index(False) if True in fits else 0
        if most and not any(fits[most:]):
            warnings.warn(f"{type(model).__name__} decides by the length of the text, and the program takes texts of "
                          f"at most {most} tokens: it holds only where {condition}", stacklevel=2)  # fmt: skip
            continue
        raise _refusal(model, condition, said)


def check_step(model: Any, graph: Any, contract: Contract, context: int) -> None:
    """Refuse a step of a decoder that holds for some lengths alone: it is wanted for every text of at most `context`
    tokens, those before and the new ones.

    Raises:
        CaptureError: the model decides by these lengths; what it says is where.
    """
    few = sorted({*(2**i for i in range(context.bit_length())), 3, 5, context})
    many = few if contract.new in sizes_in(graph) else [1]
    points = [{contract.batch: 2, contract.new: new, contract.past: past, contract.total: past + new}
              for new in many for past in [0, *few] if past + new <= context]  # fmt: skip
    for condition, said in _conditions(graph):
        if condition.symbols <= points[0].keys() and not all(holds(condition, point) for point in points):
            raise _refusal(model, condition, said)


def sizes_in(graph: Any) -> frozenset[str]:
    """The dynamic sizes of a graph's inputs, by name."""
    return symbols_in(d for value in graph.inputs for d in value.type.shape)


def _refusal(model: Any, condition: Expr, said: str) -> CaptureError:
    place = re.search(r": (\S+:\d+) branched on that", said)
    return CaptureError(
        f"{type(model).__name__} cannot be exported as it is: it decides by the length of the text, and "
        f"a program would hold only where {condition}" + (f"\n  at {place[1]}" if place else "")
    )


def _conditions(graph: Any) -> Iterator[tuple[Expr, str]]:
    """What a graph is right for alone, each with what it says elsewhere."""
    for node in graph.nodes:
        own = node.op == "aten::_assert_scalar" and not node.origin.overload  # not what the model itself asserts
        condition = node.args["self"] if own else None
        if isinstance(condition, Expr):
            yield condition, str(node.args.get("assert_msg", ""))
