"""Weights in few bits: linear layers in the place of a model's own, rounded to the nearest step or calibrated.

    int4    in groups of 32 along a row: a float scale and 32 codes from -8 to 7, `scale * code`
    int8    a scale for each row, codes from -127 to 127

The experts of a mixture are rounded the same way, where a plan asks for it.

Rounding to the nearest looks at weights alone. With a text, GPTQ (Frantar et al. 2022, arXiv:2210.17323) rounds one
column after the other, and puts the error of each into those that follow, as the layer's inputs on that text weigh it.
"""

from __future__ import annotations

import fnmatch
import math
import mmap
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from ir.errors import RefusedError
from ir.importer.torch_api import register_quantized_decomposed
from language_models.experts import WEIGHTS, Gate, floats, gate_of
from language_models.scratch import Scratch, by_rows

GROUP = 32
BITS = {"int4": 4, "int8": 8}
DAMPING = 0.01  # of the mean of the Hessian's diagonal, as in GPTQ's own code
COLUMNS = 128  # columns whose errors go to the others at once


@dataclass(frozen=True)
class Plan:
    """Which layers get how many bits.

    Args:
        weights: "int4" or "int8".
        lm_head: the same for the layer that makes logits, "f32" to leave it; None as the others.
        exclude: patterns of names ("*.down_proj") of layers that stay as they are.
        calibration: tokens [texts, length] for GPTQ; None rounds to the nearest.
        experts: the weights of experts too, which are rounded to the nearest.
        decoder: the model is a decoder of text, which has a writer of its own for each runtime.
    """

    weights: str
    lm_head: str | None = None
    exclude: Sequence[str] = ()
    calibration: torch.Tensor | None = None
    experts: bool = False
    decoder: bool = True

    def excludes(self, name: str) -> bool:
        """True if the layer of this name keeps its float weights."""
        return any(fnmatch.fnmatchcase(name, p) for p in self.exclude)

    def bits(self, name: str, layer: nn.Linear, head: Any) -> int:
        """The bits of a layer, 0 where it stays."""
        chosen = self.lm_head or self.weights if layer is head else self.weights
        if chosen not in BITS or self.excludes(name):
            return 0
        return BITS[chosen]


@dataclass(frozen=True)
class Form:
    """What a runtime multiplies by.

    Args:
        bits: of the bits that are wanted of a layer, those that it can have; 0 where it stays in float32.
        layer: the layer of codes [out_features, in_features], scales and a bias.
        scales: the type of scales; numbers are rounded to steps of a scale of that type.
    """

    bits: Callable[[nn.Linear, int], int]
    layer: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], nn.Module]
    scales: torch.dtype = torch.float32


