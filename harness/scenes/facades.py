"""What the surfaces of the procedural city look like: walls, roofs, streets, meadow and sky.

Colours are sRGB in [0, 1], [3, N]; they depend on the place alone, never on the viewer, with one fixed sun.
Widths are metres over which a colour is averaged (see texture.py).
"""

from __future__ import annotations

import torch

from harness.scenes.blocks import BLOCK, CORNICE, GROUND_FLOOR, PARK, PAVEMENT, ROAD, SQUARE, SURROUNDINGS, CityBlocks
from harness.scenes.texture import band, blend, constant, lattice_noise, square_root, stripes
from strategies.randomness import uniform

WEST, EAST, SOUTH, NORTH, ROOF, GROUND, SKY = range(7)
"""Faces: walls by the side they look to (-x, +x, -y, +y), then what is horizontal, then nothing."""

_SUN = (0.70, 1.0, 0.60, 0.86)
"""Brightness of the four walls under the fixed sun; horizontal surfaces have 1."""

_STREAM_WINDOW = 130
_HAZE = (0.78, 0.83, 0.88)
_ZENITH = (0.33, 0.54, 0.84)
_NARROWEST = 0.01
"""Metres; keeps the quotients of texture.py accurate in float32."""


def surface_colour(
    city: CityBlocks,
    face: torch.Tensor,
    block: torch.Tensor,
    position: torch.Tensor,
    widths: torch.Tensor,
) -> torch.Tensor:
    """Colours of points on walls, roofs and the ground, [3, N].

    face: [N], WEST to GROUND. block: [N] int64, of walls and roofs. position: [3, N] world. widths: [2, N] metres
    along the surface's own axes: (x or y, z) on walls, (x, y) on roofs and ground.
    """
    colour = torch.empty_like(position)
    widths = widths.clamp(min=_NARROWEST)
    for rows, paint in (
        ((face < ROOF).nonzero()[:, 0], _wall),
        ((face == ROOF).nonzero()[:, 0], _roof),
        ((face == GROUND).nonzero()[:, 0], _ground),
    ):
        if len(rows):
            colour[:, rows] = paint(city, face[rows], block[rows], position[:, rows], widths[:, rows])
    return colour.clamp(0.0, 1.0)


def sky_colour(direction: torch.Tensor) -> torch.Tensor:
    """Colour of the sky in a direction [3, N] of any length: haze at and below the horizon, blue above."""
    x, y, z = direction
    rise = (z / square_root(x * x + y * y + z * z)).clamp(min=0.0)
    device = direction.device
    return blend(constant(_HAZE, device), constant(_ZENITH, device), square_root(rise))


