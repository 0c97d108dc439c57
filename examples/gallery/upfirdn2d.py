"""StyleGAN's upfirdn2d: zeros between the pixels, padding, a filter, and every few pixels of the result.

    y[i, j] = sum_{a, b} kernel[kh-1-a, kw-1-b] z[down i + a, down j + b]        z = padded(x with up - 1 zeros between)

Source: T. Karras et al., "Analyzing and Improving the Image Quality of StyleGAN", 2020, and the reference code of its
`upfirdn2d`, for one factor of both axes.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import conv2d, pad

import ir


@ir.custom_op("gallery::upfirdn2d")
def upfirdn2d(x: Tensor, kernel: Tensor, up: int = 1, down: int = 1, before: int = 0, after: int = 0) -> Tensor:
    """An image, resampled.

    Args:
        x: float32 [batch, channels, H, W].
        kernel: the filter, float32 [kh, kw].
        up, down: factors of the size.
        before, after: pixels of padding on both axes, once enlarged; negative ones crop.

    Returns:
        float32 [batch, channels, (H up + before + after - kh) // down + 1, the same of W].
    """
    batch, channels, height, width = x.shape
    z = pad(x.reshape(batch * channels, 1, height, 1, width, 1), [0, up - 1, 0, 0, 0, up - 1])
    z = z.reshape(batch * channels, 1, height * up, width * up)
    z = pad(z, [before, after, before, after])
    y = conv2d(z, kernel.flip(0, 1)[None, None], stride=down)
    return y.reshape(batch, channels, y.shape[2], y.shape[3])
