"""The operations that may be emitted, as data: parameters, element types, extension, first version of tract.

`OPERATORS` is read off NNEF 1.0.5's standard operations and tract's registries; what tract does with each element
type was measured. An operation that is missing here cannot be emitted, so that a misspelt name fails in the handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ir.types import DType

SHORT: Mapping[str, DType] = {d.short: d for d in DType}
_FLOATS, _SINGLE, _SIGNED = "f16 f32 f64", "f16 f32", "i8 i16 i32 i64"
_INTEGERS = f"{_SIGNED} u8 u16 u32 u64"
_NUMBERS = f"{_INTEGERS} {_FLOATS}"
_ANY = f"bool {_NUMBERS}"
STORED = frozenset(SHORT[t] for t in _ANY.split())  # the element types a tensor may have

# Where an operation does not take an element type, these hold every value of it, the cheapest first. Casting there
# and back is exact for what follows torch's rules: integers wrap, bool is "not zero".
COMPUTE_TYPES: Mapping[DType, tuple[DType, ...]] = {
    DType.bool: (DType.uint8, DType.int32, DType.int64),
    DType.uint8: (DType.int32, DType.int64),
    DType.int8: (DType.int32, DType.int64),
    DType.int16: (DType.int32, DType.int64),
    DType.uint16: (DType.int32, DType.int64),
    DType.int32: (DType.int64,),
    DType.uint32: (DType.int64,),
    DType.float16: (DType.float32,),
    DType.float32: (DType.float64,),
}


@dataclass(frozen=True)
class Operator:
    """One operation.

    `positional` parameters are tensors and numbers, `named` the ones written as `name=value`; `rule` gives the result's
    shape (see shapes.py), `result` its element type: "=" for that of the operands, a short name, or "to" for what the
    parameter of that name says; `takes` are the element types of the operands that tract computes rightly.
    """

    name: str
    positional: tuple[str, ...]
    named: tuple[str, ...]
    rule: str
    takes: frozenset[DType]
    result: str
    extension: str
    since: tuple[int, ...]

    @property
    def broadcasts(self) -> bool:
        """True if the operands broadcast, by NNEF's rule: aligned on the left."""
        return self.rule == "broadcast"


