// How a block puts up to SORTED entries in order of depth, then id, then splat, in shared memory: a radix sort of 8 bits
// a pass from the least significant digit on (Merrill & Grimshaw 2011, "High performance and scalable radix sorting"), in
// which every warp takes a share of the list, so that between two barriers it goes through it by itself. Keys lie still;
// their order, 16 bits a place, is what moves. Only as many bits as the list's depths differ in count, and of these the
// upper ones: runs that are then alike are short and put in order by comparing, and lists with longer runs are sorted by
// all bits, and by id first if depths are equal.
#pragma once

#include "bin.cuh"

constexpr int DIGIT_BITS = 8;
constexpr int DIGITS = 1 << DIGIT_BITS;
constexpr int SORT_THREADS = DIGITS;
constexpr int SORT_WARPS = SORT_THREADS / WARP;
constexpr int WHOLE_KEY = 32;
// Places that a warp goes through at least: less, and making its table takes longer than the warp saves.
constexpr int LEAST_SHARE = 128;
// Upper bits that leave few runs among so many depths.
constexpr int SHORT_LIST = 1024;
constexpr int BITS_OF_SHORT = 2 * DIGIT_BITS;
constexpr int BITS_OF_LONG = 3 * DIGIT_BITS;

struct Sorting {
    uint32_t keys[SORTED];
    uint16_t orders[2][SORTED];
    int table[SORT_WARPS][DIGITS];
    int sums[SORT_WARPS];
    uint32_t least, most;
};
static_assert(SORTED <= 1 << 16, "an order has 16 bits a place");

// A list being sorted. Every thread of the block has the same.
struct Order {
    Sorting& s;
    int count;
    int turn = 0;  // which of the orders is the latest
    uint32_t least = 0;
    int shift = 0;  // bits below are not sorted by

    __device__ Order(Sorting& s, int count) : s(s), count(count) {}
    __device__ int at(int place) const { return s.orders[turn][place]; }
    // What places have been sorted by.
    __device__ uint32_t upper(int place) const { return (s.keys[at(place)] - least) >> shift; }

    // By key_of(entry), by no more than `most_bits` of the bits in which keys differ. afresh: whatever the order was; if
    // not, equal keys keep theirs.
    template <typename KeyOf>
    __device__ void sort_by(int most_bits, bool afresh, KeyOf key_of) {
        __syncthreads();
        if (threadIdx.x == 0) s.least = 0xffffffffu, s.most = 0;
        __syncthreads();
        uint32_t low = 0xffffffffu, high = 0;
#pragma unroll 4
        for (int i = threadIdx.x; i < count; i += SORT_THREADS) {
            uint32_t key = key_of(i);
            s.keys[i] = key;
            low = min(low, key), high = max(high, key);
        }
        low = __reduce_min_sync(ALL_LANES, low), high = __reduce_max_sync(ALL_LANES, high);
        if (lane_index() == 0) {
            atomicMin(&s.least, low);
            atomicMax(&s.most, high);
        }
        __syncthreads();
        least = s.least;
        int width = WHOLE_KEY - __clz(static_cast<int>(s.most - least));
        shift = max(width - most_bits, 0);
        if (afresh) spread_by_digit(shift);
        for (int bit = shift + (afresh ? DIGIT_BITS : 0); bit < width; bit += DIGIT_BITS) sort_by_digit(bit);
    }

    __device__ int digit(int entry, int bit) const {
        return static_cast<int>((s.keys[entry] - least) >> bit & (DIGITS - 1));
    }

