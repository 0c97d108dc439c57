"""From a checkpoint to the graph of one step, with the names and sizes of a contract."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

import ir
from ir.errors import CaptureError
from ir.importer.refusals import asks_for_data
from language_models.checkpoint import Checkpoint
from language_models.contract import Contract, State
from language_models.folder import Manifest
from language_models.generation_settings import settings_of
from language_models.lengths import check_step
from language_models.longrope import computes_anew, longest_short
from language_models.step import BATCH, NEW, PAST, Step, is_state, masks_padding

_FIXES = "its code fixes sizes that dynamic_shapes calls dynamic"  # in a refusal by torch.export


def traced(
    checkpoint: Checkpoint,
    contract: Contract,
    last: bool,
    target: str,
    weights: str,
    single: bool = False,
    kind: type[Step] = Step,
) -> tuple[Any, Manifest]:
    """The graph of one step and the manifest of the file it comes to; the caller names the file.

    A recurrent model takes one token at a time, and so does any other if `single`; `kind` is the step to trace.

    Raises:
        CaptureError: the model takes no cache, or torch.export does not take the model.
    """
    step = kind(checkpoint.model, last)
    single = single or step.recurrent
    if contract.batch and kind is Step and not single and not masks_padding(step):
        warnings.warn(
            f"{type(checkpoint.model).__name__} masks padding within a prompt and not behind it: a batch is one text, "
            "and several are generated one after the other, without their padding",
            stacklevel=3,
        )
        contract = replace(contract, batch="")
    given = _example(step, contract, single)
    names = [*(n for n in given if n != "past_key_values"), *map(contract.state_in, step.states)]
    results = [contract.logits, *map(contract.state_out, step.states)]
    graph = ir.capture(
        step,
        kwargs=given,
        dynamic_shapes=_sizes(step, given, contract, single),
        input_names=[getattr(contract, _FIELDS[n]) if n in _FIELDS else n for n in names],
        output_names=results,
    )
    check_step(checkpoint.model, graph, contract, checkpoint.context_length)
    return _without_unread_updates(graph), manifest_of(checkpoint, step, contract, target, weights)


def of_graph(handlers: Mapping[str, Any], graph: Any) -> dict[str, Any]:
    """Those handlers whose op the graph has; the others would be told of as unused."""
    ops = {node.op for node in graph.nodes}
    return {op: handler for op, handler in handlers.items() if op in ops}


def _without_unread_updates(graph: Any) -> Any:
    """The graph without new contents of buffers that every call overwrites before it reads them."""
    read = {weight.name for weight in graph.weights.values()}
    return graph.replace(updates={name: value for name, value in graph.updates.items() if name in read})


@contextlib.contextmanager
def told_of(checkpoint: Checkpoint) -> Iterator[None]:
    """Inside of the block, a refusal at a line of transformers tells what the model does there, and not how to write
    the line, as it is not the caller's.
    """
    try:
        yield
    except CaptureError as error:
        asked = asks_for_data(error.__cause__) or isinstance(error.__cause__, AssertionError) or _FIXES in str(error)
        place = re.search(rf"\bat ({re.escape(str(Path(transformers.__file__).parent))}.+?:\d+ .*)", str(error))
        if not (asked and place):
            raise
        angles = _dynamic_rope(checkpoint) if "rope" in place[1] else None
        said = angles or "it decides by the data or the lengths that it is given, in transformers' code"
        raise CaptureError(
            f"{type(checkpoint.model).__name__} cannot be exported as it is: {said}\n  at {place[1]}"
        ) from error


def _dynamic_rope(checkpoint: Checkpoint) -> str | None:
    """What to say of angles that change with the length of the text at hand; None where the model has none."""
    found = getattr(checkpoint.config, "rope_parameters", None) or {}
    kinds = [p.get("rope_type") for p in (found, *found.values()) if isinstance(p, dict)]
    if "dynamic" not in kinds:
        return None
    return (
        'rope_type="dynamic" in rope_parameters (rope_scaling) of its configuration makes all angles anew '
        f'for each length; up to {checkpoint.context_length} tokens rope_type="default" is the same, and "yarn" or '
        '"linear" reach further, with other numbers'
    )


def manifest_of(checkpoint: Checkpoint, step: Step, contract: Contract, target: str, weights: str) -> Manifest:
    """What there is to say of a step whose file is not named yet."""
    states = tuple(
        State(name, contract.state_in(name), contract.state_out(name), (contract.batch or 1, *_rest(name, t, contract)),
              str(t.dtype).removeprefix("torch."))
        for name, t in step.states.items()
    )  # fmt: skip
    vocabulary = checkpoint.config.vocab_size
    context, anew = _context(checkpoint, step, target)
    return Manifest(
        target,
        "",
        contract,
        states,
        bool(contract.mask) and step.takes_mask,
        bool(contract.positions) and step.takes_positions,
        step.recurrent,
        weights,
        tuple(checkpoint.ends),
        checkpoint.padding,
        vocabulary,
        context,
        padding_side=step.padding_side,
        computed_anew=anew,
        rules=settings_of(checkpoint, checkpoint.ends, vocabulary),
    )


def _context(checkpoint: Checkpoint, step: Step, target: str) -> tuple[int, int]:
    """The longest text, and the length beyond which all of it is computed anew, 0 for never.

    Where the loop of a runtime cannot do that, or a step reads one token at a time, texts end there.
    """
    context, short = checkpoint.context_length, longest_short(checkpoint.config)
    if not 0 < short < context:
        return context, 0
    anew = short if computes_anew(step.model, step.cache, short) else 0
    return short if step.recurrent or (anew and target == "nnef") else context, anew


_FIELDS = {"input_ids": "tokens", "attention_mask": "mask", "position_ids": "positions"}


def _example(step: Step, contract: Contract, single: bool) -> dict[str, Any]:
    """One call: new tokens behind a text."""
    batch = BATCH if contract.batch else 1
    new = 1 if single else NEW
    given: dict[str, Any] = {"input_ids": torch.ones(batch, new, dtype=torch.int64)}
    if contract.mask and step.takes_mask:
        given["attention_mask"] = torch.ones(batch, PAST + new, dtype=torch.int64)
    if contract.positions and step.takes_positions:
        given["position_ids"] = torch.arange(PAST, PAST + new).repeat(batch, 1)
    given["past_key_values"] = {name: t[:batch].clone() for name, t in step.states.items()}
    return given


def _sizes(step: Step, given: dict[str, Any], contract: Contract, single: bool) -> dict[str, Any]:
    """The dynamic dimensions of the example."""
    first = {0: contract.batch} if contract.batch else {}
    new = {} if single else {1: contract.new}
    sizes: dict[str, Any] = {
        "input_ids": first | new,
        "attention_mask": first | {1: contract.total},
        "position_ids": first | new,
        "past_key_values": {n: first if is_state(n) else first | {2: contract.past} for n in step.states},
    }
    return {name: sizes[name] for name in given}


def _rest(name: str, tensor: torch.Tensor, contract: Contract) -> tuple[int | str, ...]:
    shape: list[int | str] = [*tensor.shape]
    if not is_state(name):
        shape[2] = contract.past
    return tuple(shape[1:])
