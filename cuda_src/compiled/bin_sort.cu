// Binning, third part: each tile's list by depth, then id, then splat. A block sorts a list in shared memory. Longer
// lists are split first, into buckets that fit (Frazer & McKellar 1970, "Samplesort"): splitters out of a sorted sample, and
// every entry into the bucket between the two splitters that it lies between. Splitters have an id and a splat as well as
// a depth, so that entries of equal depth are split as any others.
#include "bin_sort.cuh"

// Sampled entries of a bucket: one has 2.7 times as many entries as its share, SORTED, once in 10^10.
constexpr int SAMPLED = 32;
constexpr int SPREAD_THREADS = 1024;
constexpr int SPREAD_EACH = SHARE / SPREAD_THREADS;
static_assert(MOST_BUCKETS % SPREAD_THREADS == 0 && SHARE % SPREAD_THREADS == 0, "threads have equal numbers");

// A block has a long list: sorts a sample of it and picks splitters at equal distances. Each sampled entry is anywhere
// in its own stretch of the list: at equal distances they might be as regular as the scene.
__global__ void __launch_bounds__(SORT_THREADS, 5) split_lists(Lists lists, Ids ids, Work work,
                                                               const int64_t* starts) {
    __shared__ Sorting shared;
    if (blockIdx.x >= work.totals()->long_lists) return;
    LongList list = lists.long_lists[blockIdx.x];
    int64_t begin = starts[list.place], count = starts[list.place + 1] - begin;
    int buckets = buckets_of(count);
    uint32_t sampled = min(buckets * SAMPLED, SORTED);
    Bucket* own = lists.buckets + list.first_bucket;
    // Nothing lies in `spread` yet.
    uint2* sample = lists.spread + begin;
    uint32_t stretch = static_cast<uint32_t>(count) / sampled, longer = static_cast<uint32_t>(count) % sampled;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < sampled; i += SORT_THREADS) {
        uint32_t scattered = (i + 1) * 2654435769u >> 8;
        sample[i] = lists.entries[begin + i * stretch + min(i, longer) + scattered % (stretch + (i < longer))];
    }
    for (int b = threadIdx.x; b < buckets; b += SORT_THREADS) own[b].size = 0, own[b].taken = 0;
    // Bucket b begins with the first sampled entry of its b-th part.
    __syncthreads();
    sort_in_block(shared, sampled, ids, [&](int i) { return sample[i]; }, [&](int to, uint2 entry) {
        uint32_t b = to * buckets / sampled;
        if ((b * sampled + buckets - 1) / buckets == to) own[b].splitter = entry;
    });
}
static_assert(MOST_BUCKETS <= SORTED, "a bucket has a sampled entry");

// The splitters of a long list, in the shared memory of a block that has a share of it.
struct Share {
    Bucket* buckets;
    int64_t begin;  // of the list
    int64_t first;  // of the share
    int count, number, bucket_count;

    __device__ Share(const Lists& lists, const int64_t* starts, uint2* splitters) {
        int2 share = lists.shares[blockIdx.x];
        LongList list = lists.long_lists[share.x];
        begin = starts[list.place];
        int64_t whole = starts[list.place + 1] - begin, before = static_cast<int64_t>(share.y) * SHARE;
        number = share.y;
        first = begin + before;
        count = static_cast<int>(min(whole - before, static_cast<int64_t>(SHARE)));
        bucket_count = buckets_of(whole);
        buckets = lists.buckets + list.first_bucket;
        for (int b = threadIdx.x; b < bucket_count; b += SPREAD_THREADS) splitters[b] = buckets[b].splitter;
    }
    // The last bucket whose splitter does not come after the entry, or the first bucket.
    __device__ int bucket_of(uint2 entry, const uint2* splitters, const Ids& ids) const {
        int found = 0;
        for (int step = 1 << (31 - __clz(bucket_count)); step > 0; step /= 2) {
            int next = found + step;
            if (next < bucket_count && !comes_before(entry, splitters[next], ids)) found = next;
        }
        return found;
    }
};

// How many entries each bucket has.
__global__ void __launch_bounds__(SPREAD_THREADS) count_buckets(Lists lists, Ids ids, Work work,
                                                                const int64_t* starts) {
    __shared__ uint2 splitters[MOST_BUCKETS];
    __shared__ int tallies[MOST_BUCKETS];
    if (blockIdx.x >= work.totals()->shares) return;
    Share share(lists, starts, splitters);
    for (int b = threadIdx.x; b < share.bucket_count; b += SPREAD_THREADS) tallies[b] = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < share.count; i += SPREAD_THREADS) {
        atomicAdd(tallies + share.bucket_of(lists.entries[share.first + i], splitters, ids), 1);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < share.bucket_count; b += SPREAD_THREADS) {
        if (tallies[b] > 0) atomicAdd(&share.buckets[b].size, tallies[b]);
    }
}

