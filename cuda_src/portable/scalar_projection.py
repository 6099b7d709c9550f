"""One Gaussian through a pinhole camera (EWA splatting, Zwicker et al. 2002), and the gradient of that.

A pose is the world-to-camera rotation (9 numbers, row-major) and the camera's centre; a pinhole is fx, fy, cx, cy;
bounds are the least and largest x/z and y/z at which the projection's Jacobian is evaluated.
"""

from __future__ import annotations

import math

from cuda_src.portable.scalar import HALF, ONE, THREE, TWO, ZERO, f32, scalar

_NO_FRACTION = f32(8388608.0)
"""2^23: from here on every float32 is an integer."""


@scalar
def dot3(ax, ay, az, bx, by, bz):
    """Inner product of two vectors."""
    return ax * bx + ay * by + az * bz


@scalar
def to_view(rotation, x, y, z):
    """Rotate a world offset into the camera's frame."""
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation
    return dot3(r00, r01, r02, x, y, z), dot3(r10, r11, r12, x, y, z), dot3(r20, r21, r22, x, y, z)


@scalar
def to_world(rotation, x, y, z):
    """Rotate a camera-frame vector into the world."""
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation
    return dot3(r00, r10, r20, x, y, z), dot3(r01, r11, r21, x, y, z), dot3(r02, r12, r22, x, y, z)


@scalar
def inverse_length(w, x, y, z):
    """1 / |q|, or 0 for the zero quaternion."""
    square = w * w + x * x + y * y + z * z
    return ONE / math.sqrt(square) if square > ZERO else ZERO


@scalar
def rotation_of(w, x, y, z):
    """Rotation of a unit quaternion, row-major; the zero quaternion gives the identity."""
    return (
        ONE - TWO * (y * y + z * z),
        TWO * (x * y - w * z),
        TWO * (x * z + w * y),
        TWO * (x * y + w * z),
        ONE - TWO * (x * x + z * z),
        TWO * (y * z - w * x),
        TWO * (x * z - w * y),
        TWO * (y * z + w * x),
        ONE - TWO * (x * x + y * y),
    )


@scalar
def rotation_gradient(w, x, y, z, g):
    """Gradient by the unit quaternion, from the gradient by its rotation matrix."""
    g00, g01, g02, g10, g11, g12, g20, g21, g22 = g
    return (
        TWO * (x * (g21 - g12) + y * (g02 - g20) + z * (g10 - g01)),
        TWO * (w * (g21 - g12) + y * (g01 + g10) + z * (g02 + g20)) - TWO * TWO * x * (g11 + g22),
        TWO * (w * (g02 - g20) + x * (g01 + g10) + z * (g12 + g21)) - TWO * TWO * y * (g00 + g22),
        TWO * (w * (g10 - g01) + x * (g02 + g20) + y * (g12 + g21)) - TWO * TWO * z * (g00 + g11),
    )


@scalar
def scaled_axes(quaternion, scales):
    """R S of a unit quaternion and three scales, row-major: the Gaussian's axes in the world as columns."""
    w, x, y, z = quaternion
    s0, s1, s2 = scales
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation_of(w, x, y, z)
    return r00 * s0, r01 * s1, r02 * s2, r10 * s0, r11 * s1, r12 * s2, r20 * s0, r21 * s1, r22 * s2


@scalar
def view_axes(rotation, axes):
    """The axes in the camera's frame, row-major."""
    a00, a01, a02, a10, a11, a12, a20, a21, a22 = axes
    v00, v10, v20 = to_view(rotation, a00, a10, a20)
    v01, v11, v21 = to_view(rotation, a01, a11, a21)
    v02, v12, v22 = to_view(rotation, a02, a12, a22)
    return v00, v01, v02, v10, v11, v12, v20, v21, v22


@scalar
def clamped(ratio, least, largest):
    """Ratio between its bounds."""
    return min(max(ratio, least), largest)


@scalar
def image_rows(view, axes, pinhole, bounds):
    """Rows of J R S, pixels: the 2-D covariance is rows rows^T. view: mean in the camera's frame; axes there too."""
    x, y, z = view
    fx, fy, _, _ = pinhole
    u, v = clamped(x / z, bounds[0], bounds[1]), clamped(y / z, bounds[2], bounds[3])
    a00, a01, a02, a10, a11, a12, a20, a21, a22 = axes
    p, q = fx / z, fy / z
    return (
        (p * (a00 - u * a20), p * (a01 - u * a21), p * (a02 - u * a22)),
        (q * (a10 - v * a20), q * (a11 - v * a21), q * (a12 - v * a22)),
    )


@scalar
def conic_and_radius(rows, dilation):
    """Conic xx, xy, yy of the dilated covariance, its determinant, and 3 sigma of the longer axis, rounded up.

    The determinant is |row_x x row_y|^2 (Cauchy-Binet) plus what dilation adds: sums of squares, so that needles
    and surfels seen edge-on do not cancel.
    """
    (x0, x1, x2), (y0, y1, y2) = rows
    xx, xy, yy = dot3(x0, x1, x2, x0, x1, x2), dot3(x0, x1, x2, y0, y1, y2), dot3(y0, y1, y2, y0, y1, y2)
    n0, n1, n2 = x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0
    determinant = dot3(n0, n1, n2, n0, n1, n2) + dilation * (xx + yy + dilation)
    largest = HALF * (xx + yy) + math.sqrt((HALF * (xx - yy)) * (HALF * (xx - yy)) + xy * xy) + dilation
    conic = ((yy + dilation) / determinant, -xy / determinant, (xx + dilation) / determinant)
    return conic, determinant, f32_ceil(THREE * math.sqrt(largest))


