"""Every core ATen overload has a native form, a shared decomposition, or a reason why it needs none."""

import torch

from ir.decompositions.registry import decomposition_of
from ir.lower import CORE
from onnx_backend.registry import load

WITHOUT = {
    "_fft_c2r": "ir.passes.split_complex has taken it apart",
    "_fft_r2c": "ir.passes.split_complex has taken it apart",
    "_local_scalar_dense": "a number of the graph, ir::item",
    "_native_batch_norm_legit": "its body serves, by the overload without running statistics",
    "sym_is_contiguous": "torch's own question about strides",
    "sym_numel": "a size of the graph", "sym_size": "a size of the graph",
    "sym_stride": "a size of the graph", "sym_storage_offset": "a size of the graph",
}  # fmt: skip


def core():
    # from the dispatcher: torch.ops.aten lists only what somebody has asked it for
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if full.startswith("aten::"):
            op = getattr(getattr(torch.ops.aten, name), overload or "default", None)
            if op is not None and torch.Tag.core in op.tags:
                yield name, op


def test_core_aten():
    registry, missing = load(), set()
    count = 0
    for name, op in core():
        if name.endswith("_backward") or name.startswith("resize_"):
            continue
        count += 1
        full = f"{op._schema.name}.{op._schema.overload_name or 'default'}"
        base = f"aten::{name}"
        found = registry.lookup(base, full, 20) or registry.lookup(base, full.removesuffix(".default"), 20)
        if found is None and base not in CORE and decomposition_of(base, full) is None:
            missing.add(name)
    assert count >= 180
    assert missing == WITHOUT.keys()
