"""One element at a time: arithmetic, comparison, activations, conversions."""

import torch

from eager_backend.registry import register, rows
from ir.importer.torch_api import NN, SPECIAL, VF

Tensor = torch.Tensor

# without arguments beside the tensor a method is the shortest way into a kernel
rows(
    Tensor,
    "abs acos acosh angle asin asinh atan atanh bitwise_not ceil conj_physical cos cosh deg2rad digamma erf erfc "
    "erfinv exp exp2 expm1 floor frac i0 isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 "
    "logical_not neg positive rad2deg reciprocal relu rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan "
    "tanh trunc type_as",
)
rows(
    VF,
    "add addcdiv addcmul atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor celu clamp "
    "clamp_max clamp_min copysign div dropout eq feature_dropout alpha_dropout fill float_power floor_divide fmax fmin "
    "fmod frexp gcd ge gt heaviside hypot isclose lcm ldexp le lerp logaddexp logaddexp2 logical_and logical_or "
    "logical_xor logit lt masked_fill maximum minimum mul mvlgamma nan_to_num native_dropout ne nextafter polygamma "
    "pow prelu remainder round rrelu rsub selu sub threshold true_divide where xlogy complex polar real imag "
    "view_as_real view_as_complex",
)
rows(
    NN,
    "elu gelu glu hardsigmoid hardswish hardtanh leaky_relu log_sigmoid mish relu6 silu softplus softshrink "
    "binary_cross_entropy cross_entropy_loss huber_loss l1_loss mse_loss nll_loss_nd smooth_l1_loss",
)
rows(VF, "hardshrink")
rows(
    SPECIAL,
    "special_entr special_erfcx special_expit special_i0e special_i1 special_i1e special_log_ndtr special_ndtr "
    "special_ndtri special_xlog1py special_zeta",
)


@register("aten::to", "aten::_to_copy")
def to(h, self, dtype=None, other=None, copy=False, memory_format=None, layout=None, device=None, pin_memory=None,
       non_blocking=False):  # fmt: skip
    """Devices play no part: a program lives on one."""
    wanted = h.out.dtype if other is not None else dtype
    fresh = {"copy": True} if (copy or h.node.op == "aten::_to_copy") and wanted in (None, self.type.dtype) else {}
    order = {"memory_format": getattr(torch, memory_format)} if memory_format else {}
    return h.emit(Tensor.to, self, wanted or self.type.dtype, **fresh, **order)
