// What both ways between ranks share: where a splat's record or gradient lies in the buffer that travels.
//
// A block has 256 splats. It counts those that each rank is sent; a prefix sum over ranks and blocks, rank after rank, is
// then where each block's records begin in the buffer that travels, so that every kernel finds a record's place from the
// masks and those sums, and no list of indices exists.
//
// Or each rank has a room in the buffer, agreed upon beforehand, so that no host need know how many records there are.
// What they leave of it holds depths that are not numbers; its last row is never a record's and carries the sender's
// overflow flag.
#pragma once

#include "config.h"

// As in cuda_src/exchange.py.
constexpr int MOST_RANKS = 64;
constexpr int SENT_GRADIENTS = 9;

constexpr int WARPS = THREADS / WARP;

// Passed by value. A bit a rank, [splats], or null: all splats go to rank `whole`, in one block; records up to and with each block, [ranks x blocks]; rows of the buffer up to
// and with each rank's room, if they have any, and instances that what it is sent may have; the flag that is set where a
// room is too small.
struct Routes {
    uint64_t* masks;
    int64_t* ends;
    int64_t splats, blocks;
    int* overflow;
    int ranks, roomy, whole;
    int64_t room_ends[MOST_RANKS], room_instances[MOST_RANKS];

    // How many records there are for ranks before this one, and for this one in blocks before this.
    __device__ int64_t sent_before(int rank, int64_t block) const {
        int64_t before = rank * blocks + block - 1;
        return before < 0 ? 0 : ends[before];
    }
    __device__ int64_t sent(int rank) const { return sent_before(rank + 1, 0) - sent_before(rank, 0); }
    // Rows of the buffer that a rank's records may have.
    __device__ int64_t begin(int rank) const {
        if (!roomy) return sent_before(rank, 0);
        return rank == 0 ? 0 : room_ends[rank - 1];
    }
    __device__ int64_t end(int rank) const { return roomy ? room_ends[rank] - 1 : sent_before(rank + 1, 0); }
    // Where a block's records for a rank begin.
    __device__ int64_t start(int rank, int64_t block) const {
        return begin(rank) + sent_before(rank, block) - sent_before(rank, 0);
    }
};

// Rows that a rank has for itself.
struct Hole {
    int64_t first, count;
    __device__ int64_t row(int64_t other) const { return other < first ? other : other + count; }
};

__device__ inline uint64_t either(uint64_t mask) {
    uint32_t low = __reduce_or_sync(ALL_LANES, static_cast<uint32_t>(mask));
    uint32_t high = __reduce_or_sync(ALL_LANES, static_cast<uint32_t>(mask >> 32));
    return static_cast<uint64_t>(high) << 32 | low;
}

// `each(rank, lanes, at)` is called by the whole warp for each of the wanted ranks that any of its splats goes to: with
// the lanes whose splat does, and the place of the first of them among all that are sent. Every thread of the block
// calls it, once.
template <typename Each>
__device__ void for_each_rank(const Routes& routes, uint64_t mask, Each each) {
    __shared__ int counts[WARPS][MOST_RANKS];
    for (int i = threadIdx.x; i < WARPS * MOST_RANKS; i += THREADS) counts[i / MOST_RANKS][i % MOST_RANKS] = 0;
    __syncthreads();
    uint64_t any = either(mask);
    for (uint64_t left = any; left; left &= left - 1) {
        int rank = __ffsll(left) - 1;
        int those = __popc(__ballot_sync(ALL_LANES, mask >> rank & 1));
        if (lane_index() == 0) counts[warp_index()][rank] = those;
    }
    __syncthreads();
    for (uint64_t left = any; left; left &= left - 1) {
        int rank = __ffsll(left) - 1;
        int64_t at = routes.start(rank, blockIdx.x);
        for (int warp = 0; warp < warp_index(); ++warp) at += counts[warp][rank];
        each(rank, __ballot_sync(ALL_LANES, mask >> rank & 1), at);
    }
}

__device__ inline int64_t own_splat() { return static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; }

__device__ inline uint64_t own_mask(const Routes& routes) {
    return own_splat() < routes.splats ? routes.masks[own_splat()] : 0;
}

__device__ inline int lanes_below(unsigned lanes) { return __popc(lanes & ((1u << lane_index()) - 1)); }
