"""From Gaussians to splats: EWA projection, colour by spherical harmonics, culling; and the gradient of all that.

Sources: EWA splatting (Zwicker et al. 2002); Kerbl et al. 2023, section 4 (covariance from scale and rotation) and
section 6 (culling, dilation in the released code); the harmonics are the real basis with 3DGS's constants and signs.
"""

from __future__ import annotations

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.conventions import Convention
from cuda_src.operators import KernelSet, Splats
from cuda_src.reference.binning import touched_tiles
from cuda_src.workspace import Workspace

_SH0 = 0.28209479177387814
_SH1 = 0.4886025119029199
_SH2 = (1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396)
_SH3 = (
    -0.5900435899266435,
    2.890611442640554,
    -0.4570457994644658,
    0.3731763325901154,
    -0.4570457994644658,
    1.445305721320277,
    -0.5900435899266435,
)


def rotation_matrices(quaternions: torch.Tensor) -> torch.Tensor:
    """[n, 4] wxyz of any length -> [n, 3, 3]. A zero quaternion is the identity, with zero gradient."""
    square = (quaternions * quaternions).sum(dim=1, keepdim=True)
    zero = square == 0
    # Inner `where` keeps 1 / sqrt(0) out of autograd, where it would turn 0 times infinity into NaN.
    unit = quaternions / torch.where(zero, torch.ones_like(square), square).sqrt()
    w, x, y, z = unit.unbind(dim=1)
    return torch.stack(
        [
            torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], dim=1),
            torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], dim=1),
            torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], dim=1),
        ],
        dim=1,
    )


def sh_basis(directions: torch.Tensor, degree: int) -> torch.Tensor:
    """Real spherical harmonics of unit directions [n, 3] -> [n, (degree + 1)^2]."""
    x, y, z = directions.unbind(dim=1)
    values = [torch.full_like(x, _SH0)]
    if degree >= 1:
        values += [-_SH1 * y, _SH1 * z, -_SH1 * x]
    xx, yy, zz = x * x, y * y, z * z
    if degree >= 2:
        values += [
            _SH2[0] * x * y,
            _SH2[1] * y * z,
            _SH2[2] * (2 * zz - xx - yy),
            _SH2[3] * x * z,
            _SH2[4] * (xx - yy),
        ]
    if degree >= 3:
        values += [
            _SH3[0] * y * (3 * xx - yy),
            _SH3[1] * x * y * z,
            _SH3[2] * y * (4 * zz - xx - yy),
            _SH3[3] * z * (2 * zz - 3 * xx - 3 * yy),
            _SH3[4] * x * (4 * zz - xx - yy),
            _SH3[5] * z * (xx - yy),
            _SH3[6] * x * (xx - 3 * yy),
        ]
    return torch.stack(values, dim=1)


def colours(parameters: torch.Tensor, camera: Camera, sh_degree: int) -> torch.Tensor:
    """max(0, SH(direction) + 0.5), [n, 3]; the direction runs from the camera's centre to the mean."""
    centre = torch.as_tensor(camera.centre, dtype=parameters.dtype, device=parameters.device)
    offset = parameters[:, layout.MEAN] - centre
    direction = offset / offset.norm(dim=1, keepdim=True)
    basis = sh_basis(direction, sh_degree)
    coefficients = parameters[:, layout.SH].reshape(-1, layout.SH_COEFFICIENTS, 3)[:, : basis.shape[1]]
    return ((basis[:, :, None] * coefficients).sum(dim=1) + 0.5).relu()


