"""Structures over sequences, sets, graphs and tables from papers, written out small."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ..entry import Entry
from .rows import ids, kept, numbers, row, unit


class Tcn(nn.Module):
    """Bai 2018: causal dilated convolutions with weight norm."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.convs = nn.ModuleList(norm(nn.Conv1d(width, width, 3, dilation=2**i)) for i in range(3))

    def forward(self, x):
        for i, c in enumerate(self.convs):
            x = x + F.relu(c(F.pad(x, (2 << i, 0))))
        return x


class WaveNet(nn.Module):
    """van den Oord 2016: gated dilated convolutions whose skips add up."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(4))
        self.out = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(4))

    def forward(self, x):
        x, total = self.first(x), 0
        for gated, out in zip(self.gated, self.out):
            y = out(F.glu(gated(x), 1))
            x = x[..., -y.shape[-1] :] + y
            total = y + (total[..., -y.shape[-1] :] if isinstance(total, torch.Tensor) else 0)
        return F.relu(total)


class ConvTasNet(nn.Module):
    """Luo 2019: a learnt filter bank, masks, and its transpose, over padded sound."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv1d(1, 16, 16, 8, bias=False), nn.ConvTranspose1d(16, 1, 16, 8, bias=False)
        self.mask = nn.Sequential(nn.GroupNorm(1, 16), nn.Conv1d(16, 32, 1), nn.PReLU(), nn.Conv1d(32, 32, 3, 1, 1, groups=32))

    def forward(self, x):
        padded = F.pad(x, (8, 8 + (8 - x.shape[-1] % 8) % 8))
        f = self.encoder(padded)
        masks = torch.sigmoid(self.mask(f)).view(f.shape[0], 2, 16, -1)
        out = self.decoder((masks * f[:, None]).flatten(0, 1))
        return out.view(f.shape[0], 2, -1)[..., 8 : 8 + x.shape[-1]]


class Demucs(nn.Module):
    """Defossez 2019: strided convolutions and an LSTM, skips cut to the centre."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv1d(1, 8, 8, 4), nn.Conv1d(8, 16, 8, 4)])
        self.up = nn.ModuleList([nn.ConvTranspose1d(16, 8, 8, 4), nn.ConvTranspose1d(8, 1, 8, 4)])
        self.lstm = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = F.relu(layer(x))
            skips.append(x)
        x = self.lstm(x.transpose(1, 2))[0].transpose(1, 2)
        for layer in self.up:
            x = layer(x + skips.pop()[..., : x.shape[-1]])
        return x


class Spectrogram(nn.Module):
    """Log mel features by stft, and a small network over them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.register_buffer("mel", torch.rand(33, 12))
        self.head = nn.Conv1d(12, 4, 3, 1, 1)

    def forward(self, x):
        power = torch.stft(x, 64, 32, window=self.window, return_complex=True).abs() ** 2
        return self.head(torch.log(torch.einsum("bft,fm->bmt", power, self.mel) + 1e-5))


class Seq2Seq(nn.Module):
    """Bahdanau 2015: a bidirectional GRU, additive attention at every step of a teacher-forced decoder."""

    def __init__(self, words: int = 64, width: int = 16) -> None:
        super().__init__()
        self.embed, self.encoder = nn.Embedding(words, width), nn.GRU(width, width, bidirectional=True, batch_first=True)
        self.decoder = nn.GRU(width, 2 * width, batch_first=True)
        self.query, self.key, self.score = nn.Linear(2 * width, width), nn.Linear(2 * width, width), nn.Linear(width, 1)
        self.head = nn.Linear(4 * width, words)

    def forward(self, source, target):
        memory, last = self.encoder(self.embed(source))
        state = torch.cat((last[0], last[1]), -1)[None]
        out, _ = self.decoder(self.embed(target), state)
        weights = self.score(torch.tanh(self.query(out)[:, :, None] + self.key(memory)[:, None])).squeeze(-1).softmax(-1)
        return self.head(torch.cat((out, weights @ memory), -1))


class PackedLstm(nn.Module):
    """A bidirectional LSTM over packed sequences, as taggers use it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8, bidirectional=True, batch_first=True), nn.Linear(16, 5)

    def forward(self, x, mask):
        lengths = mask.sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.head(out)


class Crf(nn.Module):
    """The log partition of a linear chain (Lafferty 2001), by a scan over time."""

    def __init__(self, tags: int = 5) -> None:
        super().__init__()
        self.score, self.transitions = nn.Linear(8, tags), nn.Parameter(torch.randn(tags, tags))

    def forward(self, x):
        from torch._higher_order_ops.scan import scan

        scores = self.score(x.transpose(0, 1).contiguous())

        def step(alpha, score):
            alpha = torch.logsumexp(alpha[:, :, None] + self.transitions, 1) + score
            return alpha, alpha.clone()

        last, _ = scan(step, scores[0].clone(), scores[1:])
        return torch.logsumexp(last, -1)


class Ctc(nn.Module):
    """A recogniser with its CTC loss (Graves 2006)."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 6)

    def forward(self, x, labels):
        scores = self.head(x).log_softmax(-1).transpose(0, 1)
        given = torch.full((x.shape[0],), x.shape[1], dtype=torch.long)
        wanted = torch.full((x.shape[0],), labels.shape[1], dtype=torch.long)
        return F.ctc_loss(scores, labels, given, wanted, reduction="none")


