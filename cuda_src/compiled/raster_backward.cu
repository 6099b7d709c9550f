// The gradient of compositing: each tile's splats back to front, undoing one blend after another.
//
// With w_i = T_i alpha_i the weight of splat i, v_i its colour and depth under the upstream gradient, and B_i what lies
// behind it under that gradient, dL/d alpha_i = T_i v_i - B_i / (1 - alpha_i) (Kerbl et al. 2023, appendix C).
#include "compositing.cuh"

// Sums over the warp of GRADIENT values a lane, by halves: at each step a lane gives away the half that its partner
// keeps, so that 5 + 3 + 2 + 1 + 1 exchanges do, in place of 5 for each value. Afterwards the even lanes that are
// `owner` of a column hold its sum.
struct ColumnSum {
    float sum;
    int column;
    bool owner;
};

__device__ ColumnSum sum_columns(const float v[GRADIENT]) {
    static_assert(GRADIENT == 10, "halves 10, 5, 3, 2, 1");
    int lane = lane_index();
    bool upper = lane & 16;
    float five[5];
#pragma unroll
    for (int i = 0; i < 5; ++i) {
        float keep = upper ? v[i + 5] : v[i], give = upper ? v[i] : v[i + 5];
        five[i] = keep + __shfl_xor_sync(ALL_LANES, give, 16);
    }
    upper = lane & 8;
    float three[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        float high = i < 2 ? five[i + 3] : 0.f;
        float keep = upper ? high : five[i], give = upper ? five[i] : high;
        three[i] = keep + __shfl_xor_sync(ALL_LANES, give, 8);
    }
    upper = lane & 4;
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float high = i < 1 ? three[2] : 0.f;
        float keep = upper ? high : three[i], give = upper ? three[i] : high;
        two[i] = keep + __shfl_xor_sync(ALL_LANES, give, 4);
    }
    upper = lane & 2;
    float one = (upper ? two[1] : two[0]) + __shfl_xor_sync(ALL_LANES, upper ? two[0] : two[1], 2);
    one += __shfl_xor_sync(ALL_LANES, one, 1);
    int within = (lane & 4) / 2 + (lane & 2) / 2;
    return {one, (lane & 16 ? 5 : 0) + (lane & 8 ? 3 : 0) + within, !(lane & 1) && within < (lane & 8 ? 2 : 3)};
}

// Upstream gradients by pixel; null where there is none.
struct Upstream {
    const float* colour;
    const float* background;
    int background_stride;  // floats from one pixel's background to the next: 0 for one colour
    const float* transmittance;
    const float* depth;
};

