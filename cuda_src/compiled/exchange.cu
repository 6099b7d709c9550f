// Which ranks' tiles each splat meets, and its record on the way there.
#include "bin.cuh"
#include "exchange.cuh"

// As in cuda_src/exchange.py.
constexpr int SENT_RECORDS = 0, SENT_INSTANCES = 1, OWN_SPLATS = 2, OWN_UNDRAWN = 3, OVERFLOWED = 4, ROUTE_COUNTS = 5;

// A record in words of 16 bytes.
constexpr int PARTS = RECORD_STRIDE / 4;
static_assert(PARTS * 4 == RECORD_STRIDE && RECORD_ID == RECORD_STRIDE - 1, "an id is the last word of a record");
// Blocks that blank what is left of a room: some thousands of rows.
constexpr int BLANKS = 8;

// Ranks of this lane's splat. instances: [ranks], shared by the block; its own are added.
__device__ uint64_t find_ranks(const Listing& listing, bool sent, const Record& record, int* instances) {
    __shared__ unsigned met[MOST_RANKS / 32][THREADS];  // bits of ranks, by splat
    for (auto& of_ranks : met) of_ranks[threadIdx.x] = 0u;
    __syncwarp();
    auto meet = [&](int rank, int lane) {
        atomicAdd(&instances[rank], 1);
        atomicOr(&met[rank / 32][warp_index() * WARP + lane], 1u << rank % 32);
    };
    for_each_tile(listing, footprint_of(listing.view, record.values), record.depth(), sent, meet);
    __syncwarp();
    uint64_t mask = 0;
    for (int i = 0; i < MOST_RANKS / 32; ++i) mask |= static_cast<uint64_t>(met[i][threadIdx.x]) << 32 * i;
    return mask;
}

// Ranks of every splat, and how many records each block has for each rank: block_records [ranks x blocks]. `listing`
// places a tile at the rank that renders it.
__global__ void __launch_bounds__(THREADS) find_routes(Listing listing, Given given, float min_opacity, Routes routes,
                                                       int* block_records, unsigned long long* counts) {
    __shared__ int records[MOST_RANKS], instances[MOST_RANKS];
    if (threadIdx.x < MOST_RANKS) records[threadIdx.x] = instances[threadIdx.x] = 0;
    __syncthreads();
    int64_t splat = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    int64_t live = given.live == nullptr ? given.splats : min(given.live[0], given.splats);
    bool in_use = splat < live;
    Record record(given.records, in_use ? splat : 0);
    bool drawn = in_use && depth_key(record.depth()) != BEHIND_ALL;
    bool sent = drawn && record.values[RECORD_OPACITY] >= min_opacity;
    uint64_t mask = find_ranks(listing, sent, record, instances);
    if (splat < given.splats) routes.masks[splat] = mask;
    for (uint64_t left = either(mask); left; left &= left - 1) {
        int rank = __ffsll(left) - 1;
        int those = __popc(__ballot_sync(ALL_LANES, mask >> rank & 1));
        if (lane_index() == 0) atomicAdd(&records[rank], those);
    }
    __syncthreads();
    if (threadIdx.x < routes.ranks) {
        block_records[threadIdx.x * routes.blocks + blockIdx.x] = records[threadIdx.x];
        unsigned long long own = instances[threadIdx.x];
        if (own > 0) atomicAdd(&counts[threadIdx.x * ROUTE_COUNTS + SENT_INSTANCES], own);
    }
}

// One block, a thread a rank.
__global__ void count_routes(Given given, Routes routes, int64_t* counts) {
    int rank = threadIdx.x;
    if (rank >= routes.ranks) return;
    int64_t* own = counts + rank * ROUTE_COUNTS;
    own[SENT_RECORDS] = routes.sent(rank);
    own[OWN_SPLATS] = given.live == nullptr ? given.splats : given.live[0];
    own[OWN_UNDRAWN] = given.live == nullptr ? 0 : given.live[1];
    own[OVERFLOWED] = given.live != nullptr && given.live[0] > given.splats;
    bool holds = routes.sent(rank) <= routes.end(rank) - routes.begin(rank) &&
                 own[SENT_INSTANCES] <= routes.room_instances[rank];
    if (routes.roomy && !holds) *routes.overflow = 1;
}

// Of a view that one rank renders whole, a thread a rank: live: as of Given, and instances of all splats.
__global__ void count_whole(const int64_t* live, Routes routes, int64_t* counts) {
    int rank = threadIdx.x;
    if (rank >= routes.ranks) return;
    bool its = rank == routes.whole;
    int64_t* own = counts + rank * ROUTE_COUNTS;
    own[SENT_RECORDS] = its ? live[0] : 0;
    own[SENT_INSTANCES] = its ? live[2] : 0;
    own[OWN_SPLATS] = live[0];
    own[OWN_UNDRAWN] = live[1];
    own[OVERFLOWED] = live[0] > routes.splats;
    routes.ends[rank] = rank < routes.whole ? 0 : min(live[0], routes.splats);
    if (its && live[2] > routes.room_instances[rank]) *routes.overflow = 1;
}

