// The gradient of compositing: each tile's splats back to front, undoing one blend after another.
//
// With w_i = T_i alpha_i the weight of splat i, v_i its colour and depth under the upstream gradient, and B_i what lies
// behind it under that gradient, dL/d alpha_i = T_i v_i - B_i / (1 - alpha_i) (Kerbl et al. 2023, appendix C).
//
// Only T and B need the order of splats, and only these are computed by pixel: two numbers for each splat and pixel,
// the weight and s = dL / d sigma, which every gradient is a sum of. They go into a table in shared memory, a row for
// each cell and splat that blends there. When it is full, lanes change from pixels to rows: each adds up its row in
// registers, with no exchange between lanes, and leaves the sums in its place. Then neighbouring lanes have the words
// of one row, so that a splat's gradient is one request to memory and not three.
#include "compositing.cuh"
#include "segments.cuh"
#include "supply.cuh"

// Upstream gradients by pixel; null where there is none.
struct Upstream {
    const float* colour;
    const float* background;
    int background_stride;  // floats from one pixel's background to the next: 0 for one colour
    const float* transmittance;
    const float* depth;
};

// Warps of a block share nothing but the L1 cache that their tile's list comes through: small blocks end, and make room
// for others, when their own cells are done.
constexpr int BACKWARD_WARPS = 2;
constexpr int BACKWARD_THREADS = BACKWARD_WARPS * WARP;
constexpr int TILE_PARTS = TILE_THREADS / BACKWARD_THREADS;
// Of a multiprocessor, where nobody asks for depth: 24 warps of 80 registers a thread and 9 KB of shared memory each.
constexpr int BACKWARD_BLOCKS = 24 / BACKWARD_WARPS;

// Weight and s of a splat at the pixels of a cell; later their sums. An odd number of 16-byte words, so that lanes that
// read a row each meet no bank twice.
struct alignas(16) Row {
    union {
        float2 pixels[HALF];
        float4 sums[HALF / 2];  // the first three: as a row of gradients
    };
    float2 owner;  // as bits in .x: the number of the splat, or of its entry in the list; NOBODY: the sums are zero
    float2 unused;
};
constexpr int NOBODY = -1;  // all bits
constexpr int ROW_PITCH = sizeof(Row) / sizeof(float2);
static_assert(sizeof(Row) % sizeof(float4) == 0 && sizeof(Row) / sizeof(float4) % 2 == 1, "rows have an odd pitch");
static_assert(offsetof(Row, owner) == HALF * sizeof(float2), "the owner stands behind the last pixel");
static_assert(GRADIENT_STRIDE == 12 && GRADIENT <= GRADIENT_STRIDE, "sums are three words of 16 bytes");

// Gradients by colour, and by depth, of a cell's pixels, line by line, and where the middle of the cell is.
template <bool BY_DEPTH>
struct alignas(16) CellUpstream {
    float4 by[BY_DEPTH ? 4 : 3][CELL];  // red, green, blue, depth
    float2 middle;
};

static_assert(HALF % LISTED == 0 && CELL == 4, "groups fill the table; sums are of lines of four pixels");

constexpr int BACKWARD_BANK = HALF;
constexpr int BACKWARD_BANKS = 4;

template <bool BY_DEPTH>
struct Shared {
    Supply<BACKWARD_BANK, BACKWARD_BANKS> supplies[BACKWARD_WARPS];
    CellUpstream<BY_DEPTH> upstream[BACKWARD_WARPS][2];
    Row rows[BACKWARD_WARPS][2][HALF];  // of the left and of the right cell
};
static_assert(offsetof(Shared<true>, upstream) <= MOST_LISTED_BYTES, "lists hold addresses of 16 bits");

// Unless the owner is negative.
__device__ inline void add_vector(float* to, float4 sum, int owner) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred wanted;\nsetp.ge.s32 wanted, %5, 0;\n"
        "@wanted red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}"
        ::"l"(to), "f"(sum.x), "f"(sum.y), "f"(sum.z), "f"(sum.w), "r"(owner) : "memory");
#else
    if (owner < 0) return;
    atomicAdd(to, sum.x);
    atomicAdd(to + 1, sum.y);
    atomicAdd(to + 2, sum.z);
    atomicAdd(to + 3, sum.w);
#endif
}

__device__ inline void add_products(float& to, const float weights[CELL], float4 by) {
    to = fmaf(weights[3], by.w, fmaf(weights[2], by.z, fmaf(weights[1], by.y, fmaf(weights[0], by.x, to))));
}

