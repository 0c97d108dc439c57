"""Models of transformers by their class alone: the configuration is made small by the names of its fields."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

# A whole number in a field that fits takes this value. The first line that fits counts.
_FIELDS: tuple[tuple[str, int], ...] = (
    (r".*vocab_size|.*vocabulary_size", 64),
    (
        r"(bos|cls|start|eos|sep|pad|mask|unk|boi|eoi|decoder_start|.*_start|.*_end|image|video|audio|.*)_token_(id|index)",
        2,
    ),
    (r"(num_)?(.*_)?key_value_heads|num_kv_heads", 2),
    (r"(n|num)_layers?|.*num_hidden_layers|(encoder|decoder|num_encoder|num_decoder|enc|dec)_layers|num_blocks", 2),
    (r"(n|num)_heads?|.*(attention|attn)_heads|decoder_num_heads", 4),
    (r"intermediate_size|.*ffn_dim|.*_ffn_size|d_ff|ffn_hidden_size|.*dim_feedforward|d_inner|.*intermediate_size", 64),
    (r"head_dim|d_kv|kv_channels|.*_head_dim|attention_head_size", 8),
    (
        r".*hidden_size|d_model|n_embd|dim|.*embed_dim|.*embedding_size|projection_dim|.*hidden_dim|embed_dim|emb_dim",
        32,
    ),
    (r"max_position_embeddings|n_positions|max_.*positions|max_seq_len(gth)?", 128),
    (r"image_size", 64),
    (r"patch_size", 16),
)


def config(kind: Any, **given: Any) -> Any:
    """A small configuration of this class; what is `given` stays, for a nested one as a dict."""
    return kind(**_small(kind, given))


def _small(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    default = kind()
    found = {name: value for name, value in default.to_dict().items() if not name.startswith(("_", "transformers"))}
    small = {name: size for name, value in found.items() if (size := _size(name, value)) is not None}
    for name, nested in (getattr(kind, "sub_configs", None) or {}).items():
        if isinstance(found.get(name), dict) and hasattr(nested, "to_dict"):
            small[name] = _small(nested, given.pop(name, {}))
    if "use_cache" in found:
        small["use_cache"] = False
    return small | given


def _size(name: str, value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    size = next((size for pattern, size in _FIELDS if re.fullmatch(pattern, name)), None)
    return None if size is None else min(size, value) if value > 0 else None


def build(name: str, **given: Any) -> nn.Module:
    """The model class of that name with a small configuration."""
    import transformers

    kind = getattr(transformers, name)
    model: nn.Module = kind(config(kind.config_class, **given))
    return model