# (shape rule, result's element type, operands' element types, declarations), a declaration being `name(x, y; named)`.
_DECLARED = [
    ("like", "=", _ANY, "copy(x)"),
    ("like", "=", f"bool {_INTEGERS}", "tract_core_bitnot(x)"),
    ("like", "=", "bool", "not(x)"),
    ("like", "=", f"{_SIGNED} {_FLOATS}", "neg(x)"),
    ("like", "=", _NUMBERS, "abs(x) sign(x) floor(x) ceil(x) round(x) relu(x)"),
    ("like", "=", _FLOATS,
     "exp(x) log(x) sqrt(x) rsqrt(x) sqr(x) square(x) rsqr(x) recip(x) sin(x) cos(x) tan(x) asin(x) acos(x) "
     "atan(x) sinh(x) cosh(x) tanh(x) asinh(x) acosh(x) atanh(x) softplus(x) elu(x; alpha) leaky_relu(x; alpha) "
     "softabs(x; epsilon) tract_core_pow_const(x; exponent)"),
    ("like", "=", _SINGLE,
     "sigmoid(x) log2(x) tract_core_erf(x) tract_core_silu(x) tract_core_hard_swish(x) tract_core_round_even(x) "
     "tract_core_gelu_approx(x; fast_impl)"),
    ("like", "bool", _SINGLE, "tract_core_is_nan(x) tract_core_is_inf(x; detect_positive, detect_negative)"),
    ("like", "to", _ANY, "tract_core_cast(x; to)"),
    ("broadcast", "=", _NUMBERS, "add(x, y) sub(x, y) mul(x, y) div(x, y) min(x, y) max(x, y)"),
    ("broadcast", "=", f"i32 i64 {_FLOATS}", "pow(x, y)"),
    ("broadcast", "bool", _NUMBERS, "eq(x, y) ne(x, y) lt(x, y) le(x, y) gt(x, y) ge(x, y)"),
    ("broadcast", "bool", "bool", "and(x, y) or(x, y) tract_core_xor(x, y)"),
    ("broadcast", "=", f"bool {_INTEGERS}",
     "tract_core_bitand(x, y) tract_core_bitor(x, y) tract_core_bitxor(x, y)"),
    ("broadcast", "=", _INTEGERS, "tract_shl(x, y) tract_shr(x, y)"),
    ("broadcast", "=", _ANY, "select(condition, x, y)"),
    ("broadcast", "=", _FLOATS, "clamp(x, a, b) prelu(x, alpha)"),
    # reductions keep their axes; sums of halves would overflow and round in halves, those of i64 are made in i32
    ("reduce", "=", "i32 f32 f64", "sum_reduce(x; axes, normalize)"),
    ("reduce", "=", "i32 i64 f32 f64", "tract_core_product_reduce(x; axes)"),
    ("reduce", "=", "f32 f64", "mean_reduce(x; axes)"),
    ("reduce", "=", "u8 u16 i8 i16 i32 i64 f16 f32 f64", "max_reduce(x; axes) min_reduce(x; axes)"),
    ("reduce", "i64", "u8 u16 i8 i16 i32 i64 f16 f32 f64", "argmax_reduce(x; axes) argmin_reduce(x; axes)"),
    ("reduce", "bool", "bool", "any_reduce(x; axes) all_reduce(x; axes)"),
    ("reduce", "=", "f32 f64", "moments(x; axes)"),
    ("like", "=", _FLOATS,
     "softmax(x; axes) tract_core_log_softmax(x; axes) tract_core_rms_norm(x; axis, eps) "
     "tract_core_scaled_rms_norm(x, w; axis, eps) l1_normalization(x; axes, bias, epsilon) "
     "l2_normalization(x; axes, bias, epsilon) "
     "batch_normalization(x, mean, variance, offset, scale; epsilon)"),
    ("like", "=", "u8 u16 i8 i16 i32 i64 f32 f64", "tract_core_cumsum(x; axis, exclusive, reverse)"),
    # shape
    ("unsqueeze", "=", _ANY, "unsqueeze(x; axes)"),
    ("squeeze", "=", _ANY, "squeeze(x; axes)"),
    ("transpose", "=", _ANY, "transpose(x; axes)"),
    ("given", "=", _ANY, "reshape(x; shape, axis_start, axis_count) tract_core_broadcast(x; shape)"),
    ("concat", "=", _ANY, "concat(x; axis)"),
    ("stack", "=", _ANY, "stack(x; axis)"),
    ("unstack", "=", _ANY, "unstack(x; axis)"),
    ("slice", "=", _ANY, "slice(x; axes, begin, end, stride)"),
    ("tile", "=", _ANY, "tile(x; repeats)"),
    ("pad", "=", _NUMBERS, "pad(x; padding, border, value)"),
    ("like", "=", _ANY, "tract_core_trilu(x, k; upper)"),
    ("given", "=", _ANY, "tract_core_downsample(x; axis, stride, modulo) tract_core_range(a, b, step)"),
    # index
    ("gather", "=", _ANY, "tract_core_gather(x, index; axis, datum_type)"),
    ("second", "=", _ANY, "tract_core_gather_elements(x, index; axis)"),
    ("given", "=", _ANY, "tract_core_gather_nd(x, index; batch_dims) tract_core_dyn_slice(x, start, end; axis, len)"),
    ("like", "=", _ANY,
     "tract_core_scatter_elements(x, index, updates; axis, reduction) "
     "tract_core_scatter_nd(x, index, updates; reduction)"),
    ("topk", "= i64", "u8 u16 i8 i16 i32 i64 f16 f32 f64", "tract_core_topk(x, k; axis, largest)"),
    ("given", "=", _ANY, "tract_core_one_hot(x; axis, dim, value_off, value_on)"),
    # products
    ("matmul", "=", "i32 f16 f32 f64", "matmul(x, y; transposeA, transposeB)"),
    ("given", "=", "i32 f16 f32 f64", "linear(x, filter, bias)"),
    ("given", "=", "i32 i64 f16 f32 f64", "tract_core_einsum(x; expr, acc)"),  # i64 only of one operand
    ("given", "=", "i8 f32 f64",  # in halves tract adds up in halves, torch in f32
     "conv(x, filter, bias; border, padding, stride, dilation, groups) "
     "deconv(x, filter, bias; border, padding, stride, dilation, output_shape, groups)"),
    ("given", "=", f"i8 u8 i32 i64 {_FLOATS}",
     "max_pool(x; size, border, padding, stride, dilation)"),
    ("given", "= i64", f"i8 u8 i32 i64 {_FLOATS}",
     "max_pool_with_index(x; size, border, padding, stride, dilation)"),
    ("given", "=", _FLOATS,
     "avg_pool(x; size, border, padding, stride, dilation) rms_pool(x; size, border, padding, stride, dilation) "
     "box(x; size, border, padding, stride, dilation, normalize) "
     "debox(x; size, border, padding, stride, dilation, output_shape, normalize) "
     "nearest_upsample(x; factor) multilinear_upsample(x; factor, method, border) "
     "tract_core_fft(x; axis, inverse) tract_core_stft(x; axis, frame, stride, window) "
     "tract_transformers_sdpa(q, k, v, mask; scale, datum_type, acc_datum_type, is_causal) "
     "tract_transformers_scaled_masked_softmax(x, mask; scale, post_softmax_mask) "
     "tract_transformers_apply_rope(x, cos, sin) "
     "tract_core_lstm_epilogue(x, c; hidden) tract_core_gru_epilogue(x, r, h; hidden)"),
    ("given", "=", _SINGLE,  # places and weights are f32 there
     "tract_core_resize(x; scales, sizes, coord_transformer, interpolator, nearest_mode) "
     "tract_core_grid_sample(x, grid; mode, padding_mode, align_corners)"),
    ("given", "=", "f32",
     "tract_moe_ffn(x, wg, w1, w2; w3, wg_bias, w1_bias, w3_bias, w2_bias, k, activation, gate, act_alpha, act_limit, "
     "expert_layout)"),
    ("given", "i64", _ANY, "tract_onnx_non_zero(x; count_symbol)"),
    ("given", "=", _ANY, "tract_core_scan(; body, scan, full, state, output, skip)"),
    ("given", "=", _ANY, "external(; shape) tract_core_external(; shape, datum_type) variable(; shape, label)"),
]  # fmt: skip