// Add up this lane's row and leave the gradient in its place. With pixel offsets x, y from the middle of the cell, the
// moments of s about the splat's mean follow from those about the middle. upstream: of the cell's pixels.
template <bool BY_DEPTH>
__device__ inline void sum_row(Row& row, const CellUpstream<BY_DEPTH>& upstream, int splat, const float4* records) {
    const float4* record = records + static_cast<int64_t>(splat) * 3;
    float4 shape = make_float4(0.f, 0.f, 0.f, 0.f);
    float2 rest = make_float2(0.f, 0.f);
    float red = 0.f, green = 0.f, blue = 0.f, depth = 0.f;
    float outer = 0.f, inner = 0.f, sx = 0.f, sy = 0.f, sxy = 0.f, syy = 0.f;
    const float4* pair = row.sums;
    const float4* by = upstream.by[0];
    float line = -0.5f * (CELL - 1);
    // All sixteen at once would hold the registers that decide how many blocks a multiprocessor has.
    constexpr int AT_ONCE = BY_DEPTH ? 1 : 2;
#pragma unroll AT_ONCE
    for (int j = 0; j < CELL; ++j, line += 1.f, pair += CELL / 2, ++by) {
        if (j == CELL / 2) {  // Which splat it is has come by now, and the record comes before it is needed.
            shape = record[0];
            rest = *reinterpret_cast<const float2*>(record + 1);
        }
        float4 first = pair[0], second = pair[1];
        float weights[CELL] = {first.x, first.z, second.x, second.z};
        float values[CELL] = {first.y, first.w, second.y, second.w};
        add_products(red, weights, by[0]);
        add_products(green, weights, by[CELL]);
        add_products(blue, weights, by[2 * CELL]);
        if (BY_DEPTH) add_products(depth, weights, by[3 * CELL]);
        // The outer and the inner two pixels lie 1.5 and 0.5 px from the middle.
        float of_outer = values[0] + values[3], of_inner = values[1] + values[2], of_line = of_outer + of_inner;
        float x_of_line = fmaf(1.5f, values[3] - values[0], 0.5f * (values[2] - values[1])), y_of_line = line * of_line;
        outer += of_outer;
        inner += of_inner;
        sx += x_of_line;
        sy += y_of_line;
        sxy = fmaf(line, x_of_line, sxy);
        syy = fmaf(line, y_of_line, syy);
    }
    float s = outer + inner, sxx = fmaf(2.25f, outer, 0.25f * inner);
    // The splat is not used in this cell, or nothing depends on it: all are zeros, of either sign.
    int bits = __float_as_int(red) | __float_as_int(green) | __float_as_int(blue) | __float_as_int(depth) |
               __float_as_int(s) | __float_as_int(sx) | __float_as_int(sy);
    float x = upstream.middle.x - shape.x, y = upstream.middle.y - shape.y;
    float by_x = x * s + sx, by_y = y * s + sy;  // sums of s dx and s dy
    row.owner.x = __int_as_float((bits & 0x7fffffff) == 0 ? NOBODY : splat);
    row.sums[0] = make_float4(fmaf(-shape.z, by_x, -shape.w * by_y), fmaf(-rest.x, by_y, -shape.w * by_x),
                              0.5f * (x * (by_x + sx) + sxx), x * by_y + y * sx + sxy);
    row.sums[1] = make_float4(0.5f * (y * (by_y + sy) + syy), -s * inverse_fast(rest.y), red, green);
    row.sums[2] = make_float4(blue, depth, 0.f, 0.f);
}

// Add a warp's summed rows to their splats' gradients: four lanes a row, of which three have a word each.
__device__ inline void add_sums(const Row* rows, float* gradients) {
    constexpr int LANES = 4;
    int lane = thread_anew() & (WARP - 1), word = lane & (LANES - 1);
    int idle = word == LANES - 1 ? NOBODY : 0;
    const Row* row = rows + lane / LANES;
    float* to = gradients + word * 4;
    asm("" : "+l"(to));  // An address to add to, not an index to put together again for each row.
#pragma unroll
    for (int first = 0; first < WARP; first += WARP / LANES) {
        int splat = __float_as_int(row[first].owner.x) | idle;
        add_vector(to + static_cast<int64_t>(splat) * GRADIENT_STRIDE, row[first].sums[word], splat);
    }
}

// The segment of this block: second and later segments first, since these are of the longest lists.
__device__ inline const Segment& segment_of_block(const Segments& segments) {
    int total = segments.head[1], later = segments.head[2], i = blockIdx.x / TILE_PARTS + later;
    return segments.items[i < total ? i : i - total];
}

