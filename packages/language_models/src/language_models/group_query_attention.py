"""A step whose attention is one op a layer, which writes keys and values into a buffer that past and present share.

The plain step joins the past and the new keys, so that every step copies the whole past. Here transformers calls our
attention (its AttentionInterface), the cache hands the new keys on without joining, and `language_models::attend` does
the rest: in onnxruntime it is GroupQueryAttention, whose kernel writes into the buffer in place.

Its kernel counts the tokens of each text, and wants padding behind them: the step is given texts padded on the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch

import ir
from ir.errors import CaptureError
from ir.graph import Graph, Node, Value
from ir.ops import RESHAPES
from ir.passes.exact_sizes import exact_sizes
from ir.passes.fuse_rotary import fuse_rotary
from ir.passes.graph_editor import GraphEditor
from ir.passes.simplify_arithmetic import simplify_arithmetic
from language_models.attention_body import DOMAIN, NAME, Form, function
from language_models.packing import ATTENTION as GROUPED
from language_models.prompts import limits
from language_models.step import Step, is_state

INTERFACE = "language_models_attend"  # what transformers knows our attention by
OPSET = 23  # the first that has RotaryEmbedding
_KINDS = {"full_attention", "sliding_attention"}


@ir.custom_op("language_models::attend")  # type: ignore[untyped-decorator]
def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    past_key: torch.Tensor,
    past_value: torch.Tensor,
    mask: torch.Tensor,
    sinks: torch.Tensor | None,
    heads: int,
    scale: float,
    window: int,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of new tokens [B, S, H * D] to themselves and to what is remembered, and what is remembered then."""
    batch, new, _ = query.shape
    groups, width = past_key.shape[1], past_key.shape[3]
    before = (mask.sum(1) - new).clamp(min=0)[:, None]
    places = torch.arange(mask.shape[1], device=query.device)
    rest = past_key.shape[2] + (places - before).clamp(0, new - 1)
    source = torch.where(places < before, places, rest)[:, None, :, None]

    def remembered(past: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([past, added.view(batch, new, groups, width).transpose(1, 2)], 2)
        return joined.gather(2, source.expand(batch, groups, mask.shape[1], width))

    keys, values = remembered(past_key, key), remembered(past_value, value)
    queries = query.view(batch, new, groups, heads // groups, width).permute(0, 2, 3, 1, 4)
    scores = queries @ keys.transpose(2, 3)[:, :, None] * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    ends = (before + torch.arange(new, device=query.device))[:, :, None]
    seen = (places <= ends) & (places > ends - window) if window > 0 else places <= ends
    scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
    if sinks is not None:
        extra = sinks.view(1, groups, heads // groups, 1, 1).expand(batch, groups, heads // groups, new, 1)
        weights = torch.cat([scores, extra], 4).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    out = (weights @ values[:, :, None]).permute(0, 3, 1, 2, 4)
    return out.reshape(batch, new, heads * width), keys, values


@ir.custom_op("language_models::last_tokens")  # type: ignore[untyped-decorator]
def last_tokens(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The row [B, 1, W] of the last of each text's new tokens [B, S, W]; new texts are padded behind their end."""
    ends = mask.sum(1).clamp(max=hidden.shape[1]) - 1
    return hidden.gather(1, ends[:, None, None].expand(hidden.shape[0], 1, hidden.shape[2]))


class GroupQueryStep(Step):
    """A step over texts that are padded on the right; see the module."""

    padding_side = "right"

    def __init__(self, model: Any, last: bool = True) -> None:
        super().__init__(model, last)
        self._keep = {}
        layers = {name.partition(".")[0] for name in self.states}
        if any(is_state(name) for name in self.states) or layers != {str(i) for i in range(len(layers))}:
            raise CaptureError("it remembers other things than keys and values")
        if any(t.shape[-1] % 8 for t in self.states.values()):
            raise CaptureError("onnxruntime's op wants heads of a multiple of 8")
        kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
        if kinds - _KINDS:
            raise CaptureError(f"its layers are of kinds {', '.join(sorted(kinds - _KINDS))}")
        if self.model.get_output_embeddings() is None:
            raise CaptureError("transformers does not say which layer makes its logits")

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, Any]:
        assert past_key_values is not None and attention_mask is not None
        opened = own_attention(self.model), self._last_of_each(attention_mask)
        with _open(past_key_values, attention_mask, input_ids.shape[1]) as cache, opened[0], opened[1]:
            logits = self.logits(input_ids, attention_mask, position_ids, cache)
        present = {f"{i}.{part}": t for i, held in enumerate(cache.layers) for part, t in held.present.items()}
        if present.keys() != past_key_values.keys():
            raise CaptureError("not all of its layers attend by transformers' attention interface")
        return {"logits": logits, "present": present}

    def logits(self, tokens: Any, mask: Any, places: Any, cache: Any) -> torch.Tensor:
        """A call of the model; the layer that makes logits is given what stands there already."""
        given = {"input_ids": tokens, "attention_mask": mask, "position_ids": places, self.cache: cache}
        given = {name: t for name, t in given.items() if t is not None}
        logits: torch.Tensor = self.model(**given, use_cache=True, return_dict=True).logits
        return logits

    @contextmanager
    def _last_of_each(self, mask: torch.Tensor) -> Iterator[None]:
        """The layer that makes logits sees the last token of each text alone, if that is all that is wanted."""
        if not self.last:
            yield
            return

        def pick(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
            return last_tokens(given[0], mask), *given[1:]

        hook = self.model.get_output_embeddings().register_forward_pre_hook(pick)
        try:
            yield
        finally:
            hook.remove()


@contextmanager
def own_attention(model: Any) -> Iterator[None]:
    """The model calls `language_models::attend`, and makes no mask, while this is open.

    Raises:
        CaptureError: it has an attention of its own.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(INTERFACE, _attention)
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(INTERFACE)
        if model.config._attn_implementation != INTERFACE:
            raise CaptureError("it does not attend by transformers' attention interface")
        yield
    finally:
        model.set_attn_implementation(before)


_OPENED: ContextVar[Any] = ContextVar("cache and mask of the call under way")


@contextmanager
def _open(past: Mapping[str, torch.Tensor], mask: torch.Tensor, new: int) -> Iterator[Any]:
    """A cache over these tensors, which our attention finds, for a call with this many new tokens."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    class Held(DynamicLayer):  # type: ignore[misc]
        """The past of a layer, its new keys as the model makes them, and both together once it has attended."""

        def __init__(self, layer: int) -> None:
            super().__init__()
            self.past = past[f"{layer}.key"], past[f"{layer}.value"]
            self.new: Any = None
            self.present: dict[str, torch.Tensor] = {}

        def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            self.new = key_states, value_states
            return key_states, value_states

        def get_seq_length(self) -> Any:
            return mask.shape[1] - new  # not the size of the buffer, which has room for the longest text

    cache = DynamicCache()
    cache.layers, cache.layer_class_to_replicate = [Held(i) for i in range(len(past) // 2)], None
    token = _OPENED.set((cache, mask))
    try:
        yield cache
    finally:
        _OPENED.reset(token)


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None,
    sliding_window: int | None = None, softcap: float | None = None, s_aux: Any = None, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """What transformers calls: queries, keys and values [B, heads, S, D] of the new tokens."""
    cache, mask = _OPENED.get()
    made = (i for i, x in enumerate(cache.layers) if x.new is not None and x.new[0] is key and x.new[1] is value)
    layer = next(made, None)
    causal = getattr(module, "is_causal", True)
    if layer is None or attention_mask is not None or not causal or key.shape != value.shape:
        raise CaptureError("a layer attends to other keys than those that its cache has of it")
    held = cache.layers[layer]
    if (sliding_window or 0) != _window(module.config, layer):
        raise CaptureError("a layer's window is in its mask alone, or another than the configuration says")
    batch, heads, new, width = query.shape
    flat = [t.transpose(1, 2).reshape(batch, new, t.shape[1] * width) for t in (query, key, value)]
    scale = width**-0.5 if scaling is None else float(scaling)
    said = heads, scale, int(sliding_window or 0), float(softcap or 0.0)
    out, keys, values = attend(*flat, *held.past, mask, s_aux, *said)
    held.present = {"key": keys, "value": values}
    return out.view(batch, new, heads, width), None


def _window(config: Any, layer: int) -> int:
    """The window of a layer by the configuration, 0 for none."""
    kinds = getattr(config, "layer_types", None)
    slides = kinds is None or kinds[layer] == "sliding_attention"
    return (getattr(config, "sliding_window", None) or 0) if slides else 0


def check(model: Any, context: int) -> None:
    """Compare logits of our attention with those of the model's own: two texts at once, then a token more.

    Args:
        context: the longest text that the configuration says; a table of positions may be shorter.

    Raises:
        CaptureError: they differ, so that a layer attends in a way of its own (a bias, another mask).
    """
    config, drawn = model.config.get_text_config(), torch.Generator().manual_seed(0)
    _, places = limits(lambda text: model(input_ids=text), getattr(config, "pad_token_id", None))
    longest = min(19, context - 1, (places or context) - 1)
    lengths, vocabulary = (min(7, longest // 2), longest), config.vocab_size
    texts = [torch.randint(0, vocabulary, (n + 1,), generator=drawn) for n in lengths]
    rows = torch.nn.utils.rnn.pad_sequence([t[:-1] for t in texts], batch_first=True)
    mask = torch.stack([(torch.arange(max(lengths)) < n).long() for n in lengths])
    longer = torch.cat([mask, mask.new_ones(2, 1)], 1)
    with torch.no_grad():
        wanted = [[model(input_ids=t[None, : n + i]).logits[0, -1] for t, n in zip(texts, lengths)] for i in (0, 1)]
        step = GroupQueryStep(model)
        none = {name: t.new_zeros(2, t.shape[1], 0, t.shape[3]) for name, t in step.states.items()}
        first = step(rows, mask, (mask.cumsum(1) - 1).clip(0), none)
        ends = mask.sum(1, keepdim=True)
        second = step(torch.stack([t[-1:] for t in texts]), longer, ends, first["present"])
    slack = 1e-3 if model.dtype == torch.float32 else 0.02  # halves round many times on the way through a model
    for made, own in zip((first, second), wanted, strict=True):
        found, expected = made["logits"][:, 0].float(), torch.stack(own).float()
        if not torch.allclose(found, expected, rtol=0, atol=slack * float(expected.abs().max())):
            raise CaptureError("its attention is another than that of GroupQueryAttention")


def rotary_of_rows(graph: Graph) -> Graph:
    """The graph with rotary embeddings of rows [B, S, heads * D], as attention takes them: no transpose of heads.

    `fuse_rotary` finds the embeddings in a graph that the two passes before it have simplified.
    """
    for fn in (exact_sizes, simplify_arithmetic, fuse_rotary, _without_empty_parts):
        graph = fn(graph)
    edit = GraphEditor(graph)
    for node in graph.nodes:
        if node.op != "language_models::attend":
            continue
        for name in ("query", "key"):
            flat = edit.producer(node.args[name], *RESHAPES)
            back = edit.producer(flat and flat.args["self"], "aten::transpose", alone=True)
            turn = edit.producer(back and back.args["self"], "ir::rotary_embedding", alone=True)
            if flat is None or back is None or turn is None or not edit.is_read_once(flat.outputs[0]):
                continue
            whole: Value = turn.args["input"]
            rows = edit.value(f"{flat.outputs[0].name}_rows", back.outputs[0].type)
            joined = edit.value(f"{flat.outputs[0].name}_joined", flat.outputs[0].type)
            moved = Node("aten::transpose", {"self": whole, "dim0": 1, "dim1": 2}, (rows,), back.origin)
            shaped = replace(flat, args={**flat.args, "self": rows}, outputs=(joined,))
            args = {**turn.args, "input": joined, "heads": whole.type.shape[1]}
            edit.release(turn, back)
            edit.replace(flat, moved, shaped, Node("language_models::turn", args, flat.outputs, turn.origin))
    return edit.graph()


def _without_empty_parts(graph: Graph) -> Graph:
    """Concatenations of one part and nothing, as where a model turns all of each head and joins the rest to it."""
    edit = GraphEditor(graph)
    for node in graph.nodes:
        if node.op == "aten::cat":
            full = [t for t in node.args["tensors"] if t.type.shape[node.args["dim"]] != 0]
            if len(full) == 1 and full[0].type == node.outputs[0].type:
                edit.forward(node.outputs[0], full[0])
                edit.release(*(n for t in node.args["tensors"] if t is not full[0] and (n := edit.producer(t))))
    return edit.graph()


def turn(h: Any, input: Any, cos: Any, sin: Any, interleaved: bool, heads: int) -> Any:
    """Rotary embedding of rows [B, S, heads * D] in ONNX."""
    batch, length, width = input.type.shape
    half = cos.type.shape[-1]
    cos, sin = (
        h.shared(("rotary table", t.value, batch), lambda t=t: h.expand(t, (batch, length, half))) for t in (cos, sin)
    )
    part = 2 * half if 2 * half != width // heads else None
    return h.emit(
        "RotaryEmbedding", input, cos, sin, num_heads=heads, interleaved=int(interleaved) or None,
        rotary_embedding_dim=part,
    )  # fmt: skip


def grouped(
    h: Any, query: Any, key: Any, value: Any, past_key: Any, past_value: Any, mask: Any, sinks: Any,
    heads: int, scale: float, window: int, softcap: float, cos: Any, sin: Any, interleaved: bool,
) -> Any:  # fmt: skip
    """One com.microsoft::GroupQueryAttention; lengths are counted once for all layers."""
    int32 = ir.DType.int32
    lengths = h.shared("tokens before the last, in int32", lambda: h.cast(_before_last(h, mask), int32))
    total = h.shared("tokens in all", lambda: h.cast(h.size_of(mask, 1), int32))
    made = h.emit(
        f"{DOMAIN}::{NAME}", query, key, value, past_key, past_value, lengths, total,
        cos, sin, None, None, sinks, outputs=3, dtype=[r.dtype for r in h.results], num_heads=heads,
        kv_num_heads=past_key.type.shape[1], scale=float(scale), softcap=float(softcap),
        local_window_size=window or -1, do_rotary=int(cos is not None), rotary_interleaved=int(interleaved),
    )  # fmt: skip
    for m, wanted in zip(made, h.results, strict=True):
        m.type = wanted
    _give_body(h, made[0].value.producer())
    return tuple(made)


def _give_body(h: Any, node: Any) -> None:
    """The function of this name goes into the file, for runtimes without the op."""
    import onnx_ir

    said = [n.args for n in h.graph.nodes if n.op == GROUPED]
    turned = [a for a in said if a["cos"] is not None]
    form = Form(
        said[0]["key"] is None, bool(turned), len(turned) == len(said), any(a["interleaved"] for a in turned),
        any(a["softcap"] for a in said), any(a["sinks"] is not None for a in said),
    )  # fmt: skip
    node.resize_inputs(form.inputs)
    if (DOMAIN, NAME) not in h.functions:
        h.add_function((DOMAIN, NAME), onnx_ir.from_proto(function(form, h.opset)))


def picked(h: Any, hidden: Any, mask: Any) -> Any:
    """One GatherND; a text has no more new tokens than it has tokens."""
    newest = h.emit("Sub", h.size_of(hidden, 1), 1)
    ends = h.emit("Min", _before_last(h, mask), newest)
    return h.emit("GatherND", hidden, h.unsqueeze(ends, [1, 2]), batch_dims=1, shape=h.out.shape)


def _before_last(h: Any, mask: Any) -> Any:
    """How many tokens each text has before its last, once for the whole graph."""
    return h.shared("tokens before the last", lambda: h.emit("Sub", h.reduce("ReduceSum", mask, [1]), 1))


HANDLERS = {"language_models::last_tokens": picked, GROUPED: grouped, "language_models::turn": turn}
