"""Linear layers of few bits as torch's own kernels for the CPU multiply by them: the eager target.

    int4    codes -8 to 7 in groups of 32, `aten::_weight_int4pack_mm_for_cpu`
    int8    codes -127 to 127, a scale for each row, `aten::_weight_int8pack_mm`

The kernels are fast for activations in bfloat16 only, and take their scales in the same type: x is rounded to it before
such a layer, and the result is float32 again. Codes of 4 bits lie in a file two to a byte, the lower half first. In
memory they lie as this processor wants them, which differs from one to the next, so that they are laid out at load.
"""

from __future__ import annotations

import mmap

import torch
from torch import nn

from language_models.scratch import Scratch, by_rows
from language_models.weights import GROUP, Form

INT4 = "int4_codes"  # the name of a buffer of codes, two to a byte
ROWS = 64  # of a block of the layout for AVX512; others are smaller, and divide it
TILE = 16  # rows: the kernel takes multiples of it


class FewBits(nn.Module):
    """`linear` with its weight as codes and scales."""

    def __init__(self, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., in_features], in any float type, which the result has too."""
        rows = x.to(torch.bfloat16).reshape(-1, x.shape[-1]).contiguous()  # the kernels take no other
        made = self.product(rows).to(x.dtype)
        made = made.reshape(*x.shape[:-1], made.shape[-1])
        return made if self.bias is None else made + self.bias

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [N, in_features] by the weight, both bfloat16."""
        raise NotImplementedError


class Int8Linear(FewBits):
    """Codes [out_features, in_features] and scales [out_features]."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(bias)
        self.register_buffer("codes", codes.to(torch.int8))
        self.register_buffer("scales", scales.to(torch.bfloat16))

    @property
    def weight(self) -> torch.Tensor:
        """The floats that the codes stand for, of a model that multiplies by them itself."""
        return self.get_buffer("codes").float() * self.get_buffer("scales").float()[:, None]

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.aten._weight_int8pack_mm(rows, *map(self.get_buffer, ("codes", "scales")))
        return made


class Int4Linear(FewBits):
    """Codes [out_features, in_features / 2], and scales with their zeros [groups, out_features, 2]."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(bias)
        scratch = Scratch(codes.numel() // 2 + 4 * scales.numel() + 2 * mmap.PAGESIZE)
        made = scratch.empty([len(codes), codes.shape[1] // 2], torch.uint8)
        pairs = scratch.empty([scales.shape[1], len(codes), 2], torch.bfloat16)  # of zeros
        for part in by_rows(codes):
            above = (codes[part] + 8).to(torch.uint8)
            made[part] = above[:, ::2] | above[:, 1::2] << 4
            pairs[:, part, 0] = scales[part].T
        self.register_buffer(INT4, made)
        self.register_buffer("scales", pairs)

    @property
    def weight(self) -> torch.Tensor:
        """The floats that the codes stand for: only the kernel knows how they lie, which is given the unit matrix."""
        codes, scales = (self.get_buffer(name) for name in (INT4, "scales"))
        unit = torch.eye(2 * codes.shape[1], dtype=torch.bfloat16)
        codes = codes if torch.compiler.is_compiling() else laid_out(codes)
        made: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(unit, codes, GROUP, scales)
        return made.T.float()

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        codes, scales = self.get_buffer(INT4), self.get_buffer("scales")
        made: torch.Tensor
        if torch.compiler.is_compiling():  # a program is given them as they are laid out
            made = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, codes, GROUP, scales)
            return made
        made = rows.new_empty(len(rows), len(codes))
        for part in by_rows(codes, ROWS):
            some = scales[:, part].contiguous()
            made[:, part] = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, laid_out(codes[part]), GROUP, some)
        return made


def laid_out(codes: torch.Tensor) -> torch.Tensor:
    """Codes [rows, columns / 2] of 4 bits, two to a byte, as this processor's kernel reads them: of the same shape."""
    made = torch.empty_like(codes)
    for part in by_rows(codes, ROWS):  # the blocks lie one behind the other in every layout
        pairs = codes[part]
        whole = torch.stack([pairs & 15, pairs >> 4], -1).flatten(1).int()
        made[part] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1)
    return made


def _bits(layer: nn.Linear, bits: int) -> int:
    """What the kernels have: rows of whole groups, of 4 bits in tiles; 0 for a layer that stays in float32."""
    if layer.in_features % GROUP:
        return 0
    return bits if layer.out_features % TILE == 0 else 8


def _layer(codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    return (Int8Linear if scales.dim() == 1 else Int4Linear)(codes, scales, bias)


FORM = Form(_bits, _layer, torch.bfloat16)
