"""Gaussians to splats, and the gradient back: loops over rows around the scalar projection."""

from __future__ import annotations

import math

import numpy as np
import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet, Splats
from cuda_src.portable.arrays import array
from cuda_src.portable.binning import all_tiles, count_tiles, tile_limits
from cuda_src.portable.placement import by_device
from cuda_src.portable.scalar import HALF, ONE, ZERO, f32, finite, finite_or_zero, loop, piece
from cuda_src.portable.scalar_harmonics import sh_basis, sh_sum, sh_sum_gradient
from cuda_src.portable.scalar_projection import (
    axes_gradient,
    conic_and_radius,
    conic_gradient,
    dot3,
    image_rows,
    image_rows_gradient,
    inverse_length,
    normalised_gradient,
    scaled_axes,
    sigmoid,
    to_view,
    to_world,
    view_axes,
)
from cuda_src.portable.threads import even_ranges, run_ranges
from cuda_src.workspace import Workspace

_SH = 11


def view_constants(kernels: KernelSet, camera: Camera) -> np.ndarray:
    """What the kernels need of a view and a convention, [23] float32.

    0-8 rotation, 9-11 centre, 12-15 fx fy cx cy, 16-19 bounds of x/z and y/z, 20 near plane, 21 dilation,
    22 far plane.
    """
    convention = kernels.convention
    bounds: list[float] = []
    for focal, principal, size in ((camera.fx, camera.cx, camera.width), (camera.fy, camera.cy, camera.height)):
        margin = convention.jacobian_margin * 0.5 * size / focal
        bounds += [-principal / focal - margin, (size - principal) / focal + margin]
    return np.array(
        [
            *camera.world_to_camera[:3, :3].ravel(),
            *camera.centre,
            camera.fx,
            camera.fy,
            camera.cx,
            camera.cy,
            *bounds,
            convention.near,
            convention.dilation,
            camera.far,
        ],
        dtype=np.float32,
    )


@piece
def _pose(view):
    rotation = (view[0], view[1], view[2], view[3], view[4], view[5], view[6], view[7], view[8])
    return rotation, (view[12], view[13], view[14], view[15]), (view[16], view[17], view[18], view[19])


@piece
def _coefficients(gaussian, colour):
    """The 16 SH coefficients of one colour."""
    c = gaussian[_SH + colour :]
    return (
        c[0],
        c[3],
        c[6],
        c[9],
        c[12],
        c[15],
        c[18],
        c[21],
        c[24],
        c[27],
        c[30],
        c[33],
        c[36],
        c[39],
        c[42],
        c[45],
    )


@piece
def _shape(gaussian):
    """Unit quaternion, the inverse of its former length, and scales."""
    w, x, y, z = gaussian[6], gaussian[7], gaussian[8], gaussian[9]
    inverse = inverse_length(w, x, y, z)
    unit = (w * inverse, x * inverse, y * inverse, z * inverse)
    return unit, inverse, (math.exp(gaussian[3]), math.exp(gaussian[4]), math.exp(gaussian[5]))


@piece
def project_row(gaussian, view, sh_degree, alpha_min, record):
    """Fill one splat record; False if the Gaussian is culled by itself (not by the tiles)."""
    rotation, pinhole, bounds = _pose(view)
    ox, oy, oz = gaussian[0] - view[9], gaussian[1] - view[10], gaussian[2] - view[11]
    x, y, z = to_view(rotation, ox, oy, oz)
    # Written so that not-a-number is culled.
    if not (z >= view[20] and z <= view[22] and finite(z)):
        return False
    opacity = sigmoid(gaussian[10])
    if not opacity >= alpha_min:
        return False
    fx, fy, cx, cy = pinhole
    record[0], record[1] = fx * (x / z) + cx, fy * (y / z) + cy
    quaternion, _, scales = _shape(gaussian)
    axes = view_axes(rotation, scaled_axes(quaternion, scales))
    conic, determinant, radius = conic_and_radius(image_rows((x, y, z), axes, pinhole, bounds), view[21])
    if not determinant > ZERO:
        return False
    record[2], record[3], record[4] = conic
    record[5] = opacity
    length = math.sqrt(dot3(ox, oy, oz, ox, oy, oz))
    basis = sh_basis(sh_degree, ox / length, oy / length, oz / length)
    for colour in range(3):
        value = sh_sum(sh_degree, basis, _coefficients(gaussian, colour)) + HALF
        # Not max(): it would hide not-a-number.
        record[6 + colour] = ZERO if value < ZERO else value
    record[9], record[10] = z, radius
    for column in range(layout.RECORD):
        if not finite(record[column]):
            return False
    return record[2] > ZERO and record[4] > ZERO


@loop
def _project_rows(
    lo, hi, parameters, ids, view, sh_degree, alpha_min, ellipse, tile_index, limits, size, rows, own_ids, records
):
    """Project rows [lo, hi) and pack what is visible from position lo on; how many those are."""
    kept = lo
    for row in range(lo, hi):
        record = records[kept]
        if not project_row(parameters[row], view, sh_degree, alpha_min, record):
            continue
        if count_tiles(record, alpha_min, ellipse, tile_index, limits, size, 1):
            rows[kept] = row
            own_ids[kept] = ids[row]
            kept += 1
    return kept - lo


