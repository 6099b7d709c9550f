// Prefix sums on a stream, with scratch from the caller: `scratch_bytes` says how much.
#pragma once

#include "config.h"

struct Scratch {
    void* memory;
    size_t bytes;
};

// ends[i] = counts[0] + ... + counts[i].
cudaError_t prefix_sums(cudaStream_t stream, Scratch scratch, const int* counts, int64_t* ends, int64_t count);
