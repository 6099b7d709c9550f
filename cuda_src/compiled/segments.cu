// Which segments there are, in the order in which blocks take them: first the beginnings of lists that are cut, then
// whole lists from long to short, then second segments, third segments and so on. So long work does not come last, and
// most segments find the one before them done.
#include "segments.cuh"

constexpr int PLAN_THREADS = 1024;
constexpr int PLANNED = PLAN_THREADS / 4;  // tiles of a block
constexpr int READ_AT_ONCE = 8;
constexpr int LENGTHS = 8;  // classes of whole lists, numbered from 1: a warp adds up both kinds of classes
constexpr int EACH = MOST_SEGMENTS / WARP;

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

__device__ int class_of(int length, int segment) {
    return LENGTHS - length * (LENGTHS - 1) / whole_list(segment);
}

// Lists of some tiles: whole ones by class, and those that are cut by how many segments they have.
struct Census {
    int whole[LENGTHS + 1];
    int cut[MOST_SEGMENTS + 1];

    __device__ void clear() {
        for (int i = threadIdx.x; i <= MOST_SEGMENTS; i += PLAN_THREADS) cut[i] = 0;
        if (threadIdx.x <= LENGTHS) whole[threadIdx.x] = 0;
    }
    __device__ void add(int length, int segment) {
        Cut own = cut_of(length, segment);
        atomicAdd(own.count > 1 ? cut + own.count : whole + class_of(length, segment), 1);
    }
    // A lane gets, for EACH neighbouring numbers, how many segments there are of that number; returns their sum.
    __device__ int segments_of(int (&numbers)[EACH]) const {
        const int* own = cut + lane_index() * EACH + 1;
        int more = 0, sum = 0;
        for (int i = 0; i < EACH; ++i) more += own[i];
        int with_own = more;
        for (int step = 1; step < WARP; step *= 2) {
            int above = __shfl_down_sync(ALL_LANES, more, step);
            if (lane_index() + step < WARP) more += above;
        }
        more -= with_own;
        for (int i = EACH - 1; i >= 0; --i) {
            more += own[i];
            numbers[i] = more;
            sum += more;
        }
        return sum;
    }
};

// Where a block's first segment of each class goes.
struct Places {
    int whole[LENGTHS + 1];
    int segment[MOST_SEGMENTS];  // by number
    int slot;

    // By one warp. all: lists of all tiles; before: of those that other blocks plan first.
    __device__ void find(const Census& all, const Census& before, const Segments& segments) {
        int lane = lane_index(), numbers[EACH], earlier[EACH];
        int sum = all.segments_of(numbers), slots = before.segments_of(earlier);
        int firsts = __shfl_sync(ALL_LANES, numbers[0], 0);
        bool is_class = lane >= 1 && lane <= LENGTHS;
        int lists = is_class ? all.whole[lane] : 0, up_to = sum_up_to_lane(lists);
        if (is_class) whole[lane] = firsts + up_to - lists + before.whole[lane];
        int second = firsts + __shfl_sync(ALL_LANES, up_to, WARP - 1);
        if (lane == 0) sum -= firsts;
        int end = second + sum_up_to_lane(sum), at = end - sum;
        for (int i = 0; i < EACH; ++i) {
            bool first = lane == 0 && i == 0;
            segment[lane * EACH + i] = (first ? 0 : at) + earlier[i];
            if (!first) at += numbers[i];
        }
        slots = sum_up_to_lane(slots);
        if (lane < WARP - 1) return;
        slot = slots;
        if (blockIdx.x == 0) *reinterpret_cast<int4*>(segments.head) = make_int4(0, end, second, 0);
    }
};

// A block counts the lists of all tiles, which takes less than to wait for others to have counted theirs, and writes the
// segments of its own.
__global__ void __launch_bounds__(PLAN_THREADS) plan(Segments segments, int segment, int cleared, const int* tiles,
                                                     int count, const int64_t* starts) {
    __shared__ Census all, before;
    __shared__ Places places;
    int own_first = blockIdx.x * PLANNED;
    // The first words are the head's, which one block writes whole.
    int4* words = reinterpret_cast<int4*>(segments.head);
    int threads = gridDim.x * PLAN_THREADS;
    for (int i = 1 + blockIdx.x * PLAN_THREADS + threadIdx.x; i < cleared; i += threads) words[i] = make_int4(0, 0, 0, 0);
    all.clear();
    before.clear();
    __syncthreads();
    for (int first = 0; first < count; first += PLAN_THREADS * READ_AT_ONCE) {
        int lengths[READ_AT_ONCE];
#pragma unroll
        for (int i = 0; i < READ_AT_ONCE; ++i) {
            int place = first + i * PLAN_THREADS + threadIdx.x;
            lengths[i] = place < count ? static_cast<int>(starts[place + 1] - starts[place]) : 0;
        }
#pragma unroll
        for (int i = 0; i < READ_AT_ONCE; ++i) {
            int place = first + i * PLAN_THREADS + threadIdx.x;
            if (place < count) all.add(lengths[i], segment);
            if (place < min(own_first, count)) before.add(lengths[i], segment);
        }
    }
    __syncthreads();
    if (warp_index() == 0) places.find(all, before, segments);
    __syncthreads();
    if (threadIdx.x >= PLANNED) return;
    int place = own_first + threadIdx.x;
    bool has = place < count;
    int64_t begin = has ? starts[place] : 0;
    int length = has ? static_cast<int>(starts[place + 1] - begin) : 0, tile = has ? tiles[place] : 0;
    int longest = whole_list(segment);
    if (has && length <= longest) {
        int at = atomicAdd(places.whole + class_of(length, segment), 1);
        segments.items[at] = {begin, tile, place, 0, length, 0, 1, 0, 0};
    }
    // The warp writes the segments of a list that is cut.
    for (unsigned left = __ballot_sync(ALL_LANES, length > longest); left; left &= left - 1) {
        int lane = __ffs(left) - 1, its_length = __shfl_sync(ALL_LANES, length, lane);
        int64_t its_begin = __shfl_sync(ALL_LANES, begin, lane);
        int its_tile = __shfl_sync(ALL_LANES, tile, lane), its_place = __shfl_sync(ALL_LANES, place, lane), slot = 0;
        Cut cut = cut_of(its_length, segment);
        if (lane_index() == 0) slot = atomicAdd(&places.slot, cut.count);
        slot = __shfl_sync(ALL_LANES, slot, 0);
        for (int number = lane_index(); number < cut.count; number += WARP) {
            int first = number * cut.size, at = atomicAdd(places.segment + number, 1);
            segments.items[at] = {its_begin + first, its_tile,  its_place, first, min(cut.size, its_length - first),
                                  number,            cut.count, slot,      0};
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
    unsigned blocks = static_cast<unsigned>((count + PLANNED - 1) / PLANNED);
    plan<<<blocks, PLAN_THREADS, 0, stream>>>(segments, segment_size(instances), words, tiles, static_cast<int>(count),
                                             starts);
    return cudaGetLastError();
}

EXPORT int segment_bytes(int64_t tiles, int64_t instances, int64_t* bytes) {
    int64_t cleared = 0;
    segments_in(nullptr, tiles, instances, &cleared, bytes);
    return cudaSuccess;
}
