// (1 - w) L1 + w (1 - SSIM) (Wang et al. 2004) of a region of an image, and its gradient, a block a strip.
//
// `measure` takes windowed averages at each pixel and leaves SSIM's derivatives by them; `differentiate` spreads these
// back through the same window. Values are shifted by -1/2, so that variances cancel less in float32; what lies beyond
// the image is 0 before the shift.
#include "approximate.cuh"
#include "loss.cuh"

constexpr int AVERAGES = 4;          // of x, y, x^2 + y^2 and x y
constexpr int TOTAL_THREADS = 1024;  // one block adds up all strips, always in the same order
constexpr float SSIM_C1 = 0.01f * 0.01f, SSIM_C2 = 0.03f * 0.03f;

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

// |x - y|, weighted, of some rows of a column, the first of them y: those whose bits are set.
template <int ROWS>
__device__ float add_errors(const Scene& s, int x, int y, unsigned rows, const float (&image)[ROWS],
                            const float (&target)[ROWS]) {
    float total = 0.f;
    if (s.mask == nullptr) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (rows >> i & 1u) total += fabsf(image[i] - target[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (rows >> i & 1u) total += weight_at(s, x, y + i) * fabsf(image[i] - target[i]);
        }
    }
    return total;
}

// SSIM and its derivatives at a piece of a run, from windowed averages: what spreads back through the windows of its
// pixels, but for a factor that all have. Returns SSIM and weights, added up.
template <bool CUT>
__device__ float2 measure_piece(const Scene& s, int x, int y, int colour, float (&sums)[AVERAGES][PIECE],
                                float* derivatives) {
    float left[DERIVATIVES][PIECE], value[PIECE];
#pragma unroll
    for (int i = 0; i < PIECE; ++i) {
        float share = 1.f;
        if (CUT) {
            // What spreads back is divided by the window's weights on both axes, too.
            share = inverse_fast(window_weight(y, s.offset_y, s.height) * window_weight(x + i, s.offset_x, s.width));
            for (int n = 0; n < AVERAGES; ++n) sums[n][i] *= share;
        }
        Similarity found = similarity(sums[0][i], sums[1][i], sums[2][i], sums[3][i]);
        value[i] = found.value;
        left[0][i] = share * found.by_mean;
        left[1][i] = share * found.by_squares;
        left[2][i] = share * found.by_product;
    }
    float2 totals = make_float2(0.f, 0.f);
#pragma unroll
    for (int i = 0; i < PIECE; ++i) {
        if (x + i >= s.width) continue;
        float own = 1.f;
        if (s.mask != nullptr) {
            own = weight_at(s, x + i, y);
            for (int n = 0; n < DERIVATIVES; ++n) left[n][i] *= own;
        }
        totals.x += own * value[i];
        totals.y += own;
    }
    float* to = derivatives + place_of(s, x, y, colour);
#pragma unroll
    for (int n = 0; n < DERIVATIVES; ++n) {
        *reinterpret_cast<float4*>(to + n * FIELD) = make_float4(left[n][0], left[n][1], left[n][2], left[n][3]);
    }
    return totals;
}

