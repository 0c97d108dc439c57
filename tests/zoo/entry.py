"""What an entry of the zoo is: a model with random weights, its inputs and its dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ir.importer import caches
from ir.importer.fake_rules import dynamic

from . import torchvision_shim  # noqa: F401  (torchvision, timm and transformers import only after it)

STATISTICS_BATCH = 8

Sizes = dict[str, int]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Model:
    """One model. `sizes` are those to trace with, `other_sizes` those that the exported program serves too.

    `dynamic_shapes` has torch.export's own form, except that a dimension is a name; see `export_shapes`.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[Sizes], Inputs]
    dynamic_shapes: Any
    sizes: Sizes
    other_sizes: tuple[Sizes, Sizes]

    def export_shapes(self) -> Any:
        """`dynamic_shapes` as torch.export itself takes it: every name becomes Dim.DYNAMIC."""
        return unnamed(self.dynamic_shapes)

    def export(self, model: nn.Module | None = None) -> torch.export.ExportedProgram:
        """Export `model`, by default a fresh build, with the traced sizes and all dimensions dynamic."""
        args, kwargs = self.inputs(self.sizes)
        module = self.build() if model is None else model
        caches.register(module)
        with dynamic():
            return torch.export.export(module, args, kwargs, dynamic_shapes=self.export_shapes())


# Makes the full model or, for True, its small variant for quick tests.
Entry = Callable[[bool], Model]


@dataclass(frozen=True)
class Variant:
    """What differs between a full model and its small variant."""

    build: Callable[[], nn.Module]
    inputs: Callable[[Sizes], Inputs]
    sizes: Sizes
    other_sizes: tuple[Sizes, Sizes]


def entry(name: str, dynamic_shapes: Any, variant: Callable[[bool], Variant]) -> Entry:
    """An entry whose models come out of `build` seeded, in eval mode and with weights that all matter."""

    def make(small: bool) -> Model:
        chosen = variant(small)

        def build() -> nn.Module:
            # Statistics from a batch larger than any other: an image far outside of them, or a channel whose variance
            # was taken over three numbers, blows up layer by layer, and with it the rounding of torch's own float32.
            largest = max((chosen.sizes, *chosen.other_sizes), key=lambda sizes: sizes.get("batch", 0))
            return seeded(chosen.build, lambda: chosen.inputs(largest | {"batch": STATISTICS_BATCH}))

        return Model(name, build, chosen.inputs, dynamic_shapes, chosen.sizes, chosen.other_sizes)

    return make


def unnamed(shapes: Any) -> Any:
    """A copy of `shapes` with torch.export.Dim.DYNAMIC in place of each name."""
    if isinstance(shapes, str):
        return torch.export.Dim.DYNAMIC
    if isinstance(shapes, dict):
        return {key: unnamed(value) for key, value in shapes.items()}
    if isinstance(shapes, (list, tuple)):
        return type(shapes)(unnamed(value) for value in shapes)
    return shapes


def seeded(build: Callable[[], nn.Module], inputs: Callable[[], Inputs]) -> nn.Module:
    """Build with seed 0, leaving the caller's random state alone, then make every weight matter."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = build().eval()
        _vary_constants(model)
        _strengthen(model)
        _settle_batch_norms(model, inputs)
    return model


def _vary_constants(model: nn.Module) -> None:
    """Add noise to parameters that start out constant.

    Zero biases, unit scales, zero classifiers and layer scales of 1e-6 would hide a dropped operand.
    """
    for parameter in model.parameters():
        if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


def _strengthen(model: nn.Module) -> None:
    """Scale up weights small for their fan-in: scores that are all bias would pass any comparison."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            target = module.weight[0].numel() ** -0.5
            deviation = float(module.weight.std())
            if deviation < target / 2:
                module.weight.mul_(target / deviation)


def _settle_batch_norms(model: nn.Module, inputs: Callable[[], Inputs]) -> None:
    """Take running statistics from one batch, so that deep random networks neither fade out nor blow up."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    args, kwargs = inputs()
    model(*args, **kwargs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval()
        norm.momentum = momentum


def generator() -> torch.Generator:
    """Inputs are the same in every run, and independent of the model's own draws."""
    return torch.Generator().manual_seed(1)


def floats(*shape: int) -> torch.Tensor:
    """Standard normal values."""
    return torch.randn(shape, generator=generator())


def images(batch: int, height: int, width: int) -> torch.Tensor:
    """Noise around a colour of its own for each image; plain noise averages to the same scores for all."""
    return 0.5 * floats(batch, 3, height, width) + floats(batch, 3, 1, 1)


def tokens(sizes: Sizes, vocabulary: int) -> torch.Tensor:
    """Token numbers of shape (batch, sequence)."""
    return torch.randint(0, vocabulary, (sizes["batch"], sizes["sequence"]), generator=generator())


def padding_mask(sizes: Sizes) -> torch.Tensor:
    """A mask of ones in which each row but the first ends in some padding."""
    batch, sequence = sizes["batch"], sizes["sequence"]
    lengths = torch.tensor([max(1, sequence - row) for row in range(batch)])
    return (torch.arange(sequence)[None, :] < lengths[:, None]).long()
