// Binning, first part: which tiles each splat meets, and how many splats each tile has. The tiles are kept as bits, so
// that listing tests no footprint again and reads 12 B of a splat in place of its record.
#include "bin.cuh"

// Position of each listed tile among the listed ones, -1 for the others; all -1 before.
__global__ void __launch_bounds__(THREADS) place_tiles(const int* tiles, int64_t count, int* places) {
    int64_t k = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (k < count) places[tiles[k]] = static_cast<int>(k);
}

// Chunks of splats that a launch goes through, a block each: `count` of them from `first` on, or all others.
struct Chunks {
    int first, count;
    bool others;
    __device__ int own() const {
        int block = static_cast<int>(blockIdx.x);
        return !others ? first + block : block < first ? block : block + count;
    }
};

// Those whose splats are all among `count` from `first` on, or all others.
static Chunks chunks_of(int64_t first, int64_t count, bool others) {
    int64_t begin = (first + CHUNK - 1) / CHUNK, end = (first + count) / CHUNK;
    return {static_cast<int>(begin), static_cast<int>(end > begin ? end - begin : 0), others};
}

// Tiles and depth key of every splat in use, and how many splats each listed tile has; counts: [splats] of tiles, or
// null. TABLE: a block counts in shared memory first.
template <bool TABLE>
__global__ void __launch_bounds__(THREADS, 4) count_tiles(Listing listing, Given given, Work work, Chunks chunks,
                                                          int tiles, int* counts) {
    extern __shared__ __align__(16) int table[];
    __shared__ int block_total, block_wide, wide_begin;
    __shared__ uint16_t wide[CHUNK];
    if (threadIdx.x == 0) block_total = 0, block_wide = 0;
    if (TABLE) {
        for (int k = threadIdx.x; k < tiles; k += THREADS) table[k] = 0;
    }
    __syncthreads();
    auto count = [&](int place, int) { atomicAdd(TABLE ? table + place : work.tallies() + place, 1); };
    int64_t live = work.live(given);
    int total = 0, chunk = chunks.own();
    for (int round = 0; round < CHUNK_ROUNDS; ++round) {
        int64_t first = static_cast<int64_t>(chunk) * CHUNK + round * THREADS, splat = first + threadIdx.x;
        if (first >= (counts == nullptr ? live : given.splats)) break;
        bool in_use = splat < live;
        Record record(given.records, in_use ? splat : 0);
        uint32_t key = in_use ? depth_key(record.depth()) : BEHIND_ALL;
        // Of whatever there is, so that the whole record is on the way at once.
        Footprint f = footprint_of(listing.view, record.values);
        Span span = span_of(listing.view, f);
        bool fits = Tiles::fits(span), any = key != BEHIND_ALL && span.count() > 0;
        Tiles found = any && fits ? Tiles::in(span) : Tiles::none();
        found.hits = test_evenly(listing, f, record.depth(), found, any && fits ? span.count() : 0, count);
        if (any && !fits) wide[atomicAdd(&block_wide, 1)] = static_cast<uint16_t>(round * THREADS + threadIdx.x);
        if (in_use) {
            work.found()[splat] = found.words();
            work.depths()[splat] = key;
        }
        if (counts != nullptr && splat < given.splats) counts[splat] = found.count();
        total += found.count();
    }
    total = __reduce_add_sync(ALL_LANES, total);
    if (lane_index() == 0) atomicAdd(&block_total, total);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(&work.totals()->instances, static_cast<unsigned long long>(block_total));
        if (block_wide > 0) {
            wide_begin = static_cast<int>(
                atomicAdd(&work.totals()->wide, static_cast<unsigned long long>(block_wide)));
        }
    }
    if (TABLE) {
        for (int k = threadIdx.x; k < tiles; k += THREADS) {
            if (table[k] > 0) atomicAdd(work.tallies() + k, table[k]);
        }
    }
    __syncthreads();
    for (int k = threadIdx.x; k < block_wide; k += THREADS) {
        work.wide()[wide_begin + k] = static_cast<uint32_t>(chunk * CHUNK + wide[k]);
    }
}
static_assert(CHUNK <= 1 << 16, "a splat of a block has 16 bits");

