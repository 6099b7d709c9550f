// From a Gaussian to its splat and back: EWA projection (Zwicker et al. 2002) and its gradient.
//
// Matrices are three rows. The 2-D covariance is rows rows^T + dilation, with rows = J R_view R S [2 x 3], so that it is
// symmetric and never indefinite by construction.
#pragma once

#include "config.h"

struct Matrix {
    float3 row[3];
};

__device__ inline float3 operator+(float3 a, float3 b) { return make_float3(a.x + b.x, a.y + b.y, a.z + b.z); }
__device__ inline float3 operator-(float3 a, float3 b) { return make_float3(a.x - b.x, a.y - b.y, a.z - b.z); }
__device__ inline float3 operator*(float s, float3 a) { return make_float3(s * a.x, s * a.y, s * a.z); }
__device__ inline float dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ inline float3 cross(float3 a, float3 b) {
    return make_float3(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}
__device__ inline bool finite(float x) { return fabsf(x) <= 3.402823466e38f; }
__device__ inline float finite_or_zero(float x) { return finite(x) ? x : 0.f; }

__device__ inline float3 view_row(const View& view, int i) {
    return make_float3(view.rotation[3 * i], view.rotation[3 * i + 1], view.rotation[3 * i + 2]);
}
__device__ inline float3 to_view(const View& view, float3 v) {
    return make_float3(dot(view_row(view, 0), v), dot(view_row(view, 1), v), dot(view_row(view, 2), v));
}
__device__ inline float3 to_world(const View& view, float3 v) {
    return v.x * view_row(view, 0) + v.y * view_row(view, 1) + v.z * view_row(view, 2);
}
__device__ inline float3 from_camera(const View& view, const float* mean) {
    return make_float3(mean[0] - view.centre[0], mean[1] - view.centre[1], mean[2] - view.centre[2]);
}

// Unit quaternion w x y z as float4 (w in .x), and 1 / |q|; the zero quaternion stays zero: the identity.
__device__ inline float4 unit_quaternion(const float* q, float& inverse) {
    float square = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3];
    // Not-a-number passes, so that it reaches the record and is culled there.
    inverse = square == 0.f ? 0.f : 1.f / sqrtf(square);
    return make_float4(q[0] * inverse, q[1] * inverse, q[2] * inverse, q[3] * inverse);
}

__device__ inline Matrix rotation_of(float4 q) {
    float w = q.x, x = q.y, y = q.z, z = q.w;
    return {{make_float3(1.f - 2.f * (y * y + z * z), 2.f * (x * y - w * z), 2.f * (x * z + w * y)),
             make_float3(2.f * (x * y + w * z), 1.f - 2.f * (x * x + z * z), 2.f * (y * z - w * x)),
             make_float3(2.f * (x * z - w * y), 2.f * (y * z + w * x), 1.f - 2.f * (x * x + y * y))}};
}

// R_view R S: the Gaussian's axes in the camera's frame, as columns.
__device__ inline Matrix view_axes(const View& view, const Matrix& rotation, float3 scale) {
    Matrix axes;
    for (int i = 0; i < 3; ++i) {
        float3 r = view_row(view, i);
        float3 turned = r.x * rotation.row[0] + r.y * rotation.row[1] + r.z * rotation.row[2];
        axes.row[i] = make_float3(turned.x * scale.x, turned.y * scale.y, turned.z * scale.z);
    }
    return axes;
}

__device__ inline float clamped(float ratio, float least, float largest) { return fminf(fmaxf(ratio, least), largest); }

// Where the projection's Jacobian is evaluated: x/z and y/z, kept within a little beyond the field of view.
__device__ inline float2 jacobian_direction(const View& view, float3 p) {
    return make_float2(clamped(p.x / p.z, view.bounds[0], view.bounds[1]),
                       clamped(p.y / p.z, view.bounds[2], view.bounds[3]));
}

struct ImageRows {
    float3 x, y;
};

