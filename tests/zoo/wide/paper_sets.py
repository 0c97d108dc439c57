"""Structures over sets, graphs, tables and states from papers, written out small."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ..entry import Entry
from .rows import ids, numbers, row, unit


class PointNet(nn.Module):
    """Qi 2017, with the neighbourhoods of DGCNN: the 4 nearest points of each."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.head = nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, x):
        near = torch.cdist(x, x).topk(4, largest=False).indices
        batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
        edges = torch.cat((x[batch, near] - x[:, :, None], x[:, :, None].expand(-1, -1, 4, -1)), -1)
        return self.head(F.relu(self.edge(edges)).amax(2).amax(1))


class GraphNet(nn.Module):
    """Message passing over an edge list: sums by index_add, attention normalised by scatter_reduce (GAT)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.lin, self.score = nn.Linear(width, width), nn.Linear(2 * width, 1)

    def forward(self, x, edges):
        source, target = edges
        h = self.lin(x)
        e = F.leaky_relu(self.score(torch.cat((h[source], h[target]), -1))).squeeze(-1)
        most = torch.full((x.shape[0],), -1e9).scatter_reduce(0, target, e, "amax")
        e = torch.exp(e - most[target])
        total = torch.zeros(x.shape[0]).index_add(0, target, e)
        return torch.zeros_like(h).index_add(0, target, h[source] * (e / total[target])[:, None])


class SetTransformer(nn.Module):
    """Lee 2019: learnt inducing points attend, a seed pools."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inducing, self.seed = nn.Parameter(torch.randn(1, 4, width)), nn.Parameter(torch.randn(1, 1, width))
        self.a, self.b, self.c = (nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(3))

    def forward(self, x):
        points = self.inducing.expand(x.shape[0], -1, -1)
        x = x + self.b(x, *[self.a(points, x, x)[0]] * 2)[0]
        return self.c(self.seed.expand(x.shape[0], -1, -1), x, x)[0]


class Dlrm(nn.Module):
    """Naumov 2019: bags of categories, products of all pairs."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, width, mode=mode) for mode in ("sum", "mean"))
        self.bottom, self.top = nn.Linear(4, width), nn.Linear(width + 3, 1)
        self.register_buffer("rows", torch.tril_indices(3, 3, -1))

    def forward(self, dense, first, second):
        x = F.relu(self.bottom(dense))
        all_ = torch.stack((x, self.bags[0](first), self.bags[1](second)), 1)
        products = (all_ @ all_.transpose(1, 2))[:, self.rows[0], self.rows[1]]
        return torch.sigmoid(self.top(torch.cat((x, products), 1)))


class NBeats(nn.Module):
    """Oreshkin 2020: blocks that explain the past and leave the rest to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16 + 4)) for _ in range(3)
        )

    def forward(self, x):
        mean, scale = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-4
        x, total = (x - mean) / scale, 0
        for block in self.blocks:
            back, ahead = block(x).split((16, 4), 1)
            x, total = x - back, total + ahead
        return total * scale + mean


class Spline(nn.Module):
    """Neural spline flow (Durkan 2019): bins found by searchsorted, and points outside left as they are by a mask."""

    def __init__(self, bins: int = 5) -> None:
        super().__init__()
        self.widths, self.heights = nn.Parameter(torch.randn(bins)), nn.Parameter(torch.randn(bins))

    def forward(self, x):
        edges, values = (F.pad(w.softmax(-1).cumsum(-1), (1, 0)) * 2 - 1 for w in (self.widths, self.heights))
        inside = (x > -1) & (x < 1)
        y = x.clone()
        u = x[inside]
        i = torch.searchsorted(edges, u).clamp(1, edges.shape[0] - 1)
        left, right = edges[i - 1], edges[i]
        y[inside] = values[i - 1] + (u - left) / (right - left) * (values[i] - values[i - 1])
        return y


