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

// warp: of the tile.
__device__ inline int left_cell_of(int warp) { return (warp >> 1) * (TILE / CELL) + (warp & 1) * 2; }

__device__ inline Pixel pixel_of(const View& view, int tile, int warp) {
    int cell = left_cell_of(warp) + half_index();
    int x = tile % view.tiles_x * TILE + cell % (TILE / CELL) * CELL + lane_of_half() % CELL;
    int y = tile / view.tiles_x * TILE + cell / (TILE / CELL) * CELL + lane_of_half() / CELL;
    return {x, y, x < view.width && y < view.height};
}

// The pixel with this centre: cheaper to keep than the pixel.
__device__ inline Pixel pixel_at(const View& view, float x, float y) {
    int column = static_cast<int>(x), row = static_cast<int>(y);
    return {column, row, column < view.width && row < view.height};
}

// Splats exist at a pixel only in its range of depths.
__device__ inline float2 depth_range_at(const View& view, const float2* ranges, const Pixel& pixel) {
    return pixel.inside ? ranges[pixel.index(view)] : make_float2(-INFINITY, INFINITY);
}

// Splats of a tile's list, staged. What is evaluated at each pixel is staged in its cheapest form: sigma in powers of
// two is A dx^2 + B dx dy + C dy^2 with A, C the halved and B the whole conic entry, times log2 e.
template <int ENTRIES>
struct Batch {
    // mean x, y, A, B | C, opacity, red, green | blue, depth, limit, tag. limit: the bits of the first sigma, in powers
    // of two, that is too large for alpha_min; tag: what the kernel wants to know of the splat. The last record is of
    // no splat, and has the limit 0.
    float4 records[(ENTRIES + 1) * 3];
    uint16_t reach[ENTRIES];  // bit 4 row + column: the splat can be seen in that cell
};
constexpr int RECORD_BYTES = 3 * sizeof(float4);
// Of a block, so that what it stages has addresses of 16 bits, beside what the system and single variables take.
constexpr size_t MOST_LISTED_BYTES = 65536 - 2048;

// The sigma, in powers of two, at which the splat's alpha is alpha_min; negative or no number where alpha never comes
// to it.
__device__ inline float furthest_sigma(const View& view, float opacity) {
    return log2_fast(opacity * inverse_fast(view.alpha_min));
}

// The bits of the first sigma beyond the furthest. Sigma itself may not be negative either, and the bits of what is
// negative or no number are larger than those of any number: one comparison.
__device__ inline unsigned sigma_limit(float furthest) { return furthest >= 0.f ? __float_as_uint(furthest) + 1u : 0u; }

// Added to a number, it leaves the nearest integer in the sum's last bits.
constexpr float ROUNDING = 12582912.f;
// Half a pixel, but for a little: what is this much beyond an integer rounds to it, and no border is missed.
constexpr float ALMOST_HALF = 0.4999f;

// The centre of a tile's first pixel.
__device__ inline float2 corner_of(const View& view, int tile) {
    return make_float2(tile % view.tiles_x * TILE + 0.5f, tile / view.tiles_x * TILE + 0.5f);
}

