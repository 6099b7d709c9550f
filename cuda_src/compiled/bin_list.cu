// Binning, second part: where each tile's list starts, and the splats in the lists, in no order.
#include "bin.cuh"

constexpr int START_THREADS = 1024;
constexpr int START_EACH = 8;

__device__ int shares_of(int count) { return (count + SHARE - 1) / SHARE; }

// Those of a thread's lists, in tiles from `first` on, that are split before they are sorted. They take their places
// together: where one tile's list is long, so are its neighbours'.
__device__ void add_long(const Lists& lists, const Work& work, int first, const int (&counts)[START_EACH]) {
    int more_lists = 0, more_buckets = 0, more_shares = 0;
#pragma unroll
    for (int count : counts) {
        if (count > SORTED) ++more_lists, more_buckets += buckets_of(count), more_shares += shares_of(count);
    }
    if (more_lists == 0) return;
    auto take = [](unsigned long long* total, int more) {
        return static_cast<int>(atomicAdd(total, static_cast<unsigned long long>(more)));
    };
    Counts* totals = work.totals();
    int list = take(&totals->long_lists, more_lists), bucket = take(&totals->buckets, more_buckets);
    int share = take(&totals->shares, more_shares);
#pragma unroll
    for (int i = 0; i < START_EACH; ++i) {
        if (counts[i] > SORTED) {
            lists.long_lists[list] = {first + i, bucket};
            for (int number = 0; number < shares_of(counts[i]); ++number) {
                lists.shares[share++] = make_int2(list, number);
            }
            bucket += buckets_of(counts[i]);
            ++list;
        }
    }
}

// Where lists start, as far as there is room, and the shares of long ones: one block, 8192 tiles at a time. Counts of
// tiles are zero again afterwards. needed: null, or [4]: live splats, undrawn ones, instances, and whether a room was too
// small.
__global__ void __launch_bounds__(START_THREADS) start_lists(Given given, Work work, Lists lists, int64_t tiles,
                                                             int64_t* starts, int64_t* needed) {
    constexpr int WARPS = START_THREADS / WARP;
    __shared__ int64_t warp_ends[WARPS];
    int* tallies = work.tallies();
    int64_t before = 0;
    for (int64_t round = 0; round < tiles; round += START_THREADS * START_EACH) {
        int64_t first = round + static_cast<int64_t>(threadIdx.x) * START_EACH, own = 0;
        int counts[START_EACH];
#pragma unroll
        for (int i = 0; i < START_EACH; ++i) {
            counts[i] = first + i < tiles ? tallies[first + i] : 0;
            own += counts[i];
        }
        int64_t end = sum_up_to_lane(own);
        __syncthreads();
        if (lane_index() == WARP - 1) warp_ends[warp_index()] = end;
        __syncthreads();
        int64_t of_warps = sum_up_to_lane(warp_ends[lane_index()]);
        int64_t begin = before + end - own;
        int64_t warps_before = __shfl_sync(ALL_LANES, of_warps, max(warp_index() - 1, 0));
        if (warp_index() > 0) begin += warps_before;
        before += __shfl_sync(ALL_LANES, of_warps, WARP - 1);
#pragma unroll
        for (int i = 0; i < START_EACH; ++i) {
            if (first + i < tiles) {
                int64_t start = min(begin, lists.room);
                begin += counts[i];
                counts[i] = static_cast<int>(min(begin, lists.room) - start);
                starts[first + i] = start;
                tallies[first + i] = 0;
            }
        }
        add_long(lists, work, static_cast<int>(first), counts);
    }
    if (threadIdx.x != 0) return;
    starts[tiles] = min(before, lists.room);
    if (given.overflow != nullptr && before > lists.room) *given.overflow = 1;
    if (needed == nullptr) return;
    needed[0] = given.live[0];
    needed[1] = given.live[1];
    needed[2] = before;
    needed[3] = *given.overflow;
}
static_assert(START_THREADS == WARP * WARP, "a warp adds up the warps");

// A block has so many instances of one tile if neighbours meet the same tiles, far from the camera: a quarter of a warp
// or more would wait for one counter.
constexpr int CROWDED = CHUNK / 8;

