// (1 - w) L1 + w (1 - SSIM) (Wang et al. 2004) of a region of an image, and its gradient, a block a tile.
//
// `measure` takes windowed averages at each pixel and leaves SSIM's derivatives by them; `differentiate` spreads these
// back through the same window. Values are shifted by -1/2, so that variances cancel less in float32; what lies beyond
// the image is 0 before the shift.
#include "config.h"

constexpr int REACH = 5;                   // pixels that the window reaches on either side
constexpr int APRON = TILE + 2 * REACH;    // pixels along a side that a tile's windows see
constexpr int AVERAGES = 4;                // of x, y, x^2 + y^2 and x y
constexpr int DERIVATIVES = 3;             // by the averages of x, x^2 + y^2 and x y
constexpr int RESIDENT = 4;                // blocks a multiprocessor: without a word the compiler spills for more
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

// The window's sums along one axis over values that lie `stride` apart around the one at `centre`; returns the sum of
// its weights. CUT: it ends at the limits around x.
template <bool CUT, int N>
__device__ float along_window(const float* const (&values)[N], int centre, int stride, int x, int2 limits,
                              float (&sums)[N]) {
    float weights = CUT ? 0.f : 1.f;
    for (int n = 0; n < N; ++n) sums[n] = 0.f;
#pragma unroll
    for (int k = -REACH; k <= REACH; ++k) {
        if (CUT && (x + k < limits.x || x + k >= limits.y)) continue;
        if (CUT) weights += tap(k);
#pragma unroll
        for (int n = 0; n < N; ++n) sums[n] += tap(k) * values[n][centre + k * stride];
    }
    return weights;
}

struct Similarity {
    float value, by_mean, by_squares, by_product;
};

// SSIM and its derivatives, from windowed averages of shifted values.
__device__ Similarity similarity(float mean_x, float mean_y, float squares, float product) {
    float level_x = mean_x + 0.5f, level_y = mean_y + 0.5f;
    float energy = level_x * level_x + level_y * level_y + SSIM_C1;
    float luminance = (2.f * level_x * level_y + SSIM_C1) / energy;
    float spread = squares - mean_x * mean_x - mean_y * mean_y + SSIM_C2;
    float structure = (2.f * (product - mean_x * mean_y) + SSIM_C2) / spread;
    float value = luminance * structure;
    float by_squares = -value / spread, by_product = 2.f * luminance / spread;
    float by_mean = structure * (2.f * (level_y - luminance * level_x) / energy);
    return {value, by_mean - 2.f * mean_x * by_squares - mean_y * by_product, by_squares, by_product};
}

// Sum over the block, in thread 0.
template <int THREADS_OF_BLOCK>
__device__ float block_sum(float value) {
    __shared__ float of_warp[THREADS_OF_BLOCK / WARP];
    for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_down_sync(ALL_LANES, value, step);
    __syncthreads();
    if (lane_index() == 0) of_warp[warp_index()] = value;
    __syncthreads();
    float total = 0.f;
    if (threadIdx.x < WARP) {
        total = threadIdx.x < THREADS_OF_BLOCK / WARP ? of_warp[threadIdx.x] : 0.f;
        for (int step = WARP / 2; step > 0; step /= 2) total += __shfl_down_sync(ALL_LANES, total, step);
    }
    return total;
}

// A tile's windows matter if it is listed, or if a listed neighbour's gradient looks at them.
__device__ bool is_needed(const Scene& s, int tile_x, int tile_y) {
    if (is_listed(s, tile_y * s.tiles_x + tile_x)) return true;
    if (s.cut || s.kind == WINDOW_L1) return false;
    int tiles_y = (s.height + TILE - 1) / TILE;
    for (int y = max(tile_y - 1, 0); y <= min(tile_y + 1, tiles_y - 1); ++y) {
        for (int x = max(tile_x - 1, 0); x <= min(tile_x + 1, s.tiles_x - 1); ++x) {
            if (is_listed(s, y * s.tiles_x + x)) return true;
        }
    }
    return false;
}

