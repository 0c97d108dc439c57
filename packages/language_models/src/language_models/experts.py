"""A mixture of experts as one op a layer: onnxruntime's MoE, beside a function in ONNX's own ops for other runtimes.

transformers calls our experts (its ExpertsInterface) where their gate is one that the op has:

    gate, up = pieces of x @ gate_up        (halves, or every other column)
    min(gate, limit) * sigmoid(alpha * min(gate, limit)) * (clamp(up, -limit, limit) + beta)

Which one a module has is seen from what its gate makes of random numbers; experts with another stay the model's own.
The op makes the softmax of its routing weights itself: it is given their logarithms, and what it makes is multiplied by
their sum.
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

import ir
from ir.graph import ComputedWeight, Graph, Value
from ir.passes.graph_editor import GraphEditor

INTERFACE = "language_models_experts"  # what transformers knows our experts by
EXPERTS = "language_models::experts"
MIXTURE = "language_models::mixture"  # experts whose weights lie as the op reads them
DOMAIN, NAME = "com.microsoft", "MoE"
_APPLY = "_apply_gate"  # what transformers calls a module's gate


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
    gate_up_bias: torch.Tensor | None,
    down: torch.Tensor,
    down_bias: torch.Tensor | None,
    transposed: bool,
    interleaved: bool,
    alpha: float,
    beta: float,
    limit: float,
) -> torch.Tensor:
    """Of tokens [N, H] the sum [N, H] over the experts `index` [N, K] of each, times `weights` [N, K].

    `gate_up` [E, 2 * I, H] and `down` [E, H, I], or both with their last two axes exchanged.
    """
    first, second = (w.mT if transposed else w for w in (gate_up, down))
    inner = torch.einsum("nh,nkih->nki", hidden, first[index])
    inner = inner if gate_up_bias is None else inner + gate_up_bias[index]
    inner = Gate(alpha, beta, limit, interleaved)(inner)
    made = torch.einsum("nki,nkhi->nkh", inner, second[index])
    made = made if down_bias is None else made + down_bias[index]
    return (made * weights[..., None]).sum(1).to(hidden.dtype)


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
    with torch.no_grad():
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
    first, second = (module.gate_up_proj, biases[0]), (module.down_proj, biases[1])
    numbers = gate.alpha, gate.beta, gate.limit
    made: torch.Tensor = experts(
        hidden, index, weights, *first, *second, module.is_transposed, gate.interleaved, *numbers
    )
    return made


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


def as_moe(edit: GraphEditor, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `mixture`: gate and up in turns along the rows."""
    width = args["gate_up"].type.shape[2 if args["transposed"] else 1]
    order = None if args["interleaved"] else np.arange(width).reshape(2, -1).T.ravel()
    kept = {n: a for n, a in args.items() if n not in ("transposed", "interleaved")}
    return {
        **kept,
        "gate_up": laid_out(edit, args["gate_up"], args["transposed"], order),
        "gate_up_bias": laid_out(edit, args["gate_up_bias"], rows=order),
        "down": laid_out(edit, args["down"], args["transposed"]),
    }


def mixture(
    h: Any, hidden: Any, index: Any, weights: Any, gate_up: Any, gate_up_bias: Any, down: Any, down_bias: Any,
    alpha: float, beta: float, limit: float,
) -> Any:  # fmt: skip
    """One com.microsoft::MoE; experts that were not chosen have a logarithm of -infinity."""
    smallest = float(np.finfo(np.float32).tiny)
    chosen = h.emit("Log", h.emit("Max", weights, smallest))
    none = h.full((hidden.type.shape[0], gate_up.type.shape[0]), -math.inf, weights.type.dtype)
    routes = h.emit("ScatterElements", none, index, chosen, axis=1)
    made = h.emit(
        f"{DOMAIN}::{NAME}", hidden, routes, gate_up, gate_up_bias, down, down_bias, k=index.type.shape[1],
        activation_type="swiglu", swiglu_fusion=1, activation_alpha=alpha, activation_beta=beta,
        swiglu_limit=limit if math.isfinite(limit) else None, shape=hidden.type.shape, dtype=hidden.type.dtype,
    )  # fmt: skip
    _give_body(h, made.value.producer(), gate_up_bias is not None, math.isfinite(limit))
    return h.emit("Mul", made, h.reduce("ReduceSum", weights, [1], keepdim=True))


