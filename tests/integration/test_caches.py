"""transformers' models with their caches, as they come: what went out of one step goes into the next."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
from functools import lru_cache
from typing import Any

import pytest
import torch

import ir
from ir.importer import caches
from ir.importer.torch_api import pytree
from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)
from tests.zoo.decoding import cache_argument

transformers = pytest.importorskip("transformers")

TARGETS = ("onnx", "nnef", "eager")
STEPS = 20
SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
PAST = {0: "batch", 2: "past"}
CACHE = cache_argument()
STATES = "cache" if CACHE == "cache" else "cache_params"
ONE = {"input_ids": {0: "batch"}, CACHE: PAST}


def made(family: str, kind: str = "ForCausalLM", **sizes: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes)
    return getattr(transformers, family + kind)(config).eval()


def llama() -> Any:
    return made("Llama", **SIZES, **HEADS)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, 60, shape, generator=torch.Generator().manual_seed(0))


def read_again(model: Any) -> Any:
    """The model as its users have it: from a folder, with the configuration as it is."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder).eval()


def same_tokens(model: Any, program: Any, cache: Any, key: str = CACHE, **others: Any) -> None:
    """Greedy steps of both, each with the cache that its own last step gave."""
    wanted, found = (pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), cache) for _ in range(2))
    name = "decoder_input_ids" if others else "input_ids"
    token = next_token = torch.tensor([[3], [4]])
    for step in range(STEPS):
        with torch.no_grad():
            right = model(**{name: token, key: wanted}, **others)
        got = program(**{name: next_token, key: found}, **others)
        wanted, found = right[key], got[key]
        token, next_token = right.logits[:, -1:].argmax(-1), got.logits[:, -1:].argmax(-1)
        assert torch.equal(token, next_token), step
        torch.testing.assert_close(got.logits, right.logits, rtol=1e-4, atol=1e-5)
        assert type(found) is type(wanted)


@lru_cache(maxsize=1)
def decoder() -> tuple[Any, Any, ir.Graph]:
    """The model, a cache and the graph, kept for the next target."""
    model = read_again(llama())
    cache = model(tokens(2, 5)).past_key_values
    given = {"input_ids": tokens(2, 1), CACHE: cache}
    return model, cache, ir.capture(model, kwargs=given, dynamic_shapes=ONE)


@pytest.mark.parametrize("target", TARGETS)
def test_a_decoder_repeats_its_tokens(target):
    model, cache, graph = decoder()
    program = ir.export(graph, target=target)
    program.verify()
    assert [v.name for v in program.graph.inputs][1:3] == [f"{CACHE}.0.key", f"{CACHE}.0.value"]
    assert program.graph.output_names[:3] == ("logits", "present.0.key", "present.0.value")
    same_tokens(model, program, cache)


@lru_cache(maxsize=1)
def encoder_decoder() -> tuple[Any, Any, Any, ir.Graph]:
    model = read_again(made("T5", "ForConditionalGeneration", **T5, decoder_start_token_id=0))
    states = model.encoder(tokens(2, 7))
    cache = model(encoder_outputs=states, decoder_input_ids=tokens(2, 2)).past_key_values
    source = {0: "batch", 2: "source"}
    graph = ir.capture(
        model,
        kwargs={"encoder_outputs": states, "decoder_input_ids": tokens(2, 1), CACHE: cache},
        dynamic_shapes={
            "encoder_outputs": {"last_hidden_state": {0: "batch", 1: "source"}},
            "decoder_input_ids": {0: "batch"},
            CACHE: {"decoder": PAST, "encoder": source},
        },
    )
    return model, states, cache, graph


@pytest.mark.parametrize("target", TARGETS)
def test_an_encoder_decoder_repeats_its_tokens(target):
    model, states, cache, graph = encoder_decoder()
    program = ir.export(graph, target=target)
    assert f"{CACHE}.1.encoder.value" in [v.name for v in program.graph.inputs]
    assert "present.1.decoder.key" in program.graph.output_names
    same_tokens(model, program, cache, encoder_outputs=states)


@lru_cache(maxsize=1)
def state_space() -> tuple[Any, Any, ir.Graph]:
    model = read_again(made("Mamba", **SIZES, state_size=4, pad_token_id=0))
    cache = model(tokens(2, 5)).cache_params
    shapes = {"input_ids": {0: "batch"}, STATES: {0: "batch"}}
    return (
        model,
        cache,
        ir.capture(model, kwargs={"input_ids": tokens(2, 1), STATES: cache}, dynamic_shapes=shapes),
    )


@pytest.mark.parametrize("target", TARGETS)
def test_a_state_space_model_repeats_its_tokens(target):
    model, cache, graph = state_space()
    program = ir.export(graph, target=target)
    assert "present.1.recurrent_states" in program.graph.output_names
    assert f"{STATES}.1.conv_states" in program.graph.updates  # written in place, and so a result
    same_tokens(model, program, cache, STATES)