// derivatives: see place_of. sums: [strips, 3] of weighted L1, SSIM and weights.
//
// The windows of a strip without listed tiles matter if the gradient of a listed neighbour looks at them.
template <bool CUT>
__global__ void __launch_bounds__(STRIP_THREADS, CUT ? 4 : STRIPS_AT_ONCE) measure(Scene s, float* derivatives,
                                                                                  float* sums) {
    __shared__ __align__(16) float columns[AVERAGES][BATCH_ROWS * PITCH];
    Strip strip = strip_at(s, blockIdx.x, blockIdx.y);
    bool windows = s.kind != WINDOW_L1;
    float* own_sums = sums + 3 * (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x);
    if (!has_listed(s, strip, windows && !s.cut ? 1 : 0)) {
        if (threadIdx.x < 3) own_sums[threadIdx.x] = 0.f;
        return;
    }
    float totals[3] = {};  // weighted L1, SSIM, weights
    // Neighbouring threads have neighbouring values in memory. Those behind the apron read along and are not read.
    int colour = threadIdx.x % 3, column = threadIdx.x / 3, x = strip.left - REACH + column;
    unsigned own = column >= REACH && column < REACH + STRIP ? listed_rows(s, strip, x) : 0u;
    float* place = columns[0] + colour * PLANE + column;
    int turn = turn_of_thread();
    Run run(turn);
    unsigned listed = listed_rows(s, strip, strip.left + run.first);
    float down[WINDOW][AVERAGES];
    int seen_from = max(strip.top - REACH, 0), seen_to = min(strip.bottom + REACH, s.height);
    auto own_rows = [&](int y) { return rows_of(strip, own, y, strip.top, strip.bottom); };
    auto take_row = [&](int y, int first, float image, float target) {
        float a = image - 0.5f, b = target - 0.5f, values[AVERAGES] = {a, b, fmaf(a, a, b * b), a * b};
        add_row<CUT>(s, y, first, values, down);
    };
    Column from(s, strip, x, strip.top - REACH, colour);
    {
        float image[2 * REACH], value[2 * REACH];
        unsigned target[2 * REACH];
        from.read(s, strip, strip.top - REACH, seen_from, seen_to, image, target);
#pragma unroll
        for (int i = 0; i < 2 * REACH; ++i) value[i] = byte_value(target[i]);
        totals[0] += add_errors(s, x, strip.top - REACH, own_rows(strip.top - REACH), image, value);
#pragma unroll
        for (int i = 0; i < 2 * REACH; ++i) take_row(strip.top - REACH + i, 2 * REACH - i, image[i], value[i]);
    }
    float image[BATCH_ROWS], value[BATCH_ROWS];
    unsigned target[BATCH_ROWS];
    from.read(s, strip, strip.top + REACH, seen_from, seen_to, image, target);
    for (int top = strip.top; top < strip.bottom; top += BATCH_ROWS) {
#pragma unroll
        for (int i = 0; i < BATCH_ROWS; ++i) value[i] = byte_value(target[i]);
        totals[0] += add_errors(s, x, top + REACH, own_rows(top + REACH), image, value);
        if (windows) {
#pragma unroll
            for (int i = 0; i < BATCH_ROWS; ++i) {
                take_row(top + REACH + i, 0, image[i], value[i]);
#pragma unroll
                for (int n = 0; n < AVERAGES; ++n) place[n * BATCH_ROWS * PITCH + i * PITCH] = down[0][n];
            }
            __syncthreads();
            int left = strip.left + run.first, y = top + run.row;
            if (turn < RUNS && left < s.width && y < strip.bottom) {
                bool counts = listed >> (y / TILE - strip.first_row()) & 1u;
                // In halves: there are no registers for the averages of a whole run beside the sums down the columns.
#pragma unroll 1
                for (int first = 0; first < RUN; first += PIECE) {
                    float averages[AVERAGES][PIECE];
#pragma unroll
                    for (int n = 0; n < AVERAGES; ++n) {
                        sum_along<CUT>(s, left + first, columns[n] + run.place() + first, averages[n]);
                    }
                    float2 of_piece = measure_piece<CUT>(s, left + first, y, run.colour, averages, derivatives);
                    if (counts) totals[1] += of_piece.x;
                    if (counts && run.colour == 0) totals[2] += of_piece.y;
                }
            }
        }
        // Under way while the block's other warps finish their runs.
        from.read(s, strip, top + BATCH_ROWS + REACH, seen_from, seen_to, image, target);
        if (windows) __syncthreads();
    }
    add_over_block<STRIP_THREADS>(totals);
    if (threadIdx.x == 0) {
        for (int n = 0; n < 3; ++n) own_sums[n] = totals[n];
    }
}

