// Which splats meet which tiles, front to back: count each splat's tiles; sort the splats by depth and id; list the
// instances in that order; sort them by tile, stably (sort.cu); find where each tile's list starts.
#include "footprint.cuh"
#include "sort.h"

constexpr int DEPTH_BITS = 32;
constexpr int ID_HALF_BITS = 32;

// Position of each listed tile among the listed ones, -1 for the others; all -1 before.
__global__ void __launch_bounds__(THREADS) place_tiles(const int* tiles, int64_t count, int* places) {
    int64_t k = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (k < count) places[tiles[k]] = static_cast<int>(k);
}

// What decides whether an instance exists. places: [tiles of the image], or null where all tiles are listed.
struct Listing {
    View view;
    const float* records;
    const int* places;
    TileLimits limits;
};

// The tile's position among the listed ones if the splat is listed there, else -1.
__device__ int listed_at(const Listing& listing, const Footprint& f, float depth, int x, int y) {
    int tile = y * listing.view.tiles_x + x;
    int place = listing.places == nullptr ? tile : listing.places[tile];
    return place >= 0 && meets_tile(listing.view, f, listing.limits, depth, x, y) ? place : -1;
}

__device__ Footprint from_lane(const Footprint& f, int lane) {
    return {__shfl_sync(ALL_LANES, f.x, lane),     __shfl_sync(ALL_LANES, f.y, lane),
            __shfl_sync(ALL_LANES, f.a, lane),     __shfl_sync(ALL_LANES, f.b, lane),
            __shfl_sync(ALL_LANES, f.c, lane),     __shfl_sync(ALL_LANES, f.reach, lane),
            __shfl_sync(ALL_LANES, f.radius, lane)};
}

__device__ Span from_lane(const Span& s, int lane) {
    return {__shfl_sync(ALL_LANES, s.x0, lane), __shfl_sync(ALL_LANES, s.x1, lane), __shfl_sync(ALL_LANES, s.y0, lane),
            __shfl_sync(ALL_LANES, s.y1, lane)};
}

// Visit each lane's splat's tiles, ascending: `found(lane's argument, n-th, place)` for each listed one. A lane walks
// a narrow span by itself; the warp walks wide ones together. Returns how many were found for this lane's splat.
template <typename Argument, typename Found>
__device__ int visit_tiles(const Listing& listing, int64_t splat, bool mine, Argument argument, Found found) {
    Footprint f = {};
    Span span = {0, 0, 0, 0};
    float depth = 0.f;
    if (mine) {
        const float* record = listing.records + splat * RECORD;
        f = footprint_of(listing.view, record);
        span = span_of(listing.view, f);
        depth = record[RECORD_DEPTH];
    }
    int count = 0;
    if (span.count() <= OWN_SPAN) {
        for (int y = span.y0; y < span.y1; ++y) {
            for (int x = span.x0; x < span.x1; ++x) {
                int place = listed_at(listing, f, depth, x, y);
                if (place >= 0) found(argument, count++, place);
            }
        }
    }
    unsigned wide = __ballot_sync(ALL_LANES, span.count() > OWN_SPAN);
    while (wide) {
        int lane = __ffs(wide) - 1;
        wide &= wide - 1;
        Footprint shared_f = from_lane(f, lane);
        Span shared_span = from_lane(span, lane);
        float shared_depth = __shfl_sync(ALL_LANES, depth, lane);
        Argument shared_argument = argument.from_lane(lane);
        int total = 0, columns = shared_span.x1 - shared_span.x0;
        for (int first = 0; first < shared_span.count(); first += WARP) {
            int i = first + lane_index();
            int place = -1;
            if (i < shared_span.count()) {
                place = listed_at(listing, shared_f, shared_depth, shared_span.x0 + i % columns,
                                  shared_span.y0 + i / columns);
            }
            unsigned hits = __ballot_sync(ALL_LANES, place >= 0);
            if (place >= 0) found(shared_argument, total + __popc(hits & ((1u << lane_index()) - 1)), place);
            total += __popc(hits);
        }
        if (lane_index() == lane) count = total;
    }
    return count;
}

struct Nothing {
    __device__ Nothing from_lane(int) const { return {}; }
};