__device__ inline ImageRows image_rows(const View& view, float3 p, const Matrix& axes) {
    float2 u = jacobian_direction(view, p);
    return {(view.fx / p.z) * (axes.row[0] - u.x * axes.row[2]), (view.fy / p.z) * (axes.row[1] - u.y * axes.row[2])};
}

// Inverse xx, xy, yy of the dilated covariance, and its determinant.
//
// The determinant is |row_x cross row_y|^2 (Cauchy-Binet) and what dilation adds: sums of squares, so that needles and
// surfels seen edge-on do not cancel.
struct Conic {
    float xx, xy, yy, determinant;
};

__device__ inline Conic conic_of(const View& view, const ImageRows& rows) {
    float xx = dot(rows.x, rows.x), xy = dot(rows.x, rows.y), yy = dot(rows.y, rows.y);
    float3 n = cross(rows.x, rows.y);
    float determinant = dot(n, n) + view.dilation * (xx + yy + view.dilation);
    return {(yy + view.dilation) / determinant, -xy / determinant, (xx + view.dilation) / determinant, determinant};
}

// 3 sigma of the longer axis, pixels, rounded up.
__device__ inline float radius_of(const View& view, const ImageRows& rows) {
    float xx = dot(rows.x, rows.x), xy = dot(rows.x, rows.y), yy = dot(rows.y, rows.y);
    float half = 0.5f * (xx - yy);
    return ceilf(3.f * sqrtf(0.5f * (xx + yy) + sqrtf(half * half + xy * xy) + view.dilation));
}

// Gradient by the rows B, from the gradient g by the conic K = (B B^T + dilation)^-1: -2 K G (K B).
//
// K B is formed from the cross product of B's rows, not from K: along a needle K B is tiny and K's entries are not, so
// that their rounding would decide the result.
__device__ inline ImageRows conic_gradient(const View& view, const ImageRows& rows, const float g[3]) {
    Conic k = conic_of(view, rows);
    float3 n = cross(rows.x, rows.y);
    float3 p = cross(rows.y, n) + view.dilation * rows.x, q = cross(n, rows.x) + view.dilation * rows.y;
    float scale = -2.f / k.determinant;
    // The conic's off-diagonal entry stands for two.
    float g00 = scale * g[0], g01 = scale * (0.5f * g[1]), g11 = scale * g[2];
    float m00 = k.xx * g00 + k.xy * g01, m01 = k.xx * g01 + k.xy * g11;
    float m10 = k.xy * g00 + k.yy * g01, m11 = k.xy * g01 + k.yy * g11;
    return {m00 * p + m01 * q, m10 * p + m11 * q};
}

// Gradients by the view-space mean and by the view-space axes, from the gradient by the rows.
__device__ inline float3 image_rows_gradient(const View& view, float3 p, const Matrix& axes, const ImageRows& rows,
                                             const ImageRows& g, Matrix& by_axes) {
    float2 u = jacobian_direction(view, p);
    float a = view.fx / p.z, b = view.fy / p.z;
    // Beyond the bounds the ratio is constant.
    float by_u = u.x == p.x / p.z ? -a * dot(g.x, axes.row[2]) : 0.f;
    float by_v = u.y == p.y / p.z ? -b * dot(g.y, axes.row[2]) : 0.f;
    float along = dot(g.x, rows.x) + dot(g.y, rows.y) + by_u * u.x + by_v * u.y;
    by_axes = {{a * g.x, b * g.y, (-a * u.x) * g.x + (-b * u.y) * g.y}};
    return make_float3(by_u / p.z, by_v / p.z, -along / p.z);
}

