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
from dataclasses import replace
from typing import Any

import numpy as np

from ir.graph import ComputedWeight, Graph, Value
from ir.passes.graph_editor import GraphEditor
from language_models.experts import EXPERTS, Gate

NAME = "tract_moe_ffn"
MIXTURE = "language_models::tract_mixture"  # experts whose weights lie as the op reads them
FAR = -1e30  # finite, for it is multiplied by 0


def has_gate(gate: Gate) -> bool:
    """True if the op has this gate: that of Llama, or that of gpt-oss, with a limit and a 1 added."""
    return gate.beta == 1 if math.isfinite(gate.limit) else (gate.alpha, gate.beta) == (1, 0)


def mixtures(graph: Graph) -> Graph:
    """Experts become nodes of the op's own form, their weights laid out anew when they are written."""
    edit = GraphEditor(graph)
    for node in graph.nodes:
        args = node.args
        if node.op != EXPERTS or any(args[n] not in edit.weights for n in ("gate_up", "down")):
            continue
        kept = {n: args[n] for n in ("hidden", "index", "weights", "alpha", "limit")}
        edit.replace(node, replace(node, op=MIXTURE, args=kept | _weights(edit, args)))
    return edit.graph()


def _weights(edit: GraphEditor, args: Mapping[str, Any]) -> dict[str, Value | None]:
    """What the op reads: gate and up apart, with columns for the routes; the rows of down with rows for them."""
    half = args["down"].type.shape[1 if args["transposed"] else 2]
    gate, up = (slice(0, None, 2), slice(1, None, 2)) if args["interleaved"] else (slice(half), slice(half, None))
    more = args["gate_up"].type.shape[0]

    def laid_out(name: str, rows: slice = slice(None), wider: int | None = None) -> Value | None:
        value = args[name]
        if value is None:
            return None
        weight, shape, swapped = (
            edit.weights[value],
            list(value.type.shape),
            args["transposed"] and value.type.rank == 3,
        )
        shape[1:] = reversed(shape[1:]) if swapped else shape[1:]
        shape[1] = len(range(shape[1])[rows])
        added = [more if axis == wider else 0 for axis in range(len(shape))]

        def numpy() -> np.ndarray:
            array = weight.numpy().swapaxes(1, 2) if swapped else weight.numpy()
            return np.pad(array[:, rows], [(0, n) for n in added])

        type = value.type.with_shape([size + n for size, n in zip(shape, added, strict=True)])
        made = edit.value(f"{value.name}_laid_out", type)
        edit.weights[made] = ComputedWeight(f"{weight.name}.{made.name}", type, numpy)
        return made

    return {
        "gate": laid_out("gate_up", gate, 2), "gate_bias": laid_out("gate_up_bias", gate),
        "up": laid_out("gate_up", up, 2), "up_bias": laid_out("gate_up_bias", up),
        "down": laid_out("down", wider=1), "down_bias": laid_out("down_bias", wider=1),
    }  # fmt: skip


def mixture(
    h: Any, hidden: Any, index: Any, weights: Any, gate: Any, gate_bias: Any, up: Any, up_bias: Any, down: Any,
    down_bias: Any, alpha: float, limit: float,
) -> Any:  # fmt: skip
    """One tract_moe_ffn over tokens with their routes."""
    (_, width), experts = hidden.type.shape, gate.type.shape[0]
    chosen = h.emit("eq", h.unsqueeze(index, [2]), h.constant(np.arange(experts)))
    each = h.emit("select", chosen, h.unsqueeze(weights, [2]), h.const(FAR, weights))
    x = h.concat([hidden, h.reduce("max", each, [1])], 1)
    limits = {"act_alpha": alpha, "act_limit": limit} if math.isfinite(limit) else {}
    router = h.constant(np.eye(experts, width + experts, width, dtype=np.float32))
    made = h.emit(
        NAME, x, router, gate, down, w3=up, w1_bias=gate_bias, w3_bias=up_bias, w2_bias=down_bias,
        k=index.type.shape[1], activation="swiglu", gate="raw", expert_layout="linear", **limits,
        dtype=hidden.type.dtype, shape=x.type.shape,
    )  # fmt: skip
    return h.slice(made, 1, 0, width)


HANDLERS = {MIXTURE: mixture}
