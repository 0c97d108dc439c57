"""Structures over images from papers, written out small."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F

from ..entry import Entry
from .rows import numbers, picture, row, unit


def conv(i: int, o: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, SiLU."""
    return nn.Sequential(nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(o), nn.SiLU())


class UNet(nn.Module):
    """Ronneberger 2015: down, up by transposed convolutions, skips concatenated."""

    def __init__(self, depth: int = 3, width: int = 8) -> None:
        super().__init__()
        widths = [width << i for i in range(depth)]
        self.down = nn.ModuleList(conv(i, o) for i, o in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(o, i, 2, 2) for i, o in itertools.pairwise(widths))
        self.join = nn.ModuleList(conv(2 * w, w) for w in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for up, join, skip in list(zip(self.up, self.join, skips))[::-1]:
            x = join(torch.cat((up(x), skip), 1))
        return self.head(x)


class AttentionUNet(nn.Module):
    """Oktay 2018: strided convolutions down, resizing to the skip's size up, gates on the skips."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down, self.deep = conv(3, 8), conv(8, 16, stride=2), conv(16, 32, stride=2)
        self.gates = nn.ModuleList([nn.Conv2d(32 + 16, 1, 1), nn.Conv2d(16 + 8, 1, 1)])
        self.join = nn.ModuleList([conv(48, 16), conv(24, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        first = self.stem(x)
        second = self.down(first)
        x = self.deep(second)
        for gate, join, skip in zip(self.gates, self.join, (second, first)):
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            both = torch.cat((x, skip), 1)
            x = join(torch.cat((x, skip * torch.sigmoid(gate(both))), 1))
        return self.head(x)


class C2f(nn.Module):
    """The split bottleneck of YOLOv8."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.first, self.last, self.middle = conv(i, o, 1), conv(3 * o // 2, o, 1), conv(o // 2, o // 2)

    def forward(self, x):
        parts = list(self.first(x).chunk(2, 1))
        parts.append(parts[-1] + self.middle(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """YOLOv8: pyramid down and up, boxes as expected values over 4 bins, anchors made from the sizes."""

    def __init__(self, classes: int = 3, bins: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 8, stride=2), conv(8, 16, stride=2), C2f(16, 16))
        self.p4 = nn.Sequential(conv(16, 32, stride=2), C2f(32, 32))
        self.p5 = nn.Sequential(conv(32, 32, stride=2), C2f(32, 32))
        self.up4, self.up3 = C2f(64, 16), C2f(32, 16)
        self.heads = nn.ModuleList(nn.Conv2d(w, 4 * bins + classes, 1) for w in (16, 16, 32))
        self.bins, self.strides = bins, (4, 8, 16)

    def forward(self, x):
        p3 = self.stem(x)
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        p4 = self.up4(torch.cat((F.interpolate(p5, scale_factor=2.0), p4), 1))
        p3 = self.up3(torch.cat((F.interpolate(p4, scale_factor=2.0), p3), 1))
        return torch.cat([self.boxes(h(p), s) for h, p, s in zip(self.heads, (p3, p4, p5), self.strides)], 1)

    def boxes(self, x, stride):
        b, _, h, w = x.shape
        y = torch.arange(h, device=x.device) + 0.5
        grid = torch.stack(torch.meshgrid(torch.arange(w, device=x.device) + 0.5, y, indexing="xy"), -1).view(-1, 2)
        box, scores = x.flatten(2).transpose(1, 2).split((4 * self.bins, x.shape[1] - 4 * self.bins), -1)
        weights = box.view(b, -1, 4, self.bins).softmax(-1)
        distance = weights @ torch.arange(self.bins, dtype=x.dtype, device=x.device)
        low, high = grid - distance[..., :2], grid + distance[..., 2:]
        return torch.cat(((low + high) / 2 * stride, (high - low) * stride, scores.sigmoid()), -1)


class Yolo3(nn.Module):
    """YOLOv3: nearest upsampling joined with a lateral map; the head's channels are viewed as anchors."""

    def __init__(self, anchors: int = 3, classes: int = 2) -> None:
        super().__init__()
        self.low, self.deep, self.lateral = conv(3, 16, stride=2), conv(16, 32, stride=2), conv(32, 16, 1)
        self.heads = nn.ModuleList(nn.Conv2d(w, anchors * (5 + classes), 1) for w in (32, 32))
        self.anchors = anchors

    def forward(self, x):
        low = self.low(x)
        deep = self.deep(low)
        up = F.interpolate(self.lateral(deep), scale_factor=2, mode="nearest")
        maps = (self.heads[0](deep), self.heads[1](torch.cat((up, low), 1)))
        return [m.view(m.shape[0], self.anchors, -1, *m.shape[2:]).permute(0, 1, 3, 4, 2).contiguous() for m in maps]


class CenterNet(nn.Module):
    """Zhou 2019: peaks of a heat map by max pooling, the best of them with their boxes gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 8, stride=2), conv(8, 16, stride=2))
        self.heat, self.size = nn.Conv2d(16, 3, 1), nn.Conv2d(16, 2, 1)

    def forward(self, x):
        features = self.body(x)
        heat = self.heat(features).sigmoid()
        peaks = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
        scores, where = peaks.flatten(1).topk(8)
        width = heat.shape[-1]
        spot = where % (heat.shape[-2] * width)
        size = self.size(features).flatten(2).gather(2, spot[:, None].expand(-1, 2, -1))
        return scores, spot % width, spot // width, size


class PSPNet(nn.Module):
    """Zhao 2017: averages over 1, 2, 3 and 6 bins a side, resized back."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 8, stride=2), conv(8, 16, stride=2))
        self.bins = nn.ModuleList(conv(16, 4, 1) for _ in range(4))
        self.head = nn.Conv2d(32, 3, 1)

    def forward(self, x):
        f = self.body(x)
        pools = [
            F.interpolate(c(F.adaptive_avg_pool2d(f, n)), f.shape[-2:], mode="bilinear")
            for n, c in zip((1, 2, 3, 6), self.bins)
        ]
        return F.interpolate(self.head(torch.cat((f, *pools), 1)), x.shape[-2:], mode="bilinear")


class SpatialTransformer(nn.Module):
    """Jaderberg 2015."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 4, stride=2), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 6))

    def forward(self, x):
        theta = self.body(x).view(-1, 2, 3) * 0.3 + torch.eye(2, 3, device=x.device)
        return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


class Dit(nn.Module):
    """Peebles 2022: patches of a noisy image, shifts and scales of each norm from the time."""

    def __init__(self, side: int = 16, patch: int = 4, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, width, patch, patch)
        self.position = nn.Parameter(torch.randn(1, (side // patch) ** 2, width))
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 6 * width))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.head, self.p = nn.Linear(width, patch * patch * 4), patch

    def forward(self, x, t):
        b, c, h, w = x.shape
        half = self.position.shape[-1] // 2
        waves = t[:, None] * torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        shifts = self.time(torch.cat((waves.cos(), waves.sin()), -1))[:, None].chunk(6, -1)
        z = self.patch(x).flatten(2).transpose(1, 2) + self.position
        y = self.norm(z) * (1 + shifts[1]) + shifts[0]
        z = z + shifts[2] * self.attention(y, y, y, need_weights=False)[0]
        z = z + shifts[5] * self.mlp(self.norm(z) * (1 + shifts[4]) + shifts[3])
        z = self.head(z).view(b, h // self.p, w // self.p, self.p, self.p, c)
        return torch.einsum("bhwpqc->bchpwq", z).reshape(b, c, h, w)


class DiffusionUNet(nn.Module):
    """Ho 2020: residual blocks with time, group norms, attention in the middle, resizing by 2."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.start, self.end = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)
        self.time = nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(3))
        self.down, self.qkv = nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(width, 3 * width, 1)

    def block(self, i, x, t):
        return x + self.convs[i](F.silu(self.norms[i](x) + t[:, :, None, None]))

    def forward(self, x, t):
        t = self.time(torch.cat((torch.sin(t[:, None] * torch.arange(8)), torch.cos(t[:, None] * torch.arange(8))), -1))
        skip = self.block(0, self.start(x), t)
        x = self.down(skip)
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).view(b, 3, c, h * w).transpose(2, 3).unbind(1)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, c, h, w)
        x = F.interpolate(self.block(1, x, t), scale_factor=2, mode="nearest")
        return self.end(F.silu(self.block(2, x + skip, t)))


