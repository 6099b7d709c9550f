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

// A raster block is a tile: a thread a pixel, and a warp a sub-tile of 8 x 4 pixels, the unit of masks and of culling.
constexpr int TILE_THREADS = TILE * TILE;
static_assert(SUBTILE_WIDTH * SUBTILE_HEIGHT == WARP, "a warp renders one sub-tile");
static_assert(TILE / SUBTILE_WIDTH == 2 && TILE / SUBTILE_HEIGHT == 4, "a mask of sub-tiles has eight bits");

// Tiles of a splat's span that one thread tests by itself; the warp shares wider spans. Most spans have 1-6 tiles.
constexpr int OWN_SPAN = 12;

// Equal depths that one thread puts in order by itself, by insertion. Longer runs, a plane seen face on, send the
// whole list through a sort by id first.
constexpr int TIE_RUN = 64;

// Memory-bound kernels loop over their work with at most this many blocks, several for each of 132 multiprocessors.
constexpr int64_t MOST_BLOCKS = 132 * 64;

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

// Returns the error of a call that failed.
#define CHECK(call)                                             \
    do {                                                        \
        cudaError_t check_error_ = (call);                      \
        if (check_error_ != cudaSuccess) return check_error_;   \
    } while (0)

__device__ inline int lane_index() { return threadIdx.x & (WARP - 1); }
__device__ inline int warp_index() { return threadIdx.x / WARP; }
