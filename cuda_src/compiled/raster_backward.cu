// The gradient of compositing: each tile's splats back to front, undoing one blend after another.
//
// With w_i = T_i alpha_i the weight of splat i, v_i its colour and depth under the upstream gradient, and B_i what lies
// behind it under that gradient, dL/d alpha_i = T_i v_i - B_i / (1 - alpha_i) (Kerbl et al. 2023, appendix C).
//
// Only T and B need the order of splats, and only these are computed by pixel: two numbers for each splat and pixel,
// the weight and s = dL / d sigma, which every gradient is a sum of. They go into a table in shared memory, a row for
// each cell and splat that blends there. When the table is full, lanes change from pixels to rows: each adds up its row
// in registers, with no exchange between lanes, and adds the sums to the splat's gradient with three reductions.
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

// Weight and s of a splat at the pixels of a cell. An odd number of 16-byte words, so that lanes that read a row each
// meet no bank twice.
struct alignas(16) Row {
    float2 pixels[HALF];
    float2 entry;  // the number of the list's entry, as bits in .x
    float2 unused;
};
constexpr int ROW_PITCH = sizeof(Row) / sizeof(float2);
static_assert(sizeof(Row) % sizeof(float4) == 0 && sizeof(Row) / sizeof(float4) % 2 == 1, "rows have an odd pitch");

// Gradients by colour, and by depth, of a cell's pixels, line by line.
struct CellUpstream {
    float4 red[CELL], green[CELL], blue[CELL], depth[CELL];
};

static_assert(HALF % LISTED == 0 && CELL == 4, "groups fill the table; sums are of lines of four pixels");

constexpr int BACKWARD_BANK = HALF;
constexpr int BACKWARD_BANKS = 4;

struct Shared {
    Supply<BACKWARD_BANK, BACKWARD_BANKS> supplies[TILE_THREADS / WARP];
    CellUpstream upstream[TILE_THREADS / HALF];
    Row rows[TILE_THREADS / WARP][2][HALF];  // of the left and of the right cell
};
static_assert(offsetof(Shared, upstream) <= MOST_LISTED_BYTES, "lists hold addresses of 16 bits");

__device__ inline void add_vector(float* to, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
#else
    atomicAdd(to, a);
    atomicAdd(to + 1, b);
    atomicAdd(to + 2, c);
    atomicAdd(to + 3, d);
#endif
}

__device__ inline void add_products(float& to, const float weights[CELL], float4 by) {
    to = fmaf(weights[3], by.w, fmaf(weights[2], by.z, fmaf(weights[1], by.y, fmaf(weights[0], by.x, to))));
}

// Add up this lane's row and add it to its splat's gradient. With pixel offsets x, y from the middle of the cell, the
// moments of s about the splat's mean follow from those about the middle. upstream: of the cell's pixels.
template <bool BY_DEPTH>
__device__ inline void add_row(const Row& row, const CellUpstream& upstream, float2 middle, const int* splats,
                               const float4* records, float* gradients) {
    int64_t splat = splats[__float_as_int(row.entry.x)];
    const float4* record = records + splat * 3;
    float4 shape = make_float4(0.f, 0.f, 0.f, 0.f);
    float2 rest = make_float2(0.f, 0.f);
    float red = 0.f, green = 0.f, blue = 0.f, depth = 0.f;
    float s = 0.f, sx = 0.f, sy = 0.f, sxx = 0.f, sxy = 0.f, syy = 0.f;
#pragma unroll 1  // All sixteen at once would hold the registers that decide how many blocks a multiprocessor has.
    for (int j = 0; j < CELL; ++j) {
        if (j == CELL / 2) {  // Which splat it is has come by now, and the record comes before it is needed.
            shape = record[0];
            rest = *reinterpret_cast<const float2*>(record + 1);
        }
        const float4* pair = reinterpret_cast<const float4*>(row.pixels + j * CELL);
        float4 first = pair[0], second = pair[1];
        float weights[CELL] = {first.x, first.z, second.x, second.z};
        float line[CELL] = {first.y, first.w, second.y, second.w};
        add_products(red, weights, upstream.red[j]);
        add_products(green, weights, upstream.green[j]);
        add_products(blue, weights, upstream.blue[j]);
        if (BY_DEPTH) add_products(depth, weights, upstream.depth[j]);
        // Of the outer and the inner two pixels, which lie 1.5 and 0.5 px from the middle.
        float outer = line[0] + line[3], inner = line[1] + line[2], of_line = outer + inner;
        float x_of_line = fmaf(1.5f, line[3] - line[0], 0.5f * (line[2] - line[1]));
        sxx = fmaf(2.25f, outer, fmaf(0.25f, inner, sxx));
        float y = j - 0.5f * (CELL - 1);
        s += of_line;
        sx += x_of_line;
        sy += y * of_line;
        sxy += y * x_of_line;
        syy += y * y * of_line;
    }
    // The splat is not used in this cell, or nothing depends on it.
    if (red == 0.f && green == 0.f && blue == 0.f && depth == 0.f && s == 0.f && sx == 0.f && sy == 0.f) return;
    float x = middle.x - shape.x, y = middle.y - shape.y;
    float by_x = x * s + sx, by_y = y * s + sy;  // sums of s dx and s dy
    float* to = gradients + splat * GRADIENT_STRIDE;
    add_vector(to, -(shape.z * by_x + shape.w * by_y), -(rest.x * by_y + shape.w * by_x),
               0.5f * (x * (by_x + sx) + sxx), x * by_y + y * sx + sxy);
    add_vector(to + 4, 0.5f * (y * (by_y + sy) + syy), -s * inverse_fast(rest.y), red, green);
    if (BY_DEPTH) {
        add_vector(to + 8, blue, depth, 0.f, 0.f);
    } else {
        atomicAdd(to + 8, blue);
    }
}