// The same of wide splats. Near ones are neighbours, so that a block that walked its own would be the last by far.
__global__ void __launch_bounds__(THREADS) count_wide(Listing listing, Work work, int* counts) {
    auto count = [&](uint32_t, int place) { atomicAdd(work.tallies() + place, 1); };
    walk_wide(listing, work, count, [&](uint32_t splat, int listed) {
        if (lane_index() != 0 || listed == 0) return;
        atomicAdd(&work.totals()->instances, static_cast<unsigned long long>(listed));
        if (counts != nullptr) atomicAdd(counts + splat, listed);
    });
}

DYNAMIC_SHARED(count_tiles_true, TABLE_TILES * sizeof(int), 5)

EXPORT int list_tiles(Queue queue, const int* tiles, int64_t count, int* places, int64_t image_tiles) {
    CHECK(cudaSetDevice(queue.device));
    CHECK(cudaMemsetAsync(places, 0xff, image_tiles * sizeof(int), queue.stream));
    if (count == 0) return cudaSuccess;
    place_tiles<<<whole_blocks(count), THREADS, 0, queue.stream>>>(tiles, count, places);
    return cudaGetLastError();
}

static cudaError_t clear_counts(Queue queue, const Work& work, int64_t tiles) {
    int64_t bytes = COUNTS_WORDS * sizeof(*work.counts) + tiles * sizeof(int);
    return cudaMemsetAsync(work.counts, 0, bytes, queue.stream);
}

static cudaError_t count_chunks(Queue queue, const View& view, const Given& given, const Work& work, Chunks chunks,
                                int64_t tiles, int* counts) {
    unsigned all = whole_chunks(given.splats), blocks = chunks.others ? all - chunks.count : chunks.count;
    if (blocks == 0) return cudaSuccess;
    bool table = tiles <= TABLE_TILES;
    auto kernel = table ? count_tiles<true> : count_tiles<false>;
    kernel<<<blocks, THREADS, table ? tiles * sizeof(int) : 0, queue.stream>>>(
        Listing(view, given), given, work, chunks, static_cast<int>(tiles), counts);
    return cudaGetLastError();
}

// What count_instances does of the `count` splats from `first` on, before the others' records are there; those whose
// chunks lie among them.
EXPORT int begin_bins(Queue queue, const View* view, const Given* given, const Work* work, int64_t first, int64_t count,
                      const int* listed, int64_t tiles, int* places, int64_t image_tiles) {
    CHECK(cudaSetDevice(queue.device));
    int failed = places == nullptr ? cudaSuccess : list_tiles(queue, listed, tiles, places, image_tiles);
    if (failed) return failed;
    CHECK(clear_counts(queue, *work, tiles));
    return count_chunks(queue, *view, *given, *work, chunks_of(first, count, false), tiles, nullptr);
}

// Find each splat's tiles and count them, in Counts and by tile. begun: splats for which begin_bins has done so, from
// `first` on; none of them: it was not called. tiles: how many are listed. splat_starts: [splats + 1], or null if nobody
// asks for them.
EXPORT int count_instances(Queue queue, const View* view, const Given* given, const Work* work, int64_t first,
                           int64_t begun, int64_t tiles, int64_t* splat_starts) {
    CHECK(cudaSetDevice(queue.device));
    cudaStream_t stream = queue.stream;
    int64_t splats = given->splats;
    int* counts = splat_starts == nullptr ? nullptr : work->of_splats();
    if (begun == 0) CHECK(clear_counts(queue, *work, tiles));
    if (splats > 0) {
        CHECK(count_chunks(queue, *view, *given, *work, chunks_of(first, begun, true), tiles, counts));
        count_wide<<<WIDE_BLOCKS, THREADS, 0, stream>>>(Listing(*view, *given), *work, counts);
        CHECK(cudaGetLastError());
    }
    if (splat_starts == nullptr) return cudaSuccess;
    CHECK(cudaMemsetAsync(splat_starts, 0, sizeof(int64_t), stream));
    return prefix_sums(stream, work->scratch, counts, splat_starts + 1, splats);
}