template <bool BY_DEPTH, bool RANGED>
__global__ void __launch_bounds__(BACKWARD_THREADS, BACKWARD_BLOCKS)
    uncomposite(View view, Segments segments, const int* splats, const float4* records, Upstream upstream,
                const float* transmittances, const int* lasts, const float2* ranges, float* gradients) {
    // Where nobody asks for the depth of a staged record, the number of its splat stands in its place.
    constexpr bool NAMED = !BY_DEPTH && !RANGED;
    extern __shared__ __align__(16) char memory[];
    Shared<BY_DEPTH>& shared = *reinterpret_cast<Shared<BY_DEPTH>*>(memory);
    if (blockIdx.x / TILE_PARTS >= segments.head[1]) return;
    const Segment& segment = segment_of_block(segments);
    int tile = segment.tile, size = segment.size;
    int thread = blockIdx.x % TILE_PARTS * BACKWARD_THREADS + threadIdx.x;  // of the tile
    Pixel pixel = pixel_of(view, tile, thread / WARP);
    // Entries are counted from the segment's first on.
    int last_of_list = pixel.inside ? lasts[pixel.index(view)] : 0;
    int last = min(max(last_of_list - segment.first, 0), size), half_last = last;
    for (int step = HALF / 2; step > 0; step /= 2) {
        half_last = max(half_last, __shfl_xor_sync(ALL_LANES, half_last, step));
    }
    int left_last = __shfl_sync(ALL_LANES, half_last, 0), right_last = __shfl_sync(ALL_LANES, half_last, HALF);
    int position = max(left_last, right_last);  // Entries before it are still to be looked at.
    if (position == 0) return;

    float2 range = RANGED ? depth_range_at(view, ranges, pixel) : float2{};
    float4 by = make_float4(0.f, 0.f, 0.f, 0.f);
    float transmittance = 0.f, behind = 0.f;
    if (pixel.inside) {
        int64_t at = pixel.index(view);
        by = make_float4(upstream.colour[3 * at], upstream.colour[3 * at + 1], upstream.colour[3 * at + 2],
                         BY_DEPTH ? upstream.depth[at] : 0.f);
        float by_transmittance = upstream.transmittance != nullptr ? upstream.transmittance[at] : 0.f;
        if (upstream.background != nullptr) {
            const float* c = upstream.background + at * upstream.background_stride;
            by_transmittance += by.x * c[0] + by.y * c[1] + by.z * c[2];
        }
        transmittance = transmittances[at];
        behind = by_transmittance * transmittance;
    }
    // Where the pixel's list goes on, what later segments added lies behind as well.
    for (int i = 1; segment.first + i * size < last_of_list; ++i) {
        int slot = segment.slot + segment.number + i;
        if (i == 1) transmittance = fabsf(*segments.plane(slot - 1, LEFT, thread));
        behind += by.x * *segments.plane(slot, RED, thread) + by.y * *segments.plane(slot, GREEN, thread) +
                  by.z * *segments.plane(slot, BLUE, thread);
        if (BY_DEPTH) behind += by.w * *segments.plane(slot, DEPTH, thread);
    }
    CellUpstream<BY_DEPTH>& upstream_of_cell = shared.upstream[warp_index()][half_index()];
    reinterpret_cast<float*>(upstream_of_cell.by[0])[lane_of_half()] = by.x;
    reinterpret_cast<float*>(upstream_of_cell.by[1])[lane_of_half()] = by.y;
    reinterpret_cast<float*>(upstream_of_cell.by[2])[lane_of_half()] = by.z;
    if constexpr (BY_DEPTH) reinterpret_cast<float*>(upstream_of_cell.by[3])[lane_of_half()] = by.w;
    float x = pixel.x + 0.5f, y = pixel.y + 0.5f;
    if (lane_of_half() == 0) upstream_of_cell.middle = make_float2(x + 0.5f * (CELL - 1), y + 0.5f * (CELL - 1));
    Row* rows = shared.rows[warp_index()][half_index()];  // of this half's cell
    // Where this pixel's numbers in the next row go.
    float2* const first_slot = rows[0].pixels + lane_of_half();
    float2* slot = first_slot;

    Intake<BACKWARD_BANK, BACKWARD_BANKS> intake(shared.supplies[warp_index()]);
    int left_cell = left_cell_of(thread / WARP);
    int entry = position - 1 - lane_index();
    const uint16_t* reach = segments.reach + segment.begin + entry;
    const int* listed = splats + segment.begin + entry;
    unsigned cells = entry >= 0 ? *reach : 0u;
    int splat = entry >= 0 ? *listed : 0;
    // filled: rows of either half's table, some of them of no splat.
    auto add_rows = [&](int filled) {
        __syncwarp();
        Row& row = rows[lane_of_half()];
        if (lane_of_half() < filled) {
            int owner = __float_as_int(row.owner.x);
            sum_row<BY_DEPTH>(row, upstream_of_cell, NAMED ? owner : listed[owner - entry], records);
        } else {
            row.owner.x = __int_as_float(NOBODY);
        }
        __syncwarp();
        add_sums(shared.rows[warp_index()][0], gradients);
        __syncwarp();
        slot = first_slot;
    };

    for (bool all = false; !all;) {
        while (intake.wants() && position > 0) {
            unsigned halves = cells >> left_cell & 3u;
            halves &= (entry < left_last ? 1u : 0u) | (entry < right_last ? 2u : 0u);
            int found = splat, number = entry;
            position -= WARP;
            entry -= WARP;
            reach -= WARP;
            listed -= WARP;
            cells = 0u;
            if (entry >= 0) {
                cells = *reach;
                splat = *listed;
            }
            intake.find(halves, found, number);
        }
        all = !intake.has_found();
        intake.request_bank(records);
        for (int groups = intake.groups(all); groups > 0; --groups) {
            Group group = intake.next_group();
#pragma unroll
            for (int i = 0; i < LISTED; ++i) {
                unsigned address = group.address(i);
                float4 shape = shared_word(address), rest = shared_word(address + 16), tail = shared_word(address + 32);
                Density d = density_at(x, y, shape, rest);
                bool used = __float_as_uint(d.sigma) < __float_as_uint(tail.z) && __float_as_int(tail.w) < last &&
                            (!RANGED || in_range(range, tail.y));

                // Where it is not used alpha is zero, and nothing changes.
                float density = used ? d.value : 0.f, alpha = fminf(view.alpha_max, density);
                float inverse = inverse_fast(1.f - alpha);
                float value = by.x * rest.z + by.y * rest.w + by.z * tail.x;
                if (BY_DEPTH) value += by.w * tail.y;
                float by_density = inverse * (transmittance * value - behind);
                transmittance *= inverse;
                float weight = transmittance * alpha;
                behind += weight * value;
                *slot = make_float2(weight, density <= view.past_clamp ? -density * by_density : 0.f);
                if (lane_of_half() == 0) slot[HALF].x = NAMED ? tail.y : tail.w;  // the row's owner
                slot += ROW_PITCH;
            }
            if (intake.entries_taken() % HALF == 0) add_rows(HALF);
        }
        intake.receive_bank<NAMED>(view);
    }
    int filled = intake.entries_taken() % HALF;
    if (filled > 0) add_rows(filled);
}