// The segment of this block: second and later segments first, since these are of the longest lists.
__device__ inline const Segment& segment_of_block(const Segments& segments) {
    int total = segments.head[1], later = segments.head[2], i = blockIdx.x + later;
    return segments.items[i < total ? i : i - total];
}

template <bool BY_DEPTH, bool RANGED>
__global__ void __launch_bounds__(TILE_THREADS, 3) uncomposite(View view, Segments segments,
                                                                           const int* splats, const float4* records,
                                                                           Upstream upstream,
                                                                           const float* transmittances,
                                                                           const int* lasts, const float2* ranges,
                                                                           float* gradients) {
    extern __shared__ __align__(16) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (blockIdx.x >= segments.head[1]) return;
    const Segment& segment = segment_of_block(segments);
    int tile = segment.tile, size = segment.size;
    Pixel pixel = pixel_of(view, tile);
    splats += segment.begin;
    const uint16_t* reach = segments.reach + segment.begin;

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
        if (i == 1) transmittance = fabsf(*segments.plane(slot - 1, LEFT));
        behind += by.x * *segments.plane(slot, RED) + by.y * *segments.plane(slot, GREEN) +
                  by.z * *segments.plane(slot, BLUE);
        if (BY_DEPTH) behind += by.w * *segments.plane(slot, DEPTH);
    }
    CellUpstream& upstream_of_cell = shared.upstream[threadIdx.x / HALF];
    reinterpret_cast<float*>(upstream_of_cell.red)[lane_of_half()] = by.x;
    reinterpret_cast<float*>(upstream_of_cell.green)[lane_of_half()] = by.y;
    reinterpret_cast<float*>(upstream_of_cell.blue)[lane_of_half()] = by.z;
    reinterpret_cast<float*>(upstream_of_cell.depth)[lane_of_half()] = by.w;
    float x = pixel.x + 0.5f, y = pixel.y + 0.5f;
    const Row* rows = shared.rows[warp_index()][half_index()];  // of this half's cell
    // Where this pixel's numbers in the next row go.
    float2* const first_slot = shared.rows[warp_index()][half_index()][0].pixels + lane_of_half();
    float2* slot = first_slot;
    constexpr float TO_MIDDLE = 0.5f * (CELL - 1);
    float2 middle = make_float2(x - lane_of_half() % CELL + TO_MIDDLE, y - lane_of_half() / CELL + TO_MIDDLE);

    auto add_rows = [&]() {
        __syncwarp();
        if (rows[lane_of_half()].pixels + lane_of_half() < slot) {
            add_row<BY_DEPTH>(rows[lane_of_half()], upstream_of_cell, middle, splats, records, gradients);
        }
        __syncwarp();
        slot = first_slot;
    };

    Intake<BACKWARD_BANK, BACKWARD_BANKS> intake(shared.supplies[warp_index()]);
    int left_cell = cell_row() * (TILE / CELL) + cell_column(0);
    int entry = position - 1 - lane_index(), both_last = min(left_last, right_last);
    reach += entry;
    const int* listed = splats + entry;
    unsigned cells = entry >= 0 ? *reach : 0u;
    int splat = entry >= 0 ? *listed : 0;
    for (bool all = false; !all;) {
        while (intake.wants() && position > 0) {
            unsigned halves = cells >> left_cell & 3u;
            if (position > both_last) halves &= (entry < left_last ? 1u : 0u) | (entry < right_last ? 2u : 0u);
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
                if (lane_of_half() == 0) slot[HALF].x = tail.w;  // the row's entry
                slot += ROW_PITCH;
            }
            if (slot == first_slot + HALF * ROW_PITCH) add_rows();
        }
        intake.receive_bank(view);
    }
    add_rows();
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
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    kernel<<<static_cast<unsigned>(most_segments(count, instances)), TILE_THREADS, sizeof(Shared), queue.stream>>>(
        *view, segments, splat, reinterpret_cast<const float4*>(records),
        {grad_colour, background, background_stride, grad_transmittance, grad_depth}, transmittance, last,
        reinterpret_cast<const float2*>(depth_range), gradients);
    return cudaGetLastError();
}

DYNAMIC_SHARED(uncomposite, sizeof(Shared), 3)
