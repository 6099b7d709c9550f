"""Gaussians and initial points of the procedural city, each a function of the seed and its number."""

from __future__ import annotations

import math

import numpy as np
import torch

from cuda_src.layout import LOG_SCALE, MEAN, OPACITY_LOGIT, PARAMETERS, QUATERNION, SH_DC, SH_REST
from harness.scenes.blocks import SURROUNDINGS, CityBlocks
from harness.scenes.facades import GROUND, sky_colour, surface_colour
from harness.scenes.scene import PointCloud
from harness.scenes.surfaces import Surfaces, city_surfaces
from strategies.randomness import normal, uniform

SH_C0 = 0.28209479177387814
"""The constant spherical harmonic: colour = 0.5 + SH_C0 * dc (Kerbl et al. 2023)."""

_ROWS_CPU = 1 << 17
"""Rows computed together: temporary arrays stay a small multiple of this, however many are asked for."""
_ROWS_CUDA = 1 << 21

_STREAM_SCALE, _STREAM_TURN, _STREAM_OPACITY, _STREAM_SH = 200, 203, 204, 210
_STREAM_NOISE, _STREAM_TINT, _STREAM_AROUND = 300, 303, 310

THINNESS = 0.1
"""Size along the surface's normal as a share of the spacing."""


class CityGaussians:
    """GaussianSource of the city: surface-aligned, with sizes and opacities like those of trained models.

    Ids go block after block and surface after surface. A row is computed when it is read, from the seed and its id
    alone; what is kept is a table of the surfaces.
    """

    def __init__(self, city: CityBlocks, count: int):
        cpu = torch.device("cpu")
        self._tables: dict[torch.device, tuple[CityBlocks, Surfaces]] = {cpu: (city, city_surfaces(city, count))}
        self._count = count
        half = 0.5 * city.side
        self._bounds = np.array([[-half, -half, 0.0], [half, half, city.tallest]], dtype=np.float32)

    @property
    def count(self) -> int:
        return self._count

    @property
    def bounds(self) -> np.ndarray:
        """Corners of the city, [2, 3]: the means fill them up to a spacing."""
        return self._bounds

    @property
    def spacing(self) -> float:
        """Root of the area a Gaussian covers, metres."""
        return self._on(torch.device("cpu"))[1].spacing

    def positions(self, lo: int, hi: int) -> torch.Tensor:
        """Means of ids lo:hi, [hi - lo, 3] float32 on the CPU."""
        _, surfaces = self._on(torch.device("cpu"))
        out = torch.empty(hi - lo, 3)
        for start in range(lo, hi, _ROWS_CPU):
            ids = torch.arange(start, min(start + _ROWS_CPU, hi), dtype=torch.int64)
            out[start - lo : start - lo + len(ids)] = surfaces.positions(ids, surfaces.surface(ids))
        return out

    def read(self, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Parameters of those ids, [n, 59] float32 on the device."""
        device = torch.device(device)
        rows = _ROWS_CUDA if device.type == "cuda" else _ROWS_CPU
        out = torch.empty(len(indices), PARAMETERS, device=device)
        for start in range(0, len(indices), rows):
            ids = indices[start : start + rows].to(device)
            self._write(ids, out[start : start + rows])
        return out

    def _on(self, device: torch.device) -> tuple[CityBlocks, Surfaces]:
        if device not in self._tables:
            city, surfaces = self._tables[torch.device("cpu")]
            self._tables[device] = (city.on(device), surfaces.on(device))
        return self._tables[device]

    def _write(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        city, surfaces = self._on(out.device)
        seed = city.seed
        surface = surfaces.surface(ids)
        position = surfaces.positions(ids, surface)
        out[:, MEAN] = position
        # Log-normal around 0.6 spacings, so that neighbours overlap without holes.
        spread = torch.stack([normal(seed, _STREAM_SCALE + k, ids) for k in range(3)], dim=1)
        size = torch.tensor([0.6, 0.6, THINNESS], device=out.device) * surfaces.spacing
        out[:, LOG_SCALE] = torch.log(size) + torch.tensor([0.4, 0.4, 0.2], device=out.device) * spread
        half_turn = math.pi * uniform(seed, _STREAM_TURN, ids)
        out[:, QUATERNION] = _turned(surfaces.frame[surface], half_turn)
        # Most are nearly opaque, with a tail towards transparent.
        opacity = 0.99 - 0.9 * uniform(seed, _STREAM_OPACITY, ids).double() ** 4
        out[:, OPACITY_LOGIT] = torch.logit(opacity).float()
        out[:, SH_DC] = (_colours(city, surfaces, surface, position, surfaces.spacing) - 0.5) * (1.0 / SH_C0)
        for column in range(SH_REST.start, SH_REST.stop):
            out[:, column] = 0.02 * normal(seed, _STREAM_SH + column, ids)


def city_points(city: CityBlocks, count: int) -> PointCloud:
    """Initial points as structure from motion gives them: on the surfaces, a little off in place and colour.

    A twentieth each lies on the meadow around the city and on a far dome in the sky's colour, without which
    nothing could ever explain those pixels (photographs have such points too).
    """
    around = count // 20
    surfaces = city_surfaces(city, count - 2 * around)
    ids = torch.arange(surfaces.count, dtype=torch.int64)
    surface = surfaces.surface(ids)
    position = surfaces.positions(ids, surface)
    colour = _colours(city, surfaces, surface, position, 0.1)
    meadow, meadow_colour = _meadow_points(city, around)
    dome, dome_colour = _dome_points(city, around)
    position, colour = torch.cat([position, meadow, dome]), torch.cat([colour, meadow_colour, dome_colour])
    ids = torch.arange(count, dtype=torch.int64)
    off = torch.stack([normal(city.seed, _STREAM_NOISE + k, ids) for k in range(3)], dim=1)
    tint = torch.stack([normal(city.seed, _STREAM_TINT + k, ids) for k in range(3)], dim=1)
    position = position + 0.02 * surfaces.spacing * off
    colour = ((colour + 0.02 * tint).clamp(0.0, 1.0) * 255.0 + 0.5).to(torch.uint8)
    return PointCloud(position.numpy(), colour.numpy())


def _colours(
    city: CityBlocks, surfaces: Surfaces, surface: torch.Tensor, position: torch.Tensor, width: float
) -> torch.Tensor:
    """Colours of points on surfaces, averaged over a width in metres, [n, 3]."""
    widths = torch.full((2, len(position)), width, device=position.device)
    columns = position.T.contiguous()
    return surface_colour(city, surfaces.face[surface], surfaces.block[surface], columns, widths).T


def _meadow_points(city: CityBlocks, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on the meadow, [n, 3], and their colours."""
    ids = torch.arange(count, dtype=torch.int64)
    s, t, r = (uniform(city.seed, _STREAM_AROUND + k, ids) for k in range(3))
    out = 0.5 * city.side + SURROUNDINGS * r
    # On one of the four sides of a square ring.
    along, quarter = (2.0 * s - 1.0) * out, torch.floor(4.0 * t)
    x = torch.where(quarter < 2, along, torch.where(quarter == 2, out, -out))
    y = torch.where(quarter < 2, torch.where(quarter == 0, out, -out), along)
    position = torch.stack([x, y, torch.zeros(count)])
    ground = torch.full((count,), GROUND, dtype=torch.int64)
    colour = surface_colour(city, ground, torch.zeros_like(ground), position, torch.full((2, count), 0.1))
    return position.T, colour.T


def _dome_points(city: CityBlocks, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on a half sphere three times as wide as the city and its meadow, [n, 3], and their colours."""
    ids = torch.arange(count, dtype=torch.int64)
    z = uniform(city.seed, _STREAM_AROUND + 3, ids)
    turn = 2.0 * math.pi * uniform(city.seed, _STREAM_AROUND + 4, ids)
    level = torch.sqrt(1.0 - z * z)
    direction = torch.stack([level * torch.cos(turn), level * torch.sin(turn), z])
    radius = 3.0 * (0.5 * city.side + SURROUNDINGS)
    return radius * direction.T, sky_colour(direction).T


def _turned(frame: torch.Tensor, half_angle: torch.Tensor) -> torch.Tensor:
    """Quaternions [n, 4] turned about their own third axis by twice the angle [n]."""
    w, x, y, z = frame.T
    # In float64, like `normal`: the last bit must not depend on what is read together.
    c, s = (f(half_angle.double()).float() for f in (torch.cos, torch.sin))
    return torch.stack([w * c - z * s, x * c + y * s, y * c - x * s, z * c + w * s], dim=1)
