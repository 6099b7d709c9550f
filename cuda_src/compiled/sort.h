// Prefix sums and radix sorts on a stream, with scratch from the caller: `scratch_bytes` says how much.
#pragma once

#include "config.h"

struct Scratch {
    void* memory;
    size_t bytes;
};

// ends[i] = counts[0] + ... + counts[i].
cudaError_t prefix_sums(cudaStream_t stream, Scratch scratch, const int* counts, int64_t* ends, int64_t count);

// Stable and ascending, by bits [0, key_bits) of the keys.
cudaError_t sort_pairs(cudaStream_t stream, Scratch scratch, const uint32_t* keys, uint32_t* sorted_keys,
                       const uint32_t* values, uint32_t* sorted_values, int64_t count, int key_bits);
