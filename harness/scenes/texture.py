"""Band-limited building blocks of procedural textures.

Each takes the width over which it is averaged (a pixel's footprint, or a splat's size), so that a texture has no
detail finer than what looks at it. Only operations that round alike on every device, so that an image is the same
bit for bit on CPU and GPU; division by a number is not one (a GPU multiplies by its reciprocal), so it is written as
that product.
"""

from __future__ import annotations

import torch

from harness.scenes.blocks import NOISE_CELLS

Value = torch.Tensor | float


def stripes(x: torch.Tensor, lo: Value, hi: Value, width: torch.Tensor, period: float = 1.0) -> torch.Tensor:
    """Mean over [x - width / 2, x + width / 2] of the stripes that are 1 where lo <= frac(x / period) < hi, else 0."""
    duty = hi - lo
    x, width = x * (1.0 / period), width * (1.0 / period)

    def integral(at: torch.Tensor) -> torch.Tensor:
        cell = torch.floor(at)
        return cell * duty + torch.minimum((at - cell - lo).clamp(min=0.0), torch.as_tensor(duty, device=x.device))

    half = 0.5 * width
    return (integral(x + half) - integral(x - half)) / width


def band(x: torch.Tensor, lo: Value, hi: Value, width: torch.Tensor) -> torch.Tensor:
    """Share of [x - width / 2, x + width / 2] that lies in [lo, hi]."""
    half = 0.5 * width
    top = (x + half).clamp(max=hi) if isinstance(hi, float) else torch.minimum(x + half, hi)
    low = (x - half).clamp(min=lo) if isinstance(lo, float) else torch.maximum(x - half, lo)
    return ((top - low) / width).clamp(min=0.0, max=1.0)


def lattice_noise(noise: torch.Tensor, x: torch.Tensor, y: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    """Bilinear value noise in [-1, 1], one lattice cell a unit of x and y, fading out as `width` passes a cell."""
    cell_x, cell_y = torch.floor(x), torch.floor(y)
    u, v = x - cell_x, y - cell_y
    ix, iy = cell_x.to(torch.int64), cell_y.to(torch.int64)
    left, right = ix & (NOISE_CELLS - 1), (ix + 1) & (NOISE_CELLS - 1)
    low, high = (iy & (NOISE_CELLS - 1)) * NOISE_CELLS, ((iy + 1) & (NOISE_CELLS - 1)) * NOISE_CELLS
    near, far = noise[low + left], noise[high + left]
    near = near + u * (noise[low + right] - near)
    far = far + u * (noise[high + right] - far)
    value = near + v * (far - near)
    return (2.0 * value - 1.0) * (1.5 - width).clamp(min=0.0, max=1.0)


def square_root(x: torch.Tensor) -> torch.Tensor:
    """Square root of float32, through float64: devices differ in the last bit, which rounding back takes away."""
    return torch.sqrt(x.double()).float()


def blend(colour: torch.Tensor, other: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Colour [3, N] moved towards the other ([3, N] or [3, 1]) by a share [N] in [0, 1]."""
    return colour + share * (other - colour)


def constant(rgb: tuple[float, float, float], device: torch.device) -> torch.Tensor:
    """A colour as [3, 1]."""
    return torch.tensor(rgb, dtype=torch.float32, device=device)[:, None]
