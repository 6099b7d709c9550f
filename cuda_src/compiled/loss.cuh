// What the kernels of the loss share: the scene, and windowed averages of a strip of the image.
//
// A block walks down a strip STRIP pixels wide, BATCH_ROWS rows at a time. Windows are first taken down the columns, a
// thread a column of one colour: it keeps the sums of the WINDOW pixels that its newest row counts for, so that a
// value is read once and every row completes one sum. The sums of a batch then stand in shared memory, where a thread
// takes a run of RUN pixels and reads RUN + 2 REACH of them.
#pragma once

#include "config.h"

constexpr int REACH = 5;  // pixels that the window reaches on either side
constexpr int WINDOW = 2 * REACH + 1;
constexpr int STRIP = 32;
constexpr int APRON = STRIP + 2 * REACH;  // pixels of a row that a strip's windows see
constexpr int BATCH_ROWS = 8;
constexpr int RUN = 8;
constexpr int RUNS = 3 * BATCH_ROWS * (STRIP / RUN);  // of a batch
constexpr int STRIP_THREADS = 128;                    // one for each column of each colour, fewer have a run
constexpr int STRIPS_AT_ONCE = 5;                     // of a multiprocessor: up to 96 registers a thread
// A row of sums: the three colours one after another. Eight threads with eight rows of one run meet no bank twice when
// they read 16 bytes, and a warp of columns, 11 pixels of three colours, at most two of them when it writes.
constexpr int PLANE = APRON + 2, PITCH = 3 * PLANE;
static_assert(3 * APRON <= STRIP_THREADS && STRIP_THREADS <= 3 * PLANE, "threads behind the apron stay in PLANE");
static_assert(PLANE % PIECE == 0 && PLANE % WARP >= 12 && PLANE % WARP <= 20 && PITCH % 8 == 4, "other banks");
static_assert(BATCH_ROWS == 8 && RUN == 2 * PIECE && STRIP % RUN == 0, "eight lanes, eight rows");

// Weight of the tap at that distance from the centre: exp(-k^2 / (2 1.5^2)), normalised.
__device__ constexpr float tap(int k) {
    constexpr float WEIGHTS[REACH + 1] = {0.26601172486179436f,  0.2130055377112537f,    0.10936068950970002f,
                                          0.03600077212843083f,  0.007598758135239185f, 0.00102838008447911f};
    return WEIGHTS[k < 0 ? -k : k];
}

struct Scene {
    const float* image;      // [H, W, 3]
    const uint8_t* target;   // [H, W, 3]
    const uint8_t* mask;     // [H, W], or null: every pixel counts fully
    const uint8_t* listed;   // [tiles of the image], or null: all tiles
    int width, height, tiles_x;
    int kind;                // WINDOW_EXACT, WINDOW_TILE or WINDOW_L1
    int offset_x, offset_y;  // of the blocks at whose borders WINDOW_TILE cuts
    bool cut;                // nothing is seen beyond the listed tiles
    float ssim_weight;
    float share;             // 1 / pixels of the image
    float value_share;       // 1 / its values, three a pixel
    int rows;                // of a strip
};

// b / 255, correctly rounded as a division would be, in three operations.
__device__ inline float byte_value(unsigned b) {
    constexpr float INVERSE = 1.f / 255.f;
    float value = static_cast<float>(b), q = value * INVERSE;
    return fmaf(fmaf(-255.f, q, value), INVERSE, q);
}

// Pixels [left, left + STRIP) x [top, bottom) of the image.
struct Strip {
    int left, top, bottom;
    // The first tile row that its windows see.
    __device__ int first_row() const { return max(top - REACH, 0) / TILE; }
};

__device__ inline Strip strip_at(const Scene& s, int x, int y) {
    return {x * STRIP, y * s.rows, min((y + 1) * s.rows, s.height)};
}

