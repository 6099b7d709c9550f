"""Ground-truth images of the procedural city: a ray caster that knows nothing of Gaussians."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cuda_src.camera import Camera
from harness.scenes.blocks import BLOCK, SURROUNDINGS, CityBlocks
from harness.scenes.facades import EAST, GROUND, NORTH, ROOF, SKY, SOUTH, WEST, sky_colour, surface_colour
from harness.scenes.texture import square_root
from strategies.base import Rect

_RAYS_CPU = 1 << 16
"""Rays traced together on a CPU: their arrays stay in its cache."""
_RAYS_CUDA = 1 << 22
CACHE_BYTES = 1 << 29
"""Images kept, bytes of main memory."""


@dataclass(frozen=True)
class Hits:
    """Where rays end. depth: [N], in lengths of the direction, inf for the sky. face: [N] int64. block: [N] int64."""

    depth: torch.Tensor
    face: torch.Tensor
    block: torch.Tensor


def trace(city: CityBlocks, origin: Sequence[float], direction: torch.Tensor) -> Hits:
    """First hits of rays from one point; direction [3, N] of any length, city on the same device.

    Buildings by a walk through the grid of blocks (Amanatides and Woo 1987) in which only rays still on their way
    take part, then the ground and its surroundings.
    """
    n, device = direction.shape[1], direction.device
    # An axis-parallel ray divides by zero otherwise; 1e-9 bends it by less than a micrometre a kilometre.
    direction = torch.where(direction == 0.0, 1e-9, direction)
    inverse = 1.0 / direction
    depth = torch.full((n,), torch.inf, device=device)
    face = torch.full((n,), SKY, dtype=torch.int64, device=device)
    block = torch.zeros((n,), dtype=torch.int64, device=device)
    _trace_buildings(city, origin, direction, inverse, Hits(depth, face, block))

    ground = -origin[2] * inverse[2]
    reach = 0.5 * city.side + SURROUNDINGS
    inside = torch.maximum((origin[0] + ground * direction[0]).abs(), (origin[1] + ground * direction[1]).abs())
    on_ground = (ground > 0.0) & (ground < depth) & (inside < reach)
    depth = torch.where(on_ground, ground, depth)
    face = torch.where(on_ground, GROUND, face)
    return Hits(depth, face, block)


def _trace_buildings(
    city: CityBlocks, origin: Sequence[float], direction: torch.Tensor, inverse: torch.Tensor, hits: Hits
) -> None:
    """Write the first hits on buildings; rays that hit none are left as they are."""
    half, count = 0.5 * city.side, city.blocks
    lo, hi = (-half, -half, 0.0), (half, half, city.tallest)
    a = torch.stack([(lo[k] - origin[k]) * inverse[k] for k in range(3)])
    b = torch.stack([(hi[k] - origin[k]) * inverse[k] for k in range(3)])
    enter = torch.minimum(a, b).amax(0).clamp(min=0.0)
    end = torch.maximum(a, b).amin(0)
    rays = (enter < end).nonzero()[:, 0]
    inverse, end, enter, direction = inverse[:, rays], end[rays], enter[rays], direction[:, rays]

    def first_cell(axis: int) -> torch.Tensor:
        at = (origin[axis] + enter * direction[axis] + half) * (1.0 / BLOCK)
        return torch.floor(at).clamp(0, count - 1).to(torch.int64)

    def first_border(axis: int, cell: torch.Tensor) -> torch.Tensor:
        ahead = (cell + (inverse[axis] > 0)).to(torch.float32) * BLOCK - half
        return (ahead - origin[axis]) * inverse[axis]

    ix, iy = first_cell(0), first_cell(1)
    next_x, next_y = first_border(0, ix), first_border(1, iy)
    while len(rays):
        block = iy * count + ix
        box = city.boxes[:, block]
        x0, x1 = (box[0] - origin[0]) * inverse[0], (box[1] - origin[0]) * inverse[0]
        y0, y1 = (box[2] - origin[1]) * inverse[1], (box[3] - origin[1]) * inverse[1]
        z0, z1 = -origin[2] * inverse[2], (box[4] - origin[2]) * inverse[2]
        near_x, near_y, near_z = torch.minimum(x0, x1), torch.minimum(y0, y1), torch.minimum(z0, z1)
        near = torch.maximum(torch.maximum(near_x, near_y), near_z)
        far = torch.minimum(torch.minimum(torch.maximum(x0, x1), torch.maximum(y0, y1)), torch.maximum(z0, z1))
        hit = (near < far) & (near > 0.0)
        found = hit.nonzero()[:, 0]
        if len(found):
            wall_x = torch.where(inverse[0] > 0, WEST, EAST)
            wall_y = torch.where(inverse[1] > 0, SOUTH, NORTH)
            face = torch.where(near == near_x, wall_x, torch.where(near == near_y, wall_y, ROOF))
            target = rays[found]
            hits.depth[target], hits.face[target], hits.block[target] = near[found], face[found], block[found]
        along_x = next_x < next_y
        ix = ix + torch.where(along_x, torch.where(inverse[0] > 0, 1, -1), 0)
        iy = iy + torch.where(along_x, 0, torch.where(inverse[1] > 0, 1, -1))
        going = ~hit & (torch.minimum(next_x, next_y) < end)
        going &= (ix >= 0) & (ix < count) & (iy >= 0) & (iy < count)
        next_x = torch.where(along_x, next_x + BLOCK * inverse[0].abs(), next_x)
        next_y = torch.where(along_x, next_y, next_y + BLOCK * inverse[1].abs())
        keep = going.nonzero()[:, 0]
        rays, ix, iy, end = rays[keep], ix[keep], iy[keep], end[keep]
        next_x, next_y, inverse = next_x[keep], next_y[keep], inverse[:, keep]


def pixel_directions(camera: Camera, pixels: torch.Tensor) -> torch.Tensor:
    """World directions of pixels numbered row by row, [3, N], of view depth 1.

    pixels: [N] int64. Written out by components, so that a pixel's direction does not depend on its neighbours.
    """
    x = (pixels % camera.width).to(torch.float32)
    y = torch.div(pixels, camera.width, rounding_mode="floor").to(torch.float32)
    right, down = (x + (0.5 - camera.cx)) * (1.0 / camera.fx), (y + (0.5 - camera.cy)) * (1.0 / camera.fy)
    to_camera = camera.world_to_camera[:3, :3]
    return torch.stack(
        [right * float(to_camera[0, k]) + down * float(to_camera[1, k]) + float(to_camera[2, k]) for k in range(3)]
    )


def cast(city: CityBlocks, camera: Camera, pixels: torch.Tensor) -> torch.Tensor:
    """Colours of pixels numbered row by row, [N, 3] uint8 on their device, where the city's tables are too."""
    direction = pixel_directions(camera, pixels)
    origin = [float(v) for v in camera.centre]
    hits = trace(city, origin, direction)
    colour = sky_colour(direction)
    seen = ((hits.face != SKY) & (hits.depth <= camera.far)).nonzero()[:, 0]
    if len(seen):
        depth, face, ray = hits.depth[seen], hits.face[seen], direction[:, seen]
        position = torch.stack([origin[k] + depth * ray[k] for k in range(3)])
        widths = footprint(camera, depth, face, ray)
        colour[:, seen] = surface_colour(city, face, hits.block[seen], position, widths)
    return (colour * 255.0 + 0.5).floor().to(torch.uint8).T.contiguous()