class VqVae(nn.Module):
    """van den Oord 2017: the nearest row of a codebook for each place."""

    def __init__(self, codes: int = 16, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(conv(3, 8, stride=2), nn.Conv2d(8, width, 3, 2, 1))
        self.codes = nn.Embedding(codes, width)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, 8, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1)
        )

    def forward(self, x):
        z = self.encoder(x).permute(0, 2, 3, 1)
        index = torch.cdist(z.flatten(0, 2), self.codes.weight).argmin(-1)
        found = self.codes(index).view(z.shape).permute(0, 3, 1, 2)
        return self.decoder(found), index


class SuperResolution(nn.Module):
    """EDSR with channel attention (RCAN): pixels shuffled up, the bicubic picture added."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first, self.body, self.last = (
            nn.Conv2d(i, o, 3, 1, 1) for i, o in ((3, width), (width, width), (width, 12))
        )
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), nn.Sigmoid())

    def forward(self, x):
        f = self.first(x)
        f = f + self.gate(f) * F.relu(self.body(f))
        return F.pixel_shuffle(self.last(f), 2) + F.interpolate(x, scale_factor=2, mode="bicubic")


class Involution(nn.Module):
    """Li 2021: a kernel for each place, made from its pixel, over unfolded neighbourhoods."""

    def __init__(self, width: int = 8, groups: int = 2) -> None:
        super().__init__()
        self.stem, self.kernel, self.groups = conv(3, width), nn.Conv2d(width, 9 * groups, 1), groups

    def forward(self, x):
        x = self.stem(x)
        b, c, h, w = x.shape
        weight = self.kernel(x).view(b, self.groups, 1, 9, h, w)
        return (
            (F.unfold(x, 3, padding=1).view(b, self.groups, c // self.groups, 9, h, w) * weight).sum(3).view(b, c, h, w)
        )


class Fourier(nn.Module):
    """FNO, Li 2020: products of the low frequencies with complex weights."""

    def __init__(self, width: int = 8, modes: int = 4) -> None:
        super().__init__()
        self.lift, self.skip, self.head = nn.Conv2d(3, width, 1), nn.Conv2d(width, width, 1), nn.Conv2d(width, 1, 1)
        self.weight, self.modes = nn.Parameter(torch.randn(width, width, modes, modes, 2) * 0.1), modes

    def forward(self, x):
        x = self.lift(x)
        m, h, w = self.modes, x.shape[-2], x.shape[-1]
        spectrum = torch.fft.rfft2(x)[..., :m, :m]
        product = torch.einsum("bihw,iohw->bohw", spectrum, torch.view_as_complex(self.weight))
        return self.head(
            F.gelu(torch.fft.irfft2(F.pad(product, (0, w // 2 + 1 - m, 0, h - m)), s=(h, w)) + self.skip(x))
        )


class Siren(nn.Module):
    """Coordinates with sines (Sitzmann 2020) after NeRF's frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 + 2 * 2 * 6, 32), nn.Linear(32, 4)

    def forward(self, points):
        waves = points[..., None] * 2.0 ** torch.arange(6, device=points.device) * math.pi
        x = torch.cat((points, waves.sin().flatten(-2), waves.cos().flatten(-2)), -1)
        rgb, density = self.second(torch.sin(30 * self.first(x))).split((3, 1), -1)
        alpha = 1 - torch.exp(-F.softplus(density) * 0.1)
        through = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6), 1), 1)[:, :-1]
        return (alpha * through * rgb.sigmoid()).sum(1)


_ANY = {"x": picture("batch", 3, "height", "width")}
_ROWS = (
    *(
        row(m.__name__.lower(), m, _ANY)
        for m in (UNet, AttentionUNet, Yolo, Yolo3, CenterNet, PSPNet, SpatialTransformer)
    ),
    *(row(m.__name__.lower(), m, _ANY) for m in (VqVae, SuperResolution, Involution)),
    row("fno", Fourier, {"x": picture("batch", 3, 16, 16)}),
    row("dit", Dit, {"x": numbers("batch", 4, 16, 16), "t": unit("batch")}),
    row("ddpm_unet", DiffusionUNet, {"x": picture("batch", 3, "height", "width"), "t": unit("batch")}),
    row("nerf_siren", Siren, {"points": unit("batch", "points", 2)}),
)
ENTRIES: dict[str, Entry] = dict(_ROWS)