// The cells in which the splat's alpha may come to alpha_min, as bits; never too few, so that pixels decide. corner: of
// the tile; shape: mean and conic xx, xy; c: conic yy.
//
// Along a row of cells the ellipse's right and left boundary, concave and convex, are furthest at its own extremes or
// as close to these as the row comes.
__device__ inline unsigned reached_cells(float2 corner, float4 shape, float c, float furthest) {
    float a = shape.z, b = shape.w, square = b * b;
    float determinant = fmaf(a, c, -square) - fmaf(b, b, -square);  // a c - b b without cancellation
    if (!(determinant > 0.f && a > 0.f)) return 0xffffu;  // Rounding left the conic indefinite: no bound holds.
    float twice_reach = 2.f * (furthest * (1.0001f / LOG2_E) + 1e-4f);
    if (!(twice_reach > 0.f)) return 0u;
    // The ellipse's furthest point to the right is (half_width, extreme), its highest half_height above the mean.
    float inverse_a = inverse_fast(a), spread = inverse_root_fast(determinant), square_reach = twice_reach * a;
    float turn = root_fast(twice_reach * inverse_fast(c)) * spread, extreme = -b * turn;
    float half_height = fmaf(root_fast(square_reach) * spread, 1.f + 2e-6f, 0.01f);
    float slack = fmaf(c * turn, 2e-6f, 0.01f);
    float left = corner.x - shape.x, top = corner.y - shape.y;
    unsigned cells = 0u;
#pragma unroll
    for (int row = 0; row < TILE / CELL; ++row) {
        float y0 = fmaxf(top + row * CELL, -half_height), y1 = fminf(top + row * CELL + (CELL - 1), half_height);
        float at_right = fminf(fmaxf(extreme, y0), y1), at_left = fminf(fmaxf(-extreme, y0), y1);
        float right_root = root_fast(fmaxf(fmaf(-determinant * at_right, at_right, square_reach), 0.f));
        float left_root = root_fast(fmaxf(fmaf(-determinant * at_left, at_left, square_reach), 0.f));
        // The last and the first pixel of the tile's row, rounded down and up.
        float x1 = fmaf(fmaf(-b, at_right, right_root), inverse_a, slack - left - ALMOST_HALF) + ROUNDING;
        float x0 = fmaf(fmaf(-b, at_left, -left_root), inverse_a, ALMOST_HALF - slack - left) + ROUNDING;
        x0 = fmaxf(x0, ROUNDING);
        x1 = fminf(x1, ROUNDING + (TILE - 1.f));
        unsigned end = (2u << row * (TILE / CELL)) << (__float_as_uint(x1) / CELL & 31u);
        unsigned begin = (1u << row * (TILE / CELL)) << (__float_as_uint(x0) / CELL & 31u);
        if (y0 <= y1 && x0 <= x1) cells += end - begin;
    }
    return cells;
}

__device__ inline unsigned shared_address(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

__device__ inline float4 shared_word(unsigned address) {
    float4 word;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(word.x), "=f"(word.y), "=f"(word.z), "=f"(word.w)
                 : "r"(address)
                 : "memory");
    return word;
}

// Start copying a splat's record to an entry. The thread that requests it also receives it.
__device__ inline void request(float4* entry, const float4* records, int splat) {
    unsigned to = shared_address(entry);
    const float4* from = records + static_cast<int64_t>(splat) * 3;
#pragma unroll
    for (int word = 0; word < 3; ++word) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + word * 16), "l"(from + word) : "memory");
    }
}

__device__ inline void wait_for_requests() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Bring a received record, of this conic, into the form in which it is evaluated. Others see it after the
// block's next barrier.
__device__ inline void stage(float4* entry, float4 shape, float c, float furthest, int tag) {
    entry[0].z = 0.5f * LOG2_E * shape.z;
    entry[0].w = LOG2_E * shape.w;
    entry[1].x = 0.5f * LOG2_E * c;
    *reinterpret_cast<float2*>(&entry[2].z) = make_float2(__uint_as_float(sigma_limit(furthest)), __int_as_float(tag));
}

// What lists that are padded to whole groups end with. Seen after the block's next barrier.
template <int ENTRIES>
__device__ inline void place_no_splat(Batch<ENTRIES>& batch) {
    if (threadIdx.x < 3) batch.records[ENTRIES * 3 + threadIdx.x] = make_float4(0.f, 0.f, 0.f, 0.f);
}

// Where in shared memory the records lie of a batch's entries that reach a half warp's cell, in order, in groups of
// LISTED; past the end stands the record of no splat.
template <int ENTRIES>
struct alignas(8) List {
    uint16_t address[ENTRIES + LISTED];
};

