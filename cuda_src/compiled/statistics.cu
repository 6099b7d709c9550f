// Densification statistics of one view (Kerbl et al. 2023, section 5.2): a thread a splat adds to its row, which no other
// splat of the view has.
#include "gaussian.cuh"

// Values of a splat lie `stride` floats apart.
struct SplatValues {
    const float* data;
    int64_t stride;
};

__global__ void __launch_bounds__(THREADS) add_statistics(const int64_t* rows, SplatValues records,
                                                          SplatValues gradients, int64_t room, const int64_t* live,
                                                          const int* overflow, float half_width, float half_height,
                                                          float share, float* statistics) {
    int64_t splat = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (splat >= room || (live != nullptr && splat >= live[0]) || (overflow != nullptr && *overflow != 0)) return;
    const float* record = records.data + splat * records.stride;
    // Not drawn: its colour is not finite.
    if (isnan(record[RECORD_DEPTH])) return;
    const float* g = gradients.data + splat * gradients.stride + RECORD_MEAN2D;
    float* entry = statistics + rows[splat] * STATISTICS;
    entry[GRADIENT_SUM] += finite_or_zero(hypotf(g[0] * half_width, g[1] * half_height));
    entry[VIEWS_SEEN] += 1.f;
    entry[LARGEST_RADIUS] = fmaxf(entry[LARGEST_RADIUS], record[RECORD_RADIUS] * share);
}

EXPORT int densification_statistics(Queue queue, const int64_t* rows, const float* records, int64_t record_stride,
                                    const float* gradients, int64_t gradient_stride, int64_t room, const int64_t* live,
                                    const int* overflow, int width, int height, float* statistics) {
    CHECK(cudaSetDevice(queue.device));
    if (room == 0) return cudaSuccess;
    int64_t blocks = (room + THREADS - 1) / THREADS;
    add_statistics<<<static_cast<unsigned>(blocks), THREADS, 0, queue.stream>>>(
        rows, {records, record_stride}, {gradients, gradient_stride}, room, live, overflow, 0.5f * width, 0.5f * height,
        1.f / (width > height ? width : height), statistics);
    return cudaGetLastError();
}
