"""A mixture of experts as one op a layer, which runtimes have: language_models.moe (ONNX), .tract_experts (tract).

transformers calls our experts (its ExpertsInterface) where their gate is one that the op has:

    gate, up = pieces of x @ gate_up        (halves, or every other column)
    min(gate, limit) * sigmoid(alpha * min(gate, limit)) * (clamp(up, -limit, limit) + beta)

Which one a module has is seen from what its gate makes of random numbers; experts with another stay the model's own.
Weights in few bits are codes and scales in the place of floats (language_models.weights).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.utils.parametrize import is_parametrized

import ir
from ir.graph import ComputedWeight, Graph, Value
from ir.passes.graph_editor import GraphEditor
from language_models.step import running

INTERFACE = "language_models_experts"  # what transformers knows our experts by
EXPERTS = "language_models::experts"
WEIGHTS = ("gate_up_proj", "down_proj")  # what transformers calls a module's weights
_APPLY = "_apply_gate"  # and its gate


@dataclass(frozen=True)
class Gate:
    """The numbers of a gate, and whether its two parts are every other column."""

    alpha: float
    beta: float
    limit: float
    interleaved: bool

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Of products [..., 2 * I] the inner values [..., I]."""
        gate, up = (x[..., ::2], x[..., 1::2]) if self.interleaved else x.chunk(2, -1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)


def gate_of(module: Any) -> Gate | None:
    """The gate of a module of experts; None for one that the op does not have."""
    if not getattr(module, "has_gate", False) or getattr(module, "has_post_expert_norm", False):
        return None
    own = {"alpha": float(getattr(module, "alpha", 1.0)), "limit": float(getattr(module, "limit", None) or math.inf)}
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)) * 8
    made = getattr(module, _APPLY)(x)
    for beta in (0.0, 1.0):
        for interleaved in (False, True):
            gate = Gate(own["alpha"], beta, own["limit"], interleaved)
            if torch.allclose(gate(x), made, rtol=1e-5, atol=1e-5):
                return gate
    return None


@ir.custom_op(EXPERTS)  # type: ignore[untyped-decorator]
def experts(
    hidden: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scales: torch.Tensor | None,
    gate_up_bias: torch.Tensor | None,
    down: torch.Tensor,
    down_scales: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    transposed: bool,
    interleaved: bool,
    alpha: float,
    beta: float,
    limit: float,
) -> torch.Tensor:
    """Of tokens [N, H] the sum [N, H] over the experts `index` [N, K] of each, times `weights` [N, K].

    `gate_up` [E, 2 * I, H] and `down` [E, H, I], or both with their last two axes exchanged; floats, or codes with
    scales (see `floats`).
    """
    first, second = (_chosen(*w, index, transposed) for w in ((gate_up, gate_up_scales), (down, down_scales)))
    inner = torch.einsum("nh,nkih->nki", hidden, first)
    inner = inner if gate_up_bias is None else inner + gate_up_bias[index]
    inner = Gate(alpha, beta, limit, interleaved)(inner)
    made = torch.einsum("nki,nkhi->nkh", inner, second)
    made = made if down_bias is None else made + down_bias[index]
    return (made * weights[..., None]).sum(1).to(hidden.dtype)


def _chosen(weight: torch.Tensor, scales: torch.Tensor | None, index: torch.Tensor, transposed: bool) -> torch.Tensor:
    """The matrices of these experts, in floats."""
    found = (weight.mT if transposed else weight)[index]
    return found if scales is None else floats(found, scales[index])


