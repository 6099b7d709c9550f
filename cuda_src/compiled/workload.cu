// Counts what raster kernels cannot do without; see cuda_src.workload. A measurement, and no part of a step.
#include "footprint.cuh"

// A listed tile's instances: splat[starts[k] .. starts[k + 1]); record v starts at records + v * stride.
struct CountedLists {
    const int* tiles;
    const int64_t* starts;
    const int* splat;
    const float* records;
    int64_t stride;
};

// Order as in COUNTED of cuda_src/workload.py.
enum Counted {
    FORWARD_INSTANCES, BACKWARD_INSTANCES, BLENDED, FORWARD, BACKWARD, BLENDING, CELLS_FORWARD, CELLS_BACKWARD, COUNTS
};

// Alpha can come to alpha_min in the rectangle of pixel centres of `width` x `height` pixels from (x, y) on. With a
// little room for rounding, since pixels evaluate sigma with fused operations.
__device__ bool reaches(const View& view, const Footprint& f, int x, int y, int width, int height) {
    float x0 = x + 0.5f, x1 = min(x + width, view.width) - 0.5f;
    float y0 = y + 0.5f, y1 = min(y + height, view.height) - 0.5f;
    if (x0 > x1 || y0 > y1) return false;
    if (!(f.a * f.c - f.b * f.b > 0.f)) return true;  // Rounding left the conic indefinite: no bound holds.
    return meets(f, false, x0, y0, x1, y1);
}

// The splat is seen at the pixel, if light is left to see it by.
__device__ bool sees(const View& view, const float* record, float x, float y) {
    float dx = x - record[RECORD_MEAN2D], dy = y - record[RECORD_MEAN2D + 1];
    float a = record[RECORD_CONIC], b = record[RECORD_CONIC + 1], c = record[RECORD_CONIC + 2];
    float sigma = 0.5f * (a * dx * dx + c * dy * dy) + b * dx * dy;
    return sigma >= 0.f && fminf(view.alpha_max, record[RECORD_OPACITY] * __expf(-sigma)) >= view.alpha_min;
}

__device__ inline int warp_most(int value) {
    for (int step = WARP / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

// A block counts a tile, a warp a sub-tile, half a warp a cell of it, a lane a pixel. Which pixels blend what follows from
// the raster's `last`: seen and before it; what stops a pixel is the first that it sees and does not blend.
__global__ void __launch_bounds__(TILE_THREADS) count_lists(View view, CountedLists lists, const int* last,
                                                            const uint8_t* stopped, unsigned long long* counts) {
    __shared__ int forward_end, backward_end;
    if (threadIdx.x == 0) forward_end = backward_end = 0;
    __syncthreads();

    int tile = lists.tiles[blockIdx.x];
    int64_t start = lists.starts[blockIdx.x];
    int length = static_cast<int>(lists.starts[blockIdx.x + 1] - start);
    int left = tile % view.tiles_x * TILE + (warp_index() & 1) * SUBTILE_WIDTH;
    int top = tile / view.tiles_x * TILE + (warp_index() >> 1) * SUBTILE_HEIGHT;
    int half = lane_index() / HALF, place = lane_index() % HALF;
    int x = left + half * CELL + place % CELL, y = top + place / CELL;
    bool inside = x < view.width && y < view.height;
    int64_t at = static_cast<int64_t>(y) * view.width + x;
    int own_last = inside ? last[at] : 0;
    bool searching = inside && stopped[at];  // for the entry that stops it

    unsigned own_half = ((1u << HALF) - 1u) << (half * HALF);
    unsigned open = __ballot_sync(ALL_LANES, searching), endless = __ballot_sync(ALL_LANES, inside && !searching);
    int backward = own_last;
    for (int step = HALF / 2; step > 0; step /= 2) backward = max(backward, __shfl_xor_sync(ALL_LANES, backward, step));
    int cell_backward = backward;
    backward = max(backward, __shfl_xor_sync(ALL_LANES, backward, HALF));

    unsigned long long blended = 0, of_forward = 0, of_backward = 0, of_blending = 0, cells_forward = 0, cells_backward = 0;
    int forward = endless ? length : 0;
    for (int group = 0; group < length && (open | endless); group += WARP) {
        int own = group + lane_index();
        bool whole = false, left_cell = false, right_cell = false;
        if (own < length) {
            Footprint f = footprint_of(view, lists.records + lists.splat[start + own] * lists.stride);
            f.reach = f.reach * 1.0001f + 1e-4f;
            whole = reaches(view, f, left, top, SUBTILE_WIDTH, SUBTILE_HEIGHT);
            left_cell = reaches(view, f, left, top, CELL, CELL);
            right_cell = reaches(view, f, left + CELL, top, CELL, CELL);
        }
        unsigned in_warp = __ballot_sync(ALL_LANES, whole);
        unsigned in_left = __ballot_sync(ALL_LANES, left_cell), in_right = __ballot_sync(ALL_LANES, right_cell);
        unsigned in_cell = half ? in_right : in_left;
        for (unsigned entries = in_warp | in_left | in_right; entries && (open | endless); entries &= entries - 1) {
            int bit = __ffs(entries) - 1, entry = group + bit;
            const float* record = lists.records + lists.splat[start + entry] * lists.stride;
            bool seen = inside && sees(view, record, x + 0.5f, y + 0.5f);
            unsigned blends = __ballot_sync(ALL_LANES, seen && entry < own_last);
            of_forward += in_warp >> bit & 1u;
            of_backward += (in_warp >> bit & 1u) && entry < backward;
            of_blending += blends != 0u;
            blended += __popc(blends);
            cells_forward += (in_cell >> bit & 1u) && ((open | endless) & own_half);
            cells_backward += (in_cell >> bit & 1u) && entry < cell_backward;
            if (searching && seen && entry >= own_last) searching = false;
            open = __ballot_sync(ALL_LANES, searching);
            if (!endless) forward = entry + 1;
        }
    }
    // A pixel that stopped by another rounding than ours never finds what stopped it: its list counts as read whole.
    if (open) forward = length;

    if (lane_index() == 0) {
        atomicMax(&forward_end, forward);
        atomicMax(&backward_end, backward);
        atomicAdd(counts + BLENDED, blended);
        atomicAdd(counts + FORWARD, of_forward);
        atomicAdd(counts + BACKWARD, of_backward);
        atomicAdd(counts + BLENDING, of_blending);
    }
    if (place == 0) {
        atomicAdd(counts + CELLS_FORWARD, cells_forward);
        atomicAdd(counts + CELLS_BACKWARD, cells_backward);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(counts + FORWARD_INSTANCES, static_cast<unsigned long long>(forward_end));
        atomicAdd(counts + BACKWARD_INSTANCES, static_cast<unsigned long long>(backward_end));
    }
}

// counts: [COUNTS] int64, written.
EXPORT int count_workload(Queue queue, const View* view, const int* tiles, int64_t count, const int64_t* starts,
                          const int* splat, const float* records, int64_t stride, const int* last,
                          const uint8_t* stopped, unsigned long long* counts) {
    CHECK(cudaSetDevice(queue.device));
    CHECK(cudaMemsetAsync(counts, 0, COUNTS * sizeof(unsigned long long), queue.stream));
    if (count == 0) return cudaSuccess;
    count_lists<<<static_cast<unsigned>(count), TILE_THREADS, 0, queue.stream>>>(
        *view, {tiles, starts, splat, records, stride}, last, stopped, counts);
    return cudaGetLastError();
}