def _wall(
    city: CityBlocks, face: torch.Tensor, block: torch.Tensor, position: torch.Tensor, widths: torch.Tensor
) -> torch.Tensor:
    """Rows of framed windows over a glazed ground floor with an awning, under a cornice."""
    device = position.device
    box = city.boxes[:, block]
    across = face < SOUTH  # a wall that looks along x runs along y
    lo, hi = torch.where(across, box[2], box[0]), torch.where(across, box[3], box[1])
    along, up = torch.where(across, position[1], position[0]) - lo, position[2]
    height, storey = box[4], city.storey[block]
    bay = (hi - lo) / torch.where(across, city.bays[1, block], city.bays[0, block])
    s, t = along / bay, (up - GROUND_FLOOR) / storey
    width, rise = widths
    s_width, t_width = width / bay, rise / storey
    base = city.wall[:, block]

    grain = lattice_noise(city.noise, along * 0.3 + 7.0 * block, up * 0.3, 0.3 * torch.maximum(width, rise))
    shade = (1.0 + 0.10 * grain) * (0.80 + 0.20 * (0.2 * up).clamp(max=1.0))
    colour = base * shade
    upper = band(up, GROUND_FLOOR, height - CORNICE, rise)
    colour = colour * (1.0 - 0.16 * upper * stripes(t, 0.0, 0.07, t_width))

    half_s, half_t = 0.5 * city.window[0, block], 0.5 * city.window[1, block]
    edge_s, edge_t = 0.14 / bay, 0.14 / storey
    outer_s, outer_t = (half_s + edge_s).clamp(max=0.5), half_t + edge_t
    frame = (
        upper * stripes(s, 0.5 - outer_s, 0.5 + outer_s, s_width) * stripes(t, 0.5 - outer_t, 0.5 + outer_t, t_width)
    )
    glass = upper * stripes(s, 0.5 - half_s, 0.5 + half_s, s_width) * stripes(t, 0.5 - half_t, 0.5 + half_t, t_width)
    colour = blend(colour, 0.5 + 0.45 * base, frame)
    # Every window has its own brightness, as rooms, curtains and reflections do; from afar only the mean is seen.
    storey_number = torch.floor(t).to(torch.int64).clamp(min=-1) + 1
    window = ((block * 4 + face) * 64 + storey_number) * 64 + torch.floor(s).to(torch.int64)
    chance = uniform(city.seed, _STREAM_WINDOW, window)
    near = (1.5 - torch.maximum(s_width, t_width)).clamp(min=0.0, max=1.0)
    bright = 0.5 + (chance - 0.5) * near
    dark_glass, bright_glass = constant((0.12, 0.16, 0.22), device), constant((0.46, 0.55, 0.64), device)
    pane = blend(dark_glass, bright_glass, bright * bright)
    colour = blend(colour, pane, glass)

    shop = band(up, 0.6, 3.0, rise) * stripes(s, 0.07, 0.93, s_width)
    colour = blend(colour, blend(dark_glass, constant((0.78, 0.70, 0.52), device), 0.7 * bright), shop)
    awning = base.flip(0) * (0.75 + 0.25 * stripes(s, 0.0, 0.5, s_width, 0.25))
    colour = blend(colour, awning, band(up, 3.1, 3.8, rise))
    colour = blend(colour, 0.72 * base, 1.0 - band(up, -1.0, height - CORNICE, rise))
    return colour * torch.tensor(_SUN, device=device)[face.to(torch.int64)]


def _roof(
    city: CityBlocks, face: torch.Tensor, block: torch.Tensor, position: torch.Tensor, widths: torch.Tensor
) -> torch.Tensor:
    """A flat roof with seams, a few raised units drawn on it, and a parapet in the wall's colour."""
    device = position.device
    x, y, _ = position
    x0, x1, y0, y1, _ = city.boxes[:, block]
    wide, deep = widths
    base = city.wall[:, block]
    grain = lattice_noise(city.noise, x * 0.4, y * 0.4, 0.4 * torch.maximum(wide, deep))
    colour = blend(constant((0.46, 0.45, 0.45), device), base, torch.full_like(x, 0.25)) * (1.0 + 0.12 * grain)
    seams = torch.maximum(stripes(x - x0, 0.0, 0.06, wide, 3.0), stripes(y - y0, 0.0, 0.06, deep, 3.0))
    colour = colour * (1.0 - 0.25 * seams)
    units = stripes(x - x0, 0.35, 0.65, wide, 6.0) * stripes(y - y0, 0.4, 0.7, deep, 5.0)
    colour = blend(colour, constant((0.72, 0.73, 0.75), device), units)
    inside = band(x, x0 + 0.5, x1 - 0.5, wide) * band(y, y0 + 0.5, y1 - 0.5, deep)
    return blend(0.4 + 0.5 * base, colour, inside)


