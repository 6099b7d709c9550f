// Adam on the given rows, with the batch rule by row: a row seen by v views takes gradient / v, rate sqrt(v), beta^v,
// epsilon / sqrt(v).
#include "adam.cuh"

__global__ void __launch_bounds__(THREADS) update_rows(Tables tables, const int64_t* rows, const float* gradients,
                                                       const int* views, int64_t count, const float* rates, Rule rule) {
    float own_rates[ROW_STEPS];
    lane_rates(rates, own_rates);
    int64_t warps = static_cast<int64_t>(gridDim.x) * (THREADS / WARP);
    int64_t warp = static_cast<int64_t>(blockIdx.x) * (THREADS / WARP) + warp_index();
    for (int64_t first = warp * ROWS_AT_ONCE; first < count; first += warps * ROWS_AT_ONCE) {
        move_rows(
            tables, 0, own_rates, [&](int i) { return first + i < count ? rows[first + i] : -1; },
            [&](int i) { return rule_of(rule, views[first + i]); },
            [&](int i, int column) { return gradients[(first + i) * PARAMETERS + column]; });
    }
}

EXPORT int adam_rows(Queue queue, float* parameters, float* moment1, float* moment2, const int64_t* rows,
                     const float* gradients, const int* views, int64_t count, const float* rates, const Rule* rule) {
    CHECK(cudaSetDevice(queue.device));
    if (count == 0) return cudaSuccess;
    update_rows<<<blocks_for(count, THREADS / WARP * ROWS_AT_ONCE), THREADS, 0, queue.stream>>>(
        {parameters, moment1, moment2}, rows, gradients, views, count, rates, *rule);
    return cudaGetLastError();
}
