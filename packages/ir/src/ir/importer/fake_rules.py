"""Shape rules that torch lacks: operators whose fake kernel unrolls a loop over a size, and so fixes it, or is missing.

torch.export keeps `lstm`, `gru`, `rnn_tanh`, `rnn_relu` and `max_pool1d` as one node, but computes its result's shape
with the composite kernel, step by step, `tensor_split` asks whether the pieces are equal, `chunk` and `split` how many
they are. In the `dynamic` block a shape rule answers instead, so time and length may stay symbols; `ctc_loss` and `cov`
read numbers out of tensors that their shape does not need, `cdist` asks for more than 25 points, `inner` and
`tensordot` for sizes of 1, and the grid of `affine_grid_generator` is made for one size. The fake_quantize family, the
histograms and `linalg_lstsq` have no fake kernel at all, and that of `_grouped_mm` knows bfloat16 alone, where the
kernels know more.
What torch composes in C++ with sizes as numbers has a shared decomposition that is its rule
(`ir.decompositions.composites`).

Only fake tensors see the rules. A size that data decides is at least 2 by the default of `create_unbacked_symint`, and
the program asserts it; here it may be 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ir import geometry
from ir.decompositions.composites import COMPOSITES
from ir.importer.swapping import swapped
from ir.importer.torch_api import (
    DispatchKey,
    DynamicOutputShapeException,
    FakeImplCtx,
    FakeTensor,
    check_size,
    decompositions,
    expression,
    forget_kernels,
    has_kernel,
    pool_shapes,
    pytree,
    run_kernel,
)

_COMPOSITE = DispatchKey.CompositeImplicitAutograd


def _equal(one: Any, other: Any) -> None:
    """Raises torch's error where two sizes differ, and notes that they are equal."""
    check_size(one == other, lambda: f"the sizes {one} and {other} must be equal")


def _recurrent(input: Any, state: Any, params: Any, biases: Any, layers: Any, dropout: Any, train: Any,
               bidirectional: bool, batch_first: Any) -> Any:  # fmt: skip
    hidden, *cell = state if isinstance(state, (list, tuple)) else (state,)
    turned = batch_first and input.dim() == 3  # the kernels compute step by step
    steps = input.transpose(0, 1) if turned else input
    output = input.new_empty(*steps.shape[:-1], hidden.shape[-1] * (1 + bidirectional))
    output = output.transpose(0, 1) if turned else output
    return (output, *(torch.empty_like(s) for s in (hidden, *cell)))


def _windows(size: Any, kernel: int, before: int, after: int, stride: int, dilation: int, ceil_mode: bool) -> Any:
    """torch's own rule asks at which side of the padding the last window starts, and so holds for some sizes only."""
    return (size + geometry.window_reach(kernel, stride, (before, after), dilation, ceil_mode)) // stride