// derivatives: [3 colours x DERIVATIVES, H x W]. sums: [tiles, 3] of weighted L1, SSIM and weights of listed tiles.
template <bool CUT>
__global__ void __launch_bounds__(TILE_THREADS, RESIDENT) measure(Scene s, float* derivatives, float* sums) {
    __shared__ float x_values[APRON * APRON], y_values[APRON * APRON];
    __shared__ float squares[APRON * APRON], products[APRON * APRON];
    __shared__ float rows[AVERAGES][APRON * TILE];
    if (!is_needed(s, blockIdx.x, blockIdx.y)) return;
    int column = threadIdx.x % TILE, row = threadIdx.x / TILE;
    int x = blockIdx.x * TILE + column, y = blockIdx.y * TILE + row;
    bool inside = x < s.width && y < s.height;
    int64_t pixel = static_cast<int64_t>(y) * s.width + x, pixels = static_cast<int64_t>(s.width) * s.height;
    float weight = inside ? weight_at(s, pixel) : 0.f;
    float l1 = 0.f, ssim = 0.f;

    for (int colour = 0; colour < 3; ++colour) {
        if (inside) l1 += fabsf(s.image[3 * pixel + colour] - byte_value(s.target[3 * pixel + colour]));
        if (s.kind == WINDOW_L1) continue;
        __syncthreads();
        for (int i = threadIdx.x; i < APRON * APRON; i += TILE_THREADS) {
            int px = blockIdx.x * TILE - REACH + i % APRON, py = blockIdx.y * TILE - REACH + i / APRON;
            float a = -0.5f, b = -0.5f;
            if (is_seen(s, px, py)) {
                int64_t at = 3 * (static_cast<int64_t>(py) * s.width + px) + colour;
                a += s.image[at];
                b += byte_value(s.target[at]);
            }
            x_values[i] = a;
            y_values[i] = b;
            squares[i] = a * a + b * b;
            products[i] = a * b;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < APRON * TILE; i += TILE_THREADS) {
            int px = blockIdx.x * TILE + i % TILE;
            float sum[AVERAGES];
            float norm = along_window<CUT, AVERAGES>({x_values, y_values, squares, products},
                                                     i / TILE * APRON + i % TILE + REACH, 1, px,
                                                     window_limits(px, s.offset_x, s.width), sum);
            for (int n = 0; n < AVERAGES; ++n) rows[n][i] = CUT ? sum[n] / norm : sum[n];
        }
        __syncthreads();
        if (!inside) continue;
        float sum[AVERAGES];
        float norm = along_window<CUT, AVERAGES>({rows[0], rows[1], rows[2], rows[3]}, (row + REACH) * TILE + column,
                                                 TILE, y, window_limits(y, s.offset_y, s.height), sum);
        float scale = -s.ssim_weight * weight * s.share / 3.f;
        if (CUT) {
            for (int n = 0; n < AVERAGES; ++n) sum[n] /= norm;
            // What spreads back is divided by the window's weights on both axes, too.
            float across = 0.f;
            int2 limits = window_limits(x, s.offset_x, s.width);
            for (int k = -REACH; k <= REACH; ++k) {
                if (x + k >= limits.x && x + k < limits.y) across += tap(k);
            }
            scale /= norm * across;
        }
        Similarity found = similarity(sum[0], sum[1], sum[2], sum[3]);
        ssim += found.value;
        float* own = derivatives + colour * DERIVATIVES * pixels + pixel;
        own[0] = scale * found.by_mean;
        own[pixels] = scale * found.by_squares;
        own[2 * pixels] = scale * found.by_product;
    }
    int tile = blockIdx.y * s.tiles_x + blockIdx.x;
    if (!is_listed(s, tile)) return;
    float total_l1 = block_sum<TILE_THREADS>(weight * l1);
    float total_ssim = block_sum<TILE_THREADS>(weight * ssim);
    float total_weight = block_sum<TILE_THREADS>(weight);
    if (threadIdx.x == 0) {
        sums[3 * tile] = total_l1;
        sums[3 * tile + 1] = total_ssim;
        sums[3 * tile + 2] = total_weight;
    }
}

