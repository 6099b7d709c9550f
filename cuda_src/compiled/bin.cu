// Binning, first half: which tiles each splat meets, and the splats by depth and id. The tiles are kept as bits, so that
// the second half tests no footprint again and reads 8 B of a splat in place of its record.
#include "bin.cuh"

constexpr int DEPTH_BITS = 31;  // The sign bit of a depth is not set.
constexpr int ID_HALF_BITS = 32;

// Position of each listed tile among the listed ones, -1 for the others; all -1 before.
__global__ void __launch_bounds__(THREADS) place_tiles(const int* tiles, int64_t count, int* places) {
    int64_t k = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (k < count) places[tiles[k]] = static_cast<int>(k);
}

// A lane tests a narrow span by itself; the warp walks wide ones together.
__device__ Tiles find_tiles(const Listing& listing, int64_t splat, bool drawn, const Record& record) {
    Span span = {0, 0, 0, 0};
    uint32_t hits = 0;
    if (drawn) {
        Footprint f = footprint_of(listing.view, record.values);
        span = span_of(listing.view, f);
        if (span.count() <= OWN_SPAN) {
            uint32_t bit = 1;
            for (int y = span.y0; y < span.y1; ++y) {
                for (int x = span.x0; x < span.x1; ++x, bit <<= 1) {
                    if (listed_at(listing, f, record.depth(), x, y) >= 0) hits |= bit;
                }
            }
        }
    }
    int total = __popc(hits);
    unsigned wide = __ballot_sync(ALL_LANES, span.count() > OWN_SPAN);
    while (wide) {
        int lane = __ffs(wide) - 1;
        wide &= wide - 1;
        uint32_t its_hits = 0;  // Of the last 32 tiles: all there are if they fit.
        int its_total = walk_together(listing, __shfl_sync(ALL_LANES, splat, lane),
                                      [&](unsigned of_warp, int, int) { its_hits = of_warp; });
        if (lane_index() == lane) hits = its_hits, total = its_total;
    }
    if (Tiles::fits(span)) return Tiles::in(span, hits);
    return total > 0 ? Tiles::walked(total) : Tiles::none();
}

// Tiles, depth key and number of every splat; counts: [splats] of tiles, or null. What is not in use or not drawn has
// no tile and comes behind all depths.
__global__ void __launch_bounds__(THREADS) count_tiles(Listing listing, Given given, Work work, int* counts) {
    __shared__ int block_total;
    if (threadIdx.x == 0) {
        block_total = 0;
        work.block_sums()[blockIdx.x] = 0;
    }
    __syncthreads();
    int64_t splat = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    int64_t live = given.live == nullptr ? given.splats : min(given.live[0], given.splats);
    bool in_use = splat < live;
    Record record(given.records, in_use ? splat : 0);
    uint32_t key = in_use ? depth_key(record.depth()) : BEHIND_ALL;
    Tiles tiles = find_tiles(listing, splat, key != BEHIND_ALL, record);
    if (splat < given.splats) {
        work.found()[splat] = tiles.words();
        work.depths()[splat] = key;
        work.numbers()[splat] = static_cast<uint32_t>(splat);
        if (counts != nullptr) counts[splat] = tiles.count();
    }
    int warp_total = __reduce_add_sync(ALL_LANES, tiles.count());
    if (lane_index() == 0) atomicAdd(&block_total, warp_total);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&work.totals()->instances, static_cast<unsigned long long>(block_total));
}

// Splats by depth, `untied`, with runs of equal depth in the order of ids: each thread finds the rank of one splat
// within its run. Runs longer than TIE_RUN stay as they are, and are reported if that is not the order of ids.
__global__ void __launch_bounds__(THREADS) break_ties(const int64_t* ids, int64_t splats, Work work, int* overflow) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= splats) return;
    const uint32_t *depths = work.sorted_depths(), *untied = work.untied();
    uint32_t depth = depths[i], splat = untied[i];
    int64_t first = i, last = i, place = i;
    if (depth != BEHIND_ALL) {
        while (first > 0 && depths[first - 1] == depth && i - first < TIE_RUN) --first;
        while (last + 1 < splats && depths[last + 1] == depth && last - i < TIE_RUN) ++last;
    }
    if (last > first) {
        int64_t id = ids[splat];
        if (last - first < TIE_RUN) {
            place = first;
            for (int64_t k = first; k <= last; ++k) {
                int64_t other = ids[untied[k]];
                place += other < id || (other == id && k < i);
            }
        } else if (last > i && ids[untied[i + 1]] < id) {
            work.totals()->unordered = 1;
            if (overflow != nullptr) *overflow = 1;
        }
    }
    work.order()[place] = splat;
}

