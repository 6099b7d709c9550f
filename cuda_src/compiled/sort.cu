// Prefix sums and radix sorts, from CUB; the only file that includes it, since it takes longest to compile.
#include "sort.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

constexpr int WHOLE_KEY = 32;

cudaError_t prefix_sums(cudaStream_t stream, Scratch scratch, const int* counts, int64_t* ends, int64_t count) {
    return cub::DeviceScan::InclusiveSum(scratch.memory, scratch.bytes, counts, ends, static_cast<uint32_t>(count),
                                         stream);
}

cudaError_t sort_pairs(cudaStream_t stream, Scratch scratch, const uint32_t* keys, uint32_t* sorted_keys,
                       const uint32_t* values, uint32_t* sorted_values, int64_t count, int key_bits) {
    return cub::DeviceRadixSort::SortPairs(scratch.memory, scratch.bytes, keys, sorted_keys, values, sorted_values,
                                           static_cast<uint32_t>(count), 0, key_bits, stream);
}

// What either needs for so many items.
EXPORT int scratch_bytes(int device, int64_t count, size_t* bytes) {
    CHECK(cudaSetDevice(device));
    size_t for_sums = 0, for_sort = 0;
    uint32_t items = static_cast<uint32_t>(count);
    CHECK(cub::DeviceScan::InclusiveSum(nullptr, for_sums, static_cast<const int*>(nullptr),
                                        static_cast<int64_t*>(nullptr), items));
    const uint32_t* in = nullptr;
    uint32_t* out = nullptr;
    CHECK(cub::DeviceRadixSort::SortPairs(nullptr, for_sort, in, out, in, out, items, 0, WHOLE_KEY));
    *bytes = for_sums > for_sort ? for_sums : for_sort;
    return cudaSuccess;
}