def floats(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What codes [..., C] stand for, with scales [...] of their rows, or [..., G] of the G groups of a row."""
    if scales.dim() < codes.dim():
        return codes * scales[..., None]
    groups: torch.Tensor = codes.unflatten(-1, (scales.shape[-1], -1))
    return (groups * scales[..., None]).flatten(-2)


_GATES: ContextVar[dict[Any, Gate]] = ContextVar("gates of the experts of the model that is called")


@contextmanager
def own_experts(model: Any, has_gate: Callable[[Gate], bool] = lambda gate: True) -> Iterator[None]:
    """The model calls `language_models::experts` where the runtime's op has the gate, while this is open; not at all
    if its logits then differ."""
    gates = {m: gate for m in model.modules() if (gate := gate_of(m)) is not None and has_gate(gate)}
    if not gates:
        yield
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(INTERFACE, _experts)
    before, token = model.get_experts_implementation(), _GATES.set(gates)
    wanted = _logits(model)
    try:
        model.set_experts_implementation(INTERFACE)
        made = _logits(model)
        if not torch.allclose(made, wanted, rtol=0, atol=1e-3 * float(wanted.abs().max())):
            warnings.warn(
                f"{type(model).__name__} is written with experts in plain operations: the runtime's op for them gives "
                "other logits",
                stacklevel=3,
            )
            model.set_experts_implementation(before)
        yield
    finally:
        model.set_experts_implementation(before)
        _GATES.reset(token)


def _logits(model: Any) -> torch.Tensor:
    """The logits of a short text."""
    vocabulary = model.config.get_text_config().vocab_size
    text = torch.randint(0, vocabulary, (1, 19), generator=torch.Generator().manual_seed(0))
    with running(model, "without a cache"), torch.no_grad():
        logits: torch.Tensor = model(input_ids=text, use_cache=False).logits
    return logits


def _experts(module: Any, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """What transformers calls."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    gate = _GATES.get().get(module)
    if gate is None or hidden.dim() != 2:
        plain: torch.Tensor = grouped_mm_experts_forward(module, hidden, index, weights)
        return plain
    biases = (module.gate_up_proj_bias, module.down_proj_bias) if module.has_bias else (None, None)
    coded = is_parametrized(module, WEIGHTS[0])
    held = [codes_of(module, n) if coded else (getattr(module, n), None) for n in WEIGHTS]
    transposed, numbers = module.is_transposed and not coded, (gate.alpha, gate.beta, gate.limit)
    made: torch.Tensor = experts(
        hidden, index, weights, *held[0], biases[0], *held[1], biases[1], transposed, gate.interleaved, *numbers
    )
    return made


def codes_of(module: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes and scales of a weight in few bits, whose rows are what the experts make."""
    held = module.parametrizations[name]
    return held.original0, held.original1


Form = Callable[[GraphEditor, Mapping[str, Any]], dict[str, Any]]  # the arguments of a runtime's op, of EXPERTS' own


def mixtures(graph: Graph, op: str, form: Form) -> Graph:
    """Experts become nodes `op`, with the arguments that `form` makes of theirs."""
    edit = GraphEditor(graph)
    for node in graph.nodes:
        if node.op == EXPERTS and all(node.args[n] in edit.weights for n in ("gate_up", "down")):
            edit.replace(node, replace(node, op=op, args=form(edit, node.args)))
    return edit.graph()


def laid_out(
    edit: GraphEditor, value: Value | None, transposed: bool = False, rows: Any = None, added: Sequence[int] = ()
) -> Value | None:
    """A weight [E, rows, ...] laid out anew when it is written.

    Args:
        transposed: its last two axes are exchanged first.
        rows: a slice, or an order, of its rows then; None for all of them as they are.
        added: how many zeros follow along each axis.
    """
    if value is None:
        return None
    weight, shape = edit.weights[value], [n for n in value.type.shape if isinstance(n, int)]
    shape[1:] = reversed(shape[1:]) if transposed else shape[1:]
    chosen = np.arange(shape[1])[slice(None) if rows is None else rows]
    if not transposed and not any(added) and np.array_equal(chosen, np.arange(shape[1])):
        return value
    more = [*added, *[0] * (len(shape) - len(added))]
    shape[1] = len(chosen)
    type = value.type.with_shape([size + n for size, n in zip(shape, more, strict=True)])

    def numpy() -> np.ndarray:
        array = weight.numpy().swapaxes(1, 2) if transposed else weight.numpy()
        array = array if rows is None else array[:, rows]
        return np.pad(array, [(0, n) for n in more]) if any(more) else np.ascontiguousarray(array)

    made = edit.value(f"{value.name}_laid_out", type)
    edit.weights[made] = ComputedWeight(f"{weight.name}.{made.name}", type, numpy)
    return made