def _max_pool1d(
    input: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    kernel, pad, gap = (geometry.ntuple(a, 1)[0] for a in (kernel_size, padding, dilation))
    step = geometry.ntuple(stride, 1)[0] if stride else kernel
    size = input.shape[-1]
    count = _windows(size, kernel, pad, pad, step, gap, ceil_mode)
    return input.new_empty(*input.shape[:-1], count)


def _tensor_split(self: Any, sections: Any, dim: int = 0) -> Any:
    axis, shape, parts = dim % self.dim(), list(self.shape), []
    offset = self.storage_offset()
    for i in range(int(sections)):
        shape[axis] = (self.shape[axis] + sections - 1 - i) // sections
        parts.append(self.as_strided(shape, self.stride(), offset))
        offset = offset + shape[axis] * self.stride(axis)
    return parts


def _chunk(self: Any, chunks: int, dim: int = 0) -> Any:
    """torch splits by a size, and does not see that it makes as many pieces as were asked for.

    All of them are taken without a question to the sizes, for `ir::require` counts them; that there are fewer holds at
    some sizes only, which torch asks for.
    """
    axis, shape, parts = dim % self.dim(), list(self.shape), []
    whole, each = self.shape[axis], (self.shape[axis] + chunks - 1) // chunks
    traced = whole if isinstance(whole, int) else whole.node.hint if whole.node.has_hint() else None
    if traced is not None and (chunks - 1) * -(-traced // chunks) >= max(traced, 1):
        return list(self.split(each, axis))
    for i in range(chunks):
        shape[axis] = each if i < chunks - 1 else whole - i * each
        parts.append(self.as_strided(shape, self.stride(), self.storage_offset() + i * each * self.stride(axis)))
    return parts


def _split(self: Any, split_size: Any, dim: int = 0) -> Any:
    """Of a size that is a formula, such as that of another piece, torch fixes the number of pieces."""
    axis, shape, parts = dim % self.dim(), list(self.shape), []
    whole = self.shape[axis]
    if not isinstance(whole, torch.SymInt) or not expression(whole).args or not whole.node.has_hint():
        return NotImplemented
    if not isinstance(split_size, int) or split_size <= 0:
        return NotImplemented
    count = max(-(-whole.node.hint // split_size), 1)
    for i in range(count):
        shape[axis] = split_size if i < count - 1 else whole - i * split_size
        parts.append(self.as_strided(shape, self.stride(), self.storage_offset() + i * split_size * self.stride(axis)))
    return parts


def _quantile(self: Any, q: Any, dim: Any = None, keepdim: bool = False, interpolation: str = "linear") -> Any:
    kept = [1] * self.dim() if dim is None else [1 if i == dim % self.dim() else s for i, s in enumerate(self.shape)]
    left = kept if keepdim else [] if dim is None else [s for i, s in enumerate(kept) if i != dim % self.dim()]
    return self.new_empty([*(q.shape if isinstance(q, torch.Tensor) else ()), *left])


def _fake_quantize(input: Any, *args: Any, **kwargs: Any) -> Any:
    return torch.empty_like(input)


def _histogram(self: Any, bins: Any = 100, *args: Any, **kwargs: Any) -> Any:
    edges = bins.shape[0] if isinstance(bins, torch.Tensor) else bins + 1
    return self.new_empty([edges - 1]), self.new_empty([edges])


def _histogramdd(self: Any, bins: Any, *args: Any, **kwargs: Any) -> Any:
    bins = [bins] * self.shape[-1] if isinstance(bins, int) else bins
    edges = [b.shape[0] if isinstance(b, torch.Tensor) else b + 1 for b in bins]
    return self.new_empty([n - 1 for n in edges]), [self.new_empty([n]) for n in edges]


def _ctc_loss(log_probs: Any, targets: Any, given: Any, wanted: Any, blank: int = 0, reduction: int = 1,
              zero_infinity: bool = False) -> Any:  # fmt: skip
    if log_probs.dim() == 3:
        many = (len(n) if isinstance(n, (list, tuple)) else n.shape[0] for n in (given, wanted))
        for n in (*many, *targets.shape[:-1]):
            _equal(n, log_probs.shape[1])
    return log_probs.new_empty([] if reduction else log_probs.shape[1:-1])


def _cov(self: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    dtype = self.dtype if aweights is None else torch.promote_types(self.dtype, aweights.dtype)
    floating = dtype.is_floating_point or dtype.is_complex
    rows = self.shape[:-1]
    shape = [] if not rows or rows[0] == 1 else [rows[0], rows[0]]
    return self.new_empty(shape, dtype=dtype if floating else torch.get_default_dtype())


def _lstsq(self: Any, b: Any, rcond: Any = None, *, driver: str | None = None) -> Any:
    """Results of drivers that tell no rank have static sizes, and the default driver leaves residuals out."""
    rows, columns = self.shape[-2:]
    _equal(b.shape[self.dim() - 2], rows)
    vector = b.dim() == self.dim() - 1
    batch, sides = self.shape[:-2], 1 if vector else b.shape[-1]
    kind = self.dtype.to_real() if self.is_complex() else self.dtype
    ranked, valued = driver != "gels", driver in ("gelsd", "gelss")
    if valued and rows > columns:
        raise DynamicOutputShapeException(torch.ops.aten.linalg_lstsq.default)
    residuals = (*batch, sides) if driver == "gels" and rows > columns else (0,)
    return (
        self.new_empty((*batch, columns) if vector else (*batch, columns, sides)),
        self.new_empty(residuals, dtype=kind),
        self.new_empty(batch if ranked else (0,), dtype=torch.int64),
        self.new_empty((*batch, rows) if valued else (0,), dtype=kind),
    )


def _affine_grid(theta: Any, size: Any, align_corners: bool) -> Any:
    """torch's own is made of `linspace`, which takes no size that is a symbol."""
    return theta.new_empty(size[0], *size[2:], len(size) - 2)


def _cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    """The kernel asks for more than 25 points, to compute by products of matrices."""
    _equal(x1.shape[-1], x2.shape[-1])
    return x1.new_empty(*torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2]), x1.shape[-2], x2.shape[-2])


def _inner(self: Any, other: Any) -> Any:
    """torch's own, of reshapes and a product of matrices, asks which sizes are 1; so does the next one's."""
    if not self.dim() or not other.dim():
        return self * other
    _equal(self.shape[-1], other.shape[-1])
    return self.new_empty((*self.shape[:-1], *other.shape[:-1]))


def _tensordot(self: Any, other: Any, dims_self: Any, dims_other: Any) -> Any:
    _equal(len(dims_self), len(dims_other))
    axes = [[a % x.dim() for a in dims] for x, dims in ((self, dims_self), (other, dims_other))]
    for mine, theirs in zip(*axes, strict=True):
        sizes = self.shape[mine], other.shape[theirs]
        if not any(isinstance(s, int) and s == 1 for s in sizes):  # such are summed before
            _equal(sizes[0], sizes[1])
    left = [s for x, gone in zip((self, other), axes, strict=True) for a, s in enumerate(x.shape) if a not in gone]
    return self.new_empty(left)


def _roll(self: Any, shifts: Any, dims: Any = ()) -> Any:
    """torch's own asks whether there are elements, and returns a copy where there are none."""
    if len(dims) != len(shifts) and (dims or len(shifts) != 1):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims: {len(dims)}")
    for axis in dims:
        self.size(axis)  # torch's error where there is no such axis
    return self.new_empty(self.shape)


def _geqrf(self: Any) -> Any:
    rows, columns = self.shape[-2:]
    return torch.empty_like(self), self.new_empty((*self.shape[:-2], torch.sym_min(rows, columns)))


def _grouped_mm(self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    ranks = self.dim(), mat2.dim()
    front = {(2, 2): (offs.shape[0], self.shape[0]) if offs is not None else (), (2, 3): (self.shape[0],),
             (3, 2): (self.shape[-2],), (3, 3): self.shape[:2]}  # fmt: skip
    return self.new_empty([*front[ranks], mat2.shape[-1]], dtype=out_dtype or self.dtype)


def _multi_margin(self: Any, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1) -> Any:
    """Of one sample torch's rules make a batch of one, its kernels a number; so for the next two."""
    return self.new_empty([] if reduction else target.shape)


def _multilabel_margin(self: Any, target: Any, reduction: int = 1) -> Any:
    return self.new_empty([] if reduction else target.shape[:-1])


def _multilabel_margin_forward(self: Any, target: Any, reduction: int) -> Any:
    return _multilabel_margin(self, target, reduction), torch.empty_like(target, dtype=self.dtype)


def _composites() -> dict[Any, Any]:
    """The shared decompositions that are shape rules as they stand, by overload."""
    packets = {op: getattr(torch.ops.aten, op.removeprefix("aten::")) for op in COMPOSITES if "." not in op}
    named = ((op, name, getattr(packet, name)) for op, packet in packets.items() for name in packet.overloads())
    return {fn: COMPOSITES.get(f"{op}.{name}", COMPOSITES[op]) for op, name, fn in named if "out" not in name}


def rules() -> dict[Any, Any]:
    """The shape rule of each such operator."""
    aten = torch.ops.aten
    fake = (aten.fake_quantize_per_tensor_affine, aten.fake_quantize_per_channel_affine)
    overloads = [getattr(packet, name) for packet in fake for name in packet.overloads()]
    late = (aten.quantile, aten.nanquantile) if torch.__version__ < "2.12" else ()
    quantiles = [getattr(packet, name) for packet in late for name in packet.overloads() if "out" not in name]
    tables = (aten.histogramdd.default, aten.histogramdd.int_bins, aten.histogramdd.TensorList_bins)
    recurrent = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
    return {
        **_composites(),
        **dict.fromkeys(recurrent, _recurrent),
        **dict.fromkeys(overloads, _fake_quantize),
        **dict.fromkeys(quantiles, _quantile),
        aten.max_pool1d.default: _max_pool1d,
        aten.tensor_split.sections: _tensor_split,
        aten.chunk.default: _chunk,
        aten.split.Tensor: _split,
        **dict.fromkeys((aten.ctc_loss.IntList, aten.ctc_loss.Tensor), _ctc_loss),
        **dict.fromkeys((aten.cov.default, aten.corrcoef.default), _cov),
        aten.histogram.bin_ct: _histogram,
        aten.histogram.bins_tensor: _histogram,
        **dict.fromkeys(tables, _histogramdd),
        aten.linalg_lstsq.default: _lstsq,
        aten.affine_grid_generator.default: _affine_grid,
        aten.cdist.default: _cdist,
        aten.inner.default: _inner,
        aten.tensordot.default: _tensordot,
        aten.roll.default: _roll,
        aten.geqrf.default: _geqrf,
        aten._grouped_mm.default: _grouped_mm,
        aten.multi_margin_loss.default: _multi_margin,
        aten.multilabel_margin_loss.default: _multilabel_margin,
        aten.multilabel_margin_loss_forward.default: _multilabel_margin_forward,
    }


@contextlib.contextmanager
def dynamic() -> Iterator[None]:
    """Export inside of this block."""
    saved = {op: dict(op.py_kernels) for op in rules()}
    for op, rule in rules().items():
        for key in _keys(op):
            op.py_kernels[key] = _only_fake(op, rule, key)
        forget_kernels(op)
    table: Any = decompositions()  # which torch prefers to a kernel where sizes are symbols
    preferred = {op: table.pop(op) for op in rules() if op in table and _COMPOSITE not in _keys(op)}
    try:
        with pool_shapes(_windows), swapped(FakeImplCtx, "create_unbacked_symint", FakeImplCtx.new_dynamic_size):
            yield
    finally:
        table.update(preferred)
        for op, kernels in saved.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            forget_kernels(op)


def _keys(op: Any) -> tuple[Any, ...]:
    """Where torch asks for the shapes of an op; it asks no kernel of what the tag stands at.

    Some of its decompositions in Python stand before the kernels, in the place of the op's derivative.
    """
    if has_kernel(op.name(), "CompositeImplicitAutograd") or torch.Tag.dynamic_output_shape in op.tags:
        return (_COMPOSITE,)
    return (DispatchKey.Meta, *{DispatchKey.Autograd}.intersection(op.py_kernels))


def _only_fake(op: Any, rule: Any, key: Any) -> Any:
    own = op.py_kernels.get(key, partial(run_kernel, op, key))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        if not any(isinstance(t, FakeTensor) for t in tensors):
            return run_kernel(op, key, *args, **kwargs)
        made = rule(*args, **kwargs)
        return own(*args, **kwargs) if made is NotImplemented else made

    return kernel
