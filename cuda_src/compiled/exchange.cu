// Which ranks' tiles each splat meets, and its record on the way there and its gradients on the way back.
//
// A block has 256 splats. It counts those that each rank is sent; a prefix sum over ranks and blocks, rank after rank, is
// then where each block's records begin in the buffer that travels, so that every kernel finds a record's place from the
// masks and those sums, and no list of indices exists.
//
// Or each rank has a room in the buffer, agreed upon beforehand, so that no host need know how many records there are.
// What they leave of it holds depths that are not numbers; its last row is never a record's and carries the sender's
// overflow flag on the way back.
#include "bin.cuh"

// As in cuda_src/exchange.py.
constexpr int MOST_RANKS = 64;
constexpr int SENT_GRADIENTS = 9;
constexpr int SENT_RECORDS = 0, SENT_INSTANCES = 1, OWN_SPLATS = 2, OWN_UNDRAWN = 3, OVERFLOWED = 4, ROUTE_COUNTS = 5;
constexpr int ID_WORDS = 2;
constexpr int WIRE = RECORD + ID_WORDS;

constexpr int WARPS = THREADS / WARP;
// Words that a lane has under way at once when a warp moves records.
constexpr int AT_ONCE = 4;
// Blocks that blank what is left of a room: some thousands of rows.
constexpr int BLANKS = 8;

// Passed by value. A bit a rank, [splats]; records up to and with each block, [ranks x blocks]; rows of the buffer up to
// and with each rank's room, if they have any; the flag that is set where a room is too small.
struct Routes {
    uint64_t* masks;
    int64_t* ends;
    int64_t splats, blocks;
    int* overflow;
    int ranks, roomy;
    int64_t room_ends[MOST_RANKS];

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

// Instances by rank, as tiles come: those of one rank follow one another, since its tiles do.
struct Tally {
    int* instances;  // [ranks], shared by the block
    uint64_t mask = 0;
    int rank = -1, run = 0;

