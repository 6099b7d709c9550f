// Rows of several tables side by side in one buffer, and back: a warp a row, so that the borders of the tables, which lie
// within sectors of the packed row, are written by one warp one after another.
#include "config.h"

// Passed by value. Table t has `columns[t]` floats a row.
struct PackedTables {
    float* data[MOST_TABLES];
    int columns[MOST_TABLES];
    int count;
    int width;  // of a packed row, the two words of an id included
};

// Rows that a warp has under way at once, as loads before the first store.
constexpr int PACKED_AT_ONCE = 4;
constexpr int ID_WORDS = 2;

// One column of each of the warp's rows, between its own place and the packed one. rows: -1 where there is none.
template <bool PACK, typename Word>
__device__ void copy_column(Word* table, int64_t width, int64_t column, const int64_t (&rows)[PACKED_AT_ONCE],
                            Word* packed, int64_t packed_width) {
    Word value[PACKED_AT_ONCE];
#pragma unroll
    for (int i = 0; i < PACKED_AT_ONCE; ++i) {
        if (rows[i] >= 0) value[i] = PACK ? table[rows[i] * width + column] : packed[i * packed_width];
    }
#pragma unroll
    for (int i = 0; i < PACKED_AT_ONCE; ++i) {
        if (rows[i] >= 0) (PACK ? packed[i * packed_width] : table[rows[i] * width + column]) = value[i];
    }
}

template <bool PACK>
__global__ void __launch_bounds__(THREADS) copy_rows(const __grid_constant__ PackedTables tables, int64_t* ids,
                                                     const int64_t* rows, int64_t count, float* packed) {
    int64_t step = static_cast<int64_t>(gridDim.x) * (THREADS / WARP) * PACKED_AT_ONCE;
    int64_t first = (static_cast<int64_t>(blockIdx.x) * (THREADS / WARP) + warp_index()) * PACKED_AT_ONCE;
    for (; first < count; first += step) {
        int64_t own[PACKED_AT_ONCE];
#pragma unroll
        for (int i = 0; i < PACKED_AT_ONCE; ++i) own[i] = first + i < count ? rows[first + i] : -1;
        float* place = packed + first * tables.width;
        for (int t = 0; t < tables.count; ++t) {
            int columns = tables.columns[t];
            for (int column = lane_index(); column < columns; column += WARP) {
                copy_column<PACK>(tables.data[t], columns, column, own, place + column, tables.width);
            }
            place += columns;
        }
        if (lane_index() < ID_WORDS) {
            copy_column<PACK>(reinterpret_cast<unsigned*>(ids), ID_WORDS, lane_index(), own,
                              reinterpret_cast<unsigned*>(place) + lane_index(), tables.width);
        }
    }
}

template <bool PACK>
static int copy(Queue queue, const PackedTables* tables, int64_t* ids, const int64_t* rows, int64_t count,
                float* packed) {
    CHECK(cudaSetDevice(queue.device));
    if (count == 0) return cudaSuccess;
    copy_rows<PACK><<<blocks_for(count, THREADS / WARP * PACKED_AT_ONCE), THREADS, 0, queue.stream>>>(
        *tables, ids, rows, count, packed);
    return cudaGetLastError();
}

EXPORT int pack_rows(Queue queue, const PackedTables* tables, int64_t* ids, const int64_t* rows, int64_t count,
                     float* packed) {
    return copy<true>(queue, tables, ids, rows, count, packed);
}

EXPORT int unpack_rows(Queue queue, const PackedTables* tables, int64_t* ids, const int64_t* places, int64_t count,
                       float* packed) {
    return copy<false>(queue, tables, ids, places, count, packed);
}
