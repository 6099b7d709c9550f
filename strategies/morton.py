"""The order in which Gaussians are stored: along a Z-order curve through their means (Morton 1966).

Neighbours in space are then neighbours in memory, so that what a view sees are runs of rows, and a bound around a few
consecutive rows is tight. Ids say who a Gaussian is; its row says only where it lies.
"""

from __future__ import annotations

import numpy as np
import torch

from strategies.base import GaussianSource

MORTON_BITS = 21
"""Bits of a code an axis: three of them fit a positive int64."""
_PIECE = 1 << 20
"""Positions at hand at once, in float64: 24 MB."""


def morton_codes(positions: torch.Tensor, bounds: np.ndarray) -> torch.Tensor:
    """Place on a Z-order curve through the bounds ([2, 3] lower and upper corner), [n] int64; positions [n, 3].

    In float64 on the positions' own device, with the same bits on every device. What lies outside counts as on the
    border, what is not a number as at the lower corner.
    """
    lower = torch.as_tensor(bounds[0], dtype=torch.float64, device=positions.device)
    size = torch.as_tensor(bounds[1], dtype=torch.float64, device=positions.device) - lower
    unit = (positions.double() - lower) / torch.where(size > 0, size, 1.0)
    cells = (unit * (1 << MORTON_BITS)).nan_to_num(0.0).clamp(0, (1 << MORTON_BITS) - 1).to(torch.int64)
    return _spread(cells[:, 0]) | (_spread(cells[:, 1]) << 1) | (_spread(cells[:, 2]) << 2)


def source_codes(source: GaussianSource, device: torch.device | str = "cpu") -> torch.Tensor:
    """Codes of all Gaussians of the source by id, [count] int64 on the device; positions are read in pieces."""
    codes, bounds = torch.empty(source.count, dtype=torch.int64, device=device), source.bounds
    for lo in range(0, source.count, _PIECE):
        hi = min(lo + _PIECE, source.count)
        codes[lo:hi] = morton_codes(source.positions(lo, hi).to(device), bounds)
    return codes


def source_order(source: GaussianSource, device: torch.device | str, ids: torch.Tensor | None = None) -> torch.Tensor:
    """Those ids of the source (None: all; ascending) in the order of storage, [n] int64 on the CPU.

    Equal codes lie by id. Codes are sorted on the device, which holds about five int64 a Gaussian meanwhile.
    """
    codes = source_codes(source, device)
    if ids is None:
        return torch.argsort(codes, stable=True).cpu()
    return ids[torch.argsort(codes[ids.to(device)], stable=True).cpu()]


def morton_order(means: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows in the order of storage, [n] int64: by code within the means' own bounds, equal codes by id.

    means: [n, 3], on the device of the ids ([n] int64, distinct). The same whatever order the rows are given in.
    """
    bounds = _finite_bounds(means)
    codes = torch.empty_like(ids)
    for lo in range(0, len(ids), _PIECE):
        codes[lo : lo + _PIECE] = morton_codes(means[lo : lo + _PIECE], bounds)
    by_id = torch.argsort(ids)
    return by_id[torch.argsort(codes[by_id], stable=True)]


def _finite_bounds(means: torch.Tensor) -> np.ndarray:
    """[2, 3] float64 around the means that are finite; zeros if none is."""
    own = means[torch.isfinite(means).all(dim=1)].double()
    if not len(own):
        return np.zeros((2, 3))
    return torch.stack([own.amin(dim=0), own.amax(dim=0)]).cpu().numpy()


def _spread(x: torch.Tensor) -> torch.Tensor:
    """Two zero bits between any two of the low 21 bits."""
    x = (x | (x << 32)) & 0x1F00000000FFFF
    x = (x | (x << 16)) & 0x1F0000FF0000FF
    x = (x | (x << 8)) & 0x100F00F00F00F00F
    x = (x | (x << 4)) & 0x10C30C30C30C30C3
    return (x | (x << 2)) & 0x1249249249249249