def _ground(
    city: CityBlocks, face: torch.Tensor, block: torch.Tensor, position: torch.Tensor, widths: torch.Tensor
) -> torch.Tensor:
    """Streets with markings and crossings, pavements, yards, parks and squares; a meadow around the city."""
    device = position.device
    x, y, _ = position
    wide, deep = widths
    widest = torch.maximum(wide, deep)
    column, row = (torch.floor(v * (1.0 / BLOCK) + 0.5 * city.blocks) for v in (x, y))
    east, north = x - (column - 0.5 * city.blocks) * BLOCK, y - (row - 0.5 * city.blocks) * BLOCK
    from_x, from_y = torch.minimum(east, BLOCK - east), torch.minimum(north, BLOCK - north)
    last = city.blocks - 1
    here = row.clamp(0, last).to(torch.int64) * city.blocks + column.clamp(0, last).to(torch.int64)
    use = city.use[here]
    coarse = lattice_noise(city.noise, x * 0.25, y * 0.25, 0.25 * widest)
    fine = lattice_noise(city.noise, x * 1.5, y * 1.5, 1.5 * widest)

    park, square = (use == PARK).float(), (use == SQUARE).float()
    paving = constant((0.60, 0.57, 0.53), device)
    yard = blend(paving, city.wall[:, here], torch.full_like(x, 0.2)) * (1.0 + 0.06 * coarse)
    grass = constant((0.30, 0.44, 0.20), device) * (1.0 + 0.20 * coarse + 0.10 * fine)
    walk = torch.maximum(band(from_x, 13.8, 99.0, wide), band(from_y, 13.8, 99.0, deep))
    lawn = blend(grass, constant((0.70, 0.64, 0.52), device), walk)
    slabs = stripes(east, 0.0, 0.5, wide, 4.0)
    checks = slabs + (1.0 - 2.0 * slabs) * stripes(north, 0.0, 0.5, deep, 4.0)
    plaza = constant((0.72, 0.60, 0.50), device) * (0.82 + 0.25 * checks)
    colour = blend(blend(yard, lawn, park), plaza, square)

    joints = torch.maximum(stripes(east, 0.0, 0.06, wide, 1.5), stripes(north, 0.0, 0.06, deep, 1.5))
    pavement = constant((0.66, 0.65, 0.63), device) * (1.0 + 0.05 * coarse - 0.15 * joints)
    reach_x, reach_y = band(from_x, -99.0, PAVEMENT, wide), band(from_y, -99.0, PAVEMENT, deep)
    colour = blend(colour, pavement, reach_x + reach_y - reach_x * reach_y)
    road_x, road_y = band(from_x, -99.0, ROAD, wide), band(from_y, -99.0, ROAD, deep)
    asphalt = constant((0.27, 0.27, 0.29), device) * (1.0 + 0.12 * coarse + 0.08 * fine)
    colour = blend(colour, asphalt, road_x + road_y - road_x * road_y)

    def markings(
        off: torch.Tensor, on: torch.Tensor, run: torch.Tensor, w: torch.Tensor, l: torch.Tensor
    ) -> torch.Tensor:
        """Dashes in the middle of a street and a zebra at its ends. off: from its middle; on: from a crossing."""
        dashes = band(off, -99.0, 0.12, w) * stripes(run, 0.25, 0.75, l, 3.0) * band(on, 8.5, 99.0, l)
        zebra = band(off, -99.0, 3.6, w) * stripes(off, 0.25, 0.75, w, 1.2) * band(on, 4.6, 7.4, l)
        return dashes + zebra

    paint = markings(from_x, from_y, north, wide, deep) + markings(from_y, from_x, east, deep, wide)
    colour = blend(colour, constant((0.88, 0.88, 0.84), device), paint.clamp(max=1.0))

    beyond = torch.maximum(x.abs(), y.abs()) - (0.5 * city.side + PAVEMENT)
    meadow = constant((0.42, 0.50, 0.28), device) * (1.0 + 0.15 * coarse)
    meadow = blend(meadow, constant(_HAZE, device), (beyond * (1.0 / (SURROUNDINGS - PAVEMENT))).clamp(0.0, 1.0))
    return blend(colour, meadow, band(beyond, 0.0, 1e9, widest))
