// (1 - w) L1 + w (1 - SSIM) (Wang et al. 2004) of a region of an image, and its gradient, a block a tile.
//
// `measure` takes windowed averages at each pixel and leaves SSIM's derivatives by them; `differentiate` spreads these
// back through the same window. Values are shifted by -1/2, so that variances cancel less in float32; what lies beyond
// the image is 0 before the shift.
#include "approximate.cuh"
#include "config.h"

constexpr int REACH = 5;                   // pixels that the window reaches on either side
constexpr int APRON = TILE + 2 * REACH;    // pixels along a side that a tile's windows see
constexpr int AVERAGES = 4;                // of x, y, x^2 + y^2 and x y
constexpr int DERIVATIVES = 3;             // by the averages of x, x^2 + y^2 and x y
constexpr int PITCH = APRON + 1;           // odd, so that a column of the apron meets no bank twice
constexpr int COLUMNS = 8;                 // outputs side by side that a thread sums from one run of 18 reads
constexpr int ROWS = 4;                    // and below one another, from 14
constexpr int LOSS_THREADS = 3 * TILE * TILE / ROWS;  // a thread ROWS pixels of one colour
constexpr int TOTAL_THREADS = 1024;        // one block adds up all tiles, always in the same order
constexpr float SSIM_C1 = 0.01f * 0.01f, SSIM_C2 = 0.03f * 0.03f;

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
};

__device__ bool is_listed(const Scene& s, int tile) { return s.listed == nullptr || s.listed[tile]; }

__device__ int tile_at(const Scene& s, int x, int y) { return y / TILE * s.tiles_x + x / TILE; }

__device__ bool is_seen(const Scene& s, int x, int y) {
    return x >= 0 && y >= 0 && x < s.width && y < s.height && (!s.cut || is_listed(s, tile_at(s, x, y)));
}

// b / 255, correctly rounded as a division would be, in three operations.
__device__ float byte_value(uint8_t b) {
    constexpr float INVERSE = 1.f / 255.f;
    float q = b * INVERSE;
    return fmaf(fmaf(-255.f, q, static_cast<float>(b)), INVERSE, q);
}

__device__ float weight_at(const Scene& s, int64_t pixel) { return s.mask == nullptr ? 1.f : byte_value(s.mask[pixel]); }

// The pixels along one axis that windows at x may see: [lo, hi). Exact windows see all, and are never asked.
__device__ int2 window_limits(int x, int offset, int size) {
    int lo = (x + offset) / LOSS_BLOCK * LOSS_BLOCK - offset;
    return make_int2(max(lo, 0), min(lo + LOSS_BLOCK, size));
}

// Windowed sums of OUT neighbouring outputs along one axis, of N averages at once: `value(i, v)` leaves the N values of
// the i-th of OUT + 2 REACH places in v, each read once. CUT: the windows end at the limits around each output, first of
// them at x; weights: what is left of each window.
template <bool CUT, int OUT, int N, typename Value>
__device__ void slide(int x, int offset, int size, Value value, float (&sums)[OUT][N], float (&weights)[OUT]) {
#pragma unroll
    for (int j = 0; j < OUT; ++j) {
        weights[j] = CUT ? 0.f : 1.f;
#pragma unroll
        for (int n = 0; n < N; ++n) sums[j][n] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < OUT + 2 * REACH; ++i) {
        float v[N];
        value(i, v);
#pragma unroll
        for (int j = 0; j < OUT; ++j) {
            int k = i - j - REACH;
            if (k < -REACH || k > REACH) continue;
            if (CUT) {
                int2 limits = window_limits(x + j, offset, size);
                if (x + j + k < limits.x || x + j + k >= limits.y) continue;
                weights[j] += tap(k);
            }
#pragma unroll
            for (int n = 0; n < N; ++n) sums[j][n] += tap(k) * v[n];
        }
    }
}

struct Similarity {
    float value, by_mean, by_squares, by_product;
};

// SSIM and its derivatives, from windowed averages of shifted values.
__device__ Similarity similarity(float mean_x, float mean_y, float squares, float product) {
    float level_x = mean_x + 0.5f, level_y = mean_y + 0.5f;
    // Divisions by these two would be a third of the kernel's instructions.
    float by_energy = inverse_fast(level_x * level_x + level_y * level_y + SSIM_C1);
    float by_spread = inverse_fast(squares - mean_x * mean_x - mean_y * mean_y + SSIM_C2);
    float luminance = (2.f * level_x * level_y + SSIM_C1) * by_energy;
    float structure = (2.f * (product - mean_x * mean_y) + SSIM_C2) * by_spread;
    float value = luminance * structure;
    float by_squares = -value * by_spread, by_product = 2.f * luminance * by_spread;
    float by_mean = structure * (2.f * (level_y - luminance * level_x) * by_energy);
    return {value, by_mean - 2.f * mean_x * by_squares - mean_y * by_product, by_squares, by_product};
}