// The mask scales a pixel's gradient besides its loss: a masked pixel is left alone by its neighbours' windows.
template <bool CUT>
__global__ void __launch_bounds__(TILE_THREADS, RESIDENT) differentiate(Scene s, const float* derivatives, float* gradient) {
    __shared__ float apron[DERIVATIVES][APRON * APRON];
    __shared__ float rows[DERIVATIVES][APRON * TILE];
    int column = threadIdx.x % TILE, row = threadIdx.x / TILE;
    int x = blockIdx.x * TILE + column, y = blockIdx.y * TILE + row;
    bool inside = x < s.width && y < s.height;
    int64_t pixel = static_cast<int64_t>(y) * s.width + x, pixels = static_cast<int64_t>(s.width) * s.height;
    bool listed = is_listed(s, blockIdx.y * s.tiles_x + blockIdx.x);
    float weight = inside && listed ? weight_at(s, pixel) : 0.f;
    float l1_share = s.kind == WINDOW_L1 ? 1.f : 1.f - s.ssim_weight;

    for (int colour = 0; colour < 3; ++colour) {
        float value = 0.f;
        if (listed && s.kind != WINDOW_L1) {
            const float* own = derivatives + colour * DERIVATIVES * pixels;
            __syncthreads();
            for (int i = threadIdx.x; i < APRON * APRON; i += TILE_THREADS) {
                int px = blockIdx.x * TILE - REACH + i % APRON, py = blockIdx.y * TILE - REACH + i / APRON;
                bool seen = is_seen(s, px, py);
                int64_t at = static_cast<int64_t>(py) * s.width + px;
                for (int n = 0; n < DERIVATIVES; ++n) apron[n][i] = seen ? own[n * pixels + at] : 0.f;
            }
            __syncthreads();
            float sum[DERIVATIVES];
            for (int i = threadIdx.x; i < APRON * TILE; i += TILE_THREADS) {
                int px = blockIdx.x * TILE + i % TILE;
                along_window<CUT, DERIVATIVES>({apron[0], apron[1], apron[2]}, i / TILE * APRON + i % TILE + REACH, 1,
                                               px, window_limits(px, s.offset_x, s.width), sum);
                for (int n = 0; n < DERIVATIVES; ++n) rows[n][i] = sum[n];
            }
            __syncthreads();
            if (inside) {
                along_window<CUT, DERIVATIVES>({rows[0], rows[1], rows[2]}, (row + REACH) * TILE + column, TILE, y,
                                               window_limits(y, s.offset_y, s.height), sum);
                value = sum[0] + 2.f * (s.image[3 * pixel + colour] - 0.5f) * sum[1] +
                        (byte_value(s.target[3 * pixel + colour]) - 0.5f) * sum[2];
            }
        }
        if (!inside) continue;
        float difference = listed ? s.image[3 * pixel + colour] - byte_value(s.target[3 * pixel + colour]) : 0.f;
        float sign = (difference > 0.f) - (difference < 0.f);
        gradient[3 * pixel + colour] = listed ? weight * (value + l1_share * weight * sign * s.share / 3.f) : 0.f;
    }
}

// value, L1 and SSIM from the sums of the tiles.
__global__ void __launch_bounds__(TOTAL_THREADS) add_up(Scene s, const float* sums, int64_t tiles, float* totals) {
    float of_thread[3] = {};
    for (int64_t tile = threadIdx.x; tile < tiles; tile += TOTAL_THREADS) {
        for (int n = 0; n < 3; ++n) of_thread[n] += sums[3 * tile + n];
    }
    float l1 = block_sum<TOTAL_THREADS>(of_thread[0]) * s.share / 3.f;
    float ssim = block_sum<TOTAL_THREADS>(of_thread[1]) * s.share / 3.f;
    float share = block_sum<TOTAL_THREADS>(of_thread[2]) * s.share;
    if (threadIdx.x != 0) return;
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
                   kind,     offset_x, offset_y, cut != 0, ssim_weight, share};
    if (listed != nullptr) {
        CHECK(cudaMemsetAsync(listed, 0, image_tiles, queue.stream));
        if (count > 0) {
            mark_tiles<<<static_cast<unsigned>((count + THREADS - 1) / THREADS), THREADS, 0, queue.stream>>>(
                tiles, count, listed);
            CHECK(cudaGetLastError());
        }
    }
    CHECK(cudaMemsetAsync(sums, 0, 3 * image_tiles * sizeof(float), queue.stream));
    dim3 grid(tiles_x, tiles_y);
    bool blocks = kind == WINDOW_TILE;
    (blocks ? measure<true> : measure<false>)<<<grid, TILE_THREADS, 0, queue.stream>>>(scene, derivatives, sums);
    CHECK(cudaGetLastError());
    (blocks ? differentiate<true> : differentiate<false>)<<<grid, TILE_THREADS, 0, queue.stream>>>(scene, derivatives,
                                                                                                 gradient);
    CHECK(cudaGetLastError());
    add_up<<<1, TOTAL_THREADS, 0, queue.stream>>>(scene, sums, image_tiles, totals);
    return cudaGetLastError();
}