class QuantisedLinear(nn.Module):
    """`linear` with a weight of codes and scales, which targets store as they are."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("codes", codes.to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(1, dtype=torch.int64).expand(scales.shape))
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @property
    def weight(self) -> torch.Tensor:
        """The floats that the codes stand for."""
        return _floats(*map(self.get_buffer, ("codes", "scales", "zeros")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return nn.functional.linear(x, self.weight, self.bias)
        parts = [self.get_buffer(name) for name in ("codes", "scales", "zeros")]
        made = x.new_empty(*x.shape[:-1], len(parts[0]))
        for rows in by_rows(parts[0]):  # the floats of a large weight are never held whole
            made[..., rows] = nn.functional.linear(x, _floats(*(t[rows] for t in parts)))
        return made if self.bias is None else made + self.bias


def _floats(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    ops = torch.ops.quantized_decomposed
    if scales.dim() == 1:
        made = ops.dequantize_per_channel(codes, scales, zeros, 0, -127, 127, torch.int8)
    else:
        made = ops.dequantize_per_channel_group(codes, scales, zeros, -8, 7, torch.int8, GROUP, scales.dtype)
    return made  # type: ignore[no-any-return]


PORTABLE = Form(lambda layer, bits: 8 if layer.in_features % GROUP else bits, QuantisedLinear)


def quantise(model: Any, plan: Plan, form: Form = PORTABLE) -> int:
    """Put quantised layers in the place of linear ones, and say how many."""
    register_quantized_decomposed()
    _check_patterns(model, plan)
    chosen = _chosen(model, plan, form)
    experts = [*mixtures(model, plan).values()] if plan.experts else []
    _check_finite({name: layer.weight for name, (layer, _) in chosen.items()})
    _tell_of_layers(model, plan, chosen)
    scratch = _room_for([layer.weight for layer, _ in chosen.values()], 1 + 4 / GROUP)
    weighing = {} if plan.calibration is None else hessians(model, {n: x for n, (x, _) in chosen.items()}, plan)
    for name, (layer, bits) in chosen.items():
        place, _, own = name.rpartition(".")
        if name in weighing:
            made = gptq(layer, bits, weighing.pop(name), form.scales)
        else:
            made = _nearest(layer.weight.detach(), bits, scratch, form.scales)
        setattr(model.get_submodule(place), own, form.layer(*made, layer.bias))
    _quantise_experts(experts, plan)
    _tell_of_floats(model, plan, experts)
    return len(chosen) + len(experts)


def _chosen(model: Any, plan: Plan, form: Form) -> dict[str, tuple[nn.Linear, int]]:
    """The layers that get few bits, by name, and how many."""
    head = model.get_output_embeddings()
    found = ((name, layer, plan.bits(name, layer, head)) for name, layer in linears(model))
    had = ((name, layer, form.bits(layer, bits)) for name, layer, bits in found if bits)
    return {name: (layer, bits) for name, layer, bits in had if bits}


def mixtures(model: Any, plan: Plan, has_gate: Callable[[Gate], bool] = lambda gate: True) -> dict[str, Any]:
    """The modules of experts whose gate a runtime has, by name, less those that the plan excludes."""
    gates = {name: (module, gate_of(module)) for name, module in model.named_modules()}
    found = {name: module for name, (module, gate) in gates.items() if gate is not None and has_gate(gate)}
    return {n: m for n, m in found.items() if not any(plan.excludes(f"{n}.{weight}") for weight in WEIGHTS)}


def _in_groups(module: Any) -> bool:
    """True if the rows of both weights are whole groups."""
    return not any(n % GROUP for name in WEIGHTS for n in getattr(module, name).shape[1:])


def _tell_of_floats(model: Any, plan: Plan, rounded: Collection[Any]) -> None:
    """Experts that stay in float32 make a file larger than was asked for."""
    kept = 0
    for name, module in model.named_modules():
        if module not in rounded and not any(plan.excludes(f"{name}.{weight}") for weight in WEIGHTS):
            weights = [w for n in WEIGHTS if isinstance(w := getattr(module, n, None), torch.Tensor) and w.dim() == 3]
            kept += sum(w.numel() for w in weights)
    if kept:
        part = kept / sum(t.numel() for t in (*model.parameters(), *model.buffers()))
        warnings.warn(
            f"{type(model).__name__}: the weights of experts, {part:.0%} of all, stay in float32; decoders of onnx "
            f"with contrib=True (--contrib), and of nnef for tract 0.23.9 or newer, have most kinds in {plan.weights}",
            stacklevel=4,
        )


class ExpertCodes(nn.Module):
    """A parametrization of torch: codes and scales in the place of the weights of experts, which read as floats.

    Args:
        bits: of a code.
        transposed: the weights are [E, columns, rows].
    """

    def __init__(self, bits: int, transposed: bool) -> None:
        super().__init__()
        self.bits, self.transposed = bits, transposed

    def forward(self, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """The floats that the codes [E, rows, columns] stand for."""
        made = floats(codes, scales)
        return made.mT if self.transposed else made

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales, each weight rounded to the nearest, an expert at a time."""
        rows = weight.mT if self.transposed else weight
        groups = [rows.shape[2] // GROUP] if self.bits == 4 else []
        sizes = [*rows.shape[:2], *groups]
        scratch = Scratch(2 * mmap.PAGESIZE + rows.numel() + 4 * math.prod(sizes))
        codes, scales = scratch.empty(rows.shape, torch.int8), scratch.empty(sizes, torch.float32)
        for expert, matrix in enumerate(rows):
            for part in by_rows(matrix):
                codes[expert, part], scales[expert, part] = rounded(matrix[part], self.bits)
        return codes, scales


def _quantise_experts(experts: Sequence[Any], plan: Plan) -> None:
    """The bits are the same for all, as their op has one function in a file."""
    bits = BITS[plan.weights] if all(map(_in_groups, experts)) else 8
    for module in experts:
        for name in WEIGHTS:
            module.get_parameter(name).requires_grad_(False)
            register_parametrization(module, name, ExpertCodes(bits, module.is_transposed), unsafe=True)


def to_blocks(model: Any, plan: Plan, has_gate: Callable[[Gate], bool] = lambda gate: True) -> set[str]:
    """Round weights to the blocks of Q4_0, which the file then has; the names of those weights.

    Of experts those whose gate the runtime has, and whose sizes are multiples of a block.
    """
    _check_patterns(model, plan)
    head = model.get_output_embeddings()
    chosen = {
        name: layer
        for name, layer in linears(model)
        if plan.bits(name, layer, head) == 4 and not layer.in_features % GROUP
    }
    _check_finite({name: layer.weight for name, layer in chosen.items()})
    _tell_of_layers(model, plan, chosen)
    scratch = _room_for([layer.weight for layer in chosen.values()], 4)
    weighing = {} if plan.calibration is None else hessians(model, chosen, plan)
    for name, layer in chosen.items():
        weight = layer.weight.detach()
        made = scratch.empty(weight.shape, torch.float32)
        if name in weighing:
            codes, scales = gptq(layer, 4, weighing.pop(name), torch.float16)
            torch.mul(codes, scales.repeat_interleave(GROUP, 1), out=made)  # steps of a scale, which blocks keep
        else:
            _to_blocks(weight, made)
        if weight.dtype == made.dtype:
            layer.weight.data = made  # of an embedding that has the same weight, too
        else:
            layer.weight = nn.Parameter(made, requires_grad=False)
    found = mixtures(model, plan, has_gate) if plan.experts else {}
    experts = {name: module for name, module in found.items() if _in_groups(module)}
    _experts_to_blocks(experts.values())
    _tell_of_floats(model, plan, experts.values())
    return {f"{name}.weight" for name in chosen} | {f"{name}.{weight}" for name in experts for weight in WEIGHTS}


def _to_blocks(weight: torch.Tensor, made: torch.Tensor) -> None:
    """A matrix, rounded to blocks, into another."""
    from nnef_backend.format.dat import dequantise_q4_0, quantise_q4_0

    for rows in by_rows(weight):
        made[rows] = torch.from_numpy(dequantise_q4_0(quantise_q4_0(weight[rows].float().numpy())))


def _experts_to_blocks(experts: Iterable[Any]) -> None:
    """Each expert's matrices along what they are multiplied by."""
    for module in experts:
        for name in WEIGHTS:
            weight = module.get_parameter(name)
            made = _room_for([weight], 4).empty(weight.shape, torch.float32)
            for matrix, rounded in zip(weight.detach(), made, strict=True):
                _to_blocks(*(m.T if module.is_transposed else m for m in (matrix, rounded)))
            setattr(module, name, nn.Parameter(made, requires_grad=False))


def _check_finite(weights: Mapping[str, torch.Tensor]) -> None:
    for name, weight in weights.items():
        if not all(weight[rows].isfinite().all() for rows in by_rows(weight)):
            raise RefusedError(f"the weight of {name} has nan or infinite numbers, for which there are no codes")


def _tell_of_layers(model: Any, plan: Plan, chosen: Collection[str]) -> None:
    """Layers that stay in float32, though nobody asked for that."""
    head = model.get_output_embeddings()
    wanted = {name: layer for name, layer in linears(model) if plan.bits(name, layer, head)}
    kept = {name: layer for name, layer in wanted.items() if name not in chosen}
    if kept:
        part = sum(x.weight.numel() for x in kept.values()) / sum(x.weight.numel() for x in wanted.values())
        name, layer = next(iter(kept.items()))
        warnings.warn(
            f"{type(model).__name__}: {len(kept)} linear layers, {part:.0%} of their weights, stay in float32: codes "
            f"come in groups of {GROUP}, and rows of {name} have {layer.in_features} numbers",
            stacklevel=4,
        )


def linears(model: Any) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers of a model by name."""
    yield from ((name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear)


def _check_patterns(model: Any, plan: Plan) -> None:
    names = [name for name, _ in linears(model)]
    names += [f"{n}.{w}" for n in mixtures(model, Plan(plan.weights)) for w in WEIGHTS] if plan.experts else []
    for pattern in plan.exclude:
        if not fnmatch.filter(names, pattern):
            known = f"one is {names[0]!r}" if names else "the model has none"
            raise RefusedError(f"exclude={pattern!r:.60} is the name of no linear layer; {known}")


def scale_of(rows: torch.Tensor, bits: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The scale of each row of a group: the farthest number is the lowest code of 4 bits, which has no counterpart.

    It is a number of `dtype`, in float32.
    """
    if bits == 8:
        scale = rows.abs().amax(-1) / 127
    else:
        scale = rows.gather(-1, rows.abs().argmax(-1, keepdim=True))[..., 0] / -8
    scale = scale.to(dtype).float()
    return torch.where(scale == 0, 1.0, scale)


def _codes(rows: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    low, high = (-127, 127) if bits == 8 else (-8, 7)
    return (rows / scale[..., None]).round().clamp(low, high)


def rounded(weight: torch.Tensor, bits: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales, each weight rounded to the nearest."""
    rows = weight.float() if bits == 8 else weight.float().unflatten(1, (-1, GROUP))
    scale = scale_of(rows, bits, dtype)
    return _codes(rows, scale, bits).reshape(weight.shape), scale


def _room_for(weights: Sequence[torch.Tensor], bytes_each: float) -> Scratch:
    return Scratch(sum(2 * mmap.PAGESIZE + math.ceil(w.numel() * bytes_each) + 4 * len(w) for w in weights))


def _nearest(
    weight: torch.Tensor, bits: int, scratch: Scratch, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `rounded` gives, some rows at a time, in a file."""
    codes = scratch.empty(weight.shape, torch.int8)
    scales = scratch.empty([len(weight), *([weight.shape[1] // GROUP] if bits == 4 else [])], torch.float32)
    for rows in by_rows(weight):
        codes[rows], scales[rows] = rounded(weight[rows], bits, dtype)
    return codes, scales


def hessians(model: Any, layers: dict[str, nn.Linear], plan: Plan) -> dict[str, torch.Tensor]:
    """For each layer the products of its inputs with each other, summed over the calibration's tokens."""
    found: dict[str, torch.Tensor] = {}

    def see(name: str) -> Any:
        def hook(layer: nn.Module, inputs: Any) -> None:
            x = inputs[0].detach().flatten(0, -2).float()
            found[name] = found.get(name, 0) + x.T @ x

        return hook

    hooks = [layer.register_forward_pre_hook(see(name)) for name, layer in layers.items()]
    assert plan.calibration is not None
    with torch.no_grad():
        for row in plan.calibration:
            model(input_ids=row[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def gptq(
    layer: nn.Linear, bits: int, hessian: torch.Tensor, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales by GPTQ: algorithm 1 of the paper, with the scales of a group taken when it is reached."""
    weight = layer.weight.detach().float().clone()
    unused = hessian.diagonal() == 0
    hessian = hessian + torch.diag(unused.float()) + torch.eye(len(hessian)) * DAMPING * hessian.diagonal().mean()
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    codes = torch.empty_like(weight)
    whole = scale_of(weight, 8, dtype) if bits == 8 else None
    scales = []
    for start in range(0, weight.shape[1], COLUMNS):
        end = min(start + COLUMNS, weight.shape[1])
        errors = torch.empty(len(weight), end - start)
        for i in range(start, end):
            if whole is None and i % GROUP == 0:
                scales.append(scale_of(weight[:, i : i + GROUP], bits, dtype))
            scale = scales[-1] if whole is None else whole
            codes[:, i] = _codes(weight[:, i : i + 1], scale, bits)[:, 0]
            error = (weight[:, i] - codes[:, i] * scale) / inverse[i, i]
            weight[:, i:end] -= error[:, None] * inverse[i, i:end]
            errors[:, i - start] = error
        weight[:, end:] -= errors @ inverse[start:end, end:]
    return codes, whole if whole is not None else torch.stack(scales, 1)