// The lanes given, one after another, for the warp to work through: entry n is the n-th of them.
__device__ inline const int* in_order(unsigned lanes) {
    __shared__ int order[WARPS][WARP];
    __syncwarp();
    if (lanes >> lane_index() & 1) order[warp_index()][lanes_below(lanes)] = lane_index();
    __syncwarp();
    return order[warp_index()];
}

// Records of these lanes' splats, one after another from row `place` on, as far as rows are below `last`: each by three
// lanes, the last of which has its id as well. Rows are `row_parts` words of 16 bytes apart.
__device__ inline void copy_records(unsigned lanes, const uint4* __restrict__ records, const int64_t* __restrict__ ids,
                                    uint4* rows, int row_parts, int64_t place, int64_t last) {
    const int* order = in_order(lanes);
    int64_t first = own_splat() - lane_index();
    int parts = __popc(lanes) * PARTS;
    uint4 value[PARTS];
#pragma unroll
    for (int j = 0; j < PARTS; ++j) {
        int i = lane_index() + j * WARP, n = i / PARTS, part = i - n * PARTS;
        if (i < parts) {
            int64_t splat = first + order[n];
            value[j] = records[splat * PARTS + part];
            if (part == PARTS - 1) value[j].w = static_cast<uint32_t>(ids[splat]);
        }
    }
#pragma unroll
    for (int j = 0; j < PARTS; ++j) {
        int i = lane_index() + j * WARP, n = i / PARTS, part = i - n * PARTS;
        if (i < parts && place + n < last) rows[(place + n) * row_parts + part] = value[j];
    }
}

// Records of other ranks into the buffer that travels, as far as its rows reach.
__global__ void __launch_bounds__(THREADS) pack_routes(Routes routes, int own_rank, const uint4* __restrict__ records,
                                                       const int64_t* __restrict__ ids, uint4* wire, int64_t rows,
                                                       int row_parts) {
    for_each_rank(routes, own_mask(routes) & ~(1ull << own_rank), [&](int rank, unsigned lanes, int64_t at) {
        copy_records(lanes, records, ids, wire, row_parts, at, min(rows, routes.end(rank)));
    });
}

// A rank's own records, put in their place among those that arrive, from row `first` on. places: [splats], the row of
// each, NOWHERE or ELSEWHERE; null if nobody asks.
__global__ void __launch_bounds__(THREADS) keep_routes(Routes routes, int own_rank, const uint4* __restrict__ records,
                                                       const int64_t* __restrict__ ids, int64_t first, uint4* arrivals,
                                                       int* places) {
    uint64_t mask = own_mask(routes), own_bit = 1ull << own_rank;
    int place = mask & ~own_bit ? ELSEWHERE : NOWHERE;
    for_each_rank(routes, mask & own_bit, [&](int rank, unsigned lanes, int64_t at) {
        int64_t begin = routes.begin(rank), last = routes.end(rank) - begin, row = at - begin;
        copy_records(lanes, records, ids, arrivals + first * PARTS, PARTS, row, last);
        row += lanes_below(lanes);
        if (mask == own_bit && row < last) place = static_cast<int>(first + row);
    });
    if (places != nullptr && own_splat() < routes.splats) places[own_splat()] = place;
}

// What a rank's records leave of its room: no splats, and in the last row of what travels the overflow flag. A row of
// blocks a rank; `base` is where the first rank's room, or the only one's, begins in a buffer of rows `width` words apart.
__global__ void __launch_bounds__(THREADS) blank_rooms(Routes routes, int own_rank, bool own, float* base, int width) {
    int rank = own ? own_rank : blockIdx.y;
    if (!own && rank == own_rank) return;
    int64_t first = own ? 0 : routes.begin(rank), rows = routes.end(rank) + 1 - routes.begin(rank);
    int64_t n = min(routes.sent(rank), rows - 1) + static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    for (; n < rows; n += static_cast<int64_t>(gridDim.x) * THREADS) {
        base[(first + n) * width + RECORD_DEPTH] = nanf("");
        if (!own && n == rows - 1) base[(first + n) * width] = *routes.overflow != 0 ? 1.f : 0.f;
    }
}

// A thread a rank: the flags of the others, in the last rows of what came. ends: of the rooms.
struct RoomEnds {
    int64_t ends[MOST_RANKS];
};
__global__ void read_flags(RoomEnds rooms, int ranks, int own_rank, const float* wire, int width, int* overflow) {
    int rank = threadIdx.x;
    if (rank < ranks && rank != own_rank && wire[(rooms.ends[rank] - 1) * width] != 0.f) *overflow = 1;
}