// Gradients by the unit quaternion and by the log-scales, from the gradient by the view-space axes.
__device__ inline float4 axes_gradient(const View& view, float4 unit, const Matrix& rotation, float3 scale,
                                       const Matrix& g, float3& by_log_scale) {
    // R_view^T g, row by row.
    Matrix m;
    for (int i = 0; i < 3; ++i) {
        m.row[i] = view.rotation[i] * g.row[0] + view.rotation[3 + i] * g.row[1] + view.rotation[6 + i] * g.row[2];
    }
    const float3 *r = rotation.row, *t = m.row;
    by_log_scale = make_float3(scale.x * (t[0].x * r[0].x + t[1].x * r[1].x + t[2].x * r[2].x),
                               scale.y * (t[0].y * r[0].y + t[1].y * r[1].y + t[2].y * r[2].y),
                               scale.z * (t[0].z * r[0].z + t[1].z * r[1].z + t[2].z * r[2].z));
    float g00 = t[0].x * scale.x, g01 = t[0].y * scale.y, g02 = t[0].z * scale.z;
    float g10 = t[1].x * scale.x, g11 = t[1].y * scale.y, g12 = t[1].z * scale.z;
    float g20 = t[2].x * scale.x, g21 = t[2].y * scale.y, g22 = t[2].z * scale.z;
    float w = unit.x, x = unit.y, y = unit.z, z = unit.w;
    return make_float4(2.f * (x * (g21 - g12) + y * (g02 - g20) + z * (g10 - g01)),
                       2.f * (w * (g21 - g12) + y * (g01 + g10) + z * (g02 + g20)) - 4.f * x * (g11 + g22),
                       2.f * (w * (g02 - g20) + x * (g01 + g10) + z * (g12 + g21)) - 4.f * y * (g00 + g22),
                       2.f * (w * (g10 - g01) + x * (g02 + g20) + y * (g12 + g21)) - 4.f * z * (g00 + g11));
}

// Gradient by a quaternion of length 1 / inverse, from the gradient by its unit quaternion.
__device__ inline float4 normalised_gradient(float4 unit, float inverse, float4 g) {
    float along = unit.x * g.x + unit.y * g.y + unit.z * g.z + unit.w * g.w;
    return make_float4(inverse * (g.x - along * unit.x), inverse * (g.y - along * unit.y),
                       inverse * (g.z - along * unit.z), inverse * (g.w - along * unit.w));
}

__device__ inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// A splat's record without its colour; false if the Gaussian is culled by itself: by depth, opacity or shape.
__device__ inline bool shape_record(const View& view, const float* gaussian, float record[RECORD]) {
    float3 p = to_view(view, from_camera(view, gaussian + MEAN));
    // Written so that not-a-number is culled.
    if (!(p.z >= view.near_plane && p.z <= view.far_plane && finite(p.z))) return false;
    float opacity = sigmoid(gaussian[OPACITY_LOGIT]);
    if (!(opacity >= view.alpha_min)) return false;
    float inverse;
    Matrix rotation = rotation_of(unit_quaternion(gaussian + QUATERNION, inverse));
    const float* s = gaussian + LOG_SCALE;
    Matrix axes = view_axes(view, rotation, make_float3(expf(s[0]), expf(s[1]), expf(s[2])));
    ImageRows rows = image_rows(view, p, axes);
    Conic conic = conic_of(view, rows);
    record[RECORD_MEAN2D] = view.fx * (p.x / p.z) + view.cx;
    record[RECORD_MEAN2D + 1] = view.fy * (p.y / p.z) + view.cy;
    record[RECORD_CONIC] = conic.xx;
    record[RECORD_CONIC + 1] = conic.xy;
    record[RECORD_CONIC + 2] = conic.yy;
    record[RECORD_OPACITY] = opacity;
    record[RECORD_DEPTH] = p.z;
    record[RECORD_RADIUS] = radius_of(view, rows);
    return finite(record[RECORD_MEAN2D]) && finite(record[RECORD_MEAN2D + 1]) && finite(conic.xx) && finite(conic.xy) &&
           finite(conic.yy) && finite(record[RECORD_RADIUS]) && conic.determinant > 0.f && conic.xx > 0.f &&
           conic.yy > 0.f;
}
