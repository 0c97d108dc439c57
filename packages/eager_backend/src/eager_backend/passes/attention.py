"""Where `ir.passes.group_heads` pays: keys and values repeated for groups of query heads are read as they are.

torch's fused attention takes fewer heads of keys than of queries on the CPU, so that no step copies the whole cache.
Where there is no such kernel torch repeats the keys itself, and computes attention by products: the model's own way
stays there.
"""

from __future__ import annotations

import functools

import torch

_MATH = 0  # torch.nn.attention.SDPBackend.MATH


@functools.cache
def takes_groups(device: torch.device) -> bool:
    """True if attention of fewer key heads than query heads has a fused kernel on the device."""
    if device.type != "cpu":
        return False
    query, key = torch.zeros(1, 2, 1, 16), torch.zeros(1, 1, 2, 16)
    with torch.no_grad():
        chosen = torch.ops.aten._fused_sdp_choice.default(query, key, key, enable_gqa=True)
    return bool(chosen != _MATH)