@scalar
def f32_ceil(x):
    """Smallest integer not below x >= 0, as float32; what has no fraction (or is not finite) stays."""
    if not x < _NO_FRACTION:
        return x
    return f32(math.ceil(x))


@scalar
def conic_gradient(rows, dilation, g):
    """Gradient by the rows B, from the gradient G by the conic K = C^-1, C = B B^T + dilation: -2 K G (K B).

    K B is formed from the cross products of B's columns, not from K: along a needle K B is tiny and K's entries
    are not, so that their float32 rounding would decide the result.
    """
    (x0, x1, x2), (y0, y1, y2) = rows
    (a, b, c), determinant, _ = conic_and_radius(rows, dilation)
    n0, n1, n2 = x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0
    p0, q0 = n2 * y1 - n1 * y2 + dilation * x0, n1 * x2 - n2 * x1 + dilation * y0
    p1, q1 = n0 * y2 - n2 * y0 + dilation * x1, n2 * x0 - n0 * x2 + dilation * y1
    p2, q2 = n1 * y0 - n0 * y1 + dilation * x2, n0 * x1 - n1 * x0 + dilation * y2
    # -2 K G, with the off-diagonal entry of the symmetric G standing for two.
    scale = -TWO / determinant
    g00, g01, g11 = scale * g[0], scale * (HALF * g[1]), scale * g[2]
    m00, m01, m10, m11 = a * g00 + b * g01, a * g01 + b * g11, b * g00 + c * g01, b * g01 + c * g11
    return (
        (m00 * p0 + m01 * q0, m00 * p1 + m01 * q1, m00 * p2 + m01 * q2),
        (m10 * p0 + m11 * q0, m10 * p1 + m11 * q1, m10 * p2 + m11 * q2),
    )


@scalar
def image_rows_gradient(view, axes, pinhole, bounds, rows, g):
    """Gradient by the view-space mean and by the view-space axes, from the gradient by the rows."""
    x, y, z = view
    fx, fy, _, _ = pinhole
    u, v = clamped(x / z, bounds[0], bounds[1]), clamped(y / z, bounds[2], bounds[3])
    _, _, _, _, _, _, a20, a21, a22 = axes
    (x0, x1, x2), (y0, y1, y2) = rows
    (gx0, gx1, gx2), (gy0, gy1, gy2) = g
    p, q = fx / z, fy / z
    grad_u = -p * dot3(gx0, gx1, gx2, a20, a21, a22)
    grad_v = -q * dot3(gy0, gy1, gy2, a20, a21, a22)
    # Beyond the bounds the ratio is constant.
    grad_u = grad_u if u == x / z else ZERO
    grad_v = grad_v if v == y / z else ZERO
    along = dot3(gx0, gx1, gx2, x0, x1, x2) + dot3(gy0, gy1, gy2, y0, y1, y2) + grad_u * u + grad_v * v
    pu, qv = p * u, q * v
    return (
        (grad_u / z, grad_v / z, -along / z),
        (
            p * gx0,
            p * gx1,
            p * gx2,
            q * gy0,
            q * gy1,
            q * gy2,
            -(pu * gx0 + qv * gy0),
            -(pu * gx1 + qv * gy1),
            -(pu * gx2 + qv * gy2),
        ),
    )


@scalar
def axes_gradient(rotation, quaternion, scales, g):
    """Gradient by the unit quaternion and by the log-scales, from the gradient by the view-space axes."""
    w, x, y, z = quaternion
    s0, s1, s2 = scales
    g00, g01, g02, g10, g11, g12, g20, g21, g22 = g
    m00, m10, m20 = to_world(rotation, g00, g10, g20)
    m01, m11, m21 = to_world(rotation, g01, g11, g21)
    m02, m12, m22 = to_world(rotation, g02, g12, g22)
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation_of(w, x, y, z)
    log_scales = (
        s0 * dot3(m00, m10, m20, r00, r10, r20),
        s1 * dot3(m01, m11, m21, r01, r11, r21),
        s2 * dot3(m02, m12, m22, r02, r12, r22),
    )
    by_rotation = (m00 * s0, m01 * s1, m02 * s2, m10 * s0, m11 * s1, m12 * s2, m20 * s0, m21 * s1, m22 * s2)
    return rotation_gradient(w, x, y, z, by_rotation), log_scales


@scalar
def normalised_gradient(unit, inverse, g):
    """Gradient by a vector of length 1 / inverse, from the gradient by its unit vector; four components."""
    w, x, y, z = unit
    along = w * g[0] + x * g[1] + y * g[2] + z * g[3]
    return (
        inverse * (g[0] - along * w),
        inverse * (g[1] - along * x),
        inverse * (g[2] - along * y),
        inverse * (g[3] - along * z),
    )


@scalar
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return ONE / (ONE + math.exp(-x))