// Tile rows of a strip at x in which the tile is listed, as bits from its first row on; none beyond the image.
__device__ inline unsigned listed_rows(const Scene& s, const Strip& strip, int x) {
    if (x < 0 || x >= s.width) return 0u;
    if (s.listed == nullptr) return ~0u;
    unsigned bits = 0u;
    int first = strip.first_row(), last = min(strip.bottom + REACH - 1, s.height - 1) / TILE;
    for (int row = first; row <= last; ++row) bits |= (s.listed[row * s.tiles_x + x / TILE] ? 1u : 0u) << (row - first);
    return bits;
}

// Tile rows that are seen at x.
__device__ inline unsigned seen_rows(const Scene& s, const Strip& strip, int x) {
    return s.cut ? listed_rows(s, strip, x) : (x >= 0 && x < s.width ? ~0u : 0u);
}

// Rows from y on as bits, up to TILE of them: those in [from, to) whose tile row is among `tiles`.
__device__ inline unsigned rows_of(const Strip& strip, unsigned tiles, int y, int from, int to) {
    static_assert(TILE == 16, "neighbouring rows fall into two rows of tiles, y >> 4 and the next");
    int lo = min(max(from - y, 0), TILE), hi = min(max(to - y, lo), TILE);
    unsigned rows = (1u << hi) - (1u << lo), upper = (1u << (TILE - (y & 15))) - 1;
    unsigned pair = tiles << 1 >> ((y >> 4) - strip.first_row() + 1);
    return rows & ((pair & 1u ? upper : 0u) | (pair & 2u ? ~upper : 0u));
}

// A tile of the strip is listed, or one that many tiles around it. Every thread of the block calls it.
__device__ inline bool has_listed(const Scene& s, const Strip& strip, int around) {
    if (s.listed == nullptr) return true;
    int x0 = max(strip.left / TILE - around, 0), x1 = min((strip.left + STRIP - 1) / TILE + around, s.tiles_x - 1);
    int y0 = max(strip.top / TILE - around, 0), y1 = min((strip.bottom - 1) / TILE + around, (s.height - 1) / TILE);
    int columns = x1 - x0 + 1, found = 0;
    for (int i = threadIdx.x; i < columns * (y1 - y0 + 1); i += STRIP_THREADS) {
        found |= s.listed[(y0 + i / columns) * s.tiles_x + x0 + i % columns];
    }
    return __syncthreads_or(found);
}

__device__ inline float weight_at(const Scene& s, int x, int y) {
    return byte_value(s.mask[static_cast<int64_t>(y) * s.width + x]);
}

// One column of the image, of one colour, as a thread walks down it: what is read of a row and the target of the pixel,
// 0 where its bit is not among the rows that are seen.
struct Column {
    const float* image;
    const uint8_t* target;
    unsigned seen;
    __device__ Column(const Scene& s, const Strip& strip, int x, int y, int colour) : seen(seen_rows(s, strip, x)) {
        int64_t at = 3 * (static_cast<int64_t>(y) * s.width + x) + colour;
        image = s.image + at;
        target = s.target + at;
    }
    // ROWS rows, the first of them y, those in [from, to), and on to the next.
    template <int ROWS>
    __device__ void read(const Scene& s, const Strip& strip, int y, int from, int to, float (&images)[ROWS],
                         unsigned (&targets)[ROWS]) {
        unsigned rows = rows_of(strip, seen, y, from, to);
        uint64_t stride = 3u * static_cast<unsigned>(s.width);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            images[i] = rows >> i & 1u ? *image : 0.f;
            targets[i] = rows >> i & 1u ? *target : 0u;
            image += stride;
            target += stride;
        }
    }
};

// WINDOW_TILE: the window of a pixel counts another one, `at`, along an axis of the image.
__device__ inline bool in_one_block(int pixel, int at, int offset, int size) {
    return at >= 0 && at < size && (at + offset) / LOSS_BLOCK == (pixel + offset) / LOSS_BLOCK;
}