// Each splat that is not wide into the lists of its tiles. TABLE: a block counts its splats by tile first, takes places
// for all of them at once, and gives these out in shared memory.
template <bool TABLE>
__global__ void __launch_bounds__(THREADS) list_instances(Listing listing, Given given, Work work, Lists lists,
                                                          int tiles, const int64_t* starts) {
    extern __shared__ __align__(16) int table[];
    // Splats have numbers of 31 bits.
    uint32_t first = blockIdx.x * CHUNK, live = static_cast<uint32_t>(work.live(given));
    if (first >= live) return;
    bool gives_out = !TABLE, crowded = false;
    auto take = [&](int place, uint32_t splat) {
        if (TABLE && !gives_out) {
            atomicAdd(table + place, 1);
            return;
        }
        // Below 2^32: starts and counts are below 2^31.
        uint32_t at = TABLE ? static_cast<uint32_t>(atomicAdd(table + place, 1))
                            : static_cast<uint32_t>(starts[place]) +
                                  static_cast<uint32_t>(atomicAdd(work.tallies() + place, 1));
        if (at < lists.room) lists.entries[at] = make_uint2(work.depths()[splat], splat);
    };
    // By all lanes: those with the same tile take places for all of them at once.
    auto take_together = [&](int place, uint32_t splat) {
        unsigned alike = __match_any_sync(ALL_LANES, place);
        int first_lane = __ffs(static_cast<int>(alike)) - 1, begin = 0;
        if (place >= 0 && lane_index() == first_lane) begin = atomicAdd(table + place, __popc(alike));
        begin = __shfl_sync(ALL_LANES, begin, first_lane);
        uint32_t at = static_cast<uint32_t>(begin + __popc(alike & ((1u << lane_index()) - 1)));
        if (place >= 0 && at < lists.room) lists.entries[at] = make_uint2(work.depths()[splat], splat);
    };
    if (TABLE) {
        for (int k = threadIdx.x; k < tiles; k += THREADS) table[k] = 0;
        __syncthreads();
    }
#pragma unroll 1
    while (true) {
        // All of them on the way at once.
        uint2 words[CHUNK_ROUNDS];
#pragma unroll
        for (int round = 0; round < CHUNK_ROUNDS; ++round) {
            uint32_t splat = first + round * THREADS + threadIdx.x;
            words[round] = splat < live ? work.found()[splat] : Tiles::none().words();
        }
#pragma unroll
        for (int round = 0; round < CHUNK_ROUNDS; ++round) {
            Tiles found = Tiles::of(words[round]);
            uint32_t splat = first + round * THREADS + threadIdx.x;
            auto place_of = [&](uint32_t hits) {
                int2 tile = found.tile(__ffs(static_cast<int>(hits)) - 1);
                return listing.place_of(tile.x, tile.y);
            };
            if (TABLE && crowded) {
                for (uint32_t hits = found.hits; __any_sync(ALL_LANES, hits != 0); hits &= hits - 1) {
                    take_together(hits ? place_of(hits) : -1, splat);
                }
            } else {
                for (uint32_t hits = found.hits; hits; hits &= hits - 1) take(place_of(hits), splat);
            }
        }
        if (gives_out) break;
        gives_out = true;
        __syncthreads();
        for (int k = threadIdx.x; k < tiles; k += THREADS) {
            int count = table[k];
            crowded |= count >= CROWDED;
            if (count > 0) table[k] = static_cast<int>(starts[k]) + atomicAdd(work.tallies() + k, count);
        }
        crowded = __syncthreads_or(crowded);
    }
}

// Wide splats into the lists of their tiles.
__global__ void __launch_bounds__(THREADS) list_wide(Listing listing, Work work, Lists lists, const int64_t* starts) {
    auto list = [&](uint32_t splat, int place) {
        uint32_t at = static_cast<uint32_t>(starts[place]) +
                      static_cast<uint32_t>(atomicAdd(work.tallies() + place, 1));
        if (at < lists.room) lists.entries[at] = make_uint2(work.depths()[splat], splat);
    };
    walk_wide(listing, work, list, [](uint32_t, int) {});
}

DYNAMIC_SHARED(list_instances_true, TABLE_TILES * sizeof(int), 5)

// Instances, tile by tile and front to back, after count_instances. instances: room for them. memory: words to work
// with, see Lists; pitch >= instances.
EXPORT int list_bins(Queue queue, const View* view, const Given* given, const Work* work, int64_t instances,
                     int64_t tiles, uint32_t* memory, int64_t pitch, int* splat, int64_t* starts, int64_t* needed) {
    CHECK(cudaSetDevice(queue.device));
    cudaStream_t stream = queue.stream;
    Lists lists(memory, pitch, instances);
    start_lists<<<1, START_THREADS, 0, stream>>>(*given, *work, lists, tiles, starts, needed);
    CHECK(cudaGetLastError());
    if (instances == 0 || tiles == 0 || given->splats == 0) return cudaSuccess;
    bool table = tiles <= TABLE_TILES;
    auto kernel = table ? list_instances<true> : list_instances<false>;
    kernel<<<whole_chunks(given->splats), THREADS, table ? tiles * sizeof(int) : 0, stream>>>(
        Listing(*view, *given), *given, *work, lists, static_cast<int>(tiles), starts);
    CHECK(cudaGetLastError());
    list_wide<<<WIDE_BLOCKS, THREADS, 0, stream>>>(Listing(*view, *given), *work, lists, starts);
    CHECK(cudaGetLastError());
    return sort_lists(stream, lists, Ids(*given), *work, tiles, starts, splat);
}

// All of binning, where the sizes are those of a room. places: [image_tiles], where the tiles listed are written first;
// or null. first, begun: as of count_instances; what is begun has its tiles in `places` already.
EXPORT int bin_view(Queue queue, const View* view, const Given* given, const Work* work, int64_t instances,
                    int64_t tiles, uint32_t* memory, int64_t pitch, int* splat, int64_t* starts, int64_t* needed,
                    const int* listed, int* places, int64_t image_tiles, int64_t first, int64_t begun) {
    bool lists = places != nullptr && begun == 0;
    int failed = lists ? list_tiles(queue, listed, tiles, places, image_tiles) : cudaSuccess;
    if (!failed) failed = count_instances(queue, view, given, work, first, begun, tiles, nullptr);
    if (failed) return failed;
    return list_bins(queue, view, given, work, instances, tiles, memory, pitch, splat, starts, needed);
}