// Sums over the block, left in thread 0.
template <int THREADS_OF_BLOCK, int N>
__device__ void add_over_block(float (&values)[N]) {
    constexpr int WARPS = THREADS_OF_BLOCK / WARP;
    __shared__ float of_warp[N][WARPS];
#pragma unroll
    for (int n = 0; n < N; ++n) {
        for (int step = WARP / 2; step > 0; step /= 2) values[n] += __shfl_down_sync(ALL_LANES, values[n], step);
        if (lane_index() == 0) of_warp[n][warp_index()] = values[n];
    }
    __syncthreads();
    if (warp_index() > 0) return;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        values[n] = lane_index() < WARPS ? of_warp[n][lane_index()] : 0.f;
        for (int step = WARP / 2; step > 0; step /= 2) values[n] += __shfl_down_sync(ALL_LANES, values[n], step);
    }
}

// The windows of a tile that is not listed matter if a listed neighbour's gradient looks at them.
__device__ bool is_needed(const Scene& s, int tile_x, int tile_y) {
    if (s.cut || s.kind == WINDOW_L1) return false;
    int tiles_y = (s.height + TILE - 1) / TILE;
    for (int y = max(tile_y - 1, 0); y <= min(tile_y + 1, tiles_y - 1); ++y) {
        for (int x = max(tile_x - 1, 0); x <= min(tile_x + 1, s.tiles_x - 1); ++x) {
            if (is_listed(s, y * s.tiles_x + x)) return true;
        }
    }
    return false;
}

// The output pixels of a thread: ROWS below one another, of one colour.
struct Strip {
    int colour, column, row, x, y;
};

__device__ Strip strip_of_thread() {
    int column = threadIdx.x % TILE, row = threadIdx.x / TILE % (TILE / ROWS) * ROWS;
    return {static_cast<int>(threadIdx.x) / (TILE * TILE / ROWS), column, row,
            static_cast<int>(blockIdx.x) * TILE + column, static_cast<int>(blockIdx.y) * TILE + row};
}

