"""An op of one's own in tract, by a handler in one line: `python examples/nnef_my_op.py [file.nnef.tgz]`.

The op is the one of torch-to-nnef's page on extensions, declared with torch.library alone; the handler is ours. Neither
traces the op nor knows sizes: the batch stays a symbol in the file.
"""

from __future__ import annotations

import sys

import torch

import ir
import nnef_backend


@torch.library.custom_op("t2n_extra::my_op", mutates_args=())
def my_op(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


@my_op.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@nnef_backend.register("t2n_extra::my_op")
def my_op_in_nnef(h, x):
    return h.emit("relu", x)  # the result is bound to the op's own, under its name


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.t2n_extra.my_op(self.inner(x)) * 2


def main(path: str | None = None) -> ir.Exported:
    """Export, run in tract at two sizes and compare with torch."""
    program = ir.export(
        Model(), (torch.randn(3, 8),), target="nnef", path=path, dynamic_shapes=({0: "batch"},), verify=True
    )
    program.verify((torch.randn(11, 8),))
    return program


if __name__ == "__main__":
    print(main(*sys.argv[1:2]).artifact.to_text())