def _give_body(h: Any, node: Any, biased: bool, limited: bool) -> None:
    """The function of this name goes into the file, for runtimes without the op."""
    import onnx.parser
    import onnx_ir

    node.resize_inputs(6 if biased else 5)
    if (DOMAIN, NAME) in h.functions:
        return
    attributes = "k, activation_type, swiglu_fusion, activation_alpha: float = 1.0, activation_beta: float = 0.0"
    attributes += ", swiglu_limit" if limited else ""
    given = "input, router_probs, gate_up, gate_up_bias, down" + (", down_bias" if biased else "")
    parts = (_ROUTED, _PRODUCTS, _GATE_UP_BIAS if biased else "raised = Identity (products)", _PARTS,
             _LIMITS if limited else _UNLIMITED, _INNER,
             _DOWN_BIAS if biased else "each = Identity (lowered)", _SUM)  # fmt: skip
    lines = "\n".join(parts)
    head = f'<opset_import: ["" : {h.opset}], domain: "{DOMAIN}">\n{NAME} <{attributes}> ({given})'
    text = f"{head} => (output) {{\n{lines}\n}}"
    h.add_function((DOMAIN, NAME), onnx_ir.from_proto(onnx.parser.parse_function(text)))


# weights [N, E] of the k likeliest experts of each token, zero for the others
_ROUTED = """
zero = Constant <value_float = 0.0> ()
none = CastLike (zero, router_probs)
first = Constant <value_ints = [0]> ()
single = Constant <value_ints = [1]> ()
last = Constant <value_ints = [-1]> ()
number = Constant <value_int: int = @k> ()
some = Reshape (number, single)
shares = Softmax <axis = -1> (router_probs)
values, indices = TopK <axis = -1> (shares, some)
nothing = Mul (shares, none)
routed = ScatterElements <axis = 1> (nothing, indices, values)
"""

# every expert of every token: [E, N, 2 * I]
_PRODUCTS = """
rows = Unsqueeze (input, first)
up_columns = Transpose <perm = [0, 2, 1]> (gate_up)
products = MatMul (rows, up_columns)
"""

_GATE_UP_BIAS = """
up_bias = Unsqueeze (gate_up_bias, single)
raised = Add (products, up_bias)
"""

_PARTS = """
two = Constant <value_ints = [2]> ()
end = Constant <value_ints = [9223372036854775807]> ()
all_gates = Slice (raised, first, end, last, two)
all_ups = Slice (raised, single, end, last, two)
"""

_UNLIMITED = """
gates = Identity (all_gates)
ups = Identity (all_ups)
"""

_LIMITS = """
said_limit = Constant <value_float: float = @swiglu_limit> ()
most = CastLike (said_limit, raised)
least = Neg (most)
gates = Min (all_gates, most)
low_ups = Max (all_ups, least)
ups = Min (low_ups, most)
"""

_INNER = """
said_alpha = Constant <value_float: float = @activation_alpha> ()
alpha = CastLike (said_alpha, raised)
said_beta = Constant <value_float: float = @activation_beta> ()
beta = CastLike (said_beta, raised)
steeper = Mul (gates, alpha)
open = Sigmoid (steeper)
gated = Mul (gates, open)
shifted = Add (ups, beta)
inner = Mul (gated, shifted)
down_columns = Transpose <perm = [0, 2, 1]> (down)
lowered = MatMul (inner, down_columns)
"""

_DOWN_BIAS = """
bias = Unsqueeze (down_bias, single)
each = Add (lowered, bias)
"""

_SUM = """
by_expert = Transpose <perm = [1, 0]> (routed)
factors = Unsqueeze (by_expert, last)
weighted = Mul (each, factors)
output = ReduceSum <keepdims = 0> (weighted, first)
"""

HANDLERS = {MIXTURE: mixture}
