"""Lets torch.export see that recurrent operators work for any number of time steps.

aten::lstm and aten::gru stay one node in an exported graph, but torch computes their shapes by running their
decomposition, a Python loop over time, which fixes a dynamic time dimension to the traced one. Inside
`recurrent_shapes()` their shapes are stated instead of computed; the graph is the same, and export is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_KEY = torch._C.DispatchKey.CompositeImplicitAutograd
_OPERATORS = (
    torch.ops.aten.lstm.input,
    torch.ops.aten.gru.input,
    torch.ops.aten.rnn_tanh.input,
    torch.ops.aten.rnn_relu.input,
)


def _shapes(
    input: torch.Tensor, hx: torch.Tensor | list[torch.Tensor], *_arguments: object
) -> tuple[torch.Tensor, ...]:
    """Output and last states; a state has shape (layers * directions, batch, width)."""
    bidirectional = bool(_arguments[-2])
    states = [hx] if isinstance(hx, torch.Tensor) else hx
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    output = input.new_empty([*input.shape[:2], width])
    return output, *(state.new_empty(state.shape) for state in states)


@contextmanager
def recurrent_shapes() -> Iterator[None]:
    """Replace, for the time of an export, the kernel that export asks for these operators' shapes."""
    before = [operator.py_kernels.get(_KEY) for operator in _OPERATORS]
    for operator in _OPERATORS:
        _set_kernel(operator, _shapes)
    try:
        yield
    finally:
        for operator, kernel in zip(_OPERATORS, before, strict=True):
            _set_kernel(operator, kernel)


def _set_kernel(operator: torch._ops.OpOverload, kernel: Callable[..., object] | None) -> None:
    operator.py_kernels.pop(_KEY, None)
    if kernel is not None:
        operator.py_kernels[_KEY] = kernel
    # Which kernel a dispatch key resolves to is cached on the operator.
    operator._dispatch_cache.clear()
