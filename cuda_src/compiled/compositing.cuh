// What raster_forward and raster_backward share: which pixel a thread has, batches of splats in shared memory with the
// cells that each can reach, each half warp's own list of them, and alpha.
//
// Splats are small: 20 pixels each in a large scene. So half a warp renders a cell of 4 x 4 pixels and walks its own
// list, which takes a warp a quarter to a third fewer evaluations than a list for all its 8 x 4 pixels.
#pragma once

#include "approximate.cuh"
#include "config.h"

static_assert(RECORD <= RECORD_STRIDE && RECORD_STRIDE == 12 && RECORD_MEAN2D == 0 && RECORD_CONIC == 2 &&
                  RECORD_OPACITY == 5 && RECORD_COLOUR == 6 && RECORD_DEPTH == 9,
              "a record is three 16-byte words");

constexpr float LOG2_E = 1.4426950408889634f;

// The pixel of this thread, and its half warp's cell of the tile: warp w has the 8 x 4 sub-tile in row w / 2 and
// column w % 2, and its halves the left and the right cell.
struct Pixel {
    int x, y;
    bool inside;
    __device__ int64_t index(const View& view) const { return static_cast<int64_t>(y) * view.width + x; }
};

__device__ inline int half_index() { return lane_index() / HALF; }
__device__ inline int lane_of_half() { return lane_index() % HALF; }
__device__ inline int cell_column(int half) { return (warp_index() & 1) * 2 + half; }
__device__ inline int cell_row() { return warp_index() >> 1; }

__device__ inline Pixel pixel_of(const View& view, int tile) {
    int x = tile % view.tiles_x * TILE + cell_column(half_index()) * CELL + lane_of_half() % CELL;
    int y = tile / view.tiles_x * TILE + cell_row() * CELL + lane_of_half() / CELL;
    return {x, y, x < view.width && y < view.height};
}

// Splats exist at a pixel only in its range of depths.
__device__ inline float2 depth_range_at(const View& view, const float2* ranges, const Pixel& pixel) {
    return pixel.inside ? ranges[pixel.index(view)] : make_float2(-INFINITY, INFINITY);
}

// Splats of a tile's list, staged. What is evaluated at each pixel is staged in its cheapest form: sigma in powers of
// two is A dx^2 + B dx dy + C dy^2 with A, C the halved and B the whole conic entry, times log2 e.
struct Batch {
    // mean x, y, A, B | C, opacity, red, green | blue, depth, radius, number of the splat in Splats (as bits). The last
    // record is of no splat: its opacity is zero.
    float4 records[(BATCH + 1) * 3];
    uint16_t reach[BATCH];  // bit 4 row + column: the splat can be seen in that cell
};

// The cells of two rows of cells, from `row` on, in which the splat's alpha may come to alpha_min, as bits; never too
// few, so that pixels decide. shape: mean and conic xx, xy; c: conic yy.
//
// Along a row of cells the ellipse's right and left boundary, concave and convex, are furthest at its own extremes or
// as close to these as the row comes.
__device__ inline unsigned reached_cells(const View& view, int tile, int row, float4 shape, float c, float opacity) {
    float a = shape.z, b = shape.w, square = b * b;
    float determinant = fmaf(a, c, -square) - fmaf(b, b, -square);  // a c - b b without cancellation
    if (!(determinant > 0.f && a > 0.f)) return 255u;  // Rounding left the conic indefinite: no bound holds.
    float reach = __logf(opacity * inverse_fast(view.alpha_min)) * 1.0001f + 1e-4f;
    if (!(reach > 0.f)) return 0u;
    // The ellipse's furthest point to the right is (half_width, extreme), its highest half_height above the mean.
    float inverse_a = inverse_fast(a), spread = inverse_root_fast(determinant);
    float turn = root_fast(2.f * reach * inverse_fast(c)) * spread, extreme = -b * turn;
    float half_height = fmaf(root_fast(2.f * reach * a) * spread, 1.f + 2e-6f, 0.01f);
    float slack = fmaf(c * turn, 2e-6f, 0.01f);
    float left = tile % view.tiles_x * TILE + 0.5f - shape.x, top = tile / view.tiles_x * TILE + 0.5f - shape.y;
    unsigned cells = 0u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float first_y = top + (row + i) * CELL;
        float y0 = fmaxf(first_y, -half_height), y1 = fminf(first_y + (CELL - 1), half_height);
        float at_right = fminf(fmaxf(extreme, y0), y1), at_left = fminf(fmaxf(-extreme, y0), y1);
        float right_root = root_fast(fmaxf(2.f * a * reach - determinant * at_right * at_right, 0.f));
        float left_root = root_fast(fmaxf(2.f * a * reach - determinant * at_left * at_left, 0.f));
        float x1 = floorf((right_root - b * at_right) * inverse_a + slack - left);
        float x0 = ceilf((-left_root - b * at_left) * inverse_a - slack - left);
        x0 = fmaxf(x0, 0.f);
        x1 = fminf(x1, TILE - 1.f);
        if (y0 > y1 || x0 > x1) continue;
        unsigned columns = (2u << (static_cast<int>(x1) / CELL)) - (1u << (static_cast<int>(x0) / CELL));
        cells |= columns << (i * (TILE / CELL));
    }
    return cells;
}