    __device__ explicit Tally(int* instances) : instances(instances) {}
    __device__ void add(int of_tile) {
        if (of_tile != rank) {
            flush();
            rank = of_tile;
            mask |= 1ull << of_tile;
        }
        ++run;
    }
    __device__ void flush() {
        if (run > 0) atomicAdd(&instances[rank], run);
        run = 0;
    }
    // The whole warp: lanes that end with the same rank add as one.
    __device__ void flush_together() {
        unsigned left = __ballot_sync(ALL_LANES, run > 0);
        while (left) {
            int common = __shfl_sync(ALL_LANES, rank, __ffs(left) - 1);
            bool has = run > 0 && rank == common;
            int total = __reduce_add_sync(ALL_LANES, has ? run : 0);
            if (lane_index() == 0) atomicAdd(&instances[common], total);
            left &= ~__ballot_sync(ALL_LANES, has);
        }
        run = 0;
    }
};

// Ranks of this lane's splat. A lane walks a narrow span by itself; the warp walks wide ones together.
__device__ uint64_t find_ranks(const Listing& listing, int64_t splat, bool sent, const Record& record, int* instances) {
    Span span = {0, 0, 0, 0};
    Tally own(instances);
    if (sent) {
        Footprint f = footprint_of(listing.view, record.values);
        span = span_of(listing.view, f);
        if (span.count() <= OWN_SPAN) {
            for (int y = span.y0; y < span.y1; ++y) {
                for (int x = span.x0; x < span.x1; ++x) {
                    int rank = listed_at(listing, f, record.depth(), x, y);
                    if (rank >= 0) own.add(rank);
                }
            }
        }
    }
    own.flush_together();
    uint64_t mask = own.mask;
    unsigned wide = __ballot_sync(ALL_LANES, span.count() > OWN_SPAN);
    while (wide) {
        int lane = __ffs(wide) - 1;
        wide &= wide - 1;
        Tally together(instances);
        walk_together(listing, __shfl_sync(ALL_LANES, splat, lane), [&](unsigned, int, int rank) {
            if (rank >= 0) together.add(rank);
        });
        together.flush_together();
        uint64_t its_mask = either(together.mask);
        if (lane_index() == lane) mask = its_mask;
    }
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
    uint64_t mask = find_ranks(listing, splat, sent, record, instances);
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
    if (routes.roomy && routes.sent(rank) > routes.end(rank) - routes.begin(rank)) *routes.overflow = 1;
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

// The lanes given, one after another, for the warp to work through: entry n is the n-th of them.
__device__ inline const int* in_order(unsigned lanes) {
    __shared__ int order[WARPS][WARP];
    __syncwarp();
    if (lanes >> lane_index() & 1) order[warp_index()][lanes_below(lanes)] = lane_index();
    __syncwarp();
    return order[warp_index()];
}

// Records of other ranks into the buffer that travels, as far as its rows reach; `width` words a row.
__global__ void __launch_bounds__(THREADS) pack_routes(Routes routes, int own_rank, const uint32_t* __restrict__ records,
                                                       const uint32_t* __restrict__ ids, uint32_t* wire, int64_t rows,
                                                       int width) {
    int64_t first = own_splat() - lane_index();
    for_each_rank(routes, own_mask(routes) & ~(1ull << own_rank), [&](int rank, unsigned lanes, int64_t at) {
        const int* order = in_order(lanes);
        int words = __popc(lanes) * WIRE;
        int64_t last = min(rows, routes.end(rank));
        for (int begin = lane_index(); begin < words; begin += AT_ONCE * WARP) {
            uint32_t value[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                int i = begin + j * WARP;
                if (i < words) {
                    int n = i / WIRE, word = i - n * WIRE;
                    int64_t splat = first + order[n];
                    value[j] = word < RECORD ? records[splat * RECORD_STRIDE + word]
                                             : ids[splat * ID_WORDS + word - RECORD];
                }
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                int i = begin + j * WARP;
                if (i < words) {
                    int n = i / WIRE, word = i - n * WIRE;
                    if (at + n < last) wire[(at + n) * width + word] = value[j];
                }
            }
        }
    });
}

// A rank's own records and ids, put in their place among those that arrive.
__global__ void __launch_bounds__(THREADS) keep_routes(Routes routes, int own_rank, const float4* __restrict__ records,
                                                       const int64_t* __restrict__ ids, Hole hole, float4* kept,
                                                       int64_t* kept_ids) {
    constexpr int PARTS = RECORD_STRIDE / 4;
    int64_t first = own_splat() - lane_index();
    for_each_rank(routes, own_mask(routes) & 1ull << own_rank, [&](int rank, unsigned lanes, int64_t at) {
        int64_t place = hole.first + at - routes.begin(rank), last = hole.first + routes.end(rank) - routes.begin(rank);
        const int* order = in_order(lanes);
        int parts = __popc(lanes) * PARTS;
#pragma unroll
        for (int j = 0; j < PARTS; ++j) {
            int i = lane_index() + j * WARP;
            if (i < parts) {
                int n = i / PARTS, part = i - n * PARTS;
                if (place + n < last) kept[(place + n) * PARTS + part] = records[(first + order[n]) * PARTS + part];
            }
        }
        int64_t own = place + lanes_below(lanes);
        if ((lanes >> lane_index() & 1) && own < last) kept_ids[own] = ids[own_splat()];
    });
}

// What a rank's records leave of its room: no splats. A row of blocks a rank; `base` is where the first rank's room, or
// the only one's, begins in a buffer of rows `width` words apart.
__global__ void __launch_bounds__(THREADS) blank_rooms(Routes routes, int own_rank, bool own, float* base, int width) {
    int rank = own ? own_rank : blockIdx.y;
    if (!own && rank == own_rank) return;
    int64_t first = own ? 0 : routes.begin(rank), rows = routes.end(rank) + 1 - routes.begin(rank);
    int64_t n = min(routes.sent(rank), rows - 1) + static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    for (; n < rows; n += static_cast<int64_t>(gridDim.x) * THREADS) {
        base[(first + n) * width + RECORD_DEPTH] = nanf("");
    }
}

// What came from other ranks, out of the buffer that travelled.
__global__ void __launch_bounds__(THREADS) unpack_wire(const uint32_t* __restrict__ wire, int width, int64_t others,
                                                       Hole hole, uint32_t* records, uint32_t* ids) {
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t base = static_cast<int64_t>(blockIdx.x) * THREADS; base < others; base += step) {
        int words = static_cast<int>(min(others - base, static_cast<int64_t>(THREADS))) * WIRE;
        for (int begin = threadIdx.x; begin < words; begin += AT_ONCE * THREADS) {
            uint32_t value[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                int i = begin + j * THREADS, n = i / WIRE;
                if (i < words) value[j] = wire[hole.row(base + n) * width + i - n * WIRE];
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                int i = begin + j * THREADS, n = i / WIRE, word = i - n * WIRE;
                if (i >= words) continue;
                int64_t row = hole.row(base + n);
                (word < RECORD ? records[row * RECORD_STRIDE + word] : ids[row * ID_WORDS + word - RECORD]) = value[j];
            }
        }
    }
}

// The columns of a gradient that travel; false if all are exactly zero.
struct Gradient {
    float values[SENT_GRADIENTS];
    __device__ explicit Gradient(const float4* row) {
        float4 a = row[0], b = row[1];
        values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
        values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
        values[8] = row[2].x;
    }
    __device__ bool any() const {
        bool some = false;
#pragma unroll
        for (float value : values) some |= value != 0.f;
        return some;
    }
};
static_assert(GRADIENT_STRIDE == 12 && SENT_GRADIENTS == 9, "a row is three words of 16 bytes");

// Rows of nine floats are put together in shared memory: written lane by lane they would touch every sector nine times.
__global__ void __launch_bounds__(THREADS) pack_gradient_rows(const float4* __restrict__ gradients, int64_t others,
                                                              Hole hole, float* out, unsigned long long* zeros) {
    __shared__ float stage[THREADS * SENT_GRADIENTS];
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    int without = 0;
    for (int64_t base = static_cast<int64_t>(blockIdx.x) * THREADS; base < others; base += step) {
        int here = static_cast<int>(min(others - base, static_cast<int64_t>(THREADS)));
        bool zero = false;
        if (threadIdx.x < here) {
            Gradient own(gradients + hole.row(base + threadIdx.x) * (GRADIENT_STRIDE / 4));
            zero = !own.any();
#pragma unroll
            for (int j = 0; j < SENT_GRADIENTS; ++j) stage[threadIdx.x * SENT_GRADIENTS + j] = own.values[j];
        }
        without += __syncthreads_count(zero);
        for (int i = threadIdx.x; i < here * SENT_GRADIENTS; i += THREADS) {
            int n = i / SENT_GRADIENTS;
            out[hole.row(base + n) * SENT_GRADIENTS + i - n * SENT_GRADIENTS] = stage[i];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && without > 0) atomicAdd(zeros, static_cast<unsigned long long>(without));
}

// Every splat's gradients, summed rank after rank. own: null, or where this rank's are, in the hole.
__global__ void __launch_bounds__(THREADS) sum_routes(Routes routes, const float* __restrict__ returned, int own_rank,
                                                      const float4* __restrict__ own, Hole hole, float4* out,
                                                      unsigned long long* zeros) {
    float total[SENT_GRADIENTS] = {};
    bool zero = false;
    for_each_rank(routes, own_mask(routes), [&](int rank, unsigned lanes, int64_t at) {
        int64_t place = at + lanes_below(lanes);
        if (!(lanes >> lane_index() & 1) || place >= routes.end(rank)) return;
        if (rank == own_rank && own != nullptr) {
            Gradient kept(own + (hole.first + place - routes.begin(rank)) * (GRADIENT_STRIDE / 4));
            zero = !kept.any();
#pragma unroll
            for (int j = 0; j < SENT_GRADIENTS; ++j) total[j] += kept.values[j];
        } else {
#pragma unroll
            for (int j = 0; j < SENT_GRADIENTS; ++j) total[j] += returned[place * SENT_GRADIENTS + j];
        }
    });
    if (own_splat() < routes.splats) {
        float4* row = out + own_splat() * (GRADIENT_STRIDE / 4);
        row[0] = make_float4(total[0], total[1], total[2], total[3]);
        row[1] = make_float4(total[4], total[5], total[6], total[7]);
        row[2] = make_float4(total[8], 0.f, 0.f, 0.f);
    }
    int without = __syncthreads_count(zero);
    if (threadIdx.x == 0 && without > 0) atomicAdd(zeros, static_cast<unsigned long long>(without));
    if (routes.roomy && blockIdx.x == 0 && threadIdx.x < routes.ranks && threadIdx.x != own_rank &&
        returned[routes.end(threadIdx.x) * SENT_GRADIENTS] != 0.f) {
        *routes.overflow = 1;
    }
}

// A thread a rank: this rank's flag in the last row of what goes back to each other one. ends: of the rooms that came.
struct RoomEnds {
    int64_t ends[MOST_RANKS];
};
__global__ void flag_rooms(RoomEnds rooms, int ranks, int own_rank, const int* overflow, float* rows) {
    int rank = threadIdx.x;
    if (rank < ranks && rank != own_rank) rows[(rooms.ends[rank] - 1) * SENT_GRADIENTS] = *overflow != 0 ? 1.f : 0.f;
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

EXPORT int pack_records(Queue queue, const Routes* routes, int own_rank, const uint32_t* records, const int64_t* ids,
                        uint32_t* wire, int64_t rows, int width) {
    CHECK(cudaSetDevice(queue.device));
    pack_routes<<<static_cast<unsigned>(routes->blocks), THREADS, 0, queue.stream>>>(
        *routes, own_rank, records, reinterpret_cast<const uint32_t*>(ids), wire, rows, width);
    CHECK(cudaGetLastError());
    if (routes->roomy) {
        blank_rooms<<<dim3(BLANKS, static_cast<unsigned>(routes->ranks)), THREADS, 0, queue.stream>>>(
            *routes, own_rank, false, reinterpret_cast<float*>(wire), width);
    }
    return cudaGetLastError();
}

EXPORT int keep_records(Queue queue, const Routes* routes, int own_rank, const float4* records, const int64_t* ids,
                        int64_t first, int64_t count, float4* kept, int64_t* kept_ids) {
    CHECK(cudaSetDevice(queue.device));
    keep_routes<<<static_cast<unsigned>(routes->blocks), THREADS, 0, queue.stream>>>(*routes, own_rank, records, ids,
                                                                                     Hole{first, count}, kept, kept_ids);
    CHECK(cudaGetLastError());
    if (routes->roomy) {
        blank_rooms<<<BLANKS, THREADS, 0, queue.stream>>>(
            *routes, own_rank, true, reinterpret_cast<float*>(kept) + first * RECORD_STRIDE, RECORD_STRIDE);
    }
    return cudaGetLastError();
}

// rows: of the buffer, the hole's included; more than those of the hole.
EXPORT int unpack_records(Queue queue, const uint32_t* wire, int width, int64_t rows, int64_t first, int64_t count,
                          uint32_t* records, int64_t* ids) {
    CHECK(cudaSetDevice(queue.device));
    int64_t others = rows - count;
    unpack_wire<<<blocks_for(others, THREADS), THREADS, 0, queue.stream>>>(wire, width, others, Hole{first, count},
                                                                           records, reinterpret_cast<uint32_t*>(ids));
    return cudaGetLastError();
}

EXPORT int pack_gradients(Queue queue, const float4* gradients, int64_t rows, int64_t first, int64_t count, float* out,
                          unsigned long long* zeros) {
    CHECK(cudaSetDevice(queue.device));
    int64_t others = rows - count;
    pack_gradient_rows<<<blocks_for(others, THREADS), THREADS, 0, queue.stream>>>(gradients, others,
                                                                                  Hole{first, count}, out, zeros);
    return cudaGetLastError();
}

EXPORT int sum_gradients(Queue queue, const Routes* routes, const float* returned, int own_rank, const float4* own,
                         int64_t first, int64_t count, float4* out, unsigned long long* zeros) {
    CHECK(cudaSetDevice(queue.device));
    sum_routes<<<static_cast<unsigned>(routes->blocks), THREADS, 0, queue.stream>>>(
        *routes, returned, own_rank, own, Hole{first, count}, out, zeros);
    return cudaGetLastError();
}

// rows: what goes back, [rows, SENT_GRADIENTS]; ends: of the ranks' rooms in it.
EXPORT int flag_gradients(Queue queue, const RoomEnds* rooms, int ranks, int own_rank, const int* overflow, float* rows) {
    CHECK(cudaSetDevice(queue.device));
    flag_rooms<<<1, MOST_RANKS, 0, queue.stream>>>(*rooms, ranks, own_rank, overflow, rows);
    return cudaGetLastError();
}
