"""The op case table: ALL, one case a row, gathered from a file a family."""

from __future__ import annotations

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

FAMILIES: dict[str, list[Case]] = {
    module.__name__.rpartition(".")[2]: module.CASES
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
