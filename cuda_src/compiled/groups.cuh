// Groups of 32 consecutive rows of a table [N, 59], the unit in which kernels move parameters and moments: 7552 contiguous
// bytes, 472 pieces of 16 bytes, which a warp copies to the same places of its stage in shared memory. A lane then has the
// row of its number there, and since 59 is odd, lanes reading the same column of their own rows meet no bank twice.
//
// Only sectors of 32 bytes with something of a wanted row are copied, so that holes cost no memory traffic and no sector
// is written in part. What a sector has of a row that nobody wants is written back as it was, and so are the up to three
// floats behind the last whole piece of a table.
#pragma once

#include <cuda_pipeline.h>

#include "config.h"

constexpr int GROUP_FLOATS = WARP * PARAMETERS;
constexpr int PIECE_STEPS = (GROUP_FLOATS / PIECE + WARP - 1) / WARP;
static_assert(GROUP == WARP, "a lane has a row");
static_assert(PARAMETERS % 2 == 1, "an even row length needs padding");
static_assert(GROUP_FLOATS % (2 * PIECE) == 0, "groups begin at sectors of two pieces");
static_assert(PIECE_STEPS <= 32, "a lane's pieces are the bits of a word");

__host__ __device__ inline int64_t groups_of(int64_t rows) { return (rows + WARP - 1) / WARP; }

// Bits of the rows that a group has: all but the last group have 32.
__device__ inline unsigned rows_there(int64_t rows, int64_t group) {
    int64_t left = rows - group * WARP;
    return left >= WARP ? ALL_LANES : (1u << left) - 1;
}

// This lane's whole pieces that share a sector with something of the first `columns` of the rows in `rows`, as bits.
// Every lane of the warp calls it.
__device__ inline unsigned pieces_of(unsigned rows, int columns, int floats) {
    unsigned wanted = 0u, whole = 0u;
#pragma unroll
    for (int j = 0; j < PIECE_STEPS; ++j) {
        int first = PIECE * (lane_index() + j * WARP), last = first + PIECE - 1;
        int row = first / PARAMETERS, next = last / PARAMETERS;
        bool own = (rows >> (row & 31) & 1u) && first - row * PARAMETERS < columns;
        bool other = next != row && (rows >> (next & 31) & 1u);
        wanted |= (own || other ? 1u : 0u) << j;
        whole |= (last < floats ? 1u : 0u) << j;
    }
    wanted |= __shfl_xor_sync(ALL_LANES, wanted, 1);
    wanted &= whole;
    asm("" : "+r"(wanted));  // One register from here on, not the 15 conditions it was made of.
    return wanted;
}

// Start to copy these pieces of a group that has so many floats, and what a table that ends within a piece has of it.
__device__ inline void fetch_pieces(float* stage, const float* group, unsigned pieces, int floats) {
    float* to = stage + PIECE * lane_index();
    const float* from = group + PIECE * lane_index();
#pragma unroll
    for (int j = 0; j < PIECE_STEPS; ++j) {
        if (pieces >> j & 1u) {
            __pipeline_memcpy_async(to + j * PIECE * WARP, from + j * PIECE * WARP, PIECE * sizeof(float));
        }
    }
    int last = floats - floats % PIECE + lane_index();
    if (last < floats) __pipeline_memcpy_async(stage + last, group + last, sizeof(float));
}

__device__ inline void store_pieces(float* group, const float* stage, unsigned pieces, int floats) {
    float* to = group + PIECE * lane_index();
    const float* from = stage + PIECE * lane_index();
#pragma unroll
    for (int j = 0; j < PIECE_STEPS; ++j) {
        if (pieces >> j & 1u) {
            *reinterpret_cast<float4*>(to + j * PIECE * WARP) =
                *reinterpret_cast<const float4*>(from + j * PIECE * WARP);
        }
    }
    int last = floats - floats % PIECE + lane_index();
    if (last < floats) group[last] = stage[last];
}

// Append the values of the threads that have one to a list. Every thread of the block calls it, once.
__device__ inline void append(bool has, int value, int* list, int* length) {
    __shared__ int places[THREADS / WARP];
    unsigned having = __ballot_sync(ALL_LANES, has);
    if (lane_index() == 0) places[warp_index()] = __popc(having);
    __syncthreads();
    if (threadIdx.x == 0) {
        int total = 0;
        for (int& place : places) {
            int own = place;
            place = total;
            total += own;
        }
        int first = total > 0 ? atomicAdd(length, total) : 0;
        for (int& place : places) place += first;
    }
    __syncthreads();
    if (has) list[places[warp_index()] + __popc(having & ((1u << lane_index()) - 1))] = value;
}
