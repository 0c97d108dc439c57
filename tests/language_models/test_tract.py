"""Decoders in tract, token for token beside transformers, by the contract of tract's causal-LM example."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import warnings

import pytest
import torch
import transformers

import language_models
from language_models import tract_experts
from language_models.comparing import reference
from language_models.contract import CAUSAL_LLM
from language_models.tract import Folded
from language_models.weights import Plan, to_blocks
from tests.language_models import checkpoints
from tests.language_models.architectures import ARCHITECTURES

pytest.importorskip("tract")
STEPS = 32


@pytest.fixture(scope="module", params=checkpoints.FAMILIES)
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = checkpoints.checkpoint(folder / "in", request.param, **checkpoints.FAMILIES[request.param])
    return model, language_models.export(folder / "in", path=folder / "out", target="nnef", verify=True)


def test_the_tokens(exported):
    """A batch is one text after the other; caches are tract's own state."""
    model, made = exported
    tokens, mask = checkpoints.prompts(3)
    generator = made.load()
    assert isinstance(generator, Folded)
    assert torch.equal(generator.generate(tokens, mask, STEPS), reference(model, tokens, STEPS, mask))


def test_positions_are_those_of_generate(tmp_path):
    """RoBERTa counts from its padding's number on where it is given none."""
    sizes = {**checkpoints.LAYERS, "intermediate_size": 64, "max_position_embeddings": 64, "is_decoder": True}
    config = transformers.RobertaConfig(**{**checkpoints.SIZES, **sizes, "pad_token_id": 1, "initializer_range": 0.5})
    torch.manual_seed(0)
    model = transformers.RobertaForCausalLM(config).eval()
    tokens, _ = checkpoints.prompts(1)
    made = language_models.export(model, path=tmp_path / "out", target="nnef")
    assert torch.equal(made.load().generate(tokens, max_new_tokens=12), reference(model, tokens, 12))


def test_names_order_symbols_and_modes(exported):
    _, made = exported
    with tarfile.open(made.path / "model.nnef.tgz") as archive:
        text = archive.extractfile("graph.nnef").read().decode()
    layers = [f"in_cache_key_{i}, in_cache_value_{i}" for i in range(2)]
    caches = [f"out_cache_key_{i}, out_cache_value_{i}" for i in range(2)]
    assert f"graph network(input_ids, {', '.join(layers)}) -> (outputs, {', '.join(caches)})" in text
    for fact in ("P>=0", "S>=1", "S+P<128", "tg: S==1", "pp: P==0"):
        assert f"extension tract_assert {fact};\n" in text
    assert (made.path / "tokenizer.json").exists()


LOOP = """
import sys
import numpy, tract
model = tract.nnef().with_tract_extra().with_tract_transformers().load(sys.argv[1])
if sys.argv[2] != "plain":
    model.transform("transformers_detect_all")
if sys.argv[2] == "unfolded":
    model.transform("unfold-kv-cache")
names = [model.input_name(i) for i in range(model.input_count())]
assert names[0] == "input_ids" and len(names) == (1 if sys.argv[2] == "folded" else 5)
runnable = model.into_runnable()
state = runnable.spawn_state()
caches = [numpy.zeros([1, 2, 0, 8], "float32") for _ in names[1:]]
tokens = [int(t) for t in sys.argv[3].split(",")]
new = tokens
for _ in range(24):
    results = [r.to_numpy() for r in state.run([numpy.array([new]), *caches])]
    caches = results[1:]
    new = [int(results[0][0, -1].argmax())]
    tokens += new
print(*tokens)
"""


@pytest.mark.parametrize("form", ["plain", "folded", "unfolded"])
def test_the_loop_of_the_example(exported, form):
    """First call with a past of no length, greedy, the caches found by tract's own transformations."""
    model, made = exported
    tokens, _ = checkpoints.prompts(1)
    said = [sys.executable, "-c", LOOP, str(made.path / "model.nnef.tgz"), form, ",".join(map(str, tokens[0].tolist()))]
    done = subprocess.run(said, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [int(t) for t in done.stdout.split()] == reference(model, tokens, 24)[0].tolist()


def moe_count(made):
    with tarfile.open(made.path / "model.nnef.tgz") as archive:
        return archive.extractfile("graph.nnef").read().decode().count("= tract_moe_ffn(")


@pytest.mark.parametrize(
    ("family", "layers", "changes"),
    [
        ("Mixtral", 2, {}),
        ("GptOss", 2, {}),
        ("DeepseekV3", 1, {}),
        ("Jamba", 1, {}),
        ("Mixtral", 0, {"hidden_act": "gelu"}),
    ],
)
def test_experts_are_tracts_own_op_where_it_has_their_gate(tmp_path, family, layers, changes):
    model = checkpoints.model(family, **{**ARCHITECTURES[family], **changes})
    made = language_models.export(model, path=tmp_path / "out", target="nnef")
    assert moe_count(made) == layers
    tokens, mask = checkpoints.prompts(3)
    assert torch.equal(made.load().generate(tokens, mask, STEPS), reference(model, tokens, STEPS, mask))


@pytest.mark.slow
def test_an_older_tract_gets_experts_in_plain_operations(tmp_path):
    model = checkpoints.model("Mixtral", **ARCHITECTURES["Mixtral"])
    assert not moe_count(language_models.export(model, path=tmp_path / "out", target="nnef", version="0.23.8"))
    with pytest.warns(UserWarning, match="stay in float32; .*nnef for tract 0.23.9 or newer"):
        language_models.export(model, path=tmp_path / "few", target="nnef", version="0.23.8", weights="int4")


@pytest.mark.parametrize("family", ["Mixtral", "GptOss"])  # whose weights lie the other way
def test_experts_in_blocks_of_4_bits(tmp_path, family):
    model = checkpoints.model(family, **ARCHITECTURES[family])
    made = language_models.export(model, path=tmp_path / "out", target="nnef", weights="int4")
    assert moe_count(made) == 2
    with tarfile.open(made.path / "model.nnef.tgz") as archive:
        sizes = [m.size for m in archive.getmembers() if "experts" in m.name and "bias" not in m.name]
    numbers = 4 * 64 * 64  # four experts of 64 by 32, with columns, or rows, for the routes: blocks of 18 bytes for 32
    assert sizes == [128 + numbers * 18 // 32] * 6
    names = to_blocks(model, Plan("int4", experts=True), tract_experts.has_gate)
    assert len([n for n in names if "experts" in n]) == 4
    tokens, mask = checkpoints.prompts(3)
    assert torch.equal(made.load().generate(tokens, mask, STEPS), reference(model, tokens, STEPS, mask))


def test_handlers_of_other_models_are_not_told(tmp_path):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        language_models.export(model, path=tmp_path / "out", target="nnef")
    said = [str(w.message) for w in told]
    assert not any("was not used" in text or "cache_utils.py" in text for text in said), said


def test_names_of_states_are_identifiers():
    """A layer of Inkling has several states of one kind."""
    for name in (CAUSAL_LLM.state_in("1.conv_states.0"), CAUSAL_LLM.state_out("1.conv_states.0")):
        assert name.isidentifier() and name.endswith("_cache_conv_states_0_1")


@pytest.mark.slow
def test_several_states_of_a_kind(tmp_path):
    own = {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "sliding_window_size": 8}
    own |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    sizes = {**checkpoints.LLAMA, "head_dim": 8, "d_rel": 4, "rel_extent": 16, **own}
    model = checkpoints.model("Inkling", **sizes)
    made = language_models.export(model, path=tmp_path / "out", target="nnef")
    assert "1.conv_states.0" in [s.name for s in made.manifest.states]
