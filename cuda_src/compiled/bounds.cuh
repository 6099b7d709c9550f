// Bounds of groups of 32 consecutive rows: may a view see one of them? The formula is that of cuda_src/bounds.py, whose
// half-spaces the host makes once a view. Culling of neighbours together: Liao et al. 2025 (LiteGS).
#pragma once

#include "gaussian.cuh"

// A Gaussian is seen only where normal . (mean - centre) + offset + share * extent >= 0. spare: of the distance from the
// camera, for what float32 may be wrong in a position.
struct HalfSpace {
    float normal[3], offset, share, spare;
};

// What one view may see. Passed by value.
struct ViewVolume {
    float centre[3];
    HalfSpace spaces[6];
};

struct Bound {
    float3 lower;  // of the means; above `upper` where there is none
    float extent;
    float3 upper;
};

__device__ inline Bound bound_at(const float* bounds, int64_t group) {
    static_assert(BOUND_LOWER == 0 && BOUND_EXTENT == 3 && BOUND_UPPER == 4 && BOUND == 8, "two words of 16 bytes");
    const float4* words = reinterpret_cast<const float4*>(bounds + group * BOUND);
    float4 low = words[0], high = words[1];
    return {make_float3(low.x, low.y, low.z), low.w, make_float3(high.x, high.y, high.z)};
}

// The view may see a Gaussian of the group; false only if it certainly sees none.
__device__ inline bool group_may_be_seen(const ViewVolume& volume, const Bound& bound) {
    if (!(bound.lower.x <= bound.upper.x)) return false;
    float3 centre = make_float3(volume.centre[0], volume.centre[1], volume.centre[2]);
    // As culling takes the camera from a mean: rounding keeps the order, so that no mean leaves its box.
    float3 lower = bound.lower - centre, upper = bound.upper - centre;
    float distance = fmaxf(fabsf(lower.x), fabsf(upper.x)) + fmaxf(fabsf(lower.y), fabsf(upper.y)) +
                     fmaxf(fabsf(lower.z), fabsf(upper.z));
    bool seen = true;
#pragma unroll
    for (const HalfSpace& space : volume.spaces) {
        const float* n = space.normal;
        float furthest = fmaxf(n[0] * lower.x, n[0] * upper.x) + fmaxf(n[1] * lower.y, n[1] * upper.y) +
                         fmaxf(n[2] * lower.z, n[2] * upper.z);
        furthest += space.offset + space.share * bound.extent + space.spare * distance;
        // Written so that an overflow decides nothing.
        seen = seen && !(furthest < 0.f);
    }
    return seen;
}

// How far from its mean a Gaussian's footprint reaches, world units; 0 for one that no view sees.
__device__ inline float extent_of(const float* log_scale, float opacity_logit, float alpha_min, bool square) {
    float longest = expf(fmaxf(fmaxf(log_scale[0], log_scale[1]), log_scale[2]));
    float sigmas = square ? 3.f : sqrtf(fmaxf(2.f * logf(sigmoid(opacity_logit) / alpha_min), 0.f));
    // Not-a-number counts as 0.
    return fmaxf(longest * sigmas, 0.f);
}

// Floats in the order of their values, by integer atomics: those below zero stand in reverse order. Adding 0 makes -0 the
// other zero, whose bits would be the least of all integers.
__device__ inline void lower_to(float* place, float value) {
    value += 0.f;
    if (value >= 0.f) {
        atomicMin(reinterpret_cast<int*>(place), __float_as_int(value));
    } else {
        atomicMax(reinterpret_cast<unsigned*>(place), __float_as_uint(value));
    }
}

__device__ inline void raise_to(float* place, float value) {
    value += 0.f;
    if (value >= 0.f) {
        atomicMax(reinterpret_cast<int*>(place), __float_as_int(value));
    } else {
        atomicMin(reinterpret_cast<unsigned*>(place), __float_as_uint(value));
    }
}

// Of the extent, by how much a bound that is too narrow becomes wider than it must: a Gaussian at the border moves a
// little every step, and most of these steps then change nothing.
constexpr float WIDER = 1.f / 32.f;

// Let the group of that row hold a Gaussian that has moved: bounds only grow. Any thread, in any order; other threads may
// widen the same group.
__device__ inline void widen_group(float* bounds, int64_t row, float3 mean, float extent) {
    if (!(finite(mean.x) && finite(mean.y) && finite(mean.z))) return;
    float* own = bounds + row / WARP * BOUND;
    Bound now = bound_at(own, 0);
    float room = finite(extent) ? WIDER * extent : 0.f;
    if (mean.x < now.lower.x) lower_to(own + BOUND_LOWER, mean.x - room);
    if (mean.y < now.lower.y) lower_to(own + BOUND_LOWER + 1, mean.y - room);
    if (mean.z < now.lower.z) lower_to(own + BOUND_LOWER + 2, mean.z - room);
    if (mean.x > now.upper.x) raise_to(own + BOUND_UPPER, mean.x + room);
    if (mean.y > now.upper.y) raise_to(own + BOUND_UPPER + 1, mean.y + room);
    if (mean.z > now.upper.z) raise_to(own + BOUND_UPPER + 2, mean.z + room);
    if (extent > now.extent) raise_to(own + BOUND_EXTENT, extent + room);
}