class Linformer(nn.Module):
    """Performer's linear attention (positive features) and RetNet's decay side by side."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(width, 3 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        f, g = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.cumsum(g[..., :, None] * v[..., None, :], 1)
        linear = torch.einsum("bnd,bnde->bne", f, memory) / (f * g.cumsum(1)).sum(-1, keepdim=True)
        step = torch.arange(x.shape[1], device=x.device)
        decay = 0.9 ** (step[:, None] - step[None, :]).clamp(min=0) * (step[:, None] >= step[None, :])
        return self.head(torch.cat((linear, (q @ k.transpose(1, 2) * decay) @ v), -1))


class Hyena(nn.Module):
    """Poli 2023: long convolutions by FFT with an implicit filter, gated."""

    def __init__(self, width: int = 8, length: int = 16) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.filter, self.length = nn.Parameter(torch.randn(width, length) * 0.2), length

    def forward(self, x):
        v, a, b = self.project(x).transpose(1, 2).chunk(3, 1)
        n = 2 * self.length
        y = torch.fft.irfft(torch.fft.rfft(v * a, n=n) * torch.fft.rfft(self.filter, n=n), n=n)[..., : self.length]
        return self.out((y * b).transpose(1, 2))


class S4d(nn.Module):
    """Gu 2022: a diagonal state space as a convolution whose kernel is made from complex exponentials."""

    def __init__(self, width: int = 6, states: int = 4) -> None:
        super().__init__()
        self.log_dt, self.c = nn.Parameter(torch.randn(width) - 3), nn.Parameter(torch.randn(width, states, 2))
        self.real, self.imag = nn.Parameter(torch.randn(width, states) * 0.1), nn.Parameter(torch.rand(width, states) * 6)

    def forward(self, x):
        step = torch.exp(self.log_dt)[:, None]
        a = torch.complex(-torch.exp(self.real), self.imag) * step
        powers = torch.exp(a[:, :, None] * torch.arange(24))
        kernel = 2 * torch.einsum("hn,hnl->hl", torch.view_as_complex(self.c), powers).real
        return F.conv1d(F.pad(x, (23, 0)), kernel.flip(1)[:, None], groups=x.shape[1])


class ConvLstm(nn.Module):
    """Shi 2015, over five frames."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.gates, self.width = nn.Conv2d(1 + width, 4 * width, 3, 1, 1), width

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], self.width, *x.shape[3:])
        for frame in x.unbind(1):
            i, f, o, g = self.gates(torch.cat((frame, h), 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


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
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16 + 4)) for _ in range(3))

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
        return mean, spread, torch.linalg.cholesky((spread + spread.transpose(1, 2)) / 2).diagonal(dim1=1, dim2=2).log().sum(1)


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
            b = (x - g[: -k - 1]) / (g[k:-1] - g[: -k - 1]) * b[..., :-1] + (g[k + 1 :] - x) / (g[k + 1 :] - g[1:-k]) * b[..., 1:]
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
_ROWS = (
    row("tcn", Tcn, {"x": numbers("batch", 16, "frames")}),
    row("wavenet", WaveNet, {"x": numbers("batch", 1, "frames")}),
    row("conv_tasnet", ConvTasNet, {"x": numbers("batch", 1, "samples")}, {"samples": (800, 801, 655)}),
    row("demucs", Demucs, {"x": numbers("batch", 1, "samples")}, {"samples": (820, 500, 628)}),
    row("log_mel", Spectrogram, {"x": numbers("batch", "samples")}, {"samples": (800, 640, 1001)}),
    row("seq2seq", Seq2Seq, {"source": ids("batch", "sequence"), "target": ids("batch", "target")}),
    row("packed_lstm", PackedLstm, {"x": numbers("batch", "sequence", 8), "mask": kept("batch", "sequence")}),
    row("crf", Crf, {"x": numbers("batch", "sequence", 8)}),
    row("ctc", Ctc, {"x": numbers("batch", "sequence", 8), "labels": ids("batch", 3, below=6, least=1)}),
    row("linear_attention", Linformer, {"x": _X}),
    row("hyena", Hyena, {"x": numbers("batch", 16, 8)}),
    row("s4d", S4d, {"x": numbers("batch", 6, "frames")}),
    row("conv_lstm", ConvLstm, {"x": numbers("batch", 5, 1, "height", "width")}, {"height": (8, 6, 5), "width": (9, 4, 7)}),
    row("point_net", PointNet, {"x": numbers("batch", "points", 3)}),
    row("graph_attention", GraphNet, {"x": numbers(16, 8), "edges": ids(2, "points", below=16, least=0)}),
    row("set_transformer", SetTransformer, {"x": _X}),
    row("dlrm", Dlrm, {"dense": numbers("batch", 4), "first": ids("batch", 3, below=20), "second": ids("batch", 2, below=20)}),
    row("nbeats", NBeats, {"x": numbers("batch", 16)}),
    row("spline_flow", Spline, {"x": numbers("batch", "sequence")}),
    row("masked_update", MaskedUpdate, {"x": numbers("batch", "sequence", 8)}),
    row("kalman", Kalman, {"mean": numbers("batch", 4), "root": unit("batch", 4, 4), "seen": numbers("batch", 2)}),
    row("kan", Kan, {"x": numbers("batch", 4)}),
    row("alibi_blocks", Alibi, {"x": _X}),
    row("glow", Flow, {"x": numbers("batch", 6)}),
)
ENTRIES: dict[str, Entry] = dict(_ROWS)
