// Gaussians to splats. Two passes: `cull` reads the 44 B of a Gaussian that decide whether it is seen and leaves one
// bit; once these are counted, `list_visible` and `make_splats` read the visible rows whole, in the order of rows.
#include "footprint.cuh"
#include "gaussian.cuh"
#include "harmonics.cuh"
#include "rows.cuh"
#include "sort.h"

// Certainly outside the image: a bound on the footprint's extent from the largest axis alone, with room for rounding.
__device__ bool far_outside(const View& view, float3 p, const float* log_scale, float opacity) {
    float s = expf(fmaxf(fmaxf(log_scale[0], log_scale[1]), log_scale[2]));
    float2 u = jacobian_direction(view, p);
    float a = view.fx / p.z * s, b = view.fy / p.z * s;
    float sigmas = view.square ? 9.f : fmaxf(2.f * logf(opacity / view.alpha_min), 0.f);
    float extent_x = sqrtf(sigmas * (a * a * (1.f + u.x * u.x) + view.dilation)) * 1.01f + 2.f;
    float extent_y = sqrtf(sigmas * (b * b * (1.f + u.y * u.y) + view.dilation)) * 1.01f + 2.f;
    if (view.square) extent_x = extent_y = fmaxf(extent_x, extent_y) * 1.42f;
    float x = view.fx * (p.x / p.z) + view.cx, y = view.fy * (p.y / p.z) + view.cy;
    return x + extent_x < 0.f || x - extent_x > view.width || y + extent_y < 0.f || y - extent_y > view.height;
}

__device__ bool touches_a_tile(const View& view, const float* record) {
    Footprint f = footprint_of(view, record);
    Span span = span_of(view, f);
    TileLimits all = {nullptr, nullptr};
    for (int y = span.y0; y < span.y1; ++y) {
        for (int x = span.x0; x < span.x1; ++x) {
            if (meets_tile(view, f, all, record[RECORD_DEPTH], x, y)) return true;
        }
    }
    return false;
}

__device__ bool is_visible(const View& view, const float* gaussian) {
    float3 p = to_view(view, from_camera(view, gaussian + MEAN));
    if (!(p.z >= view.near_plane && p.z <= view.far_plane)) return false;
    if (far_outside(view, p, gaussian + LOG_SCALE, sigmoid(gaussian[OPACITY_LOGIT]))) return false;
    float record[RECORD];
    return shape_record(view, gaussian, record) && touches_a_tile(view, record);
}

// A warp looks at 32 rows: a word of visibility bits, and how many are set.
__global__ void __launch_bounds__(THREADS) cull(View view, const float* parameters, int64_t count, unsigned* words,
                                                int* counts) {
    int64_t row = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    bool seen = row < count && is_visible(view, parameters + row * PARAMETERS);
    unsigned word = __ballot_sync(ALL_LANES, seen);
    if (lane_index() == 0 && row < count) {
        words[row / WARP] = word;
        counts[row / WARP] = __popc(word);
    }
}

// Row numbers of the visible Gaussians, ascending, as far as there is room. status[0]: how many there are.
__global__ void __launch_bounds__(THREADS) list_visible(int64_t count, const unsigned* words, const int64_t* ends,
                                                        int64_t room, int64_t* rows, int64_t* status) {
    int64_t row = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= count) return;
    unsigned word = words[row / WARP], bit = 1u << lane_index();
    if (row == count - 1) status[0] = ends[row / WARP];
    if (!(word & bit)) return;
    int64_t place = ends[row / WARP] - __popc(word) + __popc(word & (bit - 1));
    if (place < room) rows[place] = row;
}

