"""Weights that are made of others when the artifact is written, and large ones a piece at a time.

A piece is an index of the result. Where numbers are made one by one, the numbers of a piece come from a piece of the
source, down to the model's own tensor, which may lie in a mapped file: nothing is held whole then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir

PIECE = 1 << 22  # numbers that are made at a time
Index = tuple[slice, ...]


class Made(onnx_ir.LazyTensor):
    """What `make` gives of other tensors, computed anew each time it is asked for.

    Args:
        sources: the tensors, whose content `make` gets as arrays.
        kind: the element type in the file.
        within: where each source holds the numbers of a piece, if the result is made number by number.
    """

    def __init__(
        self,
        make: Callable[..., np.ndarray],
        sources: Sequence[Any],
        kind: onnx_ir.DataType,
        shape: onnx_ir.Shape,
        within: Callable[[Index], Index] | None = None,
    ) -> None:
        super().__init__(lambda: onnx_ir.tensor(dense(make(*(t.numpy() for t in sources))), dtype=kind),
                         dtype=kind, shape=shape)  # fmt: skip
        self._make, self._sources = make, sources
        self._within = within if all(_has_pieces(s) for s in sources) else None

    @property
    def has_pieces(self) -> bool:
        """True if a piece costs no more than its own numbers."""
        return self._within is not None

    def piece(self, index: Index) -> np.ndarray:
        """The result at an index."""
        assert self._within is not None
        place = self._within(index)
        return self._make(*(s.piece(place) if isinstance(s, Made) else s.numpy()[place] for s in self._sources))

    def pieces(self) -> Iterator[np.ndarray]:
        """The result in pieces without strides, which are its numbers in their order; one piece of what has none."""
        if not self.has_pieces or self.shape.rank() != 2 or self.size <= PIECE:
            yield self.numpy()
            return
        rows, columns = self.shape.numpy()
        step = max(2, PIECE // columns // 2 * 2)  # even: no two numbers of 4 bits that share a byte are parted
        for start in range(0, rows, step):
            yield dense(self.piece((slice(start, start + step), slice(None))))


def _has_pieces(tensor: Any) -> bool:
    return tensor.has_pieces if isinstance(tensor, Made) else not isinstance(tensor, onnx_ir.LazyTensor)


def same(index: Index) -> Index:
    """The index of a source that has the numbers where the result has them."""
    return index


def turned(index: Index) -> Index:
    """The index of a source whose transpose the result is."""
    return index[::-1]


def dense(array: np.ndarray) -> np.ndarray:
    """The array without strides; torch turns a matrix twice as fast as numpy."""
    integer = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}.get(array.itemsize)
    if array.flags.c_contiguous or integer is None:
        return np.ascontiguousarray(array)
    import torch

    turned: np.ndarray = torch.from_numpy(array.view(integer)).contiguous().numpy().view(array.dtype)
    return turned
