"""A mixture of experts as onnxruntime's MoE, or QMoE for weights in few bits, with a function for other runtimes.

The op makes the softmax of its routing weights itself: it is given their logarithms, and what it makes is multiplied by
their sum. Layouts and attributes: onnxruntime, docs/ContribOperators.md, version 1.31.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ir.graph import ComputedWeight, Value
from ir.passes.graph_editor import GraphEditor
from ir.types import DType, TensorType
from language_models.experts import laid_out
from language_models.weights import GROUP

DOMAIN = "com.microsoft"
MIXTURE = "language_models::mixture"  # experts whose weights lie as the op reads them


def as_moe(edit: GraphEditor, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `mixture`: gate and up in turns along the rows, and codes from 0 on in bytes."""
    width = args["gate_up"].type.shape[2 if args["transposed"] else 1]
    order = None if args["interleaved"] else np.arange(width).reshape(2, -1).T.ravel()
    kept = {n: a for n, a in args.items() if n not in ("transposed", "interleaved")}
    made = {
        **kept,
        "gate_up": laid_out(edit, args["gate_up"], args["transposed"], order),
        "gate_up_scales": laid_out(edit, args["gate_up_scales"], rows=order),
        "gate_up_bias": laid_out(edit, args["gate_up_bias"], rows=order),
        "down": laid_out(edit, args["down"], args["transposed"]),
    }
    coded = [n for n in ("gate_up", "down") if made[f"{n}_scales"] is not None]
    return made | {n: _in_bytes(edit, made[n], _bits(made[f"{n}_scales"])) for n in coded}


def _bits(scales: Value) -> int:
    """Of the codes that these scales are for: those in groups have 4."""
    return 4 if scales.type.rank == 3 else 8


