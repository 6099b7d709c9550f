// Bounds of all groups of 32 rows, made anew or widened by rows that moved; and which of them a view may see.
#include "bounds.cuh"

__device__ float over_warp(float value, float (*pick)(float, float)) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) value = pick(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

// A warp a group, a lane a row.
__global__ void __launch_bounds__(THREADS) bound_rows(const float* parameters, int64_t count, float alpha_min,
                                                      bool square, float* bounds) {
    int64_t row = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    float3 lower = make_float3(INFINITY, INFINITY, INFINITY), upper = -1.f * lower;
    float extent = 0.f;
    if (row < count) {
        const float* own = parameters + row * PARAMETERS;
        float3 mean = make_float3(own[MEAN], own[MEAN + 1], own[MEAN + 2]);
        // One that is nowhere is never seen.
        if (finite(mean.x) && finite(mean.y) && finite(mean.z)) {
            lower = upper = mean;
            extent = extent_of(own + LOG_SCALE, own[OPACITY_LOGIT], alpha_min, square);
        }
    }
    lower = make_float3(over_warp(lower.x, fminf), over_warp(lower.y, fminf), over_warp(lower.z, fminf));
    upper = make_float3(over_warp(upper.x, fmaxf), over_warp(upper.y, fmaxf), over_warp(upper.z, fmaxf));
    extent = over_warp(extent, fmaxf);
    if (lane_index() == 0 && row < count) {
        float4* words = reinterpret_cast<float4*>(bounds + row / WARP * BOUND);
        words[0] = make_float4(lower.x, lower.y, lower.z, extent);
        words[1] = make_float4(upper.x, upper.y, upper.z, 0.f);
    }
}

__global__ void __launch_bounds__(THREADS) widen_rows(const float* parameters, const int64_t* rows, int64_t count,
                                                      float alpha_min, bool square, float* bounds) {
    int64_t number = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (number >= count) return;
    const float* own = parameters + rows[number] * PARAMETERS;
    widen_group(bounds, rows[number], make_float3(own[MEAN], own[MEAN + 1], own[MEAN + 2]),
                extent_of(own + LOG_SCALE, own[OPACITY_LOGIT], alpha_min, square));
}

__global__ void __launch_bounds__(THREADS) test_groups(ViewVolume volume, const float* bounds, int64_t groups,
                                                       bool* seen) {
    int64_t group = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (group < groups) seen[group] = group_may_be_seen(volume, bound_at(bounds, group));
}

EXPORT int bound_groups(Queue queue, const float* parameters, int64_t count, float alpha_min, int square,
                        float* bounds) {
    CHECK(cudaSetDevice(queue.device));
    if (count == 0) return cudaSuccess;
    int64_t blocks = (count + THREADS - 1) / THREADS;
    bound_rows<<<static_cast<unsigned>(blocks), THREADS, 0, queue.stream>>>(parameters, count, alpha_min, square != 0,
                                                                           bounds);
    return cudaGetLastError();
}

EXPORT int widen_groups(Queue queue, const float* parameters, const int64_t* rows, int64_t count, float alpha_min,
                        int square, float* bounds) {
    CHECK(cudaSetDevice(queue.device));
    if (count == 0) return cudaSuccess;
    int64_t blocks = (count + THREADS - 1) / THREADS;
    widen_rows<<<static_cast<unsigned>(blocks), THREADS, 0, queue.stream>>>(parameters, rows, count, alpha_min,
                                                                           square != 0, bounds);
    return cudaGetLastError();
}

EXPORT int groups_seen(Queue queue, const ViewVolume* volume, const float* bounds, int64_t groups, bool* seen) {
    CHECK(cudaSetDevice(queue.device));
    if (groups == 0) return cudaSuccess;
    int64_t blocks = (groups + THREADS - 1) / THREADS;
    test_groups<<<static_cast<unsigned>(blocks), THREADS, 0, queue.stream>>>(*volume, bounds, groups, seen);
    return cudaGetLastError();
}