__device__ void colour_record(const View& view, const float* gaussian, int degree, float record[RECORD]) {
    float3 offset = from_camera(view, gaussian + MEAN);
    float basis[SH_COEFFICIENTS];
    harmonics(degree, (1.f / sqrtf(dot(offset, offset))) * offset, basis);
    for (int colour = 0; colour < 3; ++colour) {
        const float* c = gaussian + SH + colour;
        float value = 0.5f + basis[0] * c[0];
        if (degree >= 1) {
#pragma unroll
            for (int k = 1; k < 4; ++k) value += basis[k] * c[3 * k];
        }
        if (degree >= 2) {
#pragma unroll
            for (int k = 4; k < 9; ++k) value += basis[k] * c[3 * k];
        }
        if (degree >= 3) {
#pragma unroll
            for (int k = 9; k < SH_COEFFICIENTS; ++k) value += basis[k] * c[3 * k];
        }
        // Not fmaxf: it would hide not-a-number.
        record[RECORD_COLOUR + colour] = value < 0.f ? 0.f : value;
    }
}

// A warp makes 32 splats. status[1]: splats that are not finite after all, whose colour only this kernel sees.
__global__ void __launch_bounds__(STAGE_THREADS) make_splats(View view, const float* parameters, const int64_t* ids,
                                                            int degree, int64_t room, const int64_t* rows,
                                                            int64_t* own_ids, float* records, int64_t* status) {
    __shared__ float stages[STAGE_THREADS * PARAMETERS];
    float* stage = stages + warp_index() * WARP * PARAMETERS;
    float* own = stage + lane_index() * PARAMETERS;
    int64_t visible = min(status[0], room);
    int64_t step = static_cast<int64_t>(gridDim.x) * STAGE_THREADS;
    int64_t first = static_cast<int64_t>(blockIdx.x) * STAGE_THREADS + warp_index() * WARP;
    for (; first < visible; first += step) {
        int present = static_cast<int>(min(visible - first, static_cast<int64_t>(WARP)));
        bool mine = lane_index() < present;
        int64_t row = mine ? rows[first + lane_index()] : 0;
        fetch_rows(stage, parameters, row, present, SH + 3 * (degree + 1) * (degree + 1));
        await_rows();
        float record[RECORD];
        if (mine) {
            bool drawn = shape_record(view, own, record);
            colour_record(view, own, degree, record);
            for (int i = 0; i < 3; ++i) drawn = drawn && finite(record[RECORD_COLOUR + i]);
            if (!drawn) {
                atomicAdd(reinterpret_cast<unsigned long long*>(status + 1), 1ull);
                record[RECORD_DEPTH] = nanf("");
            }
            own_ids[first + lane_index()] = ids[row];
        }
        __syncwarp();
        for (int i = 0; i < RECORD; ++i) {
            if (mine) own[i] = record[i];
        }
        store_rows(records + first * RECORD, stage, present, RECORD);
    }
}

// Which Gaussians are visible: a word for 32 rows, and in `ends` how many there are up to and with each word.
EXPORT int cull_gaussians(Queue queue, const View* view, const float* parameters, int64_t count, Scratch scratch,
                          unsigned* words, int* counts, int64_t* ends) {
    CHECK(cudaSetDevice(queue.device));
    int64_t blocks = (count + THREADS - 1) / THREADS;
    cull<<<static_cast<unsigned>(blocks), THREADS, 0, queue.stream>>>(*view, parameters, count, words, counts);
    CHECK(cudaGetLastError());
    return prefix_sums(queue.stream, scratch, counts, ends, (count + WARP - 1) / WARP);
}

EXPORT int project_visible(Queue queue, const View* view, const float* parameters, const int64_t* ids, int64_t count,
                           int degree, const unsigned* words, const int64_t* ends, int64_t room, int64_t* rows,
                           int64_t* own_ids, float* records, int64_t* status) {
    CHECK(cudaSetDevice(queue.device));
    CHECK(cudaMemsetAsync(status, 0, 2 * sizeof(int64_t), queue.stream));
    int64_t blocks = (count + THREADS - 1) / THREADS;
    list_visible<<<static_cast<unsigned>(blocks), THREADS, 0, queue.stream>>>(count, words, ends, room, rows, status);
    CHECK(cudaGetLastError());
    if (room == 0) return cudaSuccess;
    make_splats<<<blocks_for(room, STAGE_THREADS), STAGE_THREADS, 0, queue.stream>>>(
        *view, parameters, ids, degree, room, rows, own_ids, records, status);
    return cudaGetLastError();
}