def _in_bytes(edit: GraphEditor, value: Value, bits: int) -> Value:
    """Codes [E, rows, C] as bytes [E, rows, C * bits / 8] that count from the lowest, the first in the low bits."""
    weight, (number, rows, columns) = edit.weights[value], value.type.shape
    type = TensorType(DType.uint8, (number, rows, columns * bits // 8))

    def numpy() -> np.ndarray:
        codes = weight.numpy().view(np.uint8) + np.uint8(1 << bits - 1)  # wraps around
        found: np.ndarray = codes if bits == 8 else codes[..., ::2] | codes[..., 1::2] << 4
        return found

    made = edit.value(f"{value.name}_in_bytes", type)
    edit.weights[made] = ComputedWeight(f"{weight.name}.in_bytes", type, numpy)
    return made


def mixture(
    h: Any, hidden: Any, index: Any, weights: Any, gate_up: Any, gate_up_scales: Any, gate_up_bias: Any, down: Any,
    down_scales: Any, down_bias: Any, alpha: float, beta: float, limit: float,
) -> Any:  # fmt: skip
    """One com.microsoft::MoE, or QMoE; experts that were not chosen have a logarithm of -infinity."""
    smallest = float(np.finfo(np.float32).tiny)
    chosen = h.emit("Log", h.emit("Max", weights, smallest))
    none = h.full((hidden.type.shape[0], gate_up.type.shape[0]), -math.inf, weights.type.dtype)
    routes = h.emit("ScatterElements", none, index, chosen, axis=1)
    bits = None if gate_up_scales is None else _bits(gate_up_scales)
    name = f"{DOMAIN}::{'MoE' if bits is None else 'QMoE'}"
    first = [gate_up, gate_up_bias] if bits is None else [gate_up, gate_up_scales, gate_up_bias]
    second = [down, down_bias] if bits is None else [down, down_scales, down_bias]
    made = h.emit(
        name, hidden, routes, *first, *second, k=index.type.shape[1], activation_type="swiglu", swiglu_fusion=1,
        activation_alpha=alpha, activation_beta=beta, expert_weight_bits=bits,
        swiglu_limit=limit if math.isfinite(limit) else None, block_size=GROUP if bits == 4 else None,
        shape=hidden.type.shape, dtype=hidden.type.dtype,
    )  # fmt: skip
    _give_body(h, made.value.producer(), gate_up_bias is not None, bits)
    return h.emit("Mul", made, h.reduce("ReduceSum", weights, [1], keepdim=True))


def _give_body(h: Any, node: Any, biased: bool, bits: int | None) -> None:
    """The function of this name goes into the file, for runtimes without the op."""
    import onnx.parser
    import onnx_ir

    limited = "swiglu_limit" in node.attributes
    names = _FLOATS if bits is None else _CODES
    given = names if biased else names[:-1]
    node.resize_inputs(len(given))
    if (DOMAIN, node.op_type) in h.functions:
        return
    attributes = "k, activation_type, swiglu_fusion, activation_alpha: float = 1.0, activation_beta: float = 0.0"
    attributes += ", swiglu_limit" if limited else ""
    attributes += "" if bits is None else ", expert_weight_bits, block_size" if bits == 4 else ", expert_weight_bits"
    parts = (_ROUTED, *([] if bits is None else [_dequantised(name, bits) for name in ("gate_up", "down")]), _PRODUCTS,
             _GATE_UP_BIAS if biased else "raised = Identity (products)", _PARTS, _LIMITS if limited else _UNLIMITED,
             _INNER, _DOWN_BIAS if biased else "each = Identity (lowered)", _SUM)  # fmt: skip
    lines = "\n".join(parts)
    head = f'<opset_import: ["" : {h.opset}], domain: "{DOMAIN}">\n{node.op_type} <{attributes}> ({", ".join(given)})'
    text = f"{head} => (output) {{\n{lines}\n}}"
    h.add_function((DOMAIN, node.op_type), onnx_ir.from_proto(onnx.parser.parse_function(text)))


_FLOATS = ("input", "router_probs", "gate_up", "gate_up_bias", "down", "down_bias")
_CODES = ("input", "router_probs", "gate_up_codes", "gate_up_scales", "gate_up_bias", "down_codes", "down_scales",
          "down_bias")  # fmt: skip


def _dequantised(name: str, bits: int) -> str:
    """A weight [E, rows, C] of its codes in bytes and its scales."""
    return (_OF_4_BITS if bits == 4 else _OF_8_BITS).replace("NAME", name)


_OF_4_BITS = f"""
NAME_sixteen = Constant <value_ints = [16]> ()
NAME_base = CastLike (NAME_sixteen, NAME_codes)
NAME_high = Div (NAME_codes, NAME_base)
NAME_low = Mod (NAME_codes, NAME_base)
NAME_last = Constant <value_ints = [-1]> ()
NAME_evens = Unsqueeze (NAME_low, NAME_last)
NAME_odds = Unsqueeze (NAME_high, NAME_last)
NAME_pairs = Concat <axis = -1> (NAME_evens, NAME_odds)
NAME_groups = Constant <value_ints = [0, 0, -1, {GROUP}]> ()
NAME_grouped = Reshape (NAME_pairs, NAME_groups)
NAME_counts = CastLike (NAME_grouped, NAME_scales)
NAME_said_middle = Constant <value_float = 8.0> ()
NAME_middle = CastLike (NAME_said_middle, NAME_scales)
NAME_signed = Sub (NAME_counts, NAME_middle)
NAME_steps = Unsqueeze (NAME_scales, NAME_last)
NAME_scaled = Mul (NAME_signed, NAME_steps)
NAME_rows = Constant <value_ints = [0, 0, -1]> ()
NAME = Reshape (NAME_scaled, NAME_rows)
"""

_OF_8_BITS = """
NAME_counts = CastLike (NAME_codes, NAME_scales)
NAME_said_middle = Constant <value_float = 128.0> ()
NAME_middle = CastLike (NAME_said_middle, NAME_scales)
NAME_signed = Sub (NAME_counts, NAME_middle)
NAME_last = Constant <value_ints = [-1]> ()
NAME_steps = Unsqueeze (NAME_scales, NAME_last)
NAME = Mul (NAME_signed, NAME_steps)
"""

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
