"""Models that decide by the length of a text: a program has one side of such a branch, and would refuse other texts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

from ir.conditions import holds
from ir.dims import Expr
from ir.errors import CaptureError

BATCH = "batch_size"
MOST = 2048  # lengths that are tried
_POSITIONS = re.compile(r"max_.*position_embeddings|max_(source|target)_positions|n_positions|max_seq_len|seq_length")


def check_lengths(model: Any, graph: Any) -> None:
    """Refuse a program of texts of some lengths alone; a shortest length is none of that, for texts can be padded.

    Of one that takes all texts up to some length a warning tells that length.

    Raises:
        CaptureError: the model decides by the length; what it says is where.
    """
    longest = _longest(model)
    known = {name for value in graph.inputs for d in value.type.shape if isinstance(d, Expr) for name in d.symbols}
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
        place = re.search(r": (\S+:\d+) branched on that", said)
        raise CaptureError(
            f"{type(model).__name__} cannot be exported as it is: it decides by the length of the text, in "
            f"transformers' code, and a program would hold only where {condition}"
            + (f"\n  at {place[1]}" if place else "")
        )


def _conditions(graph: Any) -> Iterator[tuple[Expr, str]]:
    """What a graph is right for alone, each with what it says elsewhere."""
    for node in graph.nodes:
        own = node.op == "aten::_assert_scalar" and not node.origin.overload  # not what the model itself asserts
        condition = node.args["self"] if own else None
        if isinstance(condition, Expr):
            yield condition, str(node.args.get("assert_msg", ""))


def _longest(model: Any) -> int:
    """The longest text that any model of these positions takes; padding has positions of its own in some (RoBERTa)."""
    config = model.config
    configs = [config, config.get_text_config(), config.get_text_config(decoder=True)]
    found = [v for c in configs for n, v in vars(c).items() if _POSITIONS.fullmatch(n) and type(v) is int and v > 0]
    pad = config.get_text_config().pad_token_id
    taken = 1 + (pad if isinstance(pad, int) and pad > 0 else 0)
    return max(1, min([MOST, *(n - taken for n in found)]))
