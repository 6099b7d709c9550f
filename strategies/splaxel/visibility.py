"""What a view sees of each box: its region of the image, its stretch of every ray, and the plates of its splats.

A region needs no communication: frustum and box are convex, so the projected vertices of their intersection bound it
(Splaxel).
"""

from __future__ import annotations

import itertools

import numpy as np
import torch

from cuda_src import layout
from cuda_src.camera import TILE, Camera
from cuda_src.operators import KernelSet, Splats
from strategies.splaxel import subtiles

HORIZON = 1e7
"""World units at which an endless frustum is cut: a point beyond it projects where its direction does."""
PIXEL_SLACK = 1.0
"""Pixels by which regions are larger than the projection, far beyond its rounding."""
PLATE_SLACK = 1e-5
"""Relative slack of a plate: a copy too many costs a record, one too few a splat."""


def region(camera: Camera, near: float, corners: np.ndarray, margin: float = 0.0) -> torch.Tensor:
    """Sub-tiles that the box's part of the frustum projects onto, dilated by `margin` pixels.

    corners: [2, 3], may be infinite. The frustum is widened by the margin too: what lies beyond the image's border
    may still reach into it.
    """
    margin += PIXEL_SLACK
    points = _visible_vertices(camera, near, corners, margin)
    if not len(points):
        return torch.zeros(subtiles.grid_shape(camera), dtype=torch.bool)
    view = points @ camera.world_to_camera[:3, :3].T + camera.world_to_camera[:3, 3]
    x = camera.fx * view[:, 0] / view[:, 2] + camera.cx
    y = camera.fy * view[:, 1] / view[:, 2] + camera.cy
    return _covered(camera, _hull(np.stack([x, y], axis=1)), margin)


def _visible_vertices(camera: Camera, near: float, corners: np.ndarray, margin: float) -> np.ndarray:
    """Vertices of frustum ∩ box, [n, 3] in the world; some inner points may be among them.

    A vertex of two polytopes' intersection is the end of an edge of one, clipped by the other.
    """
    far = min(camera.far, HORIZON)
    x = (np.array([-margin, camera.width + margin]) - camera.cx) / camera.fx
    y = (np.array([-margin, camera.height + margin]) - camera.cy) / camera.fy
    ends = np.array([[u * z, v * z, z] for z in (near, far) for v in y for u in x])
    rotation, translation = camera.world_to_camera[:3, :3], camera.world_to_camera[:3, 3]
    frustum = (ends - translation) @ rotation
    lower = np.maximum(corners[0], frustum.min(axis=0))
    upper = np.minimum(corners[1], frustum.max(axis=0))
    if (lower > upper).any():
        return np.empty((0, 3))
    box = np.array(list(itertools.product(*zip(lower, upper, strict=True))))[:, [0, 1, 2]]
    # In the camera's frame a side is u >= x0, that is x - x0 z >= 0.
    sides = np.array(
        [[1, 0, -x[0], 0], [-1, 0, x[1], 0], [0, 1, -y[0], 0], [0, -1, y[1], 0], [0, 0, 1, -near], [0, 0, -1, far]]
    )
    normals = sides[:, :3] @ rotation
    frustum_planes = np.concatenate([normals, (sides[:, :3] @ translation + sides[:, 3])[:, None]], axis=1)
    identity = np.eye(3)
    box_planes = np.concatenate(
        [np.c_[identity, -lower], np.c_[-identity, upper]],
    )
    return np.concatenate(
        [_clipped(box, _EDGES, frustum_planes), _clipped(frustum, _EDGES, box_planes)],
    )


_EDGES = np.array([(a, b) for a in range(8) for b in range(a + 1, 8) if (a ^ b).bit_count() == 1])
"""Edges of anything shaped like a cube whose corner numbers are the bits of their sides."""