// Half of each splat's id as a sort key, in the given order of splats.
__global__ void __launch_bounds__(THREADS) gather_ids(const int64_t* ids, const uint32_t* order, int shift,
                                                      int64_t splats, uint32_t* keys) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    // The sign bit is turned, so that negative ids come first.
    if (i < splats) keys[i] = static_cast<uint32_t>((static_cast<uint64_t>(ids[order[i]]) ^ (1ull << 63)) >> shift);
}

__global__ void __launch_bounds__(THREADS) gather_depths(const float* records, const uint32_t* order, int64_t splats,
                                                         uint32_t* keys) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < splats) keys[i] = depth_key(records[order[i] * static_cast<int64_t>(RECORD_STRIDE) + RECORD_DEPTH]);
}

EXPORT int list_tiles(Queue queue, const int* tiles, int64_t count, int* places, int64_t image_tiles) {
    CHECK(cudaSetDevice(queue.device));
    CHECK(cudaMemsetAsync(places, 0xff, image_tiles * sizeof(int), queue.stream));
    if (count == 0) return cudaSuccess;
    place_tiles<<<whole_blocks(count), THREADS, 0, queue.stream>>>(tiles, count, places);
    return cudaGetLastError();
}

// Find each splat's tiles, count them (Counts), and order the splats by depth and id. splat_starts: [splats + 1], or
// null if nobody asks for them.
EXPORT int order_splats(Queue queue, const View* view, const Given* given, const Work* work, int64_t* splat_starts) {
    CHECK(cudaSetDevice(queue.device));
    cudaStream_t stream = queue.stream;
    int64_t splats = given->splats;
    // Their memory is that of `untied`, which the sort writes after they are summed.
    int* counts = splat_starts == nullptr ? nullptr : reinterpret_cast<int*>(work->untied());
    CHECK(cudaMemsetAsync(work->counts, 0, COUNTS_WORDS * sizeof(*work->counts), stream));
    count_tiles<<<whole_blocks(splats), THREADS, 0, stream>>>(Listing(*view, *given), *given, *work, counts);
    CHECK(cudaGetLastError());
    if (splat_starts != nullptr) {
        CHECK(cudaMemsetAsync(splat_starts, 0, sizeof(int64_t), stream));
        CHECK(prefix_sums(stream, work->scratch, counts, splat_starts + 1, splats));
    }
    CHECK(sort_pairs(stream, work->scratch, work->depths(), work->sorted_depths(), work->numbers(), work->untied(),
                     splats, DEPTH_BITS));
    break_ties<<<whole_blocks(splats), THREADS, 0, stream>>>(given->ids, splats, *work, given->overflow);
    return cudaGetLastError();
}

// The same order by stable sorts alone, whatever the ties: by the id's lower half, its upper half, then depth.
EXPORT int order_by_id_first(Queue queue, const Given* given, const Work* work) {
    CHECK(cudaSetDevice(queue.device));
    cudaStream_t stream = queue.stream;
    int64_t splats = given->splats;
    unsigned blocks = whole_blocks(splats);
    uint32_t *keys = work->depths(), *sorted_keys = work->sorted_depths();
    uint32_t *numbers = work->numbers(), *untied = work->untied(), *order = work->order();
    gather_ids<<<blocks, THREADS, 0, stream>>>(given->ids, numbers, 0, splats, keys);
    CHECK(cudaGetLastError());
    CHECK(sort_pairs(stream, work->scratch, keys, sorted_keys, numbers, order, splats, ID_HALF_BITS));
    gather_ids<<<blocks, THREADS, 0, stream>>>(given->ids, order, ID_HALF_BITS, splats, keys);
    CHECK(cudaGetLastError());
    CHECK(sort_pairs(stream, work->scratch, keys, sorted_keys, order, untied, splats, ID_HALF_BITS));
    gather_depths<<<blocks, THREADS, 0, stream>>>(given->records, untied, splats, keys);
    CHECK(cudaGetLastError());
    return sort_pairs(stream, work->scratch, keys, sorted_keys, untied, order, splats, DEPTH_BITS);
}
