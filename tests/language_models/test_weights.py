"""Weights in few bits: what is stored, what the runtimes make of it, and what it costs."""

from __future__ import annotations

import json

import pytest
import torch

import ir
import language_models
from language_models.comparing import reference
from language_models.few_bits import FORM, Int4Linear, Int8Linear, laid_out
from language_models.weights import Plan, QuantisedLinear, gptq, linears, quantise, rounded
from tests.language_models import checkpoints

WIDE = {**checkpoints.LLAMA, "hidden_size": 64}


def wide():
    return checkpoints.model("Llama", **WIDE)


def texts(count=4, length=40):
    return torch.randint(4, checkpoints.VOCABULARY, (count, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    "target, weights",
    [
        ("onnx", "int4"),
        pytest.param("onnx", "int8", marks=pytest.mark.slow),
        ("nnef", "int4"),
        pytest.param("eager", "int4", marks=pytest.mark.slow),
        pytest.param("eager", "int8", marks=pytest.mark.slow),
    ],
)
def test_the_tokens_of_the_rounded_model(tmp_path, target, weights):
    """`verify` compares with torch on the numbers that the codes stand for; the caller's model stays as it is."""
    model = wide()
    before = {n: p.clone() for n, p in model.named_parameters()}
    made = language_models.export(model, path=tmp_path / "out", target=target, weights=weights, verify=True)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())
    whole = language_models.export(model, path=tmp_path / "whole", target=target)
    sizes = [
        sum(f.stat().st_size for f in folder.iterdir() if "model." in f.name) for folder in (made.path, whole.path)
    ]
    assert sizes[0] < sizes[1]
    tokens, _ = checkpoints.prompts(1)
    assert made.load().generate(tokens, max_new_tokens=4).shape == (1, 13)


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_onnxruntime_multiplies_by_the_codes(tmp_path, weights):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    made = language_models.export(wide(), path=tmp_path / "out", weights=weights)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "fused.onnx"), 3
    onnxruntime.InferenceSession(str(made.path / "model.onnx"), options)
    kinds = [n.op_type for n in onnx.load(tmp_path / "fused.onnx", load_external_data=False).graph.node]
    assert kinds.count("MatMulNBits") == 15 and "DequantizeLinear" not in kinds


@pytest.mark.slow
def test_the_level_of_accuracy_is_in_the_configuration(tmp_path):
    genai = pytest.importorskip("onnxruntime_genai")
    model = wide()
    made = language_models.export(model, path=tmp_path / "out", weights="int4", accuracy_level=1)
    said = json.loads((made.path / "genai_config.json").read_text())["model"]["decoder"]["session_options"]
    assert said["session.qdq_matmulnbits_accuracy_level"] == "1"
    quantise(model, Plan("int4"))
    tokens, _ = checkpoints.prompts(1)
    opened = genai.Model(str(made.path))
    params = genai.GeneratorParams(opened)
    params.set_search_options(max_length=41, do_sample=False)
    generator = genai.Generator(opened, params)
    generator.append_tokens(tokens.numpy().astype("int32"))
    while not generator.is_done():
        generator.generate_next_token()
    wanted = [t for t in reference(model, tokens, 32)[0].tolist() if t != 2]  # the end of a text is not told
    assert list(generator.get_sequence(0)) == wanted


def test_which_layers():
    model = wide()
    assert quantise(model, Plan("int4", lm_head="int8", exclude=["*.down_proj"])) == 13
    assert type(model.model.layers[0].mlp.down_proj) is torch.nn.Linear
    assert model.lm_head.scales.dim() == 1 and model.model.layers[0].mlp.up_proj.scales.shape == (64, 2)
    model = wide()
    quantise(model, Plan("int4", lm_head="f32"))
    assert type(model.lm_head) is torch.nn.Linear
    odd = checkpoints.model("Llama", **{**WIDE, "intermediate_size": 72})  # no multiple of 32: 8 bits
    quantise(odd, Plan("int4"))
    assert odd.model.layers[0].mlp.down_proj.scales.dim() == 1