@piece
def differentiate_row(gaussian, record, view, sh_degree, g, result):
    """Gradient of one Gaussian's parameters, from that of its splat."""
    rotation, pinhole, bounds = _pose(view)
    fx, fy, _, _ = pinhole
    ox, oy, oz = gaussian[0] - view[9], gaussian[1] - view[10], gaussian[2] - view[11]
    x, y, z = to_view(rotation, ox, oy, oz)
    unit, inverse, scales = _shape(gaussian)
    axes = view_axes(rotation, scaled_axes(unit, scales))
    image = image_rows((x, y, z), axes, pinhole, bounds)
    by_image = conic_gradient(image, view[21], (g[2], g[3], g[4]))
    (gx, gy, gz), by_axes = image_rows_gradient((x, y, z), axes, pinhole, bounds, image, by_image)
    by_unit, by_log_scale = axes_gradient(rotation, unit, scales, by_axes)
    result[3], result[4], result[5] = by_log_scale
    result[6], result[7], result[8], result[9] = normalised_gradient(unit, inverse, by_unit)

    gx += g[0] * fx / z
    gy += g[1] * fy / z
    gz += g[9] - (g[0] * fx * (x / z) + g[1] * fy * (y / z)) / z
    mx, my, mz = to_world(rotation, gx, gy, gz)

    # Colour: zero where it is clamped, which a record shows as exactly zero.
    red = g[6] if record[6] > ZERO else ZERO
    green = g[7] if record[7] > ZERO else ZERO
    blue = g[8] if record[8] > ZERO else ZERO
    shorter = ONE / math.sqrt(dot3(ox, oy, oz, ox, oy, oz))
    dx, dy, dz = ox * shorter, oy * shorter, oz * shorter
    basis = sh_basis(sh_degree, dx, dy, dz)
    weights = result[_SH:]
    for k in range(layout.SH_COEFFICIENTS):
        c = gaussian[_SH + 3 * k :]
        # Its own place until the direction's gradient is known.
        weights[k] = red * c[0] + green * c[1] + blue * c[2]
    sx, sy, sz = sh_sum_gradient(sh_degree, dx, dy, dz, _first16(weights))
    _, sx, sy, sz = normalised_gradient((ZERO, dx, dy, dz), shorter, (ZERO, sx, sy, sz))
    result[0], result[1], result[2] = mx + sx, my + sy, mz + sz
    result[10] = g[5] * record[5] * (ONE - record[5])
    for k in range(layout.SH_COEFFICIENTS):
        weights[3 * k] = red * basis[k]
        weights[3 * k + 1] = green * basis[k]
        weights[3 * k + 2] = blue * basis[k]
    for column in range(layout.PARAMETERS):
        result[column] = finite_or_zero(result[column])


@loop
def _project_rows_backward(lo, hi, parameters, rows, records, view, sh_degree, gradients, out):
    for v in range(lo, hi):
        differentiate_row(parameters[rows[v]], records[v], view, sh_degree, gradients[v], out[v])


@piece
def _first16(s):
    return s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12], s[13], s[14], s[15]


@by_device
def project(
    kernels: KernelSet,
    parameters: torch.Tensor,
    ids: torch.Tensor,
    camera: Camera,
    sh_degree: int,
    workspace: Workspace,
) -> Splats:
    """See `cuda_src.operators.project`."""
    count = parameters.shape[0]
    ranges = even_ranges(count, kernels.threads)
    rows = workspace.take("project.rows", (count,), torch.int64)
    own_ids = workspace.take("project.ids", (count,), torch.int64)
    records = workspace.take("project.records", (count, layout.RECORD))
    kept = [0] * len(ranges)
    arrays = (array(parameters), array(ids), view_constants(kernels, camera), sh_degree)
    footprint = (
        f32(kernels.convention.alpha_min),
        kernels.footprint == "ellipse",
        all_tiles(camera, workspace).numpy(),
        tile_limits(workspace),
        (camera.width, camera.height),
    )
    outputs = (rows.numpy(), own_ids.numpy(), records.numpy())

    def work(chunk: int, lo: int, hi: int) -> None:
        kept[chunk] = _project_rows(lo, hi, *arrays, *footprint, *outputs)

    run_ranges(kernels.threads, ranges, work)

    # Close the gaps between the chunks. Front to back: a chunk only ever moves down, over what is done with.
    total = 0
    for (lo, _), n in zip(ranges, kept, strict=True):
        if n and lo != total:
            for output in outputs:
                output[total : total + n] = output[lo : lo + n]
        total += n
    return Splats(rows[:total], own_ids[:total], records[:total])


@by_device
def project_backward(
    kernels: KernelSet,
    parameters: torch.Tensor,
    splats: Splats,
    camera: Camera,
    sh_degree: int,
    gradients: torch.Tensor,
    workspace: Workspace,
) -> torch.Tensor:
    """See `cuda_src.operators.project_backward`."""
    out = workspace.take("project_backward.gradients", (splats.count, layout.PARAMETERS))
    arrays = (
        array(parameters),
        array(splats.rows),
        array(splats.records),
        view_constants(kernels, camera),
        sh_degree,
        array(gradients),
        out.numpy(),
    )
    run_ranges(
        kernels.threads,
        even_ranges(splats.count, kernels.threads),
        lambda _, lo, hi: _project_rows_backward(lo, hi, *arrays),
    )
    return out
