"""oneDNN on the CPU: torch's own fused operators, and which activations they take.

The operators are those that torch.compile emits when it freezes a model; `torch.ops.mkldnn` has them in every build of
torch with oneDNN. A kernel that is not there is None, and nothing is rewritten to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eager_backend.building.steps import Slot, Step
from eager_backend.registry import Kernel
from ir.importer.torch_api import NN, plain_call

SPELLED: dict[Any, str] = {}  # a kernel's call -> how torch's users write it


def _kernel(name: str, packet: str, overload: str = "default") -> Kernel | None:
    found = getattr(torch.ops.mkldnn, packet, None)
    if found is None:
        return None
    call = plain_call(getattr(found, overload))
    SPELLED[call] = f"torch.ops.mkldnn.{packet}.{overload}"
    return Kernel(f"onednn_{name}", call)


CONV = _kernel("conv", "_convolution_pointwise")
CONV_ADD = _kernel("conv_add", "_convolution_pointwise", "binary")
CONV_ADD_ = _kernel("conv_add_", "_convolution_pointwise_", "binary")
LINEAR = _kernel("linear", "_linear_pointwise")
LINEAR_ADD = _kernel("linear_add", "_linear_pointwise", "binary")
PACK_CONV = _kernel("pack_conv", "_reorder_convolution_weight")
PACK_LINEAR = _kernel("pack_linear", "_reorder_linear_weight")

KERNELS = frozenset(k for k in (CONV, CONV_ADD, CONV_ADD_, LINEAR, LINEAR_ADD) if k is not None)


def available() -> bool:
    """True if this build of torch has the operators and the user has not switched oneDNN off."""
    whole = None not in (CONV, CONV_ADD, CONV_ADD_, LINEAR, LINEAR_ADD, PACK_CONV, PACK_LINEAR)
    return whole and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


def takes(weight: Tensor) -> bool:
    """True if oneDNN has kernels for weights of this element type on this machine."""
    if weight.layout is not torch.strided or not weight.numel():
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32


@dataclass(frozen=True)
class Activation:
    """An activation as oneDNN's operators name it."""

    name: str
    scalars: tuple[float, ...] = ()
    algorithm: str | None = None


# Of nan oneDNN makes a bound in relu, hardtanh and hardsigmoid: torch's own cost 1 % of a network's time behind it.
DROPS_NAN = ("relu",)
_PLAIN: Mapping[Any, Activation] = {
    Tensor.relu: Activation("relu"),
    Tensor.sigmoid: Activation("sigmoid"),
    Tensor.tanh: Activation("tanh"),
    NN.silu: Activation("swish"),
    NN.hardswish: Activation("hardswish"),
}


def activation(step: Step) -> Activation | None:
    """What this step is to oneDNN, if it is an activation of one tensor that oneDNN knows."""
    if not step.args or not isinstance(step.args[0], Slot) or len(step.outputs) != 1:
        return None
    if step.fn in _PLAIN and len(step.args) == 1 and not step.kwargs:
        return _PLAIN[step.fn]
    if step.fn is NN.gelu:
        return Activation("gelu", (), step.kwargs.get("approximate", "none"))
    slope = (*step.args[1:], 0.01)[0]
    if step.fn is NN.leaky_relu and type(slope) in (int, float):
        return Activation("leaky_relu", (float(slope),))
    return None