def footprint(camera: Camera, depth: torch.Tensor, face: torch.Tensor, ray: torch.Tensor) -> torch.Tensor:
    """Widths of pixels on the surfaces they see, along the surfaces' axes, [2, N] metres.

    A pixel's side p at that depth, carried along the ray d onto a plane with normal n, spans
    p sqrt(1 + (d_s / d_n)^2) along the plane's axis s.
    """
    flat, across = face >= ROOF, face < SOUTH
    normal = torch.where(flat, ray[2], torch.where(across, ray[0], ray[1]))
    first = torch.where(across, ray[1], ray[0])
    second = torch.where(flat, ray[1], ray[2])
    pixel = depth * (1.0 / min(camera.fx, camera.fy))
    first, second = first / normal, second / normal
    return torch.stack([pixel * square_root(1.0 + first * first), pixel * square_root(1.0 + second * second)])


class CityImages:
    """ImageSource that casts what is asked for and keeps the latest images in main memory."""

    def __init__(self, city: CityBlocks, cameras: Sequence[Camera], cache_bytes: int = CACHE_BYTES):
        self._city = {torch.device("cpu"): city}
        self._cameras = tuple(cameras)
        self._cache: OrderedDict[tuple[int, Rect], torch.Tensor] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._cached = 0
        self._lock = threading.Lock()

    @property
    def cached_bytes(self) -> int:
        """Bytes of the images kept."""
        return self._cached

    def region(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        """Those pixels of the view, [h, w, 3] uint8: the crop of the whole image, bit for bit. Not to be written."""
        device = torch.device(device)
        whole = Rect.whole(self._cameras[view])
        with self._lock:
            for held in (whole, rect):
                image = self._cache.get((view, held))
                if image is not None:
                    self._cache.move_to_end((view, held))
                    dx, dy = held.x0, held.y0
                    return image[rect.y0 - dy : rect.y1 - dy, rect.x0 - dx : rect.x1 - dx].to(device)
            image = self._cast(view, rect, device)
            self._keep((view, rect), image.cpu())
            return image

    def mask(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor | None:
        """None: every pixel counts."""
        return None

    def _cast(self, view: int, rect: Rect, device: torch.device) -> torch.Tensor:
        if device not in self._city:
            self._city[device] = self._city[torch.device("cpu")].on(device)
        width, height = rect.x1 - rect.x0, rect.y1 - rect.y0
        image = torch.empty(height * width, 3, dtype=torch.uint8, device=device)
        step = _RAYS_CUDA if device.type == "cuda" else _RAYS_CPU
        for lo in range(0, height * width, step):
            local = torch.arange(lo, min(lo + step, height * width), device=device)
            y = torch.div(local, width, rounding_mode="floor")
            pixels = (y + rect.y0) * self._cameras[view].width + local - y * width + rect.x0
            image[lo : lo + step] = cast(self._city[device], self._cameras[view], pixels)
        return image.view(height, width, 3)

    def _keep(self, key: tuple[int, Rect], image: torch.Tensor) -> None:
        self._cache[key] = image
        self._cached += image.numel()
        while self._cached > self._cache_bytes and len(self._cache) > 1:
            self._cached -= self._cache.popitem(last=False)[1].numel()
