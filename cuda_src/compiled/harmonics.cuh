// Colour by spherical harmonics up to degree 3: 3DGS's real basis, constants and signs (Kerbl et al. 2023).
#pragma once

#include "config.h"

constexpr float C0 = 0.28209479177387814f;
constexpr float C1 = 0.4886025119029199f;
constexpr float C20 = 1.0925484305920792f, C21 = 0.31539156525252005f, C22 = 0.5462742152960396f;
constexpr float C30 = 0.5900435899266435f, C31 = 2.890611442640554f, C32 = 0.4570457994644658f;
constexpr float C33 = 0.3731763325901154f, C34 = 1.445305721320277f;

// The basis functions at a unit direction; those beyond the degree are left as they are.
__device__ inline void harmonics(int degree, float3 d, float basis[SH_COEFFICIENTS]) {
    basis[0] = C0;
    if (degree < 1) return;
    basis[1] = -C1 * d.y;
    basis[2] = C1 * d.z;
    basis[3] = -C1 * d.x;
    if (degree < 2) return;
    float xx = d.x * d.x, yy = d.y * d.y, zz = d.z * d.z;
    basis[4] = C20 * d.x * d.y;
    basis[5] = -C20 * d.y * d.z;
    basis[6] = C21 * (2.f * zz - xx - yy);
    basis[7] = -C20 * d.x * d.z;
    basis[8] = C22 * (xx - yy);
    if (degree < 3) return;
    basis[9] = -C30 * d.y * (3.f * xx - yy);
    basis[10] = C31 * d.x * d.y * d.z;
    basis[11] = -C32 * d.y * (4.f * zz - xx - yy);
    basis[12] = C33 * d.z * (2.f * zz - 3.f * xx - 3.f * yy);
    basis[13] = -C32 * d.x * (4.f * zz - xx - yy);
    basis[14] = C34 * d.z * (xx - yy);
    basis[15] = -C30 * d.x * (xx - 3.f * yy);
}

// Gradient by the unit direction of the sum of basis functions weighted by s.
__device__ inline float3 harmonics_gradient(int degree, float3 d, const float s[SH_COEFFICIENTS]) {
    float3 g = make_float3(0.f, 0.f, 0.f);
    float x = d.x, y = d.y, z = d.z;
    if (degree >= 1) {
        g.x -= C1 * s[3];
        g.y -= C1 * s[1];
        g.z += C1 * s[2];
    }
    if (degree >= 2) {
        g.x += C20 * (y * s[4] - z * s[7]) + 2.f * x * (C22 * s[8] - C21 * s[6]);
        g.y += C20 * (x * s[4] - z * s[5]) - 2.f * y * (C22 * s[8] + C21 * s[6]);
        g.z += 4.f * C21 * z * s[6] - C20 * (y * s[5] + x * s[7]);
    }
    if (degree >= 3) {
        float xx = x * x, yy = y * y, zz = z * z, xy = x * y, xz = x * z, yz = y * z;
        float band = 4.f * zz - xx - yy;
        g.x += -C30 * (6.f * xy * s[9] + 3.f * (xx - yy) * s[15]) + C31 * yz * s[10];
        g.x += C32 * (2.f * xy * s[11] - (band - 2.f * xx) * s[13]) - 6.f * C33 * xz * s[12];
        g.x += 2.f * C34 * xz * s[14];
        g.y += -C30 * (3.f * (xx - yy) * s[9] - 6.f * xy * s[15]) + C31 * xz * s[10];
        g.y += C32 * (2.f * xy * s[13] - (band - 2.f * yy) * s[11]) - 6.f * C33 * yz * s[12];
        g.y -= 2.f * C34 * yz * s[14];
        g.z += C31 * xy * s[10] - 8.f * C32 * (yz * s[11] + xz * s[13]);
        g.z += C33 * (6.f * zz - 3.f * (xx + yy)) * s[12] + C34 * (xx - yy) * s[14];
    }
    return g;
}
