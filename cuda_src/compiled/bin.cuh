// What the three parts of binning share: bin.cu finds each splat's tiles and counts every tile's splats, bin_list.cu puts
// the splats into the tiles' lists in no order, bin_sort.cu sorts each list by depth and id.
//
// Sizes are the caller's room. With a room from an earlier visit how much of it is in use is known on the device alone.
#pragma once

#include "footprint.cuh"
#include "sums.h"

// The view's splats and what limits their instances, as Python passes them.
struct Given {
    const float* records;  // RECORD_STRIDE apart
    const int64_t* ids;    // null: the last word of each record
    int64_t splats;        // room for them
    const int64_t* live;   // how many are in use, and how many of these are not drawn; null: all are
    int* overflow;         // set if the room is too small, by whoever finds it so; null without one
    const int* places;     // [tiles of the image], position among the listed ones or -1; null where all are listed
    const uint8_t* subtiles;
    const float* depth_limit;
    const int64_t* rows;  // of the splats, if ids are by row; null if they are by splat
};

// Which id a splat has.
struct Ids {
    const int64_t *values, *rows;
    const float* records;

    explicit Ids(const Given& given) : values(given.ids), rows(given.rows), records(given.records) {}
    __device__ int64_t operator[](uint32_t splat) const {
        if (values == nullptr) return __float_as_int(records[static_cast<int64_t>(splat) * RECORD_STRIDE + RECORD_ID]);
        return values[rows == nullptr ? splat : rows[splat]];
    }
};

// Counted on the way; zeros before. wide: splats whose tiles are walked by warps; the others: see Lists.
struct Counts {
    unsigned long long instances, wide, long_lists, shares, buckets;
};
constexpr int COUNTS_WORDS = 5;

// Memory to work with. splats: planes of `pitch` words each, the last of them for the numbers of wide splats; counts:
// Counts, then an int for each listed tile.
struct Work {
    uint32_t* splats;
    int64_t pitch;
    unsigned long long* counts;
    Scratch scratch;

    // clang-format off
    __host__ __device__ Counts* totals() const { return reinterpret_cast<Counts*>(counts); }
    __host__ __device__ int* tallies() const { return reinterpret_cast<int*>(counts + COUNTS_WORDS); }
    __host__ __device__ uint32_t* depths() const { return splats; }
    __host__ __device__ int* of_splats() const { return reinterpret_cast<int*>(splats + pitch); }
    __host__ __device__ uint2* found() const { return reinterpret_cast<uint2*>(splats + 2 * pitch); }
    __host__ __device__ uint32_t* wide() const { return splats + 4 * pitch; }
    // clang-format on
    __device__ int64_t live(const Given& given) const {
        return given.live == nullptr ? given.splats : min(given.live[0], given.splats);
    }
};

// Splats of a block of count_tiles, and of the same block of list_instances.
constexpr int CHUNK_ROUNDS = 8;
constexpr int CHUNK = CHUNK_ROUNDS * THREADS;

// A block counts tiles in shared memory where so many are listed at most: five blocks share a multiprocessor.
constexpr int64_t TABLE_TILES = 10240;

// Entries that a block sorts in shared memory: keys and two orders of them, and the positions of digits, leave room for
// five blocks a multiprocessor. A longer list is split into buckets first.
constexpr int SORTED = 4096;

// A long list has a bucket for so many of its entries, by far fewer than SORTED: they are as many as a sample says.
constexpr int BUCKET = 1536;
constexpr int MOST_BUCKETS = 1024;
// Entries of a long list that one block counts by bucket, and puts there.
constexpr int SHARE = 2 * SORTED;

__host__ __device__ inline int buckets_of(int64_t count) {
    int64_t buckets = (count + BUCKET - 1) / BUCKET;
    return static_cast<int>(buckets < MOST_BUCKETS ? buckets : MOST_BUCKETS);
}

// Of a long list: the tile's place, and which of the buckets is its first.
struct LongList {
    int place, first_bucket;
};

// What comes neither before the splitter, an entry's depth and splat, nor after the next bucket's; that of a list's first
// bucket is not looked at. begin: in `spread`. taken: entries that have been put there.
struct Bucket {
    uint2 splitter;
    int begin, size, taken, unused;
};

// The tiles' lists. entries: depth key and splat, in no order within a list; spread: those of long lists by bucket;
// shares: long list and number of each share; room: entries.
struct Lists {
    uint2 *entries, *spread;
    Bucket* buckets;
    LongList* long_lists;
    int2* shares;
    int64_t room;

    // A long list has more than SORTED entries, so that it fills half a share at least.
    static int64_t most_long(int64_t room) { return room / SORTED; }
    static int64_t most_shares(int64_t room) { return room / SORTED; }
    static int64_t most_buckets(int64_t room) { return room / BUCKET + room / SORTED; }

