// Tile lists cut into segments, and what blocks that share a list leave for one another.
//
// The block of a segment must know how much light is left where it begins. If the segment before is not done yet, it
// first finds by how much its own splats attenuate (a product, without order or stop), and then takes the latest known
// transmittance times the products in between: a scan with look-back (Merrill & Garland 2016) over a tile's segments.
// So results are those of one pass, but for the order in which a product is formed. The block that finishes a tile last
// adds up its segments front to back.
#pragma once

#include "config.h"

// A segment of a listed tile's list; the whole list if count is 1.
struct alignas(16) Segment {
    int64_t begin;  // of its entries among all instances
    int tile, place;
    int first, size;    // of its entries in the list
    int number, count;  // among the tile's segments
    int slot;           // of the tile's first segment among those of lists that are cut
    int unused;
};

// What a segment leaves at each of its pixels.
enum Plane { PRODUCT, LEFT, RED, GREEN, BLUE, DEPTH, STOP_DEPTH, LAST, PLANES };
// PRODUCT: of 1 - alpha, of all its splats that are not skipped. LEFT: transmittance where it ends, with its sign bit
// set where nothing more may be blended. RED to DEPTH: what it adds. LAST: as bits.

enum State { UNKNOWN, ATTENUATION_KNOWN, COMPLETE };

// head: [4] tickets taken; how many segments; from where on they do not begin their list; unused. state: of each slot.
// At the slot of a tile's first segment, arrived: segments done with; stopped: 0, or MOST_SEGMENTS less the number of a
// segment after which the tile is dark. items: in the order in which blocks take them. planes: [slots, PLANES,
// TILE_THREADS]. reach: [instances] the cells of its tile in which a splat can be seen, of entries that the forward
// read.
struct Segments {
    int* head;
    int* state;
    int* arrived;
    int* stopped;
    Segment* items;
    float* planes;
    uint16_t* reach;

    // thread: of the tile.
    __device__ float* plane(int slot, int which, int thread) const {
        return planes + (static_cast<int64_t>(slot) * PLANES + which) * TILE_THREADS + thread;
    }
    __device__ float* plane(int slot, int which) const { return plane(slot, which, threadIdx.x); }
    __device__ int state_of(const Segment& segment, int number) const {
        return *static_cast<const volatile int*>(state + segment.slot + number);
    }
    // The number of the segment after which the tile is known to be dark, if it is, else of its last one.
    __device__ int dark_from(const Segment& segment) const {
        int known = *static_cast<const volatile int*>(stopped + segment.slot);
        return known > 0 ? MOST_SEGMENTS - known : segment.count - 1;
    }
    __device__ bool is_dark_before(const Segment& segment) const { return dark_from(segment) < segment.number; }
};

// Entries of a segment where there is room for that many instances: with more of them each is longer, so that what
// segments leave is never more than 112 MB; they are still many times as many as there are blocks at a time.
inline int segment_size(int64_t instances) {
    return SEGMENT * static_cast<int>(instances <= 0 ? 1 : (instances + FINE_INSTANCES - 1) / FINE_INSTANCES);
}

// At most so many segments, and slots, for that many listed tiles and instances.
inline int64_t most_segments(int64_t tiles, int64_t instances) { return tiles + instances / segment_size(instances); }
inline int64_t most_slots(int64_t instances) {
    int segment = segment_size(instances);
    return instances / segment + instances / whole_list(segment);
}

// How memory of `segment_bytes` is divided; the first `cleared` bytes, whole words of 16, are zero once lists are planned.
Segments segments_in(void* memory, int64_t tiles, int64_t instances, int64_t* cleared, int64_t* bytes);

// Clear what is to be zero, and fill in the items. starts: [tiles + 1].
cudaError_t plan_segments(cudaStream_t stream, const Segments& segments, int64_t cleared, int64_t instances,
                          const int* tiles, int64_t count, const int64_t* starts);

// A pixel where nothing more may be blended is marked by the sign bit of its transmittance.
__device__ inline bool is_dark(float left) { return __float_as_int(left) < 0; }