// Depths as unsigned integers in the same order.
__device__ uint32_t depth_key(float depth) {
    uint32_t bits = __float_as_uint(depth);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__global__ void __launch_bounds__(THREADS) count_tiles(Listing listing, int64_t splats, int* counts, uint32_t* depths,
                                                       uint32_t* numbers) {
    int64_t splat = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    bool mine = splat < splats;
    int count = visit_tiles(listing, splat, mine, Nothing{}, [](Nothing, int, int) {});
    if (!mine) return;
    counts[splat] = count;
    depths[splat] = depth_key(listing.records[splat * RECORD + RECORD_DEPTH]);
    numbers[splat] = static_cast<uint32_t>(splat);
}

// Put runs of equal depth into the order of ids. order: splats by depth; in `sorted` a copy of it. status[0]: the
// number of instances, ends[splats - 1]; status[1]: set if a run is too long for one thread.
__global__ void __launch_bounds__(THREADS) break_ties(const uint32_t* depths, const uint32_t* order, const int64_t* ids,
                                                      int64_t splats, const int64_t* ends, uint32_t* sorted,
                                                      int64_t* status) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i == 0) status[0] = ends[splats - 1];
    auto disorder = [&](int64_t k) { return depths[k] == depths[k + 1] && ids[order[k]] > ids[order[k + 1]]; };
    if (i + 1 >= splats || !disorder(i)) return;
    int64_t first = i, last = i + 1;
    while (first > 0 && depths[first - 1] == depths[i] && last - first < TIE_RUN) --first;
    while (last + 1 < splats && depths[last + 1] == depths[i] && last - first < TIE_RUN) ++last;
    if (last - first >= TIE_RUN) {
        status[1] = 1;
        return;
    }
    for (int64_t k = first; k < i; ++k) {
        if (disorder(k)) return;  // The thread there sorts this run.
    }
    for (int64_t k = first; k <= last; ++k) {
        uint32_t splat = order[k];
        int64_t place = k;
        for (; place > first && ids[sorted[place - 1]] > ids[splat]; --place) sorted[place] = sorted[place - 1];
        sorted[place] = splat;
    }
}

// Half of each splat's id as a sort key, and the counts of tiles, in the given order of splats.
__global__ void __launch_bounds__(THREADS) gather_ids(const int64_t* ids, const uint32_t* order, int shift,
                                                      int64_t splats, uint32_t* keys) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    // The sign bit is turned, so that negative ids come first.
    if (i < splats) keys[i] = static_cast<uint32_t>((static_cast<uint64_t>(ids[order[i]]) ^ (1ull << 63)) >> shift);
}

__global__ void __launch_bounds__(THREADS) gather_depths(const float* records, const uint32_t* order, int64_t splats,
                                                         uint32_t* keys) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < splats) keys[i] = depth_key(records[order[i] * static_cast<int64_t>(RECORD) + RECORD_DEPTH]);
}

__global__ void __launch_bounds__(THREADS) gather_counts(const int* counts, const uint32_t* order, int64_t splats,
                                                         int* ordered) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < splats) ordered[i] = counts[order[i]];
}

// Where a splat's instances go: by depth, and as slots by splat.
struct Places {
    int64_t position, slot, end;
    uint32_t splat;
    __device__ Places from_lane(int lane) const {
        return {__shfl_sync(ALL_LANES, position, lane), __shfl_sync(ALL_LANES, slot, lane),
                __shfl_sync(ALL_LANES, end, lane), __shfl_sync(ALL_LANES, splat, lane)};
    }
};

// Instances in the order of depth: their tile's place, and their slot; and by slot, their splat.
__global__ void __launch_bounds__(THREADS) list_instances(Listing listing, int64_t splats, const uint32_t* order,
                                                          const int* ordered_counts, const int64_t* ordered_ends,
                                                          const int64_t* splat_starts, uint32_t* places,
                                                          uint32_t* slots, int* splat_of_slot) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    bool mine = i < splats;
    Places own = {0, 0, 0, 0};
    if (mine) {
        uint32_t splat = order[i];
        own = {ordered_ends[i] - ordered_counts[i], splat_starts[splat], splat_starts[splat + 1], splat};
    }
    visit_tiles(listing, own.splat, mine, own, [&](const Places& to, int n, int place) {
        if (to.slot + n >= to.end) return;  // Never: counted by the same code. Memory stays whole all the same.
        places[to.position + n] = static_cast<uint32_t>(place);
        slots[to.position + n] = static_cast<uint32_t>(to.slot + n);
        splat_of_slot[to.slot + n] = static_cast<int>(to.splat);
    });
}

// Of the instances sorted by tile: their splats and slots.
__global__ void __launch_bounds__(THREADS) finish_instances(const uint32_t* sorted_slots, const int* splat_of_slot,
                                                            int64_t instances, int* splat, int64_t* slot) {
    int64_t m = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (m >= instances) return;
    slot[m] = sorted_slots[m];
    splat[m] = splat_of_slot[sorted_slots[m]];
}