// derivatives: [3 colours x DERIVATIVES, H x W]. sums: [tiles, 3] of weighted L1, SSIM and weights,
// zero where a tile is not listed.
template <bool CUT>
__global__ void __launch_bounds__(LOSS_THREADS, CUT ? 4 : 6) measure(Scene s, float* derivatives, float* sums) {
    // The apron is pitched so that neighbouring rows fall into different banks, and so are the columns of row sums.
    __shared__ float x_values[3][APRON * PITCH], y_values[3][APRON * PITCH];
    __shared__ float across[3][AVERAGES][TILE * PITCH];
    int tile = blockIdx.y * s.tiles_x + blockIdx.x;
    bool listed = is_listed(s, tile);
    if (!listed && threadIdx.x < 3) sums[3 * tile + threadIdx.x] = 0.f;
    if (!listed && !is_needed(s, blockIdx.x, blockIdx.y)) return;
    int left = blockIdx.x * TILE, top = blockIdx.y * TILE;
    if (s.kind != WINDOW_L1) {
        // A warp brings whole rows: neighbouring lanes neighbouring values in memory.
        for (int row = warp_index(); row < APRON; row += LOSS_THREADS / WARP) {
            int py = top - REACH + row;
            int64_t line = 3 * (static_cast<int64_t>(py) * s.width + left - REACH);
#pragma unroll
            for (int first = 0; first < 3 * APRON; first += WARP) {
                int i = first + lane_index(), column = i / 3, colour = i % 3;
                if (i >= 3 * APRON) break;
                float a = -0.5f, b = -0.5f;
                if (is_seen(s, left - REACH + column, py)) {
                    a += s.image[line + i];
                    b += byte_value(s.target[line + i]);
                }
                x_values[colour][row * PITCH + column] = a;
                y_values[colour][row * PITCH + column] = b;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 3 * APRON * (TILE / COLUMNS); i += LOSS_THREADS) {
            int row = i % APRON, first = i / APRON % (TILE / COLUMNS) * COLUMNS, colour = i / (APRON * (TILE / COLUMNS));
            const float *xs = x_values[colour] + row * PITCH + first, *ys = y_values[colour] + row * PITCH + first;
            float sum[COLUMNS][AVERAGES], weight[COLUMNS];
            slide<CUT>(
                left + first, s.offset_x, s.width,
                [&](int k, float(&v)[AVERAGES]) {
                    v[0] = xs[k];
                    v[1] = ys[k];
                    v[2] = v[0] * v[0] + v[1] * v[1];
                    v[3] = v[0] * v[1];
                },
                sum, weight);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
                for (int n = 0; n < AVERAGES; ++n) {
                    float share = CUT ? inverse_fast(weight[j]) : 1.f;
                    across[colour][n][(first + j) * PITCH + row] = sum[j][n] * share;
                }
            }
        }
        __syncthreads();
    }
    Strip strip = strip_of_thread();
    float sum[ROWS][AVERAGES], weight[ROWS];
    if (s.kind != WINDOW_L1) {
        slide<CUT>(
            strip.y, s.offset_y, s.height,
            [&](int k, float(&v)[AVERAGES]) {
#pragma unroll
                for (int n = 0; n < AVERAGES; ++n) v[n] = across[strip.colour][n][strip.column * PITCH + strip.row + k];
            },
            sum, weight);
    }
    float totals[3] = {};  // weighted L1, SSIM, weights
#pragma unroll
    for (int j = 0; j < ROWS; ++j) {
        int y = strip.y + j;
        if (strip.x >= s.width || y >= s.height) continue;
        int64_t pixel = static_cast<int64_t>(y) * s.width + strip.x, at = 3 * pixel + strip.colour;
        float own = weight_at(s, pixel);
        totals[0] += own * fabsf(s.image[at] - byte_value(s.target[at]));
        if (strip.colour == 0) totals[2] += own;
        if (s.kind == WINDOW_L1) continue;
        float scale = -s.ssim_weight * own * s.value_share;
        if (CUT) {
            // What spreads back is divided by the window's weights on both axes, too.
            int2 limits = window_limits(strip.x, s.offset_x, s.width);
            float along = 0.f;
            for (int k = -REACH; k <= REACH; ++k) {
                if (strip.x + k >= limits.x && strip.x + k < limits.y) along += tap(k);
            }
            float inverse = inverse_fast(weight[j]);
            scale *= inverse * inverse_fast(along);
            for (int n = 0; n < AVERAGES; ++n) sum[j][n] *= inverse;
        }
        Similarity found = similarity(sum[j][0], sum[j][1], sum[j][2], sum[j][3]);
        totals[1] += own * found.value;
        int64_t pixels = static_cast<int64_t>(s.width) * s.height;
        float* left_here = derivatives + strip.colour * DERIVATIVES * pixels + pixel;
        left_here[0] = scale * found.by_mean;
        left_here[pixels] = scale * found.by_squares;
        left_here[2 * pixels] = scale * found.by_product;
    }
    if (!listed) return;
    add_over_block<LOSS_THREADS>(totals);
    if (threadIdx.x == 0) {
        for (int n = 0; n < 3; ++n) sums[3 * tile + n] = totals[n];
    }
}

// The mask scales a pixel's gradient besides its loss: a masked pixel is left alone by its neighbours' windows.
template <bool CUT>
__global__ void __launch_bounds__(LOSS_THREADS) differentiate(Scene s, const float* derivatives, float* gradient) {
    __shared__ float apron[3 * DERIVATIVES][APRON * PITCH];
    __shared__ float across[3 * DERIVATIVES][TILE * PITCH];
    int left = blockIdx.x * TILE, top = blockIdx.y * TILE;
    int64_t pixels = static_cast<int64_t>(s.width) * s.height;
    bool listed = is_listed(s, blockIdx.y * s.tiles_x + blockIdx.x), windows = listed && s.kind != WINDOW_L1;
    if (windows) {
        for (int i = threadIdx.x; i < APRON * APRON; i += LOSS_THREADS) {
            int row = i / APRON, column = i % APRON, px = left - REACH + column, py = top - REACH + row;
            bool seen = is_seen(s, px, py);
            const float* from = derivatives + static_cast<int64_t>(py) * s.width + px;
#pragma unroll
            for (int n = 0; n < 3 * DERIVATIVES; ++n) apron[n][row * PITCH + column] = seen ? from[n * pixels] : 0.f;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 3 * DERIVATIVES * APRON * (TILE / COLUMNS); i += LOSS_THREADS) {
            int row = i % APRON, first = i / APRON % (TILE / COLUMNS) * COLUMNS, n = i / (APRON * (TILE / COLUMNS));
            const float* values = apron[n] + row * PITCH + first;
            float sum[COLUMNS][1], weight[COLUMNS];
            slide<CUT>(
                left + first, s.offset_x, s.width, [&](int k, float(&v)[1]) { v[0] = values[k]; }, sum, weight);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) across[n][(first + j) * PITCH + row] = sum[j][0];
        }
        __syncthreads();
    }
    Strip strip = strip_of_thread();
    float sum[ROWS][DERIVATIVES], weight[ROWS];
    if (windows) {
        slide<CUT>(
            strip.y, s.offset_y, s.height,
            [&](int k, float(&v)[DERIVATIVES]) {
#pragma unroll
                for (int n = 0; n < DERIVATIVES; ++n) {
                    v[n] = across[strip.colour * DERIVATIVES + n][strip.column * PITCH + strip.row + k];
                }
            },
            sum, weight);
    }
    float l1_share = s.kind == WINDOW_L1 ? 1.f : 1.f - s.ssim_weight;