def _conics(parameters: torch.Tensor, view: torch.Tensor, camera: Camera, convention: Convention) -> torch.Tensor:
    """Inverse of the dilated 2-D covariance, and radius: [n, 4] = xx, xy, yy, radius.

    view: [n, 3] means in the camera's frame. Covariance R S S^T R^T, projected by the Jacobian of the pinhole map
    at the mean, whose direction is clamped to a little beyond the field of view.
    """
    x, y, z = view.unbind(dim=1)
    rotation = torch.as_tensor(camera.world_to_camera[:3, :3], dtype=view.dtype, device=view.device)
    axes = rotation @ (
        rotation_matrices(parameters[:, layout.QUATERNION]) * parameters[:, None, layout.LOG_SCALE].exp()
    )

    def clamped(ratio: torch.Tensor, focal: float, principal: float, size: int) -> torch.Tensor:
        margin = convention.jacobian_margin * 0.5 * size / focal
        return ratio.clamp(-principal / focal - margin, (size - principal) / focal + margin)

    u = clamped(x / z, camera.fx, camera.cx, camera.width)
    v = clamped(y / z, camera.fy, camera.cy, camera.height)
    # Rows of J R S, so that covariance = rows rows^T is symmetric and never indefinite by construction.
    row_x = (camera.fx / z)[:, None] * (axes[:, 0] - u[:, None] * axes[:, 2])
    row_y = (camera.fy / z)[:, None] * (axes[:, 1] - v[:, None] * axes[:, 2])
    xx = (row_x * row_x).sum(dim=1) + convention.dilation
    xy = (row_x * row_y).sum(dim=1)
    yy = (row_y * row_y).sum(dim=1) + convention.dilation
    determinant = xx * yy - xy * xy
    with torch.no_grad():
        largest = 0.5 * (xx + yy) + torch.sqrt((0.5 * (xx - yy)) ** 2 + xy * xy)
        radius = torch.ceil(3.0 * torch.sqrt(largest))
    return torch.stack([yy / determinant, -xy / determinant, xx / determinant, radius], dim=1)


def splat_records(parameters: torch.Tensor, camera: Camera, sh_degree: int, convention: Convention) -> torch.Tensor:
    """Splat records of all these Gaussians, [n, 59] -> [n, RECORD], differentiable but for the radius; nothing culled.

    Those that `keepable` refuses may hold anything.
    """
    transform = torch.as_tensor(camera.world_to_camera[:3], dtype=parameters.dtype, device=parameters.device)
    view = parameters[:, layout.MEAN] @ transform[:, :3].T + transform[:, 3]
    x, y, z = view.unbind(dim=1)
    mean2d = torch.stack([camera.fx * (x / z) + camera.cx, camera.fy * (y / z) + camera.cy], dim=1)
    shape = _conics(parameters, view, camera, convention)
    opacity = torch.sigmoid(parameters[:, layout.OPACITY_LOGIT])
    return torch.cat(
        [
            mean2d,
            shape[:, :3],
            opacity[:, None],
            colours(parameters, camera, sh_degree),
            z[:, None],
            shape[:, 3:],
        ],
        dim=1,
    )


def keepable(records: torch.Tensor, camera: Camera, convention: Convention) -> torch.Tensor:
    """[n] bool: between the near and the far plane, opaque enough, and of a finite, positive definite shape."""
    conic = records[:, layout.RECORD_CONIC]
    return (
        torch.isfinite(records).all(dim=1)
        & (records[:, layout.RECORD_DEPTH] >= convention.near)
        & (records[:, layout.RECORD_DEPTH] <= camera.far)
        & (records[:, layout.RECORD_OPACITY] >= convention.alpha_min)
        & (conic[:, 0] > 0)
        & (conic[:, 2] > 0)
    )


@torch.no_grad()
def project(
    kernels: KernelSet,
    parameters: torch.Tensor,
    ids: torch.Tensor,
    camera: Camera,
    sh_degree: int,
    workspace: Workspace,
) -> Splats:
    records = splat_records(parameters.to(kernels.dtype), camera, sh_degree, kernels.convention)
    rows = torch.nonzero(keepable(records, camera, kernels.convention)).flatten()
    rows = rows[touched_tiles(kernels, records[rows], camera).any(dim=1)]
    return Splats(rows, ids[rows], records[rows])


def project_backward(
    kernels: KernelSet,
    parameters: torch.Tensor,
    splats: Splats,
    camera: Camera,
    sh_degree: int,
    gradients: torch.Tensor,
    workspace: Workspace,
) -> torch.Tensor:
    rows = parameters.detach()[splats.rows].to(kernels.dtype).requires_grad_()
    with torch.enable_grad():
        records = splat_records(rows, camera, sh_degree, kernels.convention)
        (gradient,) = torch.autograd.grad(records[:, : layout.GRADIENT], rows, gradients.to(kernels.dtype))
    # Only a splat at the edge of the number range gets here with an overflow; it must not poison the moments.
    return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
