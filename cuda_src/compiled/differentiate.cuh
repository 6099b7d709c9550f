// The gradient of a splat's record by its Gaussian's parameters, and the splats of a view that it is asked of.
#pragma once

#include "gaussian.cuh"
#include "harmonics.cuh"

// One view's splats in the order of their rows, and the gradient by each record; records and gradients are three words
// of 16 bytes each. live: how many splats are in use, or null for `count`.
struct Seen {
    const int64_t* rows;
    const float4* records;
    const float4* gradients;
    const int64_t* live;
    int64_t count;
    __device__ int64_t in_use() const { return live == nullptr ? count : min(live[0], count); }
};

// Three words of 16 bytes; zeros where there are none.
struct Words {
    float values[RECORD_STRIDE] = {};
    __device__ Words(const float4* words, int64_t row, bool there = true) {
        static_assert(RECORD_STRIDE == 12 && GRADIENT_STRIDE == 12, "three words");
        if (!there) return;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            float4 word = __ldg(words + 3 * row + i);
            values[4 * i] = word.x;
            values[4 * i + 1] = word.y;
            values[4 * i + 2] = word.z;
            values[4 * i + 3] = word.w;
        }
    }
};

// The gradient of one view by a Gaussian's parameters, column by column. That of a coefficient is a product, kept as its
// factors: 30 numbers in place of 59.
struct RowGradient {
    float shape[SH] = {};
    float by_colour[3] = {};
    float basis[SH_COEFFICIENTS] = {};
    // What is not finite counts as zero.
    __device__ float at(int column) const {
        if (column < SH) return finite_or_zero(shape[column]);
        return finite_or_zero(by_colour[(column - SH) % 3] * basis[(column - SH) / 3]);
    }
};

// own: the Gaussian's parameters, of which coefficients beyond the degree need not be there. record: the splat's; g: the
// gradient by it.
__device__ inline RowGradient differentiate(const View& view, int degree, const float* record, const float* g,
                                            const float* own) {
    RowGradient gradient;
    float3 offset = from_camera(view, own + MEAN);
    float3 p = to_view(view, offset);

    // Shape: conic -> image rows -> axes -> quaternion and scales, and the mean through the Jacobian.
    float inverse;
    float4 unit = unit_quaternion(own + QUATERNION, inverse);
    Matrix rotation = rotation_of(unit);
    float3 scale = make_float3(expf(own[LOG_SCALE]), expf(own[LOG_SCALE + 1]), expf(own[LOG_SCALE + 2]));
    Matrix axes = view_axes(view, rotation, scale);
    ImageRows rows = image_rows(view, p, axes);
    ImageRows by_rows = conic_gradient(view, rows, g + RECORD_CONIC);
    Matrix by_axes;
    float3 by_view = image_rows_gradient(view, p, axes, rows, by_rows, by_axes);
    float3 by_scale;
    float4 by_unit = axes_gradient(view, unit, rotation, scale, by_axes, by_scale);
    float4 by_quaternion = normalised_gradient(unit, inverse, by_unit);

    // Place.
    float gx = g[RECORD_MEAN2D] * view.fx, gy = g[RECORD_MEAN2D + 1] * view.fy;
    by_view.x += gx / p.z;
    by_view.y += gy / p.z;
    by_view.z += g[RECORD_DEPTH] - (gx * (p.x / p.z) + gy * (p.y / p.z)) / p.z;
    float3 by_mean = to_world(view, by_view);

    // Colour: no gradient where it is clamped, which a record shows as exactly zero.
    float* by_colour = gradient.by_colour;
    for (int i = 0; i < 3; ++i) by_colour[i] = record[RECORD_COLOUR + i] > 0.f ? g[RECORD_COLOUR + i] : 0.f;
    float shorter = 1.f / sqrtf(dot(offset, offset));
    float3 direction = shorter * offset;
    harmonics(degree, direction, gradient.basis);
    float weights[SH_COEFFICIENTS] = {};
    int used = (degree + 1) * (degree + 1);
#pragma unroll
    for (int k = 0; k < SH_COEFFICIENTS; ++k) {
        const float* c = own + SH + 3 * k;
        if (k < used) weights[k] = by_colour[0] * c[0] + by_colour[1] * c[1] + by_colour[2] * c[2];
    }
    float3 by_direction = harmonics_gradient(degree, direction, weights);
    by_mean = by_mean + shorter * (by_direction - dot(by_direction, direction) * direction);

    auto keep = [&](int column, float3 value) {
        gradient.shape[column] = value.x;
        gradient.shape[column + 1] = value.y;
        gradient.shape[column + 2] = value.z;
    };
    keep(MEAN, by_mean);
    keep(LOG_SCALE, by_scale);
    keep(QUATERNION, make_float3(by_quaternion.x, by_quaternion.y, by_quaternion.z));
    gradient.shape[QUATERNION + 3] = by_quaternion.w;
    float opacity = record[RECORD_OPACITY];
    gradient.shape[OPACITY_LOGIT] = g[RECORD_OPACITY] * opacity * (1.f - opacity);
    return gradient;
}
