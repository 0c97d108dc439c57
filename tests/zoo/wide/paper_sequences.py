"""Structures over sequences and sound from papers, written out small."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ..entry import Entry
from .rows import ids, kept, numbers, row


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
        self.mask = nn.Sequential(
            nn.GroupNorm(1, 16), nn.Conv1d(16, 32, 1), nn.PReLU(), nn.Conv1d(32, 32, 3, 1, 1, groups=32)
        )

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
        self.embed, self.encoder = (
            nn.Embedding(words, width),
            nn.GRU(width, width, bidirectional=True, batch_first=True),
        )
        self.decoder = nn.GRU(width, 2 * width, batch_first=True)
        self.query, self.key, self.score = nn.Linear(2 * width, width), nn.Linear(2 * width, width), nn.Linear(width, 1)
        self.head = nn.Linear(4 * width, words)

    def forward(self, source, target):
        memory, last = self.encoder(self.embed(source))
        state = torch.cat((last[0], last[1]), -1)[None]
        out, _ = self.decoder(self.embed(target), state)
        weights = (
            self.score(torch.tanh(self.query(out)[:, :, None] + self.key(memory)[:, None])).squeeze(-1).softmax(-1)
        )
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
        self.real, self.imag = (
            nn.Parameter(torch.randn(width, states) * 0.1),
            nn.Parameter(torch.rand(width, states) * 6),
        )

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
    row(
        "conv_lstm",
        ConvLstm,
        {"x": numbers("batch", 5, 1, "height", "width")},
        {"height": (8, 6, 5), "width": (9, 4, 7)},
    ),
)
ENTRIES: dict[str, Entry] = dict(_ROWS)