#pragma unroll
    for (int j = 0; j < ROWS; ++j) {
        int y = strip.y + j;
        if (strip.x >= s.width || y >= s.height) continue;
        int64_t pixel = static_cast<int64_t>(y) * s.width + strip.x, at = 3 * pixel + strip.colour;
        float value = 0.f;
        if (listed) {
            float a = s.image[at], b = byte_value(s.target[at]), own = weight_at(s, pixel);
            float sign = (a - b > 0.f) - (a - b < 0.f);
            float by_ssim = windows ? sum[j][0] + 2.f * (a - 0.5f) * sum[j][1] + (b - 0.5f) * sum[j][2] : 0.f;
            value = own * (by_ssim + l1_share * own * sign * s.value_share);
        }
        gradient[at] = value;
    }
}

// value, L1 and SSIM from the sums of the tiles.
__global__ void __launch_bounds__(TOTAL_THREADS) add_up(Scene s, const float* sums, int64_t tiles, float* totals) {
    float of_thread[3] = {};
    for (int64_t tile = threadIdx.x; tile < tiles; tile += TOTAL_THREADS) {
        for (int n = 0; n < 3; ++n) of_thread[n] += sums[3 * tile + n];
    }
    add_over_block<TOTAL_THREADS>(of_thread);
    if (threadIdx.x != 0) return;
    float l1 = of_thread[0] * s.value_share, ssim = of_thread[1] * s.value_share, share = of_thread[2] * s.share;
    totals[0] = s.kind == WINDOW_L1 ? l1 : (1.f - s.ssim_weight) * l1 + s.ssim_weight * (share - ssim);
    totals[1] = l1;
    totals[2] = ssim;
}

__global__ void __launch_bounds__(THREADS) mark_tiles(const int* tiles, int64_t count, uint8_t* listed) {
    int64_t k = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (k < count) listed[tiles[k]] = 1;
}

// tiles: the listed ones, or null with `listed` null for the whole image.
EXPORT int l1_ssim(Queue queue, const float* image, const uint8_t* target, const uint8_t* mask, const int* tiles,
                   int64_t count, uint8_t* listed, int width, int height, int kind, int offset_x, int offset_y,
                   int cut, float ssim_weight, float* derivatives, float* sums, float* gradient, float* totals) {
    CHECK(cudaSetDevice(queue.device));
    int tiles_x = (width + TILE - 1) / TILE, tiles_y = (height + TILE - 1) / TILE;
    int64_t image_tiles = static_cast<int64_t>(tiles_x) * tiles_y;
    float share = 1.f / (static_cast<float>(width) * static_cast<float>(height));
    Scene scene = {image,    target,   mask,     listed,   width,      height,      tiles_x,
                   kind,     offset_x, offset_y, cut != 0, ssim_weight, share,     share / 3.f};
    if (listed != nullptr) {
        CHECK(cudaMemsetAsync(listed, 0, image_tiles, queue.stream));
        if (count > 0) {
            mark_tiles<<<static_cast<unsigned>((count + THREADS - 1) / THREADS), THREADS, 0, queue.stream>>>(
                tiles, count, listed);
            CHECK(cudaGetLastError());
        }
    }
    dim3 grid(tiles_x, tiles_y);
    bool blocks = kind == WINDOW_TILE;
    (blocks ? measure<true> : measure<false>)<<<grid, LOSS_THREADS, 0, queue.stream>>>(scene, derivatives, sums);
    CHECK(cudaGetLastError());
    (blocks ? differentiate<true> : differentiate<false>)<<<grid, LOSS_THREADS, 0, queue.stream>>>(scene, derivatives,
                                                                                                 gradient);
    CHECK(cudaGetLastError());
    add_up<<<1, TOTAL_THREADS, 0, queue.stream>>>(scene, sums, image_tiles, totals);
    return cudaGetLastError();
}
