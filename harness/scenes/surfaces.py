"""The surfaces of the procedural city as rectangles, and points spread over them by number."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch

from harness.scenes.blocks import BLOCK, CityBlocks
from harness.scenes.facades import EAST, GROUND, NORTH, ROOF, SOUTH, WEST
from strategies.randomness import bits, uniform

_STREAM_SHIFT_U, _STREAM_SHIFT_V, _STREAM_JITTER_U, _STREAM_JITTER_V = range(160, 164)
# Roberts 2018, the R2 sequence: 1 / phi and 1 / phi^2 for the plastic number phi, as fractions of 2^64 in int64.
_R2_U = round(0.7548776662466927 * 2**64) - 2**64
_R2_V = round(0.5698402909980532 * 2**64) - 2**64

# w x y z of the rotation that takes (x, y, z) to (first axis, second axis, normal), by face.
_HALF = math.sqrt(0.5)
_FRAMES = {
    WEST: (0.5, 0.5, 0.5, 0.5),
    EAST: (0.5, 0.5, 0.5, 0.5),
    SOUTH: (_HALF, _HALF, 0.0, 0.0),
    NORTH: (_HALF, _HALF, 0.0, 0.0),
    ROOF: (1.0, 0.0, 0.0, 0.0),
    GROUND: (1.0, 0.0, 0.0, 0.0),
}


@dataclass(frozen=True)
class Surfaces:
    """S rectangles with `count` points spread over them by area.

    corner, first, second: [S, 3] float32, a corner and the two edges from it. frame: [S, 4] float32 quaternion
    (w x y z) whose axes are the directions of the edges and the normal. face, block: [S] int64. starts: [S + 1]
    int64, the points of surface s are numbered starts[s] to starts[s + 1]. jitter: [S] float32, half a spacing as a
    share of the surface. spacing: metres, root of the area a point.
    """

    seed: int
    count: int
    corner: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    frame: torch.Tensor
    face: torch.Tensor
    block: torch.Tensor
    starts: torch.Tensor
    jitter: torch.Tensor
    spacing: float

    def on(self, device: torch.device) -> Surfaces:
        """The same with its tables on the device."""
        tables = {
            f.name: getattr(self, f.name).to(device)
            for f in fields(self)
            if isinstance(getattr(self, f.name), torch.Tensor)
        }
        return replace(self, **tables)

    def surface(self, ids: torch.Tensor) -> torch.Tensor:
        """Which surface points lie on, [n] int64."""
        return torch.searchsorted(self.starts, ids, right=True) - 1

    def positions(self, ids: torch.Tensor, surface: torch.Tensor) -> torch.Tensor:
        """Points by number, [n, 3] float32: a low-discrepancy sequence on each surface, jittered by half a spacing."""
        local = ids - self.starts[surface]
        jitter = self.jitter[surface]
        u = _fraction(bits(self.seed, _STREAM_SHIFT_U, surface) + local * _R2_U)
        v = _fraction(bits(self.seed, _STREAM_SHIFT_V, surface) + local * _R2_V)
        u = _wrapped(u + jitter * (uniform(self.seed, _STREAM_JITTER_U, ids) - 0.5))
        v = _wrapped(v + jitter * (uniform(self.seed, _STREAM_JITTER_V, ids) - 0.5))
        return self.corner[surface] + u[:, None] * self.first[surface] + v[:, None] * self.second[surface]


def city_surfaces(city: CityBlocks, count: int) -> Surfaces:
    """Walls, roofs and ground of the city, block after block, sharing `count` points by area."""
    n = city.blocks * city.blocks
    ids = torch.arange(n, dtype=torch.int64)
    x0, x1, y0, y1, height = city.boxes.double()
    west, south = (ids % city.blocks - city.blocks / 2) * BLOCK, (ids // city.blocks - city.blocks / 2) * BLOCK
    west, south = west.double(), south.double()
    east, north, zero = west + BLOCK, south + BLOCK, torch.zeros(n, dtype=torch.float64)
    # On an open block the hole shrinks to its south-west corner, which leaves one ground rectangle with an area.
    empty = height == 0.0
    x0, x1 = torch.where(empty, west, x0), torch.where(empty, west, x1)
    y0, y1 = torch.where(empty, south, y0), torch.where(empty, south, y1)

    def flat(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.stack([a, c, z, b - a, zero, zero, zero, d - c, zero])

    def along_y(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x, y0, zero, zero, y1 - y0, zero, zero, zero, height])

    def along_x(y: torch.Tensor) -> torch.Tensor:
        return torch.stack([x0, y, zero, x1 - x0, zero, zero, zero, zero, height])

    rectangles = [
        (WEST, along_y(x0)),
        (EAST, along_y(x1)),
        (SOUTH, along_x(y0)),
        (NORTH, along_x(y1)),
        (ROOF, flat(x0, x1, y0, y1, height)),
        # The ground around the building, as a pinwheel of four.
        (GROUND, flat(west, x1, south, y0, zero)),
        (GROUND, flat(x1, east, south, y1, zero)),
        (GROUND, flat(x0, east, y1, north, zero)),
        (GROUND, flat(west, x0, y0, north, zero)),
    ]
    table = torch.stack([r for _, r in rectangles]).permute(2, 0, 1).reshape(-1, 9)
    faces = torch.tensor([face for face, _ in rectangles])
    corner, first, second = table[:, :3], table[:, 3:6], table[:, 6:]
    area = first.norm(dim=1) * second.norm(dim=1)
    shares = torch.cumsum(area, 0) / area.sum()
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.floor(shares * count).to(torch.int64)])
    starts[-1] = count
    return Surfaces(
        seed=city.seed,
        count=count,
        corner=corner.float(),
        first=first.float(),
        second=second.float(),
        frame=torch.tensor([_FRAMES[int(face)] for face in faces]).repeat(n, 1),
        face=faces.repeat(n),
        block=ids.repeat_interleave(len(rectangles)),
        starts=starts,
        jitter=0.5 / torch.sqrt(torch.diff(starts).clamp(min=1).float()),
        spacing=math.sqrt(float(area.sum()) / count),
    )


def _fraction(x: torch.Tensor) -> torch.Tensor:
    """Upper 24 bits of int64 as a fraction in [0, 1), float32."""
    return ((x >> 40) & 0xFFFFFF).to(torch.float32) * (1.0 / (1 << 24))


def _wrapped(x: torch.Tensor) -> torch.Tensor:
    return x - torch.floor(x)