    // In memory of 4 x pitch words, and for as many buckets, long lists and shares as there are at most.
    Lists(uint32_t* memory, int64_t pitch, int64_t room)
        : entries(reinterpret_cast<uint2*>(memory)),
          spread(reinterpret_cast<uint2*>(memory + 2 * pitch)),
          buckets(reinterpret_cast<Bucket*>(memory + 4 * pitch)),
          long_lists(reinterpret_cast<LongList*>(buckets + most_buckets(room))),
          shares(reinterpret_cast<int2*>(long_lists + most_long(room))),
          room(room) {}
};

// Each list by depth, then id, then splat, into `splat`. starts: [tiles + 1].
cudaError_t sort_lists(cudaStream_t stream, const Lists& lists, const Ids& ids, const Work& work, int64_t tiles,
                       const int64_t* starts, int* splat);

// Key of a splat that is not drawn.
constexpr uint32_t BEHIND_ALL = 0xffffffffu;

// Depths are positive, so that their bits have their order. Not-a-number marks a splat that is not drawn.
__device__ inline uint32_t depth_key(float depth) { return depth == depth ? __float_as_uint(depth) : BEHIND_ALL; }

// What decides whether an instance exists.
struct Listing {
    View view;
    const float* records;
    const int* places;
    TileLimits limits;

    __host__ __device__ Listing(const View& view, const Given& given)
        : view(view), records(given.records), places(given.places), limits{given.subtiles, given.depth_limit} {}
    // Of every tile of the image, where records are not asked for.
    __device__ explicit Listing(const View& view)
        : view(view), records(nullptr), places(nullptr), limits{nullptr, nullptr} {}

    __device__ int place_of(int x, int y) const {
        int tile = y * view.tiles_x + x;
        return places == nullptr ? tile : places[tile];
    }
};

// A record in registers.
struct Record {
    float values[RECORD_STRIDE];

    __device__ Record(const float* records, int64_t splat) {
        const float4* words = reinterpret_cast<const float4*>(records + splat * RECORD_STRIDE);
#pragma unroll
        for (int i = 0; i < RECORD_STRIDE / 4; ++i) {
            float4 word = words[i];
            values[4 * i] = word.x, values[4 * i + 1] = word.y, values[4 * i + 2] = word.z, values[4 * i + 3] = word.w;
        }
    }
    __device__ float depth() const { return values[RECORD_DEPTH]; }
};
static_assert(RECORD_STRIDE % 4 == 0 && RECORD_STRIDE >= RECORD, "records are read as 16-byte words");

// The tile's position among the listed ones if the splat is listed there, else -1.
__device__ inline int listed_at(const Listing& listing, const Footprint& f, float depth, int x, int y) {
    int place = listing.place_of(x, y);
    return place >= 0 && meets_tile(listing.view, f, listing.limits, depth, x, y) ? place : -1;
}

// Warps that share a wide splat at most, where there are fewer splats than warps.
constexpr int WIDE_WARPS = 8;

// All warps of the grid go through the tiles of wide splats: `each(splat, place)` is called for each that is listed,
// `done(splat, listed)` by all lanes of each warp that has taken part in a splat.
template <typename Each, typename Done>
__device__ void walk_wide(const Listing& listing, const Work& work, Each each, Done done) {
    int64_t wide = static_cast<int64_t>(work.totals()->wide), warps = gridDim.x * (THREADS / WARP);
    if (wide == 0) return;
    int together = static_cast<int>(max(static_cast<int64_t>(1), min(warps / wide, static_cast<int64_t>(WIDE_WARPS))));
    for (int64_t item = blockIdx.x * (THREADS / WARP) + warp_index(); item < wide * together; item += warps) {
        uint32_t splat = work.wide()[item / together];
        Record record(listing.records, splat);
        Footprint f = footprint_of(listing.view, record.values);
        Span span = span_of(listing.view, f);
        int total = 0, columns = span.x1 - span.x0;
        for (int i = static_cast<int>(item % together) * WARP + lane_index(); i < span.count(); i += together * WARP) {
            int place = listed_at(listing, f, record.depth(), span.x0 + i % columns, span.y0 + i / columns);
            if (place < 0) continue;
            each(splat, place);
            ++total;
        }
        done(splat, __reduce_add_sync(ALL_LANES, total));
    }
}

// A splat's listed tiles in 8 bytes. Of a span of at most 32 tiles: its corner, its columns less one and a bit for each
// tile, row by row; none of a wide splat, whose span is larger or goes beyond tile 8191.
struct Tiles {
    static constexpr int CORNER_BITS = 13;
    static constexpr int CORNER = (1 << CORNER_BITS) - 1;
    uint32_t span, hits;

    __device__ static Tiles none() { return {0, 0}; }
    __device__ static Tiles of(uint2 words) { return {words.x, words.y}; }
    __device__ static bool fits(const Span& span) {
        return span.count() <= WARP && span.x0 <= CORNER && span.y0 <= CORNER;
    }
    // A span that has tiles, all of them as not listed.
    __device__ static Tiles in(const Span& span) {
        uint32_t columns = span.x1 - span.x0;
        return {static_cast<uint32_t>(span.x0) | static_cast<uint32_t>(span.y0) << CORNER_BITS |
                    (columns - 1) << 2 * CORNER_BITS,
                0};
    }

