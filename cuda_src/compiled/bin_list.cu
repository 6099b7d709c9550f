// Binning, second half: instances in the order of depth, from one pass over the splats; then by tile, stably.
#include "bin.cuh"

// A word a block of list_instances: nothing yet, the block's own instances, or all up to and with it.
constexpr int STATE_BIT = 62;
constexpr unsigned long long OWN = 1ull << STATE_BIT, WHOLE = 2ull << STATE_BIT, SUM = OWN - 1;

__device__ int sum_up_to_lane(int value) {
    for (int distance = 1; distance < WARP; distance *= 2) {
        int other = __shfl_up_sync(ALL_LANES, value, distance);
        if (lane_index() >= distance) value += other;
    }
    return value;
}

// Instances of the blocks before this one (Merrill & Garland 2016, "Single-pass parallel prefix scan with decoupled
// look-back"): called by one whole warp. A block waits only for blocks that have started before it.
__device__ int64_t instances_before(unsigned long long* sums, int64_t block, int own) {
    // One word carries the state and its sum, so that no fence is needed between them.
    volatile unsigned long long* words = sums;
    if (lane_index() == 0) words[block] = (block == 0 ? WHOLE : OWN) | static_cast<unsigned long long>(own);
    if (block == 0) return 0;
    int64_t before = 0;
    for (int64_t last = block - 1;; last -= WARP) {
        int64_t at = last - lane_index();
        unsigned long long word = WHOLE;
        do {
            if (at >= 0) word = words[at];
        } while (__any_sync(ALL_LANES, word >> STATE_BIT == 0));
        unsigned whole = __ballot_sync(ALL_LANES, word >> STATE_BIT == 2);
        int farthest = whole ? __ffs(whole) - 1 : WARP - 1;
        int64_t part = lane_index() <= farthest ? static_cast<int64_t>(word & SUM) : 0;
        for (int distance = WARP / 2; distance > 0; distance /= 2) {
            part += __shfl_xor_sync(ALL_LANES, part, distance);
        }
        before += part;
        if (whole) break;
    }
    if (lane_index() == 0) words[block] = WHOLE | static_cast<unsigned long long>(before + own);
    return before;
}

// Where instances in the order of depth are written, as far as there is room.
struct Listed {
    uint32_t *places, *splat;
    int64_t room;
    __device__ void put(int64_t at, int place, uint32_t number) const {
        if (at >= room) return;
        places[at] = static_cast<uint32_t>(place);
        splat[at] = number;
    }
};

__global__ void __launch_bounds__(THREADS) list_instances(Listing listing, Given given, Work work, Listed listed) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ int64_t block, start;
    __shared__ int warp_starts[WARPS];
    // Blocks are numbered as they start, so that those waited for are running or done.
    if (threadIdx.x == 0) block = static_cast<int64_t>(atomicAdd(&work.totals()->blocks, 1ull));
    __syncthreads();
    int64_t i = block * THREADS + threadIdx.x;
    uint32_t splat = 0;
    Tiles tiles = Tiles::none();
    if (i < given.splats) {
        splat = work.order()[i];
        tiles = Tiles::of(work.found()[splat]);
    }
    int count = tiles.count(), up_to = sum_up_to_lane(count);
    if (lane_index() == WARP - 1) warp_starts[warp_index()] = up_to;
    __syncthreads();
    if (warp_index() == 0) {
        int of_warp = lane_index() < WARPS ? warp_starts[lane_index()] : 0;
        int warps_up_to = sum_up_to_lane(of_warp);
        if (lane_index() < WARPS) warp_starts[lane_index()] = warps_up_to - of_warp;
        int64_t before = instances_before(work.block_sums(), block, __shfl_sync(ALL_LANES, warps_up_to, WARP - 1));
        if (lane_index() == 0) start = before;
    }
    __syncthreads();
    int64_t position = start + warp_starts[warp_index()] + up_to - count;

    if (!tiles.to_walk()) {
        // i / columns as a product: exact for i < 32 and columns <= 32.
        int columns = tiles.columns(), inverse = ((1 << 16) + columns - 1) / columns;
        int64_t at = position;
        for (uint32_t hits = tiles.hits; hits; hits &= hits - 1) {
            int tile = __ffs(hits) - 1, row = tile * inverse >> 16;
            listed.put(at++, listing.place_of(tiles.x0() + tile - row * columns, tiles.y0() + row), splat);
        }
    }
    unsigned to_walk = __ballot_sync(ALL_LANES, tiles.to_walk());
    while (to_walk) {
        int lane = __ffs(to_walk) - 1;
        to_walk &= to_walk - 1;
        uint32_t its_splat = __shfl_sync(ALL_LANES, splat, lane);
        int64_t its_position = __shfl_sync(ALL_LANES, position, lane);
        walk_together(listing, its_splat, [&](unsigned, int n, int place) {
            if (place >= 0) listed.put(its_position + n, place, its_splat);
        });
    }

    // The rest of the room sorts behind all tiles.
    int64_t total = static_cast<int64_t>(work.totals()->instances);
    for (int64_t m = total + i; m < listed.room; m += static_cast<int64_t>(gridDim.x) * THREADS) {
        listed.places[m] = BEHIND_ALL;
    }
    if (i == 0 && total > listed.room && given.overflow != nullptr) *given.overflow = 1;
}

