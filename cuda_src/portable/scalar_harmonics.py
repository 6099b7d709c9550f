"""Colour by spherical harmonics up to degree 3: 3DGS's real basis, constants and signs (Kerbl et al. 2023)."""

from __future__ import annotations

from cuda_src.portable.scalar import FOUR, ONE, THREE, TWO, ZERO, f32, scalar

_C0 = f32(0.28209479177387814)
_C1 = f32(0.4886025119029199)
_C20, _C21, _C22 = f32(1.0925484305920792), f32(0.31539156525252005), f32(0.5462742152960396)
_C30, _C31, _C32 = f32(0.5900435899266435), f32(2.890611442640554), f32(0.4570457994644658)
_C33, _C34 = f32(0.3731763325901154), f32(1.445305721320277)
_SIX, _EIGHT = f32(6), f32(8)


@scalar
def sh_basis(degree, x, y, z):
    """The 16 basis functions at a unit direction; zero beyond the degree."""
    first = ONE if degree >= 1 else ZERO
    second = ONE if degree >= 2 else ZERO
    third = ONE if degree >= 3 else ZERO
    xx, yy, zz = x * x, y * y, z * z
    return (
        _C0,
        first * (-_C1 * y),
        first * (_C1 * z),
        first * (-_C1 * x),
        second * (_C20 * x * y),
        second * (-_C20 * y * z),
        second * (_C21 * (TWO * zz - xx - yy)),
        second * (-_C20 * x * z),
        second * (_C22 * (xx - yy)),
        third * (-_C30 * y * (THREE * xx - yy)),
        third * (_C31 * x * y * z),
        third * (-_C32 * y * (FOUR * zz - xx - yy)),
        third * (_C33 * z * (TWO * zz - THREE * xx - THREE * yy)),
        third * (-_C32 * x * (FOUR * zz - xx - yy)),
        third * (_C34 * z * (xx - yy)),
        third * (-_C30 * x * (xx - THREE * yy)),
    )


@scalar
def sh_sum(degree, basis, c):
    """Sum of basis and coefficients of one colour; coefficients beyond the degree are not looked at."""
    value = basis[0] * c[0]
    if degree >= 1:
        value += basis[1] * c[1] + basis[2] * c[2] + basis[3] * c[3]
    if degree >= 2:
        value += basis[4] * c[4] + basis[5] * c[5] + basis[6] * c[6] + basis[7] * c[7] + basis[8] * c[8]
    if degree >= 3:
        value += basis[9] * c[9] + basis[10] * c[10] + basis[11] * c[11] + basis[12] * c[12]
        value += basis[13] * c[13] + basis[14] * c[14] + basis[15] * c[15]
    return value


@scalar
def sh_sum_gradient(degree, x, y, z, s):
    """Gradient by the unit direction of the sum of basis functions weighted by the 16 numbers s."""
    gx, gy, gz = ZERO, ZERO, ZERO
    if degree >= 1:
        gx -= _C1 * s[3]
        gy -= _C1 * s[1]
        gz += _C1 * s[2]
    if degree >= 2:
        gx += _C20 * (y * s[4] - z * s[7]) + TWO * x * (_C22 * s[8] - _C21 * s[6])
        gy += _C20 * (x * s[4] - z * s[5]) - TWO * y * (_C22 * s[8] + _C21 * s[6])
        gz += FOUR * _C21 * z * s[6] - _C20 * (y * s[5] + x * s[7])
    if degree >= 3:
        xx, yy, zz, xy, xz, yz = x * x, y * y, z * z, x * y, x * z, y * z
        band = FOUR * zz - xx - yy
        gx += -_C30 * (_SIX * xy * s[9] + THREE * (xx - yy) * s[15]) + _C31 * yz * s[10]
        gx += _C32 * (TWO * xy * s[11] - (band - TWO * xx) * s[13]) - _SIX * _C33 * xz * s[12]
        gx += TWO * _C34 * xz * s[14]
        gy += -_C30 * (THREE * (xx - yy) * s[9] - _SIX * xy * s[15]) + _C31 * xz * s[10]
        gy += _C32 * (TWO * xy * s[13] - (band - TWO * yy) * s[11]) - _SIX * _C33 * yz * s[12]
        gy -= TWO * _C34 * yz * s[14]
        gz += _C31 * xy * s[10] - _EIGHT * _C32 * (yz * s[11] + xz * s[13])
        gz += _C33 * (_SIX * zz - THREE * (xx + yy)) * s[12] + _C34 * (xx - yy) * s[14]
    return gx, gy, gz
