// Which segments there are, in the order in which blocks take them: first the beginnings of lists that are cut, then
// whole lists from long to short, then second segments, third segments and so on. So long work does not come last, and
// most segments find the one before them done.
#include "segments.cuh"

constexpr int PLAN_THREADS = 1024;
constexpr int LENGTHS = 8;  // classes of whole lists
constexpr int CLASSES = LENGTHS + MOST_SEGMENTS;

struct Cut {
    int count, size;
};

// segment: entries of one, unless the list would have too many.
__device__ Cut cut_of(int length, int segment) {
    if (length <= whole_list(segment)) return {1, length};
    int least = (length + MOST_SEGMENTS - 1) / MOST_SEGMENTS;
    int size = max(segment, (least + FORWARD_BATCH - 1) / FORWARD_BATCH * FORWARD_BATCH);
    return {(length + size - 1) / size, size};
}

__device__ int class_of(const Cut& cut, int segment) {
    return cut.count > 1 ? 0 : LENGTHS - cut.size * (LENGTHS - 1) / whole_list(segment);
}

// Count one in a class; returns how many there were before. Lanes of the same class count together.
__device__ int count_in(int* counts, int which) {
    unsigned peers = __match_any_sync(__activemask(), which);
    int leader = __ffs(peers) - 1, before = 0;
    if (lane_index() == leader) before = atomicAdd(counts + which, __popc(peers));
    return __shfl_sync(peers, before, leader) + __popc(peers & ((1u << lane_index()) - 1u));
}

__global__ void __launch_bounds__(PLAN_THREADS) plan(Segments segments, int segment, int cleared, const int* tiles,
                                                     int count, const int64_t* starts) {
    __shared__ int counts[CLASSES];
    __shared__ int slots;
    int4* words = reinterpret_cast<int4*>(segments.head);
    for (int i = threadIdx.x; i < cleared; i += PLAN_THREADS) words[i] = make_int4(0, 0, 0, 0);
    for (int i = threadIdx.x; i < CLASSES; i += PLAN_THREADS) counts[i] = 0;
    if (threadIdx.x == 0) slots = 0;
    __syncthreads();
    for (int place = threadIdx.x; place < count; place += PLAN_THREADS) {
        Cut cut = cut_of(static_cast<int>(starts[place + 1] - starts[place]), segment);
        count_in(counts, class_of(cut, segment));
        for (int number = 1; number < cut.count; ++number) atomicAdd(counts + LENGTHS + number, 1);
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        // From counts to where each class begins: a lane takes neighbouring classes.
        constexpr int EACH = (CLASSES + WARP - 1) / WARP;
        int first = threadIdx.x * EACH, own = 0;
        for (int i = first; i < min(first + EACH, CLASSES); ++i) own += counts[i];
        int end = own;
        for (int step = 1; step < WARP; step *= 2) {
            int below = __shfl_up_sync(ALL_LANES, end, step);
            if (lane_index() >= step) end += below;
        }
        if (lane_index() == WARP - 1) segments.head[1] = end;
        int begin = end - own;
        for (int i = first; i < min(first + EACH, CLASSES); ++i) {
            int number = counts[i];
            counts[i] = begin;
            if (i == LENGTHS + 1) segments.head[2] = begin;
            begin += number;
        }
    }
    __syncthreads();
    for (int place = threadIdx.x; place < count; place += PLAN_THREADS) {
        int64_t begin = starts[place];
        int length = static_cast<int>(starts[place + 1] - begin);
        Cut cut = cut_of(length, segment);
        int slot = cut.count > 1 ? atomicAdd(&slots, cut.count) : 0;
        for (int number = 0; number < cut.count; ++number) {
            int first = number * cut.size;
            int at = number == 0 ? count_in(counts, class_of(cut, segment)) : atomicAdd(counts + LENGTHS + number, 1);
            segments.items[at] = {begin + first, tiles[place], place, first, min(cut.size, length - first), number,
                                  cut.count, slot, 0};
        }
    }
}

Segments segments_in(void* memory, int64_t tiles, int64_t instances, int64_t* cleared, int64_t* bytes) {
    int64_t slots = most_slots(instances), words = (4 + 3 * slots + 3) / 4 * 4;
    int64_t items = most_segments(tiles, instances);
    *cleared = words * static_cast<int64_t>(sizeof(int));
    int64_t floats = slots * PLANES * TILE_THREADS;
    *bytes = *cleared + items * static_cast<int64_t>(sizeof(Segment)) + floats * static_cast<int64_t>(sizeof(float)) +
             instances * static_cast<int64_t>(sizeof(uint16_t));
    int* head = static_cast<int*>(memory);
    Segment* first = reinterpret_cast<Segment*>(head + words);
    float* planes = reinterpret_cast<float*>(first + items);
    return {head,   head + 4, head + 4 + slots, head + 4 + 2 * slots, first,
            planes, reinterpret_cast<uint16_t*>(planes + floats)};
}

cudaError_t plan_segments(cudaStream_t stream, const Segments& segments, int64_t cleared, int64_t instances,
                          const int* tiles, int64_t count, const int64_t* starts) {
    int words = static_cast<int>(cleared / static_cast<int64_t>(sizeof(int4)));
    plan<<<1, PLAN_THREADS, 0, stream>>>(segments, segment_size(instances), words, tiles, static_cast<int>(count), starts);
    return cudaGetLastError();
}

EXPORT int segment_bytes(int64_t tiles, int64_t instances, int64_t* bytes) {
    int64_t cleared = 0;
    segments_in(nullptr, tiles, instances, &cleared, bytes);
    return cudaSuccess;
}
