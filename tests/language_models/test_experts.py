"""Mixtures of experts in onnxruntime: MoE, and QMoE for weights in few bits, beside transformers."""

from __future__ import annotations

import copy
import warnings
from collections import Counter

import onnx
import onnx.checker
import pytest
import torch
from onnx.reference import ReferenceEvaluator

import language_models
from ir.errors import RefusedError
from language_models import onnx_genai
from language_models.comparing import reference
from language_models.decoding import Generator
from language_models.experts import INTERFACE, WEIGHTS, codes_of
from language_models.weights import Plan, linears, mixtures, quantise, rounded
from tests.language_models import checkpoints
from tests.language_models.architectures import ARCHITECTURES

STEPS = 32


def exported(model, folder, **options):
    """With a warning of another attention left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is written without GroupQueryAttention")
        return language_models.export(model, path=folder / "out", contrib=True, **options)


def op_types(made):
    return Counter(n.op_type for n in onnx.load(made.path / "model.onnx", load_external_data=False).graph.node)


@pytest.mark.parametrize(
    ("family", "layers", "attention"),
    [("Mixtral", 2, 2), ("GptOss", 2, 2), ("DeepseekV3", 1, 0), ("Jamba", 1, 0)],
)
def test_experts_are_one_op_a_layer(tmp_path, family, layers, attention):
    """Gates with and without limits and biases, weights of either order, with other attention as well."""
    model = checkpoints.model(family, **ARCHITECTURES[family])
    made = exported(model, tmp_path)
    count = op_types(made)
    assert (count["MoE"], count["GroupQueryAttention"]) == (layers, attention)
    tokens, mask = checkpoints.prompts(3)
    assert torch.equal(made.load().generate(tokens, mask, STEPS), reference(model, tokens, STEPS, mask))
    assert model.config._experts_implementation != INTERFACE


@pytest.mark.slow
def test_experts_with_another_gate_stay_the_models_own(tmp_path):
    model = checkpoints.model("Mixtral", **{**ARCHITECTURES["Mixtral"], "hidden_act": "gelu"})
    made = exported(model, tmp_path)
    assert not op_types(made)["MoE"]
    tokens, mask = checkpoints.prompts(3)
    assert torch.equal(made.load().generate(tokens, mask, STEPS), reference(model, tokens, STEPS, mask))


@pytest.mark.parametrize(
    ("family", "layers", "weights"),
    [("Mixtral", 2, "int4"), ("GptOss", 2, "int4"), ("DeepseekV3", 1, "int8")],
)
def test_experts_in_few_bits_are_one_op_a_layer(tmp_path, family, layers, weights):
    """In the kernel and in the function, beside the model over the numbers that the codes stand for."""
    model = checkpoints.model(family, **ARCHITECTURES[family])
    exclude = [name for name, _ in linears(model)]
    made = exported(model, tmp_path, weights=weights, exclude=exclude)
    assert op_types(made)["QMoE"] == layers and not op_types(made)["MoE"]
    model = copy.deepcopy(model)
    assert quantise(model, Plan(weights, exclude=exclude, experts=True)) >= layers
    tokens, mask = checkpoints.prompts(3)
    exact = onnx_genai.load(made.path, made.manifest, **onnx_genai.EXACT)
    assert torch.equal(exact.generate(tokens, mask, STEPS), reference(model, tokens, STEPS, mask))
    proto = onnx.load(made.path / "model.onnx")
    onnx.checker.check_model(proto)
    evaluator, names = ReferenceEvaluator(proto), [o.name for o in proto.graph.output]

    def run(feeds):
        given = {name: feeds[name] for name in evaluator.input_names}
        return dict(zip(names, evaluator.run(names, given), strict=True))

    found = Generator(made.manifest, run).generate(tokens[:1], mask[:1], 8)
    assert torch.equal(found, reference(model, tokens[:1], 8, mask[:1]))


@pytest.mark.slow
def test_which_experts(tmp_path):
    sizes = ARCHITECTURES["Mixtral"]
    odd = checkpoints.model("Mixtral", **{**sizes, "intermediate_size": 72})  # no multiple of 32: 8 bits for all
    plan = Plan("int4", experts=True)
    quantise(odd, plan)
    (first, _) = mixtures(odd, plan).values()
    assert [codes_of(first, name)[1].shape for name in WEIGHTS] == [(4, 144), (4, 32)]
    model = checkpoints.model("Mixtral", **sizes)
    made = exported(model, tmp_path, weights="int4", exclude=["*.1.mlp.experts.down_proj"])
    assert (op_types(made)["QMoE"], op_types(made)["MoE"]) == (1, 1)
    with pytest.raises(RefusedError, match="is the name of no linear layer"):
        exported(model, tmp_path, weights="int4", exclude=["*.experts.up_proj"])
    with pytest.warns(UserWarning, match=r"experts, \d+% of all, stay in float32; .*contrib=True"):
        language_models.export(model, path=tmp_path / "plain", weights="int4")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", ["Mixtral", "GptOss"])  # whose weights lie the other way
def test_the_nearest_codes_of_each_expert(family, bits):
    model = checkpoints.model(family, **ARCHITECTURES[family])
    plan = Plan(f"int{bits}", experts=True)
    (module, _) = mixtures(model, plan).values()
    before = {name: module.get_parameter(name).detach().clone() for name in WEIGHTS}
    quantise(model, plan)
    for name, weight in before.items():
        codes, scales = codes_of(module, name)
        rows = weight.mT if module.is_transposed else weight
        wanted = [rounded(matrix, bits) for matrix in rows]
        assert torch.equal(codes, torch.stack([c for c, _ in wanted]).to(torch.int8))
        assert torch.equal(scales, torch.stack([s for _, s in wanted]))
        step = scales.max() * (0.51 if bits == 8 else 1.01)  # of 4 bits the highest code is one short
        assert getattr(module, name).shape == weight.shape and (getattr(module, name) - weight).abs().max() <= step