// The mask scales a pixel's gradient besides its loss: a masked pixel is left alone by its neighbours' windows.
template <bool CUT>
__global__ void __launch_bounds__(STRIP_THREADS, CUT ? 4 : STRIPS_AT_ONCE)
    differentiate(Scene s, const float* derivatives, float* gradient) {
    __shared__ __align__(16) float columns[DERIVATIVES][BATCH_ROWS * PITCH];
    __shared__ __align__(16) float found[DERIVATIVES][BATCH_ROWS * PITCH];
    // From the last strip to the first: what `measure` wrote lately is still in L2.
    Strip strip = strip_at(s, gridDim.x - 1 - blockIdx.x, gridDim.y - 1 - blockIdx.y);
    if (!has_listed(s, strip, 0)) {
        for (int i = threadIdx.x; i < STRIP * (strip.bottom - strip.top); i += STRIP_THREADS) {
            int x = strip.left + i % STRIP, y = strip.top + i / STRIP;
            float* to = gradient + 3 * (static_cast<int64_t>(y) * s.width + x);
            if (x < s.width) to[0] = to[1] = to[2] = 0.f;
        }
        return;
    }
    bool windows = s.kind != WINDOW_L1;
    // Down the columns threads have neighbouring derivatives, at the end neighbouring values of the image.
    int colour = min(static_cast<int>(threadIdx.x) / APRON, 2), column = threadIdx.x - colour * APRON;
    int x = strip.left - REACH + column, turn = turn_of_thread(), own_x = strip.left + turn / 3;
    unsigned seen = seen_rows(s, strip, x), own = listed_rows(s, strip, own_x);
    const float* next = derivatives + place_of(s, x, strip.top - REACH, colour);
    float* place = columns[0] + colour * PLANE + column;
    const float* own_place = found[0] + turn % 3 * PLANE + turn / 3;
    float* to = gradient + 3 * (static_cast<int64_t>(strip.top) * s.width + own_x) + turn % 3;
    Column from(s, strip, own_x, strip.top, turn % 3);
    float l1_share = (s.kind == WINDOW_L1 ? 1.f : 1.f - s.ssim_weight) * s.value_share;
    float ssim_share = -s.ssim_weight * s.value_share;
    float down[WINDOW][DERIVATIVES];
    int seen_from = max(strip.top - REACH, 0), seen_to = min(strip.bottom + REACH, s.height);
    auto read = [&](int y, auto& values) {
        constexpr int ROWS = sizeof(values) / sizeof(values[0]);
        unsigned rows = rows_of(strip, seen, y, seen_from, seen_to);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int n = 0; n < DERIVATIVES; ++n) {
                values[i][n] = rows >> i & 1u ? next[i * FIELD_ROW + n * FIELD] : 0.f;
            }
        }
        next += ROWS * FIELD_ROW;
    };
    if (windows) {
        float before[2 * REACH][DERIVATIVES];
        read(strip.top - REACH, before);
#pragma unroll
        for (int i = 0; i < 2 * REACH; ++i) add_row<CUT>(s, strip.top - REACH + i, 2 * REACH - i, before[i], down);
    }
    for (int top = strip.top; top < strip.bottom; top += BATCH_ROWS) {
        if (windows) {
            float values[BATCH_ROWS][DERIVATIVES];
            read(top + REACH, values);
#pragma unroll
            for (int i = 0; i < BATCH_ROWS; ++i) {
                add_row<CUT>(s, top + REACH + i, 0, values[i], down);
#pragma unroll
                for (int n = 0; n < DERIVATIVES; ++n) place[n * BATCH_ROWS * PITCH + i * PITCH] = down[0][n];
            }
            __syncthreads();
            if (turn < RUNS) {
                Run run(turn);
#pragma unroll 1
                for (int n = 0; n < DERIVATIVES; ++n) {
                    float sums[RUN];
                    sum_along<CUT>(s, strip.left + run.first, columns[n] + run.place(), sums);
                    float4* pieces = reinterpret_cast<float4*>(found[n] + run.place());
                    pieces[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
                    pieces[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
                }
            }
        }
        float image[BATCH_ROWS];
        unsigned target[BATCH_ROWS], rows = rows_of(strip, own, top, strip.top, strip.bottom);
        if (turn < RUNS) from.read(s, strip, top, strip.top, strip.bottom, image, target);
        if (windows) __syncthreads();
        if (turn >= RUNS) continue;
#pragma unroll
        for (int i = 0; i < BATCH_ROWS; ++i) {
            float a = image[i], b = byte_value(target[i]), difference = a - b, by_ssim = 0.f;
            float sign = difference == 0.f ? 0.f : copysignf(l1_share, difference);
            if (windows) {
                const float* sums = own_place + i * PITCH;
                by_ssim = sums[0] + 2.f * (a - 0.5f) * sums[BATCH_ROWS * PITCH] +
                          (b - 0.5f) * sums[2 * BATCH_ROWS * PITCH];
            }
            float own = s.mask != nullptr && (rows >> i & 1u) ? weight_at(s, own_x, top + i) : 1.f;
            float value = own * fmaf(own, sign, ssim_share * by_ssim);
            if (own_x < s.width && top + i < strip.bottom) *to = rows >> i & 1u ? value : 0.f;
            to += 3u * static_cast<unsigned>(s.width);
        }
    }
}

// value, L1 and SSIM from the sums of the strips.
__global__ void __launch_bounds__(TOTAL_THREADS) add_up(Scene s, const float* sums, int64_t strips, float* totals) {
    float of_thread[3] = {};
    for (int64_t strip = threadIdx.x; strip < strips; strip += TOTAL_THREADS) {
        for (int n = 0; n < 3; ++n) of_thread[n] += sums[3 * strip + n];
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

// Rows of a strip, so that strips of equal height keep all multiprocessors busy until the end. Each strip first takes 2
// REACH rows down its columns for nothing, which costs as much as BATCH_ROWS / 2 rows.
static int strip_rows(int strips_across, int height) {
    constexpr int64_t AT_ONCE = static_cast<int64_t>(STRIPS_AT_ONCE) * MULTIPROCESSORS;
    int best = 0;
    int64_t least = 0;
    for (int rows = TILE; rows <= 16 * BATCH_ROWS; rows += BATCH_ROWS) {
        int64_t strips = static_cast<int64_t>(strips_across) * ((height + rows - 1) / rows);
        int64_t cost = (strips + AT_ONCE - 1) / AT_ONCE * (rows + BATCH_ROWS / 2);
        if (best == 0 || cost < least) best = rows, least = cost;
    }
    return best;
}

// tiles: the listed ones, or null with `listed` null for the whole image. derivatives: 9 H times the width in
// whole fields, nothing for WINDOW_L1. sums: [tiles of the image, 3], more than there are strips.
EXPORT int l1_ssim(Queue queue, const float* image, const uint8_t* target, const uint8_t* mask, const int* tiles,
                   int64_t count, uint8_t* listed, int width, int height, int kind, int offset_x, int offset_y,
                   int cut, float ssim_weight, float* derivatives, float* sums, float* gradient, float* totals) {
    CHECK(cudaSetDevice(queue.device));
    int tiles_x = (width + TILE - 1) / TILE, tiles_y = (height + TILE - 1) / TILE;
    int64_t image_tiles = static_cast<int64_t>(tiles_x) * tiles_y;
    int strips_across = (width + STRIP - 1) / STRIP, rows = strip_rows(strips_across, height);
    int strips_down = (height + rows - 1) / rows;
    int64_t strips = static_cast<int64_t>(strips_across) * strips_down;
    float share = 1.f / (static_cast<float>(width) * static_cast<float>(height));
    Scene scene = {image,    target,   mask,     listed,      width, height,      tiles_x, kind,
                   offset_x, offset_y, cut != 0, ssim_weight, share, share / 3.f, rows};
    if (listed != nullptr) {
        CHECK(cudaMemsetAsync(listed, 0, image_tiles, queue.stream));
        if (count > 0) {
            mark_tiles<<<static_cast<unsigned>((count + THREADS - 1) / THREADS), THREADS, 0, queue.stream>>>(
                tiles, count, listed);
            CHECK(cudaGetLastError());
        }
    }
    dim3 grid(strips_across, strips_down);
    bool blocks = kind == WINDOW_TILE;
    (blocks ? measure<true> : measure<false>)<<<grid, STRIP_THREADS, 0, queue.stream>>>(scene, derivatives, sums);
    CHECK(cudaGetLastError());
    (blocks ? differentiate<true> : differentiate<false>)<<<grid, STRIP_THREADS, 0, queue.stream>>>(scene, derivatives,
                                                                                                  gradient);
    CHECK(cudaGetLastError());
    add_up<<<1, TOTAL_THREADS, 0, queue.stream>>>(scene, sums, strips, totals);
    return cudaGetLastError();
}