__global__ void __launch_bounds__(TILE_THREADS, 4) uncomposite(View view, TileLists lists, Upstream upstream,
                                                            const float* transmittances, const int* lasts,
                                                            const float2* ranges, float* gradients) {
    __shared__ Batch batch;
    __shared__ int longest[TILE_THREADS / WARP];
    int tile = lists.tiles[blockIdx.x];
    Pixel pixel = pixel_of(view, tile);
    const int* splats = lists.splat + lists.starts[blockIdx.x];

    int last = pixel.inside ? lasts[pixel.index(view)] : 0;
    int warp_last = __reduce_max_sync(ALL_LANES, last);
    if (lane_index() == 0) longest[warp_index()] = warp_last;
    __syncthreads();
    int tile_last = 0;
    for (int w = 0; w < TILE_THREADS / WARP; ++w) tile_last = max(tile_last, longest[w]);
    if (tile_last == 0) return;

    float2 range = depth_range_at(view, ranges, pixel);
    float red = 0.f, green = 0.f, blue = 0.f, by_depth = 0.f, transmittance = 0.f, behind = 0.f;
    if (pixel.inside) {
        int64_t at = pixel.index(view);
        red = upstream.colour[3 * at];
        green = upstream.colour[3 * at + 1];
        blue = upstream.colour[3 * at + 2];
        if (upstream.depth != nullptr) by_depth = upstream.depth[at];
        float by_transmittance = upstream.transmittance != nullptr ? upstream.transmittance[at] : 0.f;
        if (upstream.background != nullptr) {
            const float* c = upstream.background + at * upstream.background_stride;
            by_transmittance += red * c[0] + green * c[1] + blue * c[2];
        }
        transmittance = transmittances[at];
        behind = by_transmittance * transmittance;
    }

    for (int batch_end = tile_last; batch_end > 0; batch_end -= TILE_THREADS) {
        int batch_first = max(batch_end - TILE_THREADS, 0), size = batch_end - batch_first;
        load_batch(batch, view, lists.records, tile, splats + batch_first, size);
        for (int group = (size - 1) / WARP * WARP; group >= 0; group -= WARP) {
            if (batch_first + group >= warp_last) continue;
            unsigned entries = reaching(batch, group, size);
            while (entries) {
                int highest = WARP - 1 - __clz(entries), entry = group + highest;
                entries ^= 1u << highest;
                float4 shape = batch.records[entry * 3], rest = batch.records[entry * 3 + 1];
                float2 tail = *reinterpret_cast<const float2*>(&batch.records[entry * 3 + 2]);
                Density d = density_at(view, pixel, shape, rest);
                bool used = batch_first + entry < last && d.sigma >= 0.f && d.alpha >= view.alpha_min &&
                            range.x <= tail.y && tail.y < range.y;
                if (!__any_sync(ALL_LANES, used)) continue;

                float g[GRADIENT] = {};
                if (used) {
                    float value = red * rest.z + green * rest.w + blue * tail.x + by_depth * tail.y;
                    float inverse = __fdividef(1.f, 1.f - d.alpha);
                    float before = transmittance * inverse;
                    float weight = d.alpha * before;
                    float density = rest.y * d.falloff;
                    float by_density = density <= view.past_clamp ? before * value - behind * inverse : 0.f;
                    float by_sigma = -density * by_density;
                    behind += weight * value;
                    transmittance = before;
                    g[RECORD_MEAN2D] = -by_sigma * (shape.z * d.dx + shape.w * d.dy);
                    g[RECORD_MEAN2D + 1] = -by_sigma * (rest.x * d.dy + shape.w * d.dx);
                    g[RECORD_CONIC] = 0.5f * by_sigma * d.dx * d.dx;
                    g[RECORD_CONIC + 1] = by_sigma * d.dx * d.dy;
                    g[RECORD_CONIC + 2] = 0.5f * by_sigma * d.dy * d.dy;
                    g[RECORD_OPACITY] = d.falloff * by_density;
                    g[RECORD_COLOUR] = weight * red;
                    g[RECORD_COLOUR + 1] = weight * green;
                    g[RECORD_COLOUR + 2] = weight * blue;
                    g[RECORD_DEPTH] = weight * by_depth;
                }
                ColumnSum sum = sum_columns(g);
                if (sum.owner) {
                    atomicAdd(gradients + static_cast<int64_t>(batch.splat[entry]) * GRADIENT + sum.column, sum.sum);
                }
            }
        }
    }
}

EXPORT int raster_backward(Queue queue, const View* view, const int* tiles, int64_t count, const int64_t* starts,
                           const int* splat, const float* records, int64_t splats, const float* transmittance,
                           const int* last, const float* depth_range, const float* grad_colour,
                           const float* background, int background_stride, const float* grad_transmittance,
                           const float* grad_depth, float* gradients) {
    CHECK(cudaSetDevice(queue.device));
    CHECK(cudaMemsetAsync(gradients, 0, splats * GRADIENT * sizeof(float), queue.stream));
    if (count == 0 || splats == 0) return cudaSuccess;
    uncomposite<<<static_cast<unsigned>(count), TILE_THREADS, 0, queue.stream>>>(
        *view, {tiles, starts, splat, records},
        {grad_colour, background, background_stride, grad_transmittance, grad_depth}, transmittance, last,
        reinterpret_cast<const float2*>(depth_range), gradients);
    return cudaGetLastError();
}
