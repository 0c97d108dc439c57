"""The tables of what torch refuses by sizes, against its kernels: each entry is refused, and what else is, is known."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from ir import ops
from ir.importer.operand_sizes import RULES
from ir.importer.schema import op_schema
from ir.importer.torch_api import OpOverloadPacket, operator_names
from ir.indexed import INDEXED

aten = torch.ops.aten
ONES, X, PLACES, MASK = torch.ones, torch.ones(4, 4), torch.zeros(1, 5, dtype=torch.int64), torch.ones(3) > 0
NONE, ONE = torch.ones(2, 0), torch.zeros(1, dtype=torch.int64)
KEYS = ONES(1, 1, 4, 8)


def image(rank: int, size: int) -> torch.Tensor:
    return torch.ones((1, 1) + (size,) * rank)


# Arguments that are of the wrong sizes, or too small.
CALLS: dict[str, tuple[Any, ...]] = {
    "select_scatter": (X, ONES(3), 0, 0), "slice_scatter": (X, ONES(3, 4), 0, 0, 2), "diagonal_scatter": (X, ONES(3)),
    "index_add": (X, 0, ONE, ONES(1, 3)), "index_copy": (X, 0, ONE, ONES(1, 3)),
    "index_reduce": (X, 0, ONE, ONES(1, 3), "prod"), "gather": (X, 0, PLACES), "scatter": (X, 0, PLACES, ONES(1, 5)),
    "scatter_add": (X, 0, PLACES, ONES(1, 5)), "scatter_reduce": (X, 0, PLACES, ONES(1, 5), "sum"),
    "index": (X, [MASK]), "index_put": (X, [MASK], ONES(3)), "_unsafe_index": (X, [MASK]),
    "_unsafe_index_put": (X, [MASK], ONES(3)), "masked_select": (X, ONES(3, 4) > 0),
    "masked_scatter": (X, X > 0, ONES(3)), "narrow": (X, 0, 3, 2), "narrow_copy": (X, 0, 3, 2), "arange": (0, 4, 0),
    "addmm": (ONES(3, 3), X, X), "addmv": (ONES(3), X, ONES(4)), "addbmm": (ONES(3, 3), X[None], X[None]),
    "baddbmm": (ONES(1, 3, 3), X[None], X[None]), "addr": (ONES(3, 3), ONES(4), ONES(4)),
    "scaled_dot_product_attention": (KEYS, KEYS, KEYS[:, :, :3]),
    "_scaled_dot_product_flash_attention_for_cpu": (KEYS, KEYS, KEYS[:, :, :3]),
    **{f"conv{n}d": (image(n, 2), image(n, 3)) for n in (1, 2, 3)},
    "convolution": (image(1, 2), image(1, 3), None, [1], [0], [1], False, [0], 1),
    "_convolution": (image(1, 2), image(1, 3), None, [1], [0], [1], False, [0], 1, False, False, True, True),
    # -- of no elements, or too few
    **dict.fromkeys(("max", "min", "aminmax", "argmax", "argmin"), (NONE,)),
    **dict.fromkeys(("amax", "amin", "median", "nanmedian", "mode"), (NONE, 1)),
    "quantile": (NONE, 0.5), "nanquantile": (NONE, 0.5), "norm": (NONE, torch.inf, [1]),
    "linalg_vector_norm": (NONE, torch.inf, [1]), "linalg_norm": (NONE, torch.inf, [1]),
    "linalg_matrix_norm": (NONE, -2), "gradient": (ONE,),
    "unique_dim": (NONE, 0), "pad": (image(1, 0), [1, 1], "replicate"),
    **{f"{op}_pool{n}d{more}": (image(n, 1), [3] * n) for n in (1, 2, 3) for op, more in
       (("max", ""), ("avg", ""), ("max", "_with_indices"))},
    **{f"adaptive_{op}_pool{n}d": (image(n, 0), [2] * n) for op in ("avg", "max") for n in (1, 2, 3)},
    "im2col": (image(2, 1), [3, 3], [1, 1], [0, 0], [1, 1]), "unfold": (ONES(1), 0, 2, 1),
    **{f"reflection_pad{n}d": (image(n, 1), [1] * 2 * n) for n in (1, 2, 3)},
    **{f"replication_pad{n}d": (image(n, 0), [1] * 2 * n) for n in (1, 2, 3)},
    **{f"{op}{n}d": (image(n, 0), [2] * n) for n in (1, 2, 3) for op in
       ("upsample_nearest", "_upsample_nearest_exact")},
    **{f"upsample_{op}": (image(n, 0), [2] * n, False) for n, op in
       ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d"), (2, "bicubic2d"))},
    **{f"_upsample_{op}2d_aa": (image(2, 0), [2, 2], False) for op in ("bilinear", "bicubic")},
    **{f"grid_sampler{more}": (image(n, 0), ONES(1, *[2] * n, n), 0, 0, False) for n, more in
       ((2, ""), (2, "_2d"), (3, "_3d"))},
    "stft": (ONES(2), 4), "_fft_r2c": (NONE, [1], 0, True), "_fft_c2c": (NONE + 0j, [1], 0, True),
    "_fft_c2r": (NONE + 0j, [1], 0, 0),
    **{f"fft_{i}{kind}fft{of}": (ONES(0, 0),) for i in ("", "i") for kind in ("", "r", "h") for of in ("", "2", "n")},
}  # fmt: skip

TABLES = {op.removeprefix("aten::") for op in (*RULES, *ops.REFUSE_SMALL)}
# The kernel for the CPU reads beyond shorter values; that of plain products refuses them.
UNLOOKED = {
    "scaled_dot_product_attention": "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_attention_math",
}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_torch_refuses_such_sizes(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        getattr(aten, UNLOOKED.get(name, name))(*CALLS[name])


def test_every_call_is_of_an_entry() -> None:
    assert CALLS.keys() == TABLES


# What kernels refuse of the database's samples besides, and who sees to it.
OTHERWISE = {
    "as_strided", "as_strided_copy", "as_strided_scatter",  # beyond the memory: the importer makes indices of them
    "_unsafe_masked_index_put_accumulate",  # of derivatives
    "multinomial",  # random
    "ormqr", "segment_reduce",  # decompositions, in which their products and sums look at the sizes
    "linalg_lu_factor",  # a row twice is singular: data
}  # fmt: skip
# Kernels that read beyond what is shorter, and may end their process: what they refuse is no rule.
UNSAFE = {"lu_unpack", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "_segment_reduce"}


@pytest.mark.slow
def test_nothing_else_is_refused_by_the_kernel_alone() -> None:
    """In a process of its own, which forks: some kernels end theirs."""
    ran = subprocess.run([sys.executable, "-m", "tests.ir.probe_sizes"], check=True, capture_output=True, text=True)
    found = set(json.loads(ran.stdout))
    assert {"gather", "max", "stft", "index_put"} <= found
    assert found - TABLES - UNSAFE - {op.removeprefix("aten::") for op in INDEXED} == OTHERWISE


def arguments(name: str) -> set[str]:
    packet = getattr(aten, name)
    return {a for overload in packet.overloads() for a in op_schema(getattr(packet, overload)).names}


def of_devices(name: str) -> bool:
    """True of a kernel's own name, which torch.export meets in no program, and of derivatives."""
    words = ("cudnn", "miopen", "mkldnn", "mps", "slow", "depthwise", "overrideable", "quantized", "backward")
    return any(w in name for w in (*words, "_mode"))  # `_convolution_mode` is what conv2d of a named padding calls


def test_layers_are_those_that_take_such_arguments() -> None:
    names = [n.removeprefix("aten::") for n in operator_names() if n.startswith("aten::")]
    names = [n for n in names if isinstance(getattr(aten, n, None), OpOverloadPacket) and not of_devices(n)]
    convolutions = {f"aten::{n}" for n in names if {"weight", "stride", "dilation"} <= arguments(n)}
    assert convolutions == ops.CONVOLUTIONS
    assert {f"aten::{n}" for n in names if {"hx", "params", "batch_first"} <= arguments(n)} == ops.RECURRENT
