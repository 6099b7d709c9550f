// Rows of a table in shared memory, one a lane: rows scattered in device memory are read by whole warps, lane by lane
// along the row, and then each lane works on its own.
#pragma once

#include <cuda_pipeline.h>

#include "config.h"

// Rows lie PARAMETERS apart, an odd number, so that lanes reading the same column of their own rows meet no bank twice.
static_assert(PARAMETERS % 2 == 1, "an even row length needs padding");

// Start to copy the first `columns` of each lane's row; `present` lanes, the lowest of the warp, have one.
__device__ inline void fetch_rows(float* stage, const float* table, int64_t row, int present, int columns) {
    for (int r = 0; r < present; ++r) {
        const float* source = table + __shfl_sync(ALL_LANES, row, r) * PARAMETERS;
        for (int column = lane_index(); column < columns; column += WARP) {
            __pipeline_memcpy_async(stage + r * PARAMETERS + column, source + column, sizeof(float));
        }
    }
    __pipeline_commit();
}

// After this every lane may read every row.
__device__ inline void await_rows() {
    __pipeline_wait_prior(0);
    __syncwarp();
}

// Write `width` values of each lane's row to consecutive rows of `width`; the lanes' own values are in the stage.
__device__ inline void store_rows(float* target, const float* stage, int present, int width) {
    __syncwarp();
    for (int i = lane_index(); i < present * width; i += WARP) target[i] = stage[i / width * PARAMETERS + i % width];
    __syncwarp();
}