    __device__ int count() const { return __popc(hits); }
    __device__ int x0() const { return span & CORNER; }
    __device__ int y0() const { return span >> CORNER_BITS & CORNER; }
    __device__ int columns() const { return (span >> 2 * CORNER_BITS & (WARP - 1)) + 1; }
    // Column and row of the i-th tile of the span. Half a tile keeps the quotient away from whole numbers by 1/64.
    __device__ int2 tile(int i) const {
        int row = static_cast<int>(__fmul_rn(i + 0.5f, inverse_fast(static_cast<float>(columns()))));
        return make_int2(x0() + i - row * columns(), y0() + row);
    }
    __device__ uint2 words() const { return make_uint2(span, hits); }
};
static_assert(2 * 13 + 5 <= 32, "corner and columns in a word");

// The lanes test the tiles of all their spans together, each lane as many as any other: spans have from one to 32
// tiles, and one lane's would hold up the warp. own: tiles of this lane's span, or 0; each(place, lane): of a listed one,
// and whose it is, by whichever lane tests it. Returns a bit for each tile of this lane's span.
template <typename Each>
__device__ uint32_t test_evenly(const Listing& listing, const Footprint& f, float depth, const Tiles& span, int own,
                                Each each) {
    int end = sum_up_to_lane(own), start = end - own, total = __shfl_sync(ALL_LANES, end, WARP - 1);
    uint32_t hits = 0;
    for (int first = 0; first < total; first += WARP) {
        // The span is that of the last lane whose tiles start no later.
        int i = first + lane_index(), from = 0;
        for (int step = WARP / 2; step > 0; step /= 2) {
            if (__shfl_sync(ALL_LANES, start, from + step) <= i) from += step;
        }
        auto of = [&](auto value) { return __shfl_sync(ALL_LANES, value, from); };
        Footprint its = {of(f.x), of(f.y), of(f.a), of(f.b), of(f.c), of(f.reach), 0.f};
        if (listing.view.square) its.radius = of(f.radius);
        float its_depth = listing.limits.depth == nullptr ? 0.f : of(depth);
        Tiles its_span = {of(span.span), 0};
        int2 tile = its_span.tile((i - of(start)) & (WARP - 1));
        int place = i < total ? listed_at(listing, its, its_depth, tile.x, tile.y) : -1;
        if (place >= 0) each(place, from);
        unsigned listed = __ballot_sync(ALL_LANES, place >= 0);
        int offset = start - first;
        if (offset >= 0 && offset < WARP) hits |= listed >> offset;
        if (offset < 0 && offset > -WARP) hits |= listed << -offset;
    }
    return own < WARP ? hits & ((1u << own) - 1) : hits;
}

// All tiles that a warp's splats are listed in: each(place, lane) for a tile and whose splat it is, by whichever lane
// tests it. The lanes share out what spans they can keep as bits, and go through wider ones together. any: this lane has a
// splat that may be listed. Every lane of the warp calls it.
template <typename Each>
__device__ void for_each_tile(const Listing& listing, const Footprint& f, float depth, bool any, Each each) {
    Span span = span_of(listing.view, f);
    bool narrow = any && span.count() > 0 && Tiles::fits(span), wide = any && !Tiles::fits(span);
    test_evenly(listing, f, depth, narrow ? Tiles::in(span) : Tiles::none(), narrow ? span.count() : 0, each);
    for (unsigned left = __ballot_sync(ALL_LANES, wide); left; left &= left - 1) {
        int lane = __ffs(static_cast<int>(left)) - 1;
        auto of = [&](float value) { return __shfl_sync(ALL_LANES, value, lane); };
        Footprint its = {of(f.x), of(f.y), of(f.a), of(f.b), of(f.c), of(f.reach), of(f.radius)};
        float its_depth = of(depth);
        Span its_span = span_of(listing.view, its);
        int columns = its_span.x1 - its_span.x0;
        for (int i = lane_index(); i < its_span.count(); i += WARP) {
            int place = listed_at(listing, its, its_depth, its_span.x0 + i % columns, its_span.y0 + i / columns);
            if (place >= 0) each(place, lane);
        }
    }
}

// Blocks that walk wide splats: as many as are at work at a time.
constexpr unsigned WIDE_BLOCKS = 132 * 5;

inline unsigned whole_blocks(int64_t count) { return static_cast<unsigned>((count + THREADS - 1) / THREADS); }
inline unsigned whole_chunks(int64_t splats) { return static_cast<unsigned>((splats + CHUNK - 1) / CHUNK); }

// The first part of binning, in bin.cu.
EXPORT int list_tiles(Queue queue, const int* tiles, int64_t count, int* places, int64_t image_tiles);
EXPORT int count_instances(Queue queue, const View* view, const Given* given, const Work* work, int64_t first,
                           int64_t begun, int64_t tiles, int64_t* splat_starts);
