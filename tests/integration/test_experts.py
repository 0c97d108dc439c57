"""Mixtures of experts of transformers, as they come: whole prompts, and steps with their caches."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

import ir
from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)
from tests.zoo.decoding import cache_argument

transformers = pytest.importorskip("transformers")

TARGETS = ("onnx", "nnef", "eager")
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "num_experts_per_tok": 2,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8},
    "Qwen3Next": {
        "num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "head_dim": 8,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "DeepseekV3": {
        "n_routed_experts": 4, "moe_intermediate_size": 16, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "num_key_value_heads": 4,
    },
    "GptOss": {
        "num_local_experts": 4, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "Jamba": {
        "num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 1,
        "expert_layer_offset": 0, "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False,
    },
}  # fmt: skip
PROMPT = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(0))
TWO = {0: "batch", 1: "sequence"}


def made(family: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES | FAMILIES[family])
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


@lru_cache(maxsize=1)
def prompt(family: str) -> ir.Graph:
    shapes = {0: "batch"} if family == "Jamba" else TWO  # its recurrence is a Python loop over the tokens
    return ir.capture(made(family), kwargs={"input_ids": PROMPT}, dynamic_shapes={"input_ids": shapes})


@lru_cache(maxsize=1)
def step(family: str) -> ir.Graph:
    model = made(family)
    given = {"input_ids": PROMPT[:, :1], cache_argument(): model(PROMPT).past_key_values}
    shapes = {"input_ids": {0: "batch"}, cache_argument(): {0: "batch", 2: "past"}}
    return ir.capture(model, kwargs=given, dynamic_shapes=shapes)


def check_prompt(family: str, target: str) -> None:
    program = ir.export(prompt(family), target=target, verify=True)
    assert any("grouped_mm" in n.op for n in program.graph.nodes)


def check_step(family: str, target: str) -> None:
    ir.export(step(family), target=target, verify=True)


@pytest.mark.parametrize("target", TARGETS)
def test_a_prompt_and_a_step(target):
    check_prompt("Mixtral", target)
    check_step("Mixtral", target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "Mixtral"])
def test_every_other_family(family, target):
    check_step(family, target)
    if (family, target) == ("Qwen3Next", "nnef"):
        with pytest.raises(ir.RefusedError, match="sequence % 64"):  # chunks of 64, whose number tract cannot say
            check_prompt(family, target)
    else:
        check_prompt(family, target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", ["dynamic", 4, 64, 600])
def test_the_operator_of_transformers_has_a_body(rows, dtype):
    """Empty groups, rows behind the last group (zeros), and few and many rows, each in a form of its own."""
    from transformers.integrations import moe  # noqa: F401  (which defines the operator)

    weight = torch.randn(5, 8, 12, generator=torch.Generator().manual_seed(0)).to(dtype)

    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)

    size = 33 if rows == "dynamic" else rows
    x = torch.randn(size, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    shapes = ({0: "rows"}, None) if rows == "dynamic" else None
    ends = torch.tensor([0, size // 2, size // 2, size - 1, size - 1])
    for target in TARGETS:
        program = ir.export(Product(), (x, ends), dynamic_shapes=shapes, target=target)
        program.verify((x, ends))
        program.verify((x, torch.full([5], size)))
        if rows == "dynamic":
            program.verify((x[:2], torch.tensor([0, 0, 1, 2, 2])))
