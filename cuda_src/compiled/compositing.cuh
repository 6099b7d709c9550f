// What raster_forward and raster_backward share: which pixel a thread has, batches of splats in shared memory with the
// sub-tiles that each can reach, and alpha.
#pragma once

#include "config.h"

// Floats of a staged record: RECORD, rounded up so that a record is three 16-byte words.
constexpr int STAGED = 12;
static_assert(RECORD <= STAGED && RECORD_MEAN2D == 0 && RECORD_CONIC == 2 && RECORD_OPACITY == 5 &&
                  RECORD_COLOUR == 6 && RECORD_DEPTH == 9,
              "records are read as 16-byte words");

// A listed tile's instances: splat[starts[k] .. starts[k + 1]).
struct TileLists {
    const int* tiles;
    const int64_t* starts;
    const int* splat;
    const float* records;
};

// The pixel of this thread: warp w has the sub-tile in row w / 2 and column w % 2.
struct Pixel {
    int x, y;
    bool inside;
    __device__ int64_t index(const View& view) const { return static_cast<int64_t>(y) * view.width + x; }
};

__device__ inline Pixel pixel_of(const View& view, int tile) {
    int sub_tile = warp_index(), lane = lane_index();
    int x = tile % view.tiles_x * TILE + (sub_tile & 1) * SUBTILE_WIDTH + lane % SUBTILE_WIDTH;
    int y = tile / view.tiles_x * TILE + (sub_tile >> 1) * SUBTILE_HEIGHT + lane / SUBTILE_WIDTH;
    return {x, y, x < view.width && y < view.height};
}

struct Batch {
    float4 records[TILE_THREADS * STAGED / 4];
    int splat[TILE_THREADS];
    uint8_t reach[TILE_THREADS];  // bit s: the splat can be seen in sub-tile s
};

// Sub-tiles in which the splat's alpha may come to alpha_min; never too few, so that pixels decide.
__device__ inline unsigned reached_subtiles(const View& view, int tile, float4 shape, float c, float opacity) {
    float a = shape.z, b = shape.w;
    if (!(a * c - b * b > 0.f)) return 255u;  // Rounding left the conic indefinite: no bound holds.
    float reach = __logf(opacity / view.alpha_min) * 1.0001f + 1e-4f;
    float down = -b * __fdividef(1.f, c), across = -b * __fdividef(1.f, a);
    unsigned mask = 0u;
#pragma unroll 1  // All eight at once would hold the registers that decide how many blocks a multiprocessor has.
    for (int s = 0; s < TILE_THREADS / WARP; ++s) {
        float x0 = tile % view.tiles_x * TILE + (s & 1) * SUBTILE_WIDTH + 0.5f - shape.x;
        float y0 = tile / view.tiles_x * TILE + (s >> 1) * SUBTILE_HEIGHT + 0.5f - shape.y;
        float x1 = x0 + (SUBTILE_WIDTH - 1), y1 = y0 + (SUBTILE_HEIGHT - 1);
        float dx = fminf(fmaxf(0.f, x0), x1), dy = fminf(fmaxf(0.f, y0), y1);
        // From outside, sigma is least on an edge that faces the mean.
        float ey = fminf(fmaxf(down * dx, y0), y1), ex = fminf(fmaxf(across * dy, x0), x1);
        float upright = dx == 0.f ? INFINITY : 0.5f * (a * dx * dx + c * ey * ey) + b * dx * ey;
        float level = dy == 0.f ? INFINITY : 0.5f * (a * ex * ex + c * dy * dy) + b * ex * dy;
        float least = dx == 0.f && dy == 0.f ? 0.f : fminf(upright, level);
        mask |= (least <= reach ? 1u : 0u) << s;
    }
    return mask;
}

// Bring so many splats of a tile's list into the batch. Every thread of the block calls it.
__device__ inline void load_batch(Batch& batch, const View& view, const float* records, int tile, const int* splats,
                                  int size) {
    __syncthreads();  // The batch before is done with.
    if (threadIdx.x < size) batch.splat[threadIdx.x] = splats[threadIdx.x];
    __syncthreads();
    // Neighbouring threads read neighbouring columns of the same record.
    float* staged = reinterpret_cast<float*>(batch.records);
#pragma unroll 2
    for (int i = threadIdx.x; i < size * RECORD; i += TILE_THREADS) {
        int row = i / RECORD, column = i % RECORD;
        staged[row * STAGED + column] = records[static_cast<int64_t>(batch.splat[row]) * RECORD + column];
    }
    __syncthreads();
    if (threadIdx.x < size) {
        float4 shape = batch.records[threadIdx.x * 3], rest = batch.records[threadIdx.x * 3 + 1];
        batch.reach[threadIdx.x] = reached_subtiles(view, tile, shape, rest.x, rest.y);
    }
    __syncthreads();
}

// Which of 32 batch entries from `first` on reach this warp's sub-tile, as bits.
__device__ inline unsigned reaching(const Batch& batch, int first, int size) {
    int entry = first + lane_index();
    return __ballot_sync(ALL_LANES, entry < size && (batch.reach[entry] >> warp_index() & 1));
}

// Splats exist at a pixel only in its range of depths.
__device__ inline float2 depth_range_at(const View& view, const float2* ranges, const Pixel& pixel) {
    return ranges != nullptr && pixel.inside ? ranges[pixel.index(view)] : make_float2(-INFINITY, INFINITY);
}

struct Density {
    float dx, dy, sigma;
    float falloff;  // exp(-sigma)
    float alpha;    // min(alpha_max, opacity falloff)
};

// shape: mean and conic xx, xy; rest: conic yy and opacity. exp to 2 units in the last place of its argument.
__device__ inline Density density_at(const View& view, const Pixel& pixel, float4 shape, float4 rest) {
    Density d;
    d.dx = pixel.x + 0.5f - shape.x;
    d.dy = pixel.y + 0.5f - shape.y;
    d.sigma = 0.5f * (shape.z * d.dx * d.dx + rest.x * d.dy * d.dy) + shape.w * d.dx * d.dy;
    d.falloff = __expf(-d.sigma);
    d.alpha = fminf(view.alpha_max, rest.y * d.falloff);
    return d;
}
