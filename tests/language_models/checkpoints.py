"""Small random checkpoints with a real structure, and a tokenizer made here; a folder each, as downloads are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)

import transformers  # isort: skip

VOCABULARY = 96
TEXTS = ["the cat sat on the mat", "a language model", "Once upon a time there was a small checkpoint"]
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LAYERS: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
STATE = {**SIZES, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
LLAMA = {**SIZES, **LAYERS, "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 128}

FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": LLAMA,
    "Qwen3": {**LLAMA, "head_dim": 8},
    "Gemma3": {**LLAMA, "head_dim": 8, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
}


def model(family: str, seed: int = 0, **sizes: Any) -> Any:
    """A model of random weights, large enough that its tokens are not all one."""
    torch.manual_seed(seed)
    cls = getattr(transformers, family if family.endswith("Model") else f"{family}ForCausalLM")
    made = cls(cls.config_class(**sizes)).eval()
    with torch.no_grad():
        for name, p in made.named_parameters():
            if p.dim() > 1 and "embed_tokens" not in name:
                p.mul_(4.0)
    # so that greedy text is not cut short
    made.generation_config.eos_token_id = made.config.eos_token_id
    return made


def tokenizer(folder: Path) -> None:
    """Bytes and a few merges of them, with the special tokens of `SIZES`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)


def checkpoint(folder: Path, family: str, **sizes: Any) -> Any:
    """The folder of a checkpoint; what comes back is the model that it was made of."""
    made = model(family, **sizes)
    made.save_pretrained(folder)
    tokenizer(folder)
    return made


def prompts(batch: int, longest: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of different lengths, padded on the left, and their mask."""
    tokens = torch.randint(4, VOCABULARY, (batch, longest), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    for i in range(batch):
        mask[i, : 3 * i] = 0
    return tokens * mask, mask
