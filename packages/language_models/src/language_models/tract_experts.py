"""A mixture of experts as tract's own op, tract_moe_ffn.

The op has a router inside: a token takes the `k` experts whose products with the rows of `wg` are largest, and those
products as weights. Models have other routers, so each token comes with its weights beside it, and `wg` reads them off:

    x  = [hidden | weight of every expert]        FAR, below all weights, for one that was not chosen
    wg = [0 | identity]

The experts' own weights are 0 at the columns that were added, and those of the result are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ir.passes.graph_editor import GraphEditor
from language_models.experts import Gate, laid_out

NAME = "tract_moe_ffn"
MIXTURE = "language_models::tract_mixture"  # experts whose weights lie as the op reads them
FAR = -1e30  # finite, for it is multiplied by 0


def has_gate(gate: Gate) -> bool:
    """True if the op has this gate: that of Llama, or that of gpt-oss, with a limit and a 1 added."""
    return gate.beta == 1 if math.isfinite(gate.limit) else (gate.alpha, gate.beta) == (1, 0)


def as_moe_ffn(edit: GraphEditor, args: Mapping[str, Any], block: int = 1) -> dict[str, Any]:
    """The arguments of `mixture`: gate and up apart with columns for the routes, down with rows for them.

    Args:
        block: the routes take a multiple of this many columns.
    """
    swapped, more = args["transposed"], -(-args["gate_up"].type.shape[0] // block) * block
    half = args["down"].type.shape[1 if swapped else 2]
    gate, up = (slice(0, None, 2), slice(1, None, 2)) if args["interleaved"] else (slice(half), slice(half, None))
    return {
        **{n: args[n] for n in ("hidden", "index", "weights", "alpha", "limit")},
        "gate": laid_out(edit, args["gate_up"], swapped, gate, (0, 0, more)),
        "gate_bias": laid_out(edit, args["gate_up_bias"], rows=gate),
        "up": laid_out(edit, args["gate_up"], swapped, up, (0, 0, more)),
        "up_bias": laid_out(edit, args["gate_up_bias"], rows=up),
        "down": laid_out(edit, args["down"], swapped, added=(0, more, 0)),
        "down_bias": laid_out(edit, args["down_bias"], added=(0, more)),
    }


def mixture(
    h: Any, hidden: Any, index: Any, weights: Any, gate: Any, gate_bias: Any, up: Any, up_bias: Any, down: Any,
    down_bias: Any, alpha: float, limit: float,
) -> Any:  # fmt: skip
    """One tract_moe_ffn over tokens with their routes."""
    (_, width), (experts, _, columns) = hidden.type.shape, gate.type.shape
    chosen = h.emit("eq", h.unsqueeze(index, [2]), h.constant(np.arange(columns - width)))
    each = h.emit("select", chosen, h.unsqueeze(weights, [2]), h.const(FAR, weights))
    x = h.concat([hidden, h.reduce("max", each, [1])], 1)
    limits = {"act_alpha": alpha, "act_limit": limit} if math.isfinite(limit) else {}
    router = h.constant(np.eye(experts, columns, width, dtype=np.float32))
    made = h.emit(
        NAME, x, router, gate, down, w3=up, w1_bias=gate_bias, w3_bias=up_bias, w2_bias=down_bias,
        k=index.type.shape[1], activation="swiglu", gate="raw", expert_layout="linear", **limits,
        dtype=hidden.type.dtype, shape=x.type.shape,
    )  # fmt: skip
    return h.slice(made, 1, 0, width)


HANDLERS = {MIXTURE: mixture}