def _clipped(points: np.ndarray, edges: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """End points of the edges' parts on the inner side (n x + c >= 0) of all planes, [n, 3]."""
    a, b = points[edges[:, 0]], points[edges[:, 1]]
    from_a, from_b = a @ planes[:, :3].T + planes[:, 3], b @ planes[:, :3].T + planes[:, 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = from_a / (from_a - from_b)
    enter = np.where(from_a < 0, np.where(from_b < 0, np.inf, crossing), 0.0).max(axis=1)
    leave = np.where(from_b < 0, np.where(from_a < 0, -np.inf, crossing), 1.0).min(axis=1)
    kept = enter <= leave
    step = (b - a)[kept]
    return np.concatenate([a[kept] + enter[kept, None] * step, a[kept] + leave[kept, None] * step])


def _hull(points: np.ndarray) -> np.ndarray:
    """Convex hull, counter-clockwise (Andrew's monotone chain, 1979), [n, 2]."""
    points = np.array(sorted(set(map(tuple, points.tolist()))))
    if len(points) < 3:
        return points

    def chain(ordered: np.ndarray) -> list[np.ndarray]:
        kept: list[np.ndarray] = []
        for p in ordered:
            while len(kept) > 1 and _cross(kept[-1] - kept[-2], p - kept[-2]) <= 0:
                kept.pop()
            kept.append(p)
        return kept[:-1]

    return np.array(chain(points) + chain(points[::-1]))


def _cross(a: np.ndarray, b: np.ndarray) -> float:
    return float(a[0] * b[1] - a[1] * b[0])


def _covered(camera: Camera, polygon: np.ndarray, margin: float) -> torch.Tensor:
    """Sub-tiles whose rectangle comes within `margin` of the convex polygon (separating axes).

    In a row of the grid those on the inner side of an edge are a run of columns that begins or ends at the border.
    """
    rows, columns = subtiles.grid_shape(camera)
    left, top = np.arange(columns) * subtiles.WIDTH - margin, np.arange(rows) * subtiles.HEIGHT - margin
    right, bottom = left + subtiles.WIDTH + 2 * margin, top + subtiles.HEIGHT + 2 * margin
    across = (left <= polygon[:, 0].max()) & (right >= polygon[:, 0].min()) & (left - camera.width < -margin)
    along = (top <= polygon[:, 1].max()) & (bottom >= polygon[:, 1].min()) & (top - camera.height < -margin)
    first, last = np.zeros(rows, dtype=np.int64), np.full(rows, columns)
    for start, end in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        nx, ny = end[1] - start[1], start[0] - end[0]
        # The outward normal of a counter-clockwise edge; the rectangle's corner farthest inside decides.
        most = nx * start[0] + ny * start[1] + 1e-9 * (abs(nx) + abs(ny)) * camera.width
        most_across = most - ny * (top if ny > 0 else bottom)
        if nx > 0:
            last = np.minimum(last, np.searchsorted(nx * left, most_across, side="right"))
        else:
            first = np.maximum(first, columns - np.searchsorted((nx * right)[::-1], most_across, side="right"))
    column = np.arange(columns)
    inside = (first[:, None] <= column) & (column < last[:, None])
    return torch.from_numpy(along[:, None] & across[None, :] & inside)


class Rays:
    """The rays through a camera's pixel centres."""

    def __init__(self, camera: Camera, device: torch.device):
        self.camera, self.device = camera, device
        self._along: dict[int, torch.Tensor] = {}

    def along(self, axis: int) -> torch.Tensor:
        """How far each ray gets along an axis of the world for a unit of view depth, [H, W] float64."""
        if axis not in self._along:
            camera, (right, down, ahead) = self.camera, self.camera.world_to_camera[:3, axis].tolist()
            x, y = (
                (torch.arange(pixels, dtype=torch.float64, device=self.device) + 0.5 - centre) / focal
                for pixels, centre, focal in (
                    (camera.width, camera.cx, camera.fx),
                    (camera.height, camera.cy, camera.fy),
                )
            )
            self._along[axis] = right * x[None, :] + down * y[:, None] + ahead
        return self._along[axis]


def depth_interval(rays: Rays, corners: np.ndarray) -> torch.Tensor:
    """View depths [in, out) at which each pixel's ray is inside the box, [H, W, 2] float64; empty where in >= out.

    A face's crossing depth is the same expression for the boxes on both of its sides, bit for bit, and so is what a
    rounding makes of it: the intervals of all boxes share the ray out without gap or overlap.
    """
    camera = rays.camera
    size = (camera.height, camera.width)
    enter = torch.full(size, -torch.inf, dtype=torch.float64, device=rays.device)
    leave = torch.full_like(enter, torch.inf)
    for axis in range(3):
        start = float(camera.centre[axis])
        for side, face in enumerate(corners[:, axis].tolist()):
            if np.isinf(face):
                continue
            step = rays.along(axis)
            crossing = (face - start) / step
            # Parallel to the face the ray never crosses: it is on the face's inner side all along, or nowhere.
            inside = start >= face if side == 0 else start < face
            crossing = torch.where(step == 0, -torch.inf if inside == (side == 0) else torch.inf, crossing)
            entering = (step >= 0) if side == 0 else (step < 0)
            enter = torch.where(entering, torch.maximum(enter, crossing), enter)
            leave = torch.where(entering, leave, torch.minimum(leave, crossing))
    return torch.stack([enter, leave], dim=-1)


def footprint_rectangles(kernels: KernelSet, records: torch.Tensor, camera: Camera, clip: bool = True) -> torch.Tensor:
    """Pixels a splat may be blended at, [V, 4] float64: x0, y0, x1, y1; clip: inside the image.

    `ellipse`: bounds of the level set alpha = alpha_min. `square`: whole tiles, since a listed tile blends the splat
    wherever alpha allows it.
    """
    table = records.double()
    centre = table[:, layout.RECORD_MEAN2D]
    if kernels.footprint == "ellipse":
        a, b, c = table[:, layout.RECORD_CONIC].unbind(dim=1)
        reach = torch.log(table[:, layout.RECORD_OPACITY] / kernels.convention.alpha_min).clamp(min=0)
        half = torch.sqrt(2 * reach[:, None] * torch.stack([c, a], dim=1) / (a * c - b * b)[:, None])
        low, high = centre - half - PIXEL_SLACK, centre + half + PIXEL_SLACK
    else:
        half = table[:, layout.RECORD_RADIUS, None] + PIXEL_SLACK
        low = torch.floor((centre - half) / TILE) * TILE
        high = torch.ceil((centre + half) / TILE) * TILE
    if not clip:
        return torch.cat([low, high], dim=1)
    size = torch.tensor([camera.width, camera.height], dtype=torch.float64, device=table.device)
    zero = torch.zeros_like(size)
    return torch.cat([low.clamp(zero, size), high.clamp(zero, size)], dim=1)


def plates(kernels: KernelSet, splats: Splats, camera: Camera) -> torch.Tensor:
    """World bounds of each splat's plate, its footprint rectangle at its view depth: [V, 2, 3] float64."""
    rectangle = footprint_rectangles(kernels, splats.records, camera)
    depth = splats.records[:, layout.RECORD_DEPTH].double()
    corners = []
    for x, y in itertools.product((0, 2), (1, 3)):
        u = (rectangle[:, x] - camera.cx) / camera.fx
        v = (rectangle[:, y] - camera.cy) / camera.fy
        corners.append(torch.stack([u * depth, v * depth, depth], dim=1))
    pose = torch.as_tensor(camera.world_to_camera, dtype=torch.float64, device=depth.device)
    world = (torch.stack(corners) - pose[:3, 3]) @ pose[:3, :3]
    slack = PLATE_SLACK * (depth[:, None] + world.abs().amax(dim=0))
    return torch.stack([world.amin(dim=0) - slack, world.amax(dim=0) + slack], dim=1)


def meets(plate_bounds: torch.Tensor, corners: np.ndarray) -> torch.Tensor:
    """Which plates may hold a point of the box, [V] bool; corners [2, 3]."""
    box = torch.as_tensor(corners, dtype=torch.float64, device=plate_bounds.device)
    return ((plate_bounds[:, 0] <= box[1]) & (plate_bounds[:, 1] >= box[0])).all(dim=1)


def straddles(plate_bounds: torch.Tensor, corners: np.ndarray) -> torch.Tensor:
    """Which plates reach out of the box, [V] bool."""
    box = torch.as_tensor(corners, dtype=torch.float64, device=plate_bounds.device)
    return ((plate_bounds[:, 0] < box[0]) | (plate_bounds[:, 1] > box[1])).any(dim=1)