# Operations that multiply and add up over axes: tract's einsum in the end.
ROUNDINGS = frozenset({"floor", "ceil", "round"})
CONTRACTIONS = frozenset({"matmul", "linear", "tract_core_einsum", "conv", "deconv"})

# tract's first version with an operation, where that is later than the oldest that is written for.
_SINCE: Mapping[str, tuple[int, ...]] = {
    "tract_core_log_softmax": (0, 22, 0),
    "tract_transformers_sdpa": (0, 22, 0),
    "tract_core_is_nan": (0, 23, 0),
    "tract_core_is_inf": (0, 23, 0),
    "tract_core_lstm_epilogue": (0, 23, 2),
    "tract_core_grid_sample": (0, 23, 3),
    "tract_core_resize": (0, 23, 3),
    "tract_onnx_non_zero": (0, 23, 5),
    "tract_core_gru_epilogue": (0, 23, 6),
    "tract_core_pow_const": (0, 23, 6),
    "tract_moe_ffn": (0, 23, 9),
}

EXTENSIONS = {
    "tract_core_": "tract_registry tract_core",
    "tract_sh": "tract_registry tract_core",
    "tract_extra_": "tract_registry tract_extra",
    "tract_transformers_": "tract_registry tract_transformers",
    "tract_moe_": "tract_registry tract_transformers",
    "tract_onnx_": "tract_registry tract_onnx",
    "tract_pulse_": "tract_registry tract_pulse",
}


def extension_of(name: str) -> str:
    """The extension of tract that an operation belongs to, by its name; "" for NNEF's own."""
    return next((e for prefix, e in EXTENSIONS.items() if name.startswith(prefix)), "")


def _parse(rule: str, result: str, takes: str, declarations: str) -> Iterable[Operator]:
    for declaration in declarations.split(")"):
        name, _, parameters = declaration.strip().partition("(")
        if not name:
            continue
        positional, _, named = parameters.partition(";")
        split = [tuple(p.strip() for p in part.split(",") if p.strip()) for part in (positional, named)]
        dtypes = frozenset(SHORT[t] for t in takes.split())
        yield Operator(name, split[0], split[1], rule, dtypes, result, extension_of(name), _SINCE.get(name, ()))


OPERATORS: Mapping[str, Operator] = {o.name: o for row in _DECLARED for o in _parse(*row)}

# What tract sees through to a repetition of elements.
SEEN_THROUGH = frozenset(
    o.name
    for o in OPERATORS.values()
    if o.rule == "like" and len(o.positional) == 1 and not {"axis", "axes"} & set(o.named)
)
MULTIPLIED = frozenset({"mul", "add"})  # of repeated operands that it fuses: squares, gelu
REARRANGEMENTS = frozenset({"tract_core_broadcast", "tile", "transpose", "squeeze", "unsqueeze", "reshape"})
SEEN_THROUGH |= REARRANGEMENTS


def through(operator: Operator, dtype: DType) -> DType | None:
    """The element type in which an operation is done: the operands' own, a wider one, or None if there is none."""
    if dtype in operator.takes:
        return dtype
    return next((w for w in COMPUTE_TYPES.get(dtype, ()) if w in operator.takes), None)