// Where each tile's instances start: the first of a place not below k, by bisection. needed: null, or [4]: live splats,
// undrawn ones, instances, and whether a room was too small.
__global__ void __launch_bounds__(THREADS) find_starts(const uint32_t* sorted_places, int64_t instances, int64_t tiles,
                                                       Given given, const Counts* totals, int64_t* starts,
                                                       int64_t* needed) {
    int64_t k = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (k == 0 && needed != nullptr) {
        needed[0] = given.live[0];
        needed[1] = given.live[1];
        needed[2] = static_cast<int64_t>(totals->instances);
        needed[3] = *given.overflow;
    }
    if (k > tiles) return;
    int64_t lo = 0, hi = instances;
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if (sorted_places[middle] < static_cast<uint32_t>(k)) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    starts[k] = lo;
}

// Instances, tile by tile and front to back, after order_splats. instances: room for them. tile_bits: of the largest
// place. memory: 3 x pitch words to work with, pitch >= instances.
EXPORT int list_bins(Queue queue, const View* view, const Given* given, const Work* work, int64_t instances,
                     int64_t tiles, int tile_bits, uint32_t* memory, int64_t pitch, int* splat, int64_t* starts,
                     int64_t* needed) {
    CHECK(cudaSetDevice(queue.device));
    cudaStream_t stream = queue.stream;
    uint32_t *by_depth = memory, *places = memory + pitch, *sorted_places = memory + 2 * pitch;
    if (instances > 0) {
        list_instances<<<whole_blocks(given->splats), THREADS, 0, stream>>>(Listing(*view, *given), *given, *work,
                                                                            Listed{places, by_depth, instances});
        CHECK(cudaGetLastError());
        CHECK(sort_pairs(stream, work->scratch, places, sorted_places, by_depth, reinterpret_cast<uint32_t*>(splat),
                         instances, tile_bits));
    }
    find_starts<<<whole_blocks(tiles + 1), THREADS, 0, stream>>>(sorted_places, instances, tiles, *given,
                                                                 work->totals(), starts, needed);
    return cudaGetLastError();
}

// Both halves, where the sizes are those of a room.
EXPORT int bin_view(Queue queue, const View* view, const Given* given, const Work* work, int64_t instances,
                    int64_t tiles, int tile_bits, uint32_t* memory, int64_t pitch, int* splat, int64_t* starts,
                    int64_t* needed) {
    int failed = order_splats(queue, view, given, work, nullptr);
    if (failed) return failed;
    return list_bins(queue, view, given, work, instances, tiles, tile_bits, memory, pitch, splat, starts, needed);
}
