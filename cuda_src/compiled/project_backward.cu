// The gradient of a splat's record by its Gaussian's parameters, written: a lane a splat, rows staged through shared
// memory. Where it goes to Adam at once see move.cu.
#include "differentiate.cuh"
#include "rows.cuh"

__global__ void __launch_bounds__(STAGE_THREADS) project_gradient(View view, const float* parameters, Seen seen,
                                                                 int degree, float* out) {
    __shared__ float stages[STAGE_THREADS * PARAMETERS];
    float* stage = stages + warp_index() * WARP * PARAMETERS;
    float* own = stage + lane_index() * PARAMETERS;
    int64_t count = seen.in_use(), step = static_cast<int64_t>(gridDim.x) * STAGE_THREADS;
    int64_t first = static_cast<int64_t>(blockIdx.x) * STAGE_THREADS + warp_index() * WARP;
    for (; first < count; first += step) {
        int present = static_cast<int>(min(count - first, static_cast<int64_t>(WARP)));
        int64_t splat = first + min(lane_index(), present - 1);
        fetch_rows(stage, parameters, seen.rows[splat], present, SH + 3 * (degree + 1) * (degree + 1));
        Words record(seen.records, splat), gradient(seen.gradients, splat);
        await_rows();
        if (lane_index() < present) {
            RowGradient by_row = differentiate(view, degree, record.values, gradient.values, own);
#pragma unroll
            for (int column = 0; column < PARAMETERS; ++column) own[column] = by_row.at(column);
        }
        store_rows(out + first * PARAMETERS, stage, present, PARAMETERS);
    }
}

// out: [splats, PARAMETERS]; rows beyond those in use are left alone.
EXPORT int project_backward(Queue queue, const View* view, const float* parameters, const Seen* seen, int degree,
                            float* out) {
    CHECK(cudaSetDevice(queue.device));
    if (seen->count == 0) return cudaSuccess;
    project_gradient<<<blocks_for(seen->count, STAGE_THREADS), STAGE_THREADS, 0, queue.stream>>>(*view, parameters,
                                                                                                *seen, degree, out);
    return cudaGetLastError();
}