def test_torch_multiplies_by_the_codes(tmp_path):
    """The eager programs have torch's kernels of 4 and 8 bits, and no float weight of a layer that has one."""
    made = language_models.export(wide(), path=tmp_path / "out", target="eager", weights="int4", lm_head="int8")
    for program in made.load().programs:
        kinds = [node.op for node in program.graph.nodes]
        assert kinds.count("aten::_weight_int4pack_mm_for_cpu") == 14 and kinds.count("aten::_weight_int8pack_mm") == 1
        assert not any(kind in ("aten::linear", "aten::addmm") for kind in kinds)
    with pytest.raises(ir.RefusedError, match="leave device= out"):
        language_models.load(made.path, device="cuda")


@pytest.mark.parametrize("rows, columns", [(48, 64), (176, 96), (640, 2048)])
def test_codes_are_laid_out_in_pieces(rows, columns):
    codes = torch.randint(-8, 8, (rows, columns), generator=torch.Generator().manual_seed(0))
    scales = torch.rand(rows, columns // 32).to(torch.bfloat16).float()
    layer = Int4Linear(codes, scales, None)
    whole = torch.ops.aten._convert_weight_to_int4pack_for_cpu((codes + 8).int(), 1)
    assert torch.equal(laid_out(layer.int4_codes), whole)
    x = torch.randn(2, 3, columns).to(torch.bfloat16)
    wanted = x.float() @ (codes * scales.repeat_interleave(32, 1)).T
    torch.testing.assert_close(layer(x).float(), wanted, rtol=0.01, atol=0.01 * float(wanted.abs().max()))


def test_what_the_kernels_of_torch_do_not_have():
    """Rows of no whole groups stay in float32, and layers of no whole tiles get 8 bits."""
    model = checkpoints.model("Llama", **{**WIDE, "intermediate_size": 72, "vocab_size": 100})
    quantise(model, Plan("int4"), FORM)
    assert type(model.model.layers[0].mlp.down_proj) is torch.nn.Linear
    assert type(model.model.layers[0].mlp.up_proj) is Int8Linear and type(model.lm_head) is Int8Linear
    assert type(model.model.layers[0].self_attn.q_proj) is Int4Linear


@pytest.mark.parametrize("bits", [4, 8])
def test_the_nearest_code(bits):
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    codes, scales = rounded(weight, bits)
    layer = QuantisedLinear(codes, scales, None)
    steps = scales.abs().repeat_interleave(32, 1) if bits == 4 else scales[:, None]
    over = 1.0 if bits == 4 else 0.5  # the end without a code, of 4 bits
    assert ((layer.weight - weight).abs() <= over * steps + 1e-6).all()
    assert ((layer.weight - weight).abs() <= 0.5 * steps + 1e-6).float().mean() > 0.95
    assert torch.equal(rounded(torch.zeros(2, 32), bits)[0], torch.zeros(2, 32))


@pytest.mark.parametrize("bits", [4, 8])
def test_calibration_loses_less(bits):
    """On inputs that lie near a subspace, which is what calibration can use."""
    drawn = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(128, 32, bias=False)
    x = torch.randn(500, 16, generator=drawn) @ torch.randn(16, 128, generator=drawn)
    errors = []
    for codes, scales in (rounded(layer.weight.detach(), bits), gptq(layer, bits, x.T @ x)):
        errors.append((QuantisedLinear(codes, scales, None)(x) - layer(x)).norm())
    assert errors[1] < 0.6 * errors[0]


def test_blocks_of_nnef_are_calibrated(tmp_path):
    """tract is told the codes that GPTQ chose: what it generates is compared with the model of those numbers."""
    found = {}
    for calibration in (None, texts()):
        path = tmp_path / str(calibration is None)
        made = language_models.export(
            wide(), path=path, target="nnef", weights="int4", calibration=calibration, text=texts(1)
        )
        found[calibration is None] = made.loss.overlap
    assert found[False] > found[True]


@pytest.mark.slow
def test_the_loss_is_told(tmp_path):
    model, text = wide(), texts(1)
    found = {}
    for calibration in (None, texts()):
        path = tmp_path / str(calibration is None)
        made = language_models.export(model, path=path, weights="int4", calibration=calibration, text=text)
        found[calibration is None] = made.loss
        assert made.loss.floats == pytest.approx(made.loss.perplexity, rel=2) and 0 < made.loss.overlap <= 1
        assert made.summary()["loss"].startswith("perplexity ")
    same = language_models.export(model, path=tmp_path / "same", text=text).loss
    assert same.overlap > 0.999 and same.perplexity == pytest.approx(same.floats, rel=1e-4)
    assert found[False].overlap > found[True].overlap
    assert len(list(linears(model))) == 15


@pytest.mark.parametrize("target", ["onnx", "nnef", pytest.param("eager", marks=pytest.mark.slow)])
def test_the_loss_of_each_target(tmp_path, target):
    """Of float weights there is none; the text is read token by token in the target's own runtime."""
    found = language_models.export(wide(), path=tmp_path / "out", target=target, text=texts(1)).loss
    assert found.overlap > 0.999 and found.perplexity == pytest.approx(found.floats, rel=1e-4)


def test_what_is_refused(tmp_path):
    model = wide()
    for options, message in [
        ({"target": "eager", "weights": "int3"}, "weights='int3' is none of f32, f16, bf16, int8, int4"),
        ({"target": "nnef", "weights": "int8"}, "weights='int8' is none of f32, f16, int4"),
        ({"weights": "int4", "lm_head": "int2"}, "lm_head='int2' is none of"),
    ]:
        with pytest.raises(ValueError, match=message):
            language_models.export(model, path=tmp_path / "out", **options)
    with pytest.raises(ir.CaptureError, match="a model in memory has no tokenizer"):
        language_models.export(model, path=tmp_path / "out", text="words")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnx", "eager"])
def test_the_loss_of_bfloat16(tmp_path, target):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    text = torch.arange(40)[None]
    made = language_models.export(model, path=tmp_path / "out", target=target, weights="bf16", text=text)
    assert made.loss.perplexity == pytest.approx(made.loss.floats, rel=0.05)


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("kind", ["memory", "mapped", "bin"])
def test_a_weight_that_float16_does_not_reach(tmp_path, target, kind):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 2] = -1e6
    source = model if kind == "memory" else tmp_path / "in"
    if kind == "mapped":
        model.save_pretrained(source)
    elif kind == "bin":
        model.config.architectures = ["LlamaForCausalLM"]
        model.config.save_pretrained(source)
        torch.save(model.state_dict(), source / "pytorch_model.bin")
    said = r"float16 ends at 65504, and the weight model.layers.1.mlp.up_proj.weight has "
    said += "numbers beyond that" if kind == "bin" else r"one of 1e\+06: take weights='bf16', or 'f32'"
    with pytest.raises(ir.RefusedError, match=said):
        language_models.export(source, path=tmp_path / "out", target=target, weights="f16", tokenizer=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("weights", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number(tmp_path, weights, number):
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    with torch.no_grad():
        model.model.norm.weight[5] = number
    with pytest.raises(ir.RefusedError, match=r"the weight model\.norm\.weight has nan or infinite numbers"):
        language_models.export(model, path=tmp_path / "out", weights=weights)


def test_tokens_of_nan_are_not_equal(tmp_path):
    """Weights that lie in a file as they are exported are not read before; the comparison sees them."""
    model = checkpoints.model("Llama", **checkpoints.LLAMA)
    with torch.no_grad():
        model.model.norm.weight[5] = float("nan")
    model.save_pretrained(tmp_path / "in")
    with pytest.raises(ir.MismatchError, match="the model's own logits are nan"):
        language_models.export(tmp_path / "in", path=tmp_path / "out", tokenizer=False, verify=True)