// Entries into their buckets. A block takes places for all of its own at once.
__global__ void __launch_bounds__(SPREAD_THREADS) fill_buckets(Lists lists, Ids ids, Work work,
                                                               const int64_t* starts) {
    constexpr int WARPS = SPREAD_THREADS / WARP, EACH = MOST_BUCKETS / SPREAD_THREADS;
    __shared__ uint2 splitters[MOST_BUCKETS];
    __shared__ int tallies[MOST_BUCKETS];
    __shared__ int warp_ends[WARPS];
    if (blockIdx.x >= work.totals()->shares) return;
    Share share(lists, starts, splitters);
    for (int b = threadIdx.x; b < share.bucket_count; b += SPREAD_THREADS) tallies[b] = 0;
    __syncthreads();
    uint2 entries[SPREAD_EACH];
    uint32_t ranks[SPREAD_EACH];  // bucket, and how many of the block's entries got there before
#pragma unroll
    for (int e = 0; e < SPREAD_EACH; ++e) {
        int i = e * SPREAD_THREADS + threadIdx.x;
        if (i < share.count) entries[e] = lists.entries[share.first + i];
    }
#pragma unroll
    for (int e = 0; e < SPREAD_EACH; ++e) {
        if (e * SPREAD_THREADS + static_cast<int>(threadIdx.x) < share.count) {
            int bucket = share.bucket_of(entries[e], splitters, ids);
            ranks[e] = static_cast<uint32_t>(bucket * SHARE + atomicAdd(tallies + bucket, 1));
        }
    }
    int first = threadIdx.x * EACH, sizes[EACH], own = 0;
#pragma unroll
    for (int b = 0; b < EACH; ++b) {
        sizes[b] = first + b < share.bucket_count ? share.buckets[first + b].size : 0;
        own += sizes[b];
    }
    int end = sum_up_to_lane(own);
    if (lane_index() == WARP - 1) warp_ends[warp_index()] = end;
    __syncthreads();
    int begin = static_cast<int>(share.begin) + end - own;
    for (int w = 0; w < warp_index(); ++w) begin += warp_ends[w];
#pragma unroll
    for (int b = 0; b < EACH; ++b) {
        if (first + b < share.bucket_count) {
            if (share.number == 0) share.buckets[first + b].begin = begin;
            if (tallies[first + b] > 0) {
                tallies[first + b] = begin + atomicAdd(&share.buckets[first + b].taken, tallies[first + b]);
            }
            begin += sizes[b];
        }
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < SPREAD_EACH; ++e) {
        if (e * SPREAD_THREADS + static_cast<int>(threadIdx.x) < share.count) {
            lists.spread[tallies[ranks[e] / SHARE] + static_cast<int>(ranks[e] % SHARE)] = entries[e];
        }
    }
}

// A bucket that its sample has made too large is sorted where it is, by Batcher's bitonic network (1968) in the form in
// which every comparison puts the smaller entry first: places beyond the end, which would have the largest, stay there.
__device__ void sort_in_place(uint2* entries, int64_t count, const Ids& ids) {
    for (int64_t run = 2; run / 2 < count; run *= 2) {
        for (int64_t step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int64_t pair = threadIdx.x;; pair += SORT_THREADS) {
                int64_t low = pair / step * (2 * step) + pair % step;
                if (low >= count) break;
                int64_t high = step == run / 2 ? low ^ (run - 1) : low + step;
                if (high < count && comes_before(entries[high], entries[low], ids)) {
                    uint2 entry = entries[low];
                    entries[low] = entries[high];
                    entries[high] = entry;
                }
            }
        }
    }
    __syncthreads();
}

// Blocks up to most_buckets have buckets of long lists, the others whole lists.
__global__ void __launch_bounds__(SORT_THREADS, 5) sort_entries(Lists lists, Ids ids, Work work,
                                                                int64_t most_buckets, const int64_t* starts,
                                                                int* splat) {
    __shared__ Sorting shared;
    uint2* entries = lists.entries;
    int64_t begin = 0, count = 0;
    if (blockIdx.x < most_buckets) {
        if (blockIdx.x >= work.totals()->buckets) return;
        Bucket bucket = lists.buckets[blockIdx.x];
        entries = lists.spread, begin = bucket.begin, count = bucket.size;
    } else {
        int64_t place = blockIdx.x - most_buckets;
        begin = starts[place], count = starts[place + 1] - begin;
        if (count > SORTED) return;
    }
    if (count == 0) return;
    entries += begin, splat += begin;
    if (count > SORTED) {
        sort_in_place(entries, count, ids);
        for (int64_t i = threadIdx.x; i < count; i += SORT_THREADS) splat[i] = static_cast<int>(entries[i].y);
        return;
    }
    sort_in_block(shared, static_cast<int>(count), ids, [&](int i) { return entries[i]; },
                  [&](int to, uint2 entry) { splat[to] = static_cast<int>(entry.y); });
}

cudaError_t sort_lists(cudaStream_t stream, const Lists& lists, const Ids& ids, const Work& work, int64_t tiles,
                       const int64_t* starts, int* splat) {
    unsigned long_lists = static_cast<unsigned>(Lists::most_long(lists.room));
    unsigned shares = static_cast<unsigned>(Lists::most_shares(lists.room));
    int64_t buckets = Lists::most_buckets(lists.room);
    if (long_lists > 0) {
        split_lists<<<long_lists, SORT_THREADS, 0, stream>>>(lists, ids, work, starts);
        CHECK(cudaGetLastError());
        count_buckets<<<shares, SPREAD_THREADS, 0, stream>>>(lists, ids, work, starts);
        CHECK(cudaGetLastError());
        fill_buckets<<<shares, SPREAD_THREADS, 0, stream>>>(lists, ids, work, starts);
        CHECK(cudaGetLastError());
    }
    unsigned blocks = static_cast<unsigned>(buckets + tiles);
    sort_entries<<<blocks, SORT_THREADS, 0, stream>>>(lists, ids, work, buckets, starts, splat);
    return cudaGetLastError();
}
