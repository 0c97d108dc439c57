"""Mamba's selective scan in tract, of several steps: `python examples/nnef_selective_scan.py [file.nnef.tgz]`.

    h[t] = exp(delta[t] A) h[t-1] + delta[t] B[t] u[t]        y[t] = C[t] h[t] + D u[t]

(A. Gu and T. Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023, equations 2 and 4, with the
simplified discretisation of B that its implementation takes.) The step is a fragment written by hand, the loop over
time tract's own, so that batch and length stay symbols in the file.
"""

from __future__ import annotations

import sys

import torch

import ir
import nnef_backend

nnef_backend.add_fragments("""
fragment selective_step(
    u: tensor<scalar>, delta: tensor<scalar>, b: tensor<scalar>, c: tensor<scalar>,  # one step: [B,1,D], [B,1,N]
    a: tensor<scalar>,                                                               # [D,N]
    h: tensor<scalar>                                                                # [B,D,N]
) -> (h_next: tensor<scalar>, y: tensor<scalar>)
{
    # products of one term, for tract mistakes a broadcasting mul here for one that it may do outside of the loop
    rate = tract_core_einsum([delta, a], expr = 'btd,dn->bdn', acc = 'f32');
    fresh = tract_core_einsum([delta * u, b], expr = 'btd,btn->bdn', acc = 'f32');
    h_next = exp(rate) * h + fresh;
    y = tract_core_einsum([h_next, c], expr = 'bdn,btn->btd', acc = 'f32');
}
""")


@torch.library.custom_op("t2n_extra::selective_scan", mutates_args=())
def selective_scan(
    u: torch.Tensor, delta: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, D: torch.Tensor
) -> torch.Tensor:
    h = u.new_zeros(u.shape[0], u.shape[2], A.shape[1])
    outs = []
    for t in range(u.shape[1]):
        dt = delta[:, t, :, None]
        h = torch.exp(dt * A) * h + dt * B[:, t, None] * u[:, t, :, None]
        outs.append((h * C[:, t, None]).sum(-1))
    return torch.stack(outs, 1) + D * u


@selective_scan.register_fake
def _(u, delta, A, B, C, D):
    return torch.empty_like(u)


@nnef_backend.register("t2n_extra::selective_scan")
def selective_scan_in_nnef(h, u, delta, A, B, C, D):
    batch, _, inner = u.type.shape  # sizes that are dynamic stay expressions
    state = (batch, inner, A.type.shape[1])
    _, y = h.emit(
        "tract_core_scan",
        body=h.fragment("selective_step"),
        scan=[("u", u, 1, 1), ("delta", delta, 1, 1), ("b", B, 1, 1), ("c", C, 1, 1)],
        full=[("a", A)],
        state=[("h", h.expand(h.const(0, u), state), "h_next")],
        output=[("h_next", "last", 1, 1), ("y", "full", 1, 1)],
        outputs=2,
        dtype=u.type.dtype,
        shape=[state, u.type.shape],
    )
    return h.emit("add", y, h.emit("mul", u, D))


class Model(torch.nn.Module):
    """The heart of a Mamba block: projections to delta, B and C, the scan, and a gate."""

    def __init__(self, inner: int = 16, state: int = 4) -> None:
        super().__init__()
        self.state = state
        self.project = torch.nn.Linear(inner, inner + 2 * state)
        self.A_log = torch.nn.Parameter(torch.log(torch.arange(1.0, state + 1)).repeat(inner, 1))
        self.D = torch.nn.Parameter(torch.ones(inner))

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        delta, b, c = self.project(u).split([u.shape[2], self.state, self.state], dim=2)
        delta = torch.nn.functional.softplus(delta)
        y = torch.ops.t2n_extra.selective_scan(u, delta, -torch.exp(self.A_log), b, c, self.D)
        return y * torch.nn.functional.silu(u)


def main(path: str | None = None) -> ir.Exported:
    """Export, run in tract at two sizes and compare with torch."""
    torch.manual_seed(0)
    dynamic = ({0: "batch", 1: "length"},)
    program = ir.export(
        Model(), (torch.randn(2, 6, 16),), target="nnef", path=path, dynamic_shapes=dynamic, verify=True
    )
    program.verify((torch.randn(3, 25, 16),))
    return program


if __name__ == "__main__":
    print(main(*sys.argv[1:2]).artifact.to_text())