// WINDOW_TILE: what is left of the window of a pixel along one axis.
__device__ inline float window_weight(int pixel, int offset, int size) {
    float weight = 0.f;
    for (int k = -REACH; k <= REACH; ++k) {
        if (in_one_block(pixel, pixel + k, offset, size)) weight += tap(k);
    }
    return weight;
}

// The next row of a column, y, of N averages: sums[j] is the sum so far for pixel y - REACH + j, and sums[0] complete
// afterwards. Sums before `first` are of no pixel of the strip. CUT: windows end at the borders of blocks.
template <bool CUT, int N>
__device__ void add_row(const Scene& s, int y, int first, const float (&values)[N], float (&sums)[WINDOW][N]) {
#pragma unroll
    for (int j = 0; j < WINDOW; ++j) {
        if (j < first) continue;
        bool counts = !CUT || in_one_block(y - REACH + j, y, s.offset_y, s.height);
#pragma unroll
        for (int n = 0; n < N; ++n) {
            float before = j + 1 < WINDOW ? sums[j + 1][n] : 0.f;
            sums[j][n] = counts ? fmaf(tap(j - REACH), values[n], before) : before;
        }
    }
}

// A number for each thread of the block, by which it takes a part of what is not enough for all warps. Blocks that a
// multiprocessor has at once leave different warps out, each of which has its own quarter of the multiprocessor.
__device__ inline int turn_of_thread() {
    int block = (blockIdx.y * gridDim.x + blockIdx.x) / MULTIPROCESSORS;
    return (threadIdx.x + block % (STRIP_THREADS / WARP) * WARP) % STRIP_THREADS;
}

// The pixels of a strip that a thread takes in shared memory: RUN side by side, of one row of the batch and one colour.
struct Run {
    int colour, row, first;
    __device__ Run(int number)
        : colour(number / STRIP), row(number % BATCH_ROWS), first(number / BATCH_ROWS % (STRIP / RUN) * RUN) {}
    __device__ int place() const { return row * PITCH + colour * PLANE + first; }
};

// Windowed sums of a number of pixels side by side, from the sums down the columns at `columns`; x: of the first pixel.
template <bool CUT, int PIXELS>
__device__ void sum_along(const Scene& s, int x, const float* columns, float (&sums)[PIXELS]) {
    constexpr int PIECES = (PIXELS + 2 * REACH + PIECE - 1) / PIECE;
    float v[PIECES * PIECE];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        float4 piece = *reinterpret_cast<const float4*>(columns + PIECE * i);
        v[PIECE * i] = piece.x, v[PIECE * i + 1] = piece.y, v[PIECE * i + 2] = piece.z, v[PIECE * i + 3] = piece.w;
    }
#pragma unroll
    for (int j = 0; j < PIXELS; ++j) {
        sums[j] = 0.f;
#pragma unroll
        for (int k = 0; k < WINDOW; ++k) {
            if (CUT && !in_one_block(x + j, x + j + k - REACH, s.offset_x, s.width)) continue;
            sums[j] = fmaf(tap(k - REACH), v[j + k], sums[j]);
        }
    }
}

// The derivatives of SSIM at the pixels: for each colour and each FIELD columns of pixels a table [H, DERIVATIVES, FIELD],
// in which the rows of a column lie at distances that the compiler knows. Of a row the first and the second halves of
// runs stand apart, so that threads with neighbouring runs write whole sectors.
constexpr int DERIVATIVES = 3;  // by the averages of x, x^2 + y^2 and x y
constexpr int FIELD = 32;
constexpr int FIELD_ROW = DERIVATIVES * FIELD;

__device__ inline int64_t place_of(const Scene& s, int x, int y, int colour) {
    int fields = (s.width + FIELD - 1) / FIELD, in_field = (x / PIECE % 2) * (FIELD / 2) + x % FIELD / RUN * PIECE;
    return (static_cast<int64_t>(colour * fields + x / FIELD) * s.height + y) * FIELD_ROW + in_field + x % PIECE;
}