@lru_cache(maxsize=1)
def windowed() -> tuple[Any, Any, ir.Graph]:
    model = made("Mistral", **SIZES, **HEADS, sliding_window=30)
    cache = model(tokens(2, 5)).past_key_values
    given = {"input_ids": tokens(2, 1), CACHE: cache}
    with pytest.warns(UserWarning, match="past < 30"):
        return model, cache, ir.capture(model, kwargs=given, dynamic_shapes=ONE)


@pytest.mark.parametrize("target", TARGETS)
def test_the_tokens_that_a_sliding_window_has_seen_are_counted(target):
    model, cache, graph = windowed()
    program = ir.export(graph, target=target)
    same_tokens(model, program, cache)


@lru_cache(maxsize=1)
def static() -> tuple[Any, Any, ir.Graph]:
    model = llama()
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    with torch.no_grad():
        model(tokens(2, 5), past_key_values=cache)
    return model, cache, ir.capture(model, kwargs={"input_ids": tokens(2, 1), CACHE: cache})


@pytest.mark.parametrize("target", TARGETS)
def test_a_static_cache_is_written_in_place(target):
    model, cache, graph = static()
    program = ir.export(graph, target=target)
    assert f"{CACHE}.1.cumulative_length" in program.graph.updates
    same_tokens(model, program, cache)


def test_a_prompt_gives_a_cache():
    model = llama()
    program = ir.export(model, (tokens(2, 5),), dynamic_shapes=({0: "batch", 1: "sequence"},), target="eager")
    found = program(tokens(3, 4)).past_key_values
    assert isinstance(found, transformers.DynamicCache) and found.get_seq_length() == 4


@pytest.mark.parametrize("shape", [
    PAST, {"key": PAST, "value": PAST}, [PAST] * 4, [[PAST, PAST]] * 2, ((PAST, PAST), (PAST, PAST)),
])  # fmt: skip
def test_shapes_are_said_once_by_name_or_layer_by_layer(shape):
    model = llama()
    given = {"input_ids": tokens(2, 1), CACHE: model(tokens(2, 5)).past_key_values}
    graph = ir.capture(model, kwargs=given, dynamic_shapes={"input_ids": {0: "batch"}, CACHE: shape})
    assert {str(v.type.shape[2]) for v in graph.inputs[1:]} == {"past"}


def test_a_wrong_number_of_shapes_is_refused():
    model = llama()
    given = {"input_ids": tokens(2, 1), CACHE: model(tokens(2, 5)).past_key_values}
    with pytest.raises(ir.CaptureError, match=r"3 entries for a cache of 4 tensors \(0.key"):
        ir.capture(model, kwargs=given, dynamic_shapes={"input_ids": None, CACHE: [PAST] * 3})


def test_other_caches_are_refused_with_what_differs():
    model = llama()
    cache = model(tokens(2, 5)).past_key_values
    program = ir.export(model, kwargs={"input_ids": tokens(2, 1), CACHE: cache}, target="eager")
    with pytest.raises(ir.ExportError, match=r"DynamicCache\(\*, \*, \*, \*\)\) and is called with .*DynamicCache\(\)"):
        program(input_ids=tokens(2, 1), **{CACHE: transformers.DynamicCache()})
    cache.layers[1].is_initialized = False
    with pytest.raises(ir.ExportError, match="is_initialized=True and not False"):
        program(input_ids=tokens(2, 1), **{CACHE: cache})


@pytest.mark.parametrize("static", [False, True])
def test_a_full_window_counts_on(static):
    model = made("Mistral", **SIZES, **HEADS, sliding_window=4)
    cache = transformers.StaticCache(config=model.config, max_cache_len=9) if static else None
    with torch.no_grad():
        for token in tokens(6, 2, 1):
            cache = model(token, past_key_values=cache).past_key_values
    given = {"input_ids": tokens(2, 1), CACHE: cache}
    shapes = {"input_ids": {0: "batch"}, CACHE: {0: "batch"}}
    same_tokens(model, ir.export(model, kwargs=given, dynamic_shapes=shapes, target="eager"), cache)
    fixed = ir.export(model, kwargs=given, target="eager")
    after = fixed(**given).past_key_values
    with pytest.raises(ir.ExportError, match=rf"constant argument 6, not 7, as {CACHE}.0.cumulative_length"):
        fixed(input_ids=tokens(2, 1), **{CACHE: after})


def test_a_cache_that_is_changed_and_not_returned_is_warned_of():
    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = llama()

        def forward(self, input_ids: torch.Tensor, cache: Any) -> torch.Tensor:
            return self.model(input_ids, past_key_values=cache).logits

    model = Scores()
    with pytest.warns(UserWarning, match="changes the DynamicCache that it is given and does not return it"):
        ir.capture(model, (tokens(2, 1), model.model(tokens(2, 5)).past_key_values))


# -- files and other processes -----------------------------------------------------------------------------------------