// Two threads bring a splat: this thread's entry of a batch, and which rows of cells it finds.
__device__ inline int own_entry() { return threadIdx.x / 2; }
__device__ inline int own_rows() { return threadIdx.x % 2 * 2; }

__device__ inline void copy_word(float4* to, const float4* from) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

// Start copying a splat's record into this thread's entry; splat < 0: there is none.
__device__ inline void request(Batch& batch, const float4* records, int splat) {
    if (splat < 0) return;
    const float4* from = records + static_cast<int64_t>(splat) * 3;
    float4* to = batch.records + own_entry() * 3;
    int odd = threadIdx.x & 1;
    copy_word(to + 2 * odd, from + 2 * odd);
    if (!odd) copy_word(to + 1, from + 1);
}

// Wait for what this thread's warp requested, and prepare it. Others see it after the block's next barrier.
__device__ inline void receive(Batch& batch, const View& view, int tile, int splat) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    int entry = own_entry();
    float4 shape = batch.records[entry * 3];
    float2 rest = *reinterpret_cast<const float2*>(&batch.records[entry * 3 + 1]);
    unsigned cells = splat < 0 ? 0u : reached_cells(view, tile, own_rows(), shape, rest.x, rest.y);
    __syncwarp();  // Both threads of an entry have read it.
    reinterpret_cast<uint8_t*>(batch.reach)[threadIdx.x] = static_cast<uint8_t>(cells);
    if (splat >= 0 && !(threadIdx.x & 1)) {
        batch.records[entry * 3].z = 0.5f * LOG2_E * shape.z;
        batch.records[entry * 3].w = LOG2_E * shape.w;
        batch.records[entry * 3 + 1].x = 0.5f * LOG2_E * rest.x;
        batch.records[entry * 3 + 2].w = __int_as_float(splat);
    }
}

// Entries of a batch that reach a half warp's cell, in order, in groups of LISTED; past the end stands the record of no
// splat.
struct alignas(LISTED) List {
    uint8_t entry[BATCH + LISTED];
};

// Fill the lists of this warp's halves: the batch's entries that reach the cell and lie before the half's own `end`.
// Returns the length of the longer list, rounded up to whole groups.
__device__ inline int list_entries(const Batch& batch, int end, List lists[2]) {
    int bit = cell_row() * (TILE / CELL) + cell_column(0);
    int left_end = __shfl_sync(ALL_LANES, end, 0), right_end = __shfl_sync(ALL_LANES, end, HALF);
    int left = 0, right = 0;
    unsigned before = (1u << lane_index()) - 1u;
#pragma unroll 1
    for (int entry = lane_index(); entry < BATCH; entry += WARP) {
        unsigned reach = batch.reach[entry] >> bit;
        bool in_left = (reach & 1u) && entry < left_end, in_right = (reach & 2u) && entry < right_end;
        unsigned to_left = __ballot_sync(ALL_LANES, in_left), to_right = __ballot_sync(ALL_LANES, in_right);
        if (in_left) lists[0].entry[left + __popc(to_left & before)] = static_cast<uint8_t>(entry);
        if (in_right) lists[1].entry[right + __popc(to_right & before)] = static_cast<uint8_t>(entry);
        left += __popc(to_left);
        right += __popc(to_right);
    }
    int whole = (max(left, right) + LISTED - 1) / LISTED * LISTED, half = half_index();
#pragma unroll 1
    for (int i = (half ? right : left) + lane_of_half(); i < whole; i += HALF) lists[half].entry[i] = BATCH;
    __syncwarp();
    return whole;
}

// A tile's batches and lists.
struct Staging {
    Batch batches[2];
    List lists[TILE_THREADS / WARP][2];

    // What lists that are padded to whole groups end with. Seen after the block's next barrier.
    __device__ void place_no_splat() {
        if (threadIdx.x < 6) {
            batches[threadIdx.x / 3].records[BATCH * 3 + threadIdx.x % 3] = make_float4(0.f, 0.f, 0.f, 0.f);
        }
    }
};

struct Density {
    float dx, dy, sigma;
    float value;  // opacity exp(-sigma), before the cap
};

// shape, rest: as staged. x, y: the pixel's centre.
__device__ inline Density density_at(float x, float y, float4 shape, float4 rest) {
    Density d;
    d.dx = x - shape.x;
    d.dy = y - shape.y;
    d.sigma = d.dx * (shape.z * d.dx + shape.w * d.dy) + d.dy * (rest.x * d.dy);
    d.value = rest.y * exp2_fast(-d.sigma);
    return d;
}

__device__ inline bool in_range(float2 range, float depth) { return range.x <= depth && depth < range.y; }