class MaskedUpdate(nn.Module):
    """Scaled where a mask holds, by assignment, as losses and decoders write it."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        y = self.lin(x)
        mask = y > 0
        y[mask] = y[mask] * 2
        return y


class Kalman(nn.Module):
    """Predict and correct with small matrices: inverses and Cholesky factors in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.motion, self.look = nn.Parameter(torch.eye(4) + 0.1 * torch.randn(4, 4)), nn.Parameter(torch.randn(2, 4))

    def forward(self, mean, root, seen):
        spread = root @ root.transpose(1, 2) + torch.eye(4)
        mean, spread = mean @ self.motion.T, self.motion @ spread @ self.motion.T
        noise = self.look @ spread @ self.look.T + torch.eye(2)
        gain = torch.linalg.solve(noise, self.look @ spread).transpose(1, 2)
        mean = mean + (gain @ (seen - mean @ self.look.T)[..., None])[..., 0]
        spread = (torch.eye(4) - gain @ self.look) @ spread
        return (
            mean,
            spread,
            torch.linalg.cholesky((spread + spread.transpose(1, 2)) / 2).diagonal(dim1=1, dim2=2).log().sum(1),
        )


class Kan(nn.Module):
    """Liu 2024: B-splines of every input on every edge."""

    def __init__(self, i: int = 4, o: int = 6, knots: int = 8) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, knots))
        self.weight = nn.Parameter(torch.randn(o, i, knots - 3))

    def forward(self, x):
        x, g = x[..., None], self.grid
        b = ((x >= g[:-1]) & (x < g[1:])).to(x.dtype)
        for k in (1, 2):
            b = (x - g[: -k - 1]) / (g[k:-1] - g[: -k - 1]) * b[..., :-1] + (g[k + 1 :] - x) / (
                g[k + 1 :] - g[1:-k]
            ) * b[..., 1:]
        return torch.einsum("...ik,oik->...o", b, self.weight)


class Alibi(nn.Module):
    """Press 2022, in blocks of eight after padding (a local attention)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.qkv, self.block = nn.Linear(width, 3 * width), 8

    def forward(self, x):
        n = x.shape[1]
        x = F.pad(x, (0, 0, 0, -n % self.block))
        blocks = x.shape[1] // self.block
        q, k, v = self.qkv(x).view(x.shape[0], blocks, self.block, -1).chunk(3, -1)
        step = torch.arange(x.shape[1] // blocks, device=x.device)
        scores = q @ k.transpose(-1, -2) / math.sqrt(16) - (step[:, None] - step).abs() * 0.5
        return (scores.softmax(-1) @ v).flatten(1, 2)[:, :n]


class Flow(nn.Module):
    """A coupling layer and an invertible mixing with its log determinant (Glow)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.net = nn.Parameter(torch.linalg.qr(torch.randn(6, 6))[0]), nn.Linear(3, 6)

    def forward(self, x):
        x = x @ self.mix
        a, b = x.chunk(2, -1)
        shift, scale = self.net(a).chunk(2, -1)
        scale = torch.tanh(scale)
        return torch.cat((a, b * scale.exp() + shift), -1), scale.sum(-1) + torch.linalg.slogdet(self.mix)[1]


_X = numbers("batch", "sequence", 16)


class Vae(nn.Module):
    """Kingma 2013: the bound's two terms, by torch.distributions, at the mean of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, -1)
        code = torch.distributions.Normal(mean, F.softplus(spread) + 0.1)
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        kept = torch.distributions.Bernoulli(logits=self.decoder(code.mean)).log_prob((x > 0).float())
        return kept.sum(-1), torch.distributions.kl_divergence(code, prior).sum(-1)


_ROWS = (
    row("point_net", PointNet, {"x": numbers("batch", "points", 3)}),
    row("graph_attention", GraphNet, {"x": numbers(16, 8), "edges": ids(2, "points", below=16, least=0)}),
    row("vae", Vae, {"x": numbers("batch", 8)}),
    row("set_transformer", SetTransformer, {"x": _X}),
    row(
        "dlrm",
        Dlrm,
        {"dense": numbers("batch", 4), "first": ids("batch", 3, below=20), "second": ids("batch", 2, below=20)},
    ),
    row("nbeats", NBeats, {"x": numbers("batch", 16)}),
    row("spline_flow", Spline, {"x": numbers("batch", "sequence")}),
    row("masked_update", MaskedUpdate, {"x": numbers("batch", "sequence", 8)}),
    row("kalman", Kalman, {"mean": numbers("batch", 4), "root": unit("batch", 4, 4), "seen": numbers("batch", 2)}),
    row("kan", Kan, {"x": numbers("batch", 4)}),
    row("alibi_blocks", Alibi, {"x": _X}),
    row("glow", Flow, {"x": numbers("batch", 6)}),
)
ENTRIES: dict[str, Entry] = dict(_ROWS)