// threadIdx.x, read again: what follows from it is not kept in registers from one batch to the next.
__device__ inline int thread_anew() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Each lane of a half looks at its own EACH entries of a batch; reach of the first two, and of the second two, and so
// on, share a word. So entry i of them is this bit.
__device__ constexpr int bit_of(int i) { return i / 2 + (i & 1) * 16; }

// Bits of a lane's entries that lie before `end`, counted from the lane's first.
__device__ inline unsigned entries_before(int end) {
    int left = min(max(end, 0), 31);
    return ((1u << ((left + 1) / 2)) - 1u) | (((1u << (left / 2)) - 1u) << 16);
}

// Fill this half's list with the entries that reach its cell and that `kept` has, by lane. Returns the length of the
// longer list of the warp's two, rounded up to whole groups.
template <int ENTRIES>
__device__ inline int list_entries(const Batch<ENTRIES>& batch, unsigned kept, List<ENTRIES>& own) {
    constexpr int EACH = ENTRIES / HALF;
    static_assert(EACH % 8 == 0 && EACH <= 32, "a lane reads whole words of 16 bytes and has a bit for each entry");
    int thread = thread_anew(), lane = thread % HALF;
    int cell = thread / (2 * WARP) * (TILE / CELL) + (thread / HALF & 3);
    unsigned reached = 0u;
#pragma unroll
    for (int word = 0; word < EACH / 8; ++word) {
        uint4 four = reinterpret_cast<const uint4*>(batch.reach)[lane * (EACH / 8) + word];
        reached |= (four.x >> cell & 0x10001u) << (4 * word) | (four.y >> cell & 0x10001u) << (4 * word + 1) |
                   (four.z >> cell & 0x10001u) << (4 * word + 2) | (four.w >> cell & 0x10001u) << (4 * word + 3);
    }
    reached &= kept;
    int count = __popc(reached), end = count;
#pragma unroll
    for (int step = 1; step < HALF; step *= 2) {
        int before = __shfl_up_sync(ALL_LANES, end, step, HALF);
        if (lane >= step) end += before;
    }
    int total = __shfl_sync(ALL_LANES, end, HALF - 1, HALF);
    int longer = max(total, __shfl_xor_sync(ALL_LANES, total, HALF));
    int whole = (longer + LISTED - 1) / LISTED * LISTED;
    unsigned first = shared_address(batch.records);
    uint16_t* to = own.address + (end - count);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (reached >> bit_of(i) & 1u) *to++ = static_cast<uint16_t>(first + (lane * EACH + i) * RECORD_BYTES);
    }
#pragma unroll 1
    for (int i = total + lane; i < whole; i += HALF) {
        own.address[i] = static_cast<uint16_t>(first + ENTRIES * RECORD_BYTES);
    }
    __syncwarp();
    return whole;
}

// The addresses of a group, one after another.
struct Group {
    uint2 words;
    __device__ explicit Group(const uint16_t* addresses) : words(*reinterpret_cast<const uint2*>(addresses)) {}
    __device__ unsigned address(int i) const {
        unsigned word = i < 2 ? words.x : words.y;
        return i & 1 ? word >> 16 : word & 0xffffu;
    }
};
static_assert(LISTED == 4, "a group's addresses are two words");

struct Density {
    float sigma;  // in powers of two
    float value;  // opacity exp(-sigma), before the cap
};

// shape, rest: as staged. x, y: the pixel's centre.
__device__ inline Density density_at(float x, float y, float4 shape, float4 rest) {
    float dx = x - shape.x, dy = y - shape.y;
    float sigma = dx * (shape.z * dx + shape.w * dy) + dy * (rest.x * dy);
    return {sigma, rest.y * exp2_fast(-sigma)};
}

__device__ inline bool in_range(float2 range, float depth) { return range.x <= depth && depth < range.y; }
