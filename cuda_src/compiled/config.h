// Sizes of blocks and batches, with the reason beside each, and what every kernel file needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

#include "generated.h"

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Threads of kernels that give one thread to a Gaussian, splat or pair: enough warps to hide memory, few enough
// registers a block that several blocks share a multiprocessor.
constexpr int THREADS = 256;

// Threads of kernels that stage whole rows of parameters in shared memory: 32 rows x 236 B a warp, so that four warps
// stay below the 48 KB that a block has without asking and seven blocks share a multiprocessor of 228 KB.
constexpr int STAGE_THREADS = 128;

// A raster block is a tile: a thread a pixel. A warp has a sub-tile of 8 x 4 pixels, the unit of masks, and half a warp
// a cell of 4 x 4, the unit of culling: see compositing.cuh.
constexpr int TILE_THREADS = TILE * TILE;
constexpr int CELL = 4;
constexpr int HALF = CELL * CELL;
static_assert(SUBTILE_WIDTH == 2 * CELL && SUBTILE_HEIGHT == CELL && 2 * HALF == WARP, "a half warp renders a cell");
static_assert(TILE / CELL == 4, "a mask of cells has 16 bits, a mask of sub-tiles eight");

// Splats that a block of raster_forward holds at a time, a thread each: two batches, one rendered while the other
// comes. Warps of a block wait for one another once a batch, so longer ones even out their lists.
constexpr int FORWARD_BATCH = TILE_THREADS;
// A tile's list longer than one and a half segments is cut into segments of this many entries, which several blocks
// composite at once: one list in ten thousand is so long that its tile would take as long as all others together. A
// segment costs 8 KB and some microseconds; where there are more than FINE_INSTANCES it is longer. A list is cut in at
// most MOST_SEGMENTS, so that a block has a thread for each.
constexpr int SEGMENT = 4 * FORWARD_BATCH;
__host__ __device__ constexpr int whole_list(int segment) { return segment + segment / 2; }
constexpr int64_t FINE_INSTANCES = 8 << 20;
constexpr int MOST_SEGMENTS = TILE_THREADS;
// List entries read by one load of shared memory.
constexpr int LISTED = 4;

// Tiles of a splat's span that one thread of culling tests by itself; the warp shares wider spans.
// Most spans have 1-6 tiles.
constexpr int OWN_SPAN = 12;

// Depths of a tile's list, alike in the bits sorted by, that threads put in order by comparing all with all. With longer
// runs, a wall seen face on, the list is sorted by all bits, and by id first.
constexpr int TIE_RUN = 32;

// Floats that one instruction moves at most, 16 bytes.
constexpr int PIECE = 4;

// Places of splats among what a rank keeps: none; none that says all, since it went to other ranks too.
constexpr int NOWHERE = -1, ELSEWHERE = -2;

// Of an H200: where the number of blocks is chosen, it is for so many multiprocessors.
constexpr int MULTIPROCESSORS = 132;

// Shared memory of a multiprocessor, and what each block takes of it beside its own.
constexpr int MULTIPROCESSOR_SHARED = 228 << 10;
constexpr int BLOCK_RESERVED = 1 << 10;

// Memory-bound kernels loop over their work with at most this many blocks, several for each multiprocessor.
constexpr int64_t MOST_BLOCKS = MULTIPROCESSORS * 64;

inline int blocks_for(int64_t work, int64_t each) {
    int64_t blocks = (work + each - 1) / each;
    return static_cast<int>(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

// Where a call runs: the CUDA runtime in this library keeps its own current device for each thread.
struct Queue {
    int device;
    cudaStream_t stream;
};

#define EXPORT extern "C" __attribute__((visibility("default")))

// The most shared memory that `kernel` is launched with beside what the compiler knows of: resources.py asks for it by
// name, an instantiation's with its (first) arguments behind underscores. So many blocks must fit a multiprocessor.
#define DYNAMIC_SHARED(kernel, bytes, blocks)                                                               \
    static_assert((blocks) * ((bytes) + BLOCK_RESERVED) <= MULTIPROCESSOR_SHARED, "its blocks do not fit"); \
    EXPORT int dynamic_shared_##kernel() { return static_cast<int>(bytes); }

// Returns the error of a call that failed.
#define CHECK(call)                                             \
    do {                                                        \
        cudaError_t check_error_ = (call);                      \
        if (check_error_ != cudaSuccess) return check_error_;   \
    } while (0)

__device__ inline int lane_index() { return threadIdx.x & (WARP - 1); }
__device__ inline int warp_index() { return threadIdx.x / WARP; }

// The lanes' values added up, to this lane and with it.
template <typename T>
__device__ inline T sum_up_to_lane(T value) {
    for (int step = 1; step < WARP; step *= 2) {
        T below = __shfl_up_sync(ALL_LANES, value, step);
        if (lane_index() >= step) value += below;
    }
    return value;
}