// Where each tile's instances start: the first of a place not below k, by bisection.
__global__ void __launch_bounds__(THREADS) find_starts(const uint32_t* sorted_places, int64_t instances, int64_t tiles,
                                                       int64_t* starts) {
    int64_t k = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
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

static unsigned whole_blocks(int64_t count) { return static_cast<unsigned>((count + THREADS - 1) / THREADS); }

// The view's splats and what limits their instances, as Python passes them.
struct Given {
    const float* records;
    const int64_t* ids;
    int64_t splats;
    const int* places;
    const uint8_t* subtiles;
    const float* depth_limit;
};

EXPORT int list_tiles(Queue queue, const int* tiles, int64_t count, int* places, int64_t image_tiles) {
    CHECK(cudaSetDevice(queue.device));
    CHECK(cudaMemsetAsync(places, 0xff, image_tiles * sizeof(int), queue.stream));
    if (count == 0) return cudaSuccess;
    place_tiles<<<whole_blocks(count), THREADS, 0, queue.stream>>>(tiles, count, places);
    return cudaGetLastError();
}

// Count each splat's tiles, and order the splats by depth and id. splat_starts: [splats + 1]. order: [splats].
// keys, numbers, sorted_keys, untied: [splats] each, to work with.
EXPORT int order_splats(Queue queue, const View* view, const Given* given, Scratch scratch, int* counts,
                        int64_t* splat_starts, uint32_t* keys, uint32_t* numbers, uint32_t* sorted_keys,
                        uint32_t* untied, uint32_t* order, int64_t* status) {
    CHECK(cudaSetDevice(queue.device));
    cudaStream_t stream = queue.stream;
    int64_t splats = given->splats;
    Listing listing = {*view, given->records, given->places, {given->subtiles, given->depth_limit}};
    CHECK(cudaMemsetAsync(status, 0, 2 * sizeof(int64_t), stream));
    CHECK(cudaMemsetAsync(splat_starts, 0, sizeof(int64_t), stream));
    count_tiles<<<whole_blocks(splats), THREADS, 0, stream>>>(listing, splats, counts, keys, numbers);
    CHECK(cudaGetLastError());
    CHECK(prefix_sums(stream, scratch, counts, splat_starts + 1, splats));
    CHECK(sort_pairs(stream, scratch, keys, sorted_keys, numbers, untied, splats, DEPTH_BITS));
    CHECK(cudaMemcpyAsync(order, untied, splats * sizeof(uint32_t), cudaMemcpyDeviceToDevice, stream));
    break_ties<<<whole_blocks(splats), THREADS, 0, stream>>>(sorted_keys, untied, given->ids, splats, splat_starts + 1,
                                                             order, status);
    return cudaGetLastError();
}

// The same order by stable sorts alone, whatever the ties: by the id's lower half, its upper half, then depth.
EXPORT int order_by_id_first(Queue queue, const Given* given, Scratch scratch, uint32_t* keys, uint32_t* numbers,
                             uint32_t* sorted_keys, uint32_t* untied, uint32_t* order) {
    CHECK(cudaSetDevice(queue.device));
    cudaStream_t stream = queue.stream;
    int64_t splats = given->splats;
    unsigned blocks = whole_blocks(splats);
    gather_ids<<<blocks, THREADS, 0, stream>>>(given->ids, numbers, 0, splats, keys);
    CHECK(cudaGetLastError());
    CHECK(sort_pairs(stream, scratch, keys, sorted_keys, numbers, order, splats, ID_HALF_BITS));
    gather_ids<<<blocks, THREADS, 0, stream>>>(given->ids, order, ID_HALF_BITS, splats, keys);
    CHECK(cudaGetLastError());
    CHECK(sort_pairs(stream, scratch, keys, sorted_keys, order, untied, splats, ID_HALF_BITS));
    gather_depths<<<blocks, THREADS, 0, stream>>>(given->records, untied, splats, keys);
    CHECK(cudaGetLastError());
    return sort_pairs(stream, scratch, keys, sorted_keys, untied, order, splats, DEPTH_BITS);
}

// Instances, tile by tile and front to back. tile_bits: of the largest place. ordered_counts, ordered_ends: [splats];
// places_by_depth, slots, sorted_places, sorted_slots, splat_of_slot: [instances] each, to work with.
EXPORT int list_bins(Queue queue, const View* view, const Given* given, Scratch scratch, const int* counts,
                     const int64_t* splat_starts, const uint32_t* order, int64_t instances, int64_t tiles,
                     int tile_bits, int* ordered_counts, int64_t* ordered_ends, uint32_t* places_by_depth,
                     uint32_t* slots, uint32_t* sorted_places, uint32_t* sorted_slots, int* splat_of_slot, int* splat,
                     int64_t* slot, int64_t* starts) {
    CHECK(cudaSetDevice(queue.device));
    cudaStream_t stream = queue.stream;
    int64_t splats = given->splats;
    if (instances > 0) {
        Listing listing = {*view, given->records, given->places, {given->subtiles, given->depth_limit}};
        gather_counts<<<whole_blocks(splats), THREADS, 0, stream>>>(counts, order, splats, ordered_counts);
        CHECK(cudaGetLastError());
        CHECK(prefix_sums(stream, scratch, ordered_counts, ordered_ends, splats));
        list_instances<<<whole_blocks(splats), THREADS, 0, stream>>>(listing, splats, order, ordered_counts,
                                                                     ordered_ends, splat_starts, places_by_depth,
                                                                     slots, splat_of_slot);
        CHECK(cudaGetLastError());
        CHECK(sort_pairs(stream, scratch, places_by_depth, sorted_places, slots, sorted_slots, instances, tile_bits));
        finish_instances<<<whole_blocks(instances), THREADS, 0, stream>>>(sorted_slots, splat_of_slot, instances, splat,
                                                                          slot);
        CHECK(cudaGetLastError());
    }
    find_starts<<<whole_blocks(tiles + 1), THREADS, 0, stream>>>(sorted_places, instances, tiles, starts);
    return cudaGetLastError();
}