def test_a_file_and_a_pickled_program_take_caches(tmp_path, capfd):
    model = llama()
    cache = model(tokens(2, 5)).past_key_values
    given = {"input_ids": tokens(2, 1), CACHE: cache}
    caches.register()
    dynamic = torch.export.Dim.DYNAMIC
    axes = [{0: dynamic, 2: dynamic}] * 4
    program = torch.export.export(model, (), given, dynamic_shapes={"input_ids": {0: dynamic}, CACHE: axes})
    torch.export.save(program, tmp_path / "model.pt2")
    names = {"input_ids": {0: "batch"}, CACHE: PAST}
    exported = ir.export(tmp_path / "model.pt2", target="eager", dynamic_shapes=names, verify=True)
    same_tokens(model, exported, cache)
    again = pickle.loads(pickle.dumps(ir.export(model, kwargs=given, dynamic_shapes=names, target="eager")))
    same_tokens(model, again, cache)
    assert "Logging error" not in capfd.readouterr().err  # torch.load knew the classes

    code = f"""
import ir, sys, torch
program = ir.export({str(tmp_path / "model.pt2")!r}, target="onnx")
assert "transformers" not in sys.modules
held = {{name: torch.zeros(2, 2, 5, 8) for name in ("0.key", "0.value", "1.key", "1.value")}}
print(*program(input_ids=torch.tensor([[3], [4]]), {CACHE}=held)["{CACHE}"])
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert done.stdout.split() == ["0.key", "0.value", "1.key", "1.value"], done.stderr


def test_a_class_that_somebody_else_registered_stays_theirs():
    code = """
from tests.integration.test_caches import *
from transformers.integrations.executorch import register_dynamic_cache_export_support
register_dynamic_cache_export_support()
theirs = pytree.SUPPORTED_NODES[transformers.DynamicCache]
model = llama()
cache = model(tokens(2, 5)).past_key_values
program = ir.export(model, kwargs={"input_ids": tokens(2, 1), CACHE: cache}, target="eager",
                    dynamic_shapes={"input_ids": {0: "batch"}, CACHE: PAST})
assert pytree.SUPPORTED_NODES[transformers.DynamicCache] is theirs
assert f"{CACHE}.1.value" in [v.name for v in program.graph.inputs], program.graph.inputs
same_tokens(model, program, cache)
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


# -- objects as leaves and back ----------------------------------------------------------------------------------------


def every_cache() -> list[Any]:
    model = llama()
    static = transformers.StaticCache(config=model.config, max_cache_len=9)
    sliding = made("Mistral", **SIZES, **HEADS, sliding_window=4)
    seq2seq = made("T5", "ForConditionalGeneration", **T5, decoder_start_token_id=0)
    with torch.no_grad():
        model(tokens(2, 5), past_key_values=static)
        return [
            transformers.DynamicCache(),
            transformers.DynamicCache(config=model.config),
            model(tokens(2, 5)).past_key_values,
            transformers.StaticCache(config=model.config, max_cache_len=9),
            static,
            sliding(tokens(2, 5)).past_key_values,
            transformers.StaticCache(config=sliding.config, max_cache_len=9),
            seq2seq(input_ids=tokens(2, 5), decoder_input_ids=tokens(2, 2)).past_key_values,
            made("Mamba", **SIZES, state_size=4, pad_token_id=0)(tokens(2, 5)).cache_params,
        ]


def test_a_cache_is_the_same_after_it_was_taken_apart():
    caches.register()
    for cache in every_cache():
        leaves, spec = pytree.tree_flatten(cache)
        again, same = pytree.tree_flatten(pytree.tree_unflatten(leaves, spec))
        assert same == spec and all(a is b for a, b in zip(again, leaves, strict=True))
        assert json.loads(json.dumps(spec.context)) == spec.context
        for before, after in zip(getattr(cache, "layers", []), getattr(again, "layers", []), strict=False):
            assert vars(before).keys() == vars(after).keys()


class Held:
    """A container that nobody registered."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys, self.values = keys, values


class Holding(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Held:
        return Held(x, x + 1)


def test_an_unknown_class_is_named_with_the_lines_that_register_it():
    with pytest.raises(ir.CaptureError) as caught:
        ir.capture(Holding(), (torch.ones(2),))
    lines = str(caught.value).partition("before the export:\n")[2].partition("non-strict")[0]
    code = "\n".join(line.removeprefix("    ") for line in lines.splitlines())
    exec(code, {"Held": Held})
    try:
        graph = ir.capture(Holding(), (torch.ones(2),))
    finally:
        pytree._deregister_pytree_node(Held)
    assert len(graph.outputs) == 2


def test_a_context_names_no_class_but_those_beside_caches():
    """A .pt2 file holds such contexts."""
    import transformers.modeling_utils  # noqa: F401 - loaded, and still none

    caches.register()
    with pytest.raises(ir.CaptureError, match="PreTrainedModel"):
        caches.unflatten([], [[], {"class": "transformers.modeling_utils.PreTrainedModel", "state": {}}])