    // The first digit of all need not keep an order, so that entries take their places as they come.
    __device__ void spread_by_digit(int bit) {
        int* table = s.table[0];
        table[threadIdx.x] = 0;
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < count; i += SORT_THREADS) atomicAdd(table + digit(i, bit), 1);
        __syncthreads();
        start_digits(1);
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < count; i += SORT_THREADS) {
            s.orders[1 - turn][atomicAdd(table + digit(i, bit), 1)] = static_cast<uint16_t>(i);
        }
        __syncthreads();
        turn = 1 - turn;
    }

    __device__ void sort_by_digit(int bit) {
        int warps = min(SORT_WARPS, (count + LEAST_SHARE - 1) / LEAST_SHARE);
        int share = ((count + warps - 1) / warps + WARP - 1) / WARP * WARP;
        int first = warp_index() * share, last = min(first + share, count);
#pragma unroll 1
        for (int w = 0; w < warps; ++w) s.table[w][threadIdx.x] = 0;
        __syncthreads();
        int* own = s.table[warp_index()];
#pragma unroll 1
        for (int place = first + lane_index(); place < last; place += WARP) atomicAdd(own + digit(at(place), bit), 1);
        __syncthreads();
        start_digits(warps);
        __syncthreads();
#pragma unroll 1
        for (int step = first; step < last; step += WARP) {
            int place = step + lane_index();
            bool has = place < last;
            int entry = at(has ? place : first), its = digit(entry, bit);
            unsigned alike = peers(its, __ballot_sync(ALL_LANES, has));
            int to = own[its] + __popc(alike & ((1u << lane_index()) - 1));
            __syncwarp();
            if (has) {
                if (alike >> lane_index() == 1) own[its] = to + 1;
                s.orders[1 - turn][to] = static_cast<uint16_t>(entry);
            }
            __syncwarp();
        }
        __syncthreads();
        turn = 1 - turn;
    }

    // From counts to where each warp's entries of each digit go: by digit, then warp. A thread has a digit.
    __device__ void start_digits(int warps) {
        int own = 0;
#pragma unroll 2
        for (int w = 0; w < warps; ++w) own += s.table[w][threadIdx.x];
        int end = sum_up_to_lane(own);
        if (lane_index() == WARP - 1) s.sums[warp_index()] = end;
        __syncthreads();
        int begin = end - own;
#pragma unroll 2
        for (int w = 0; w < warp_index(); ++w) begin += s.sums[w];
#pragma unroll 2
        for (int w = 0; w < warps; ++w) {
            int number = s.table[w][threadIdx.x];
            s.table[w][threadIdx.x] = begin;
            begin += number;
        }
    }

    // Which of the lanes `having` have this digit.
    __device__ static unsigned peers(int digit, unsigned having) {
#pragma unroll
        for (int bit = 0; bit < DIGIT_BITS; ++bit) {
            bool set = digit >> bit & 1;
            unsigned with = __ballot_sync(ALL_LANES, set);
            having &= set ? with : ~with;
        }
        return having;
    }

    // More than TIE_RUN neighbours are alike in what they have been sorted by.
    __device__ bool has_long_runs() const {
        bool found = false;
#pragma unroll 1
        for (int i = TIE_RUN + threadIdx.x; i < count; i += SORT_THREADS) found |= upper(i) == upper(i - TIE_RUN);
        return __syncthreads_or(found);
    }
};

__device__ inline bool comes_before(uint2 a, uint2 b, const Ids& ids) {
    if (a.x != b.x) return a.x < b.x;
    int64_t id = ids[a.y], other = ids[b.y];
    return id < other || (id == other && a.y < b.y);
}

// Where the entry at a place belongs: its run of alike ones is put in order by comparing all with all. What places have
// been sorted by are bits of the depths, which lie whole in shared memory; entries are read where depths are equal.
template <typename EntryAt>
__device__ int place_in_run(const Order& order, EntryAt entry_at, const Ids& ids, int place) {
    uint32_t own = order.upper(place);
    int first = place, last = place;
    while (first > 0 && order.upper(first - 1) == own) --first;
    while (last + 1 < order.count && order.upper(last + 1) == own) ++last;
    if (first == last) return place;
    int entry = order.at(place), to = first;
    uint32_t depth = order.s.keys[entry];
#pragma unroll 1
    for (int k = first; k <= last; ++k) {
        int other = order.at(k);
        uint32_t its = order.s.keys[other];
        to += its < depth || (its == depth && other != entry && comes_before(entry_at(other), entry_at(entry), ids));
    }
    return to;
}

// What a list is sorted by, one after the other as far as it takes: by depth alone unless many depths are equal.
enum Key { UPPER_DEPTH, DEPTH, SPLAT, LOWER_ID, UPPER_ID, LAST_DEPTH };

__device__ inline uint32_t key_of(uint2 entry, int key, const Ids& ids) {
    if (key == SPLAT) return entry.y;
    if (key == LOWER_ID) return static_cast<uint32_t>(ids[entry.y]);
    // The sign bit is turned, so that negative ids come first.
    if (key == UPPER_ID) return static_cast<uint32_t>(static_cast<uint64_t>(ids[entry.y]) >> 32) ^ (1u << 31);
    return entry.x;
}

// By the whole block. put(to, entry): of every entry, in any order.
template <typename EntryAt, typename Put>
__device__ void sort_in_block(Sorting& shared, int count, const Ids& ids, EntryAt entry_at, Put put) {
    Order order(shared, count);
    int key = UPPER_DEPTH;
#pragma unroll 1
    while (true) {
        int bits = key != UPPER_DEPTH ? WHOLE_KEY : count <= SHORT_LIST ? BITS_OF_SHORT : BITS_OF_LONG;
        order.sort_by(bits, key <= SPLAT, [&](int i) { return key_of(entry_at(i), key, ids); });
        if (key == LAST_DEPTH || (key <= DEPTH && !order.has_long_runs())) break;
        key = key == UPPER_DEPTH && order.shift == 0 ? SPLAT : key + 1;
    }
    bool in_order = key == LAST_DEPTH;
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += SORT_THREADS) {
        put(in_order ? i : place_in_run(order, entry_at, ids, i), entry_at(order.at(i)));
    }
}