// What came from other ranks in rows that lie further apart than records.
__global__ void __launch_bounds__(THREADS) unpack_wire(const uint4* __restrict__ wire, int row_parts, int64_t others,
                                                       Hole hole, uint4* __restrict__ records) {
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t base = static_cast<int64_t>(blockIdx.x) * THREADS; base < others; base += step) {
        int parts = static_cast<int>(min(others - base, static_cast<int64_t>(THREADS))) * PARTS;
        uint4 value[PARTS];
#pragma unroll
        for (int j = 0; j < PARTS; ++j) {
            int i = threadIdx.x + j * THREADS, n = i / PARTS;
            if (i < parts) value[j] = wire[hole.row(base + n) * row_parts + i - n * PARTS];
        }
#pragma unroll
        for (int j = 0; j < PARTS; ++j) {
            int i = threadIdx.x + j * THREADS, n = i / PARTS;
            if (i < parts) records[hole.row(base + n) * PARTS + i - n * PARTS] = value[j];
        }
    }
}

// given: its `places` are the ranks of the tiles. block_records: [ranks x blocks] to work with. counts: [ranks,
// ROUTE_COUNTS], written. At least one splat.
EXPORT int route_splats(Queue queue, const View* view, const Given* given, float min_opacity, const Routes* routes,
                        Scratch scratch, int* block_records, int64_t* counts) {
    CHECK(cudaSetDevice(queue.device));
    cudaStream_t stream = queue.stream;
    CHECK(cudaMemsetAsync(counts, 0, routes->ranks * ROUTE_COUNTS * sizeof(*counts), stream));
    find_routes<<<static_cast<unsigned>(routes->blocks), THREADS, 0, stream>>>(
        Listing(*view, *given), *given, min_opacity, *routes, block_records,
        reinterpret_cast<unsigned long long*>(counts));
    CHECK(cudaGetLastError());
    CHECK(prefix_sums(stream, scratch, block_records, routes->ends, routes->ranks * routes->blocks));
    count_routes<<<1, MOST_RANKS, 0, stream>>>(*given, *routes, counts);
    return cudaGetLastError();
}

// live: of splats that project_gaussians made where they travel, or are kept; counts: as of route_splats.
EXPORT int route_whole(Queue queue, const int64_t* live, const Routes* routes, int64_t* counts) {
    CHECK(cudaSetDevice(queue.device));
    count_whole<<<1, MOST_RANKS, 0, queue.stream>>>(live, *routes, counts);
    return cudaGetLastError();
}

// width: words of a row, a multiple of four. Of a view that one rank renders whole all records are there already.
EXPORT int pack_records(Queue queue, const Routes* routes, int own_rank, const uint4* records, const int64_t* ids,
                        uint4* wire, int64_t rows, int width) {
    CHECK(cudaSetDevice(queue.device));
    if (routes->masks != nullptr) {
        pack_routes<<<static_cast<unsigned>(routes->blocks), THREADS, 0, queue.stream>>>(*routes, own_rank, records,
                                                                                         ids, wire, rows, width / 4);
        CHECK(cudaGetLastError());
    }
    if (routes->roomy) {
        blank_rooms<<<dim3(BLANKS, static_cast<unsigned>(routes->ranks)), THREADS, 0, queue.stream>>>(
            *routes, own_rank, false, reinterpret_cast<float*>(wire), width);
    }
    return cudaGetLastError();
}

// first: row of the arrivals where the rank's own begin. places: as of keep_routes. Likewise.
EXPORT int keep_records(Queue queue, const Routes* routes, int own_rank, const uint4* records, const int64_t* ids,
                        int64_t first, uint4* arrivals, int* places) {
    CHECK(cudaSetDevice(queue.device));
    if (routes->masks != nullptr) {
        keep_routes<<<static_cast<unsigned>(routes->blocks), THREADS, 0, queue.stream>>>(*routes, own_rank, records,
                                                                                         ids, first, arrivals, places);
        CHECK(cudaGetLastError());
    }
    if (routes->roomy) {
        blank_rooms<<<BLANKS, THREADS, 0, queue.stream>>>(
            *routes, own_rank, true, reinterpret_cast<float*>(arrivals + first * PARTS), RECORD_STRIDE);
    }
    return cudaGetLastError();
}

// wire: what came, `width` words a row; rooms: where each rank's room ends in it.
EXPORT int take_flags(Queue queue, const RoomEnds* rooms, int ranks, int own_rank, const float* wire, int width,
                      int* overflow) {
    CHECK(cudaSetDevice(queue.device));
    read_flags<<<1, MOST_RANKS, 0, queue.stream>>>(*rooms, ranks, own_rank, wire, width, overflow);
    return cudaGetLastError();
}

// rows: of the buffer, the hole's included; more than those of the hole. width: as above.
EXPORT int unpack_records(Queue queue, const uint4* wire, int width, int64_t rows, int64_t first, int64_t count,
                          uint4* arrivals) {
    CHECK(cudaSetDevice(queue.device));
    int64_t others = rows - count;
    unpack_wire<<<blocks_for(others, THREADS), THREADS, 0, queue.stream>>>(wire, width / 4, others, Hole{first, count},
                                                                           arrivals);
    return cudaGetLastError();
}
