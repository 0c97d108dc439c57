"""The op case table: ALL, one case a row, gathered from a file a family."""

from __future__ import annotations

import torch

from . import (
    attention,
    control,
    conv,
    create,
    elementwise,
    index,
    matmul,
    norm,
    other_names,
    pool,
    quantize,
    recurrent,
    reduce,
    shape,
)
from .base import OTHER, TRACED, Case

# what torch.export does not take of these, or of their dynamic sizes, before torch 2.13
_SINCE_2_13 = {"cross_entropy_probabilities", "pad_sequence"} if torch.__version__ < "2.13" else set()

FAMILIES: dict[str, list[Case]] = {
    module.__name__.rpartition(".")[2]: [c for c in module.CASES if c.name.rpartition("/")[2] not in _SINCE_2_13]
    for module in (
        elementwise,
        reduce,
        matmul,
        conv,
        pool,
        norm,
        attention,
        shape,
        index,
        create,
        recurrent,
        control,
        quantize,
        other_names,
    )
}
ALL: list[Case] = [case for cases in FAMILIES.values() for case in cases]

__all__ = ["ALL", "FAMILIES", "OTHER", "TRACED", "Case"]
