// Prefix sums, from CUB; the only file that includes it, since it takes longest to compile.
#include "sums.h"

#include <cub/device/device_scan.cuh>

cudaError_t prefix_sums(cudaStream_t stream, Scratch scratch, const int* counts, int64_t* ends, int64_t count) {
    return cub::DeviceScan::InclusiveSum(scratch.memory, scratch.bytes, counts, ends, static_cast<uint32_t>(count),
                                         stream);
}

// What it needs for so many items.
EXPORT int scratch_bytes(int device, int64_t count, size_t* bytes) {
    CHECK(cudaSetDevice(device));
    return cub::DeviceScan::InclusiveSum(nullptr, *bytes, static_cast<const int*>(nullptr),
                                         static_cast<int64_t*>(nullptr), static_cast<uint32_t>(count));
}