// segments: as raster_forward left it, made for that many instances.
EXPORT int raster_backward(Queue queue, const View* view, int64_t count, const int* splat, int64_t instances,
                           const float* records, int64_t splats, void* segment_memory, const float* transmittance,
                           const int* last, const float* depth_range, const float* grad_colour,
                           const float* background, int background_stride, const float* grad_transmittance,
                           const float* grad_depth, float* gradients) {
    CHECK(cudaSetDevice(queue.device));
    CHECK(cudaMemsetAsync(gradients, 0, splats * GRADIENT_STRIDE * sizeof(float), queue.stream));
    if (count == 0 || splats == 0) return cudaSuccess;
    int64_t cleared = 0, bytes = 0;
    Segments segments = segments_in(segment_memory, count, instances, &cleared, &bytes);
    auto plain = depth_range != nullptr ? uncomposite<false, true> : uncomposite<false, false>;
    auto kernel = depth_range != nullptr ? uncomposite<true, true> : uncomposite<true, false>;
    if (grad_depth == nullptr) kernel = plain;
    int shared = static_cast<int>(grad_depth == nullptr ? sizeof(Shared<false>) : sizeof(Shared<true>));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    unsigned blocks = static_cast<unsigned>(most_segments(count, instances) * TILE_PARTS);
    kernel<<<blocks, BACKWARD_THREADS, shared, queue.stream>>>(
        *view, segments, splat, reinterpret_cast<const float4*>(records),
        {grad_colour, background, background_stride, grad_transmittance, grad_depth}, transmittance, last,
        reinterpret_cast<const float2*>(depth_range), gradients);
    return cudaGetLastError();
}
