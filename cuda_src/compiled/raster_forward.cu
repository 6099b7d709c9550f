// Alpha compositing of the listed tiles, front to back (Kerbl et al. 2023, eq. 3 and appendix C).
#include "compositing.cuh"
#include "segments.cuh"

// What is left at each pixel; see cuda_src.operators.Raster. Only pixels of listed tiles are written.
struct Pictures {
    float* colour;
    float* transmittance;
    float* depth;
    uint8_t* stopped;
    int* last;
    float* stop_depth;
};

// What the pixels are given. start: transmittance, null: 1. subtiles: null: all are rendered. background: null: black;
// stride: floats from one pixel's to the next, 0 for one colour.
struct Given {
    const float* start;
    const uint8_t* subtiles;
    const float2* ranges;
    const float* background;
    int background_stride;
};

// Where and how a pixel is seen.
struct Sight {
    float x, y;
    float2 range;
};

// The limit of sigma where the pixel may see the splat; 0, which is below all numbers, where it may not.
template <bool RANGED>
__device__ inline unsigned limit_at(const Sight& sight, float4 tail) {
    return !RANGED || in_range(sight.range, tail.y) ? __float_as_uint(tail.z) : 0u;
}

constexpr float UNLIT = -INFINITY;

// A pixel's state between one splat and the next.
template <bool RANGED>
struct Light {
    static constexpr bool ASKS = false;
    float red, green, blue, depth;
    float transmittance;
    float stop_depth;  // infinite while more may be blended; UNLIT where nothing ever was
    int last;

    __device__ Light(float transmittance, bool lit)
        : red(0.f), green(0.f), blue(0.f), depth(0.f), transmittance(transmittance),
          stop_depth(lit ? INFINITY : UNLIT), last(0) {}
    __device__ bool alive(const View&) const { return stop_depth == INFINITY; }

    // Blend the splat whose record is staged there.
    __device__ void meet(const View& view, const Sight& sight, unsigned record) {
        float4 shape = shared_word(record), rest = shared_word(record + 16), tail = shared_word(record + 32);
        Density d = density_at(sight.x, sight.y, shape, rest);
        bool seen = __float_as_uint(d.sigma) < limit_at<RANGED>(sight, tail) && stop_depth == INFINITY;
        float alpha = fminf(view.alpha_max, d.value), after = fmaf(-alpha, transmittance, transmittance);
        bool blended = seen && after >= view.stop, stops = seen && !(after >= view.stop);
        float weight = transmittance * alpha;
        if (blended) {
            red += weight * rest.z;
            green += weight * rest.w;
            blue += weight * tail.x;
            depth += weight * tail.y;
            transmittance = after;
            last = __float_as_int(tail.w);
        }
        if (stops) stop_depth = tail.y;
    }
    __device__ float stopped_at() const { return stop_depth == UNLIT ? INFINITY : stop_depth; }
};

// By how much a segment's splats attenuate, whatever light there is before them.
template <bool RANGED>
struct Attenuation {
    static constexpr bool ASKS = true;
    float product;
    bool rendered;
    const Segments& segments;
    const Segment& segment;

    __device__ bool alive(const View& view) const { return rendered && product >= view.stop; }
    __device__ void meet(const View& view, const Sight& sight, unsigned record) {
        float4 shape = shared_word(record), rest = shared_word(record + 16), tail = shared_word(record + 32);
        Density d = density_at(sight.x, sight.y, shape, rest);
        bool seen = __float_as_uint(d.sigma) < limit_at<RANGED>(sight, tail);
        product = fmaf(seen ? -fminf(view.alpha_max, d.value) : 0.f, product, product);
    }
    // Nothing of this is needed once the segment before is done, or the tile dark.
    __device__ bool needless() const {
        return segments.state_of(segment, segment.number - 1) == COMPLETE || segments.is_dark_before(segment);
    }
};

// A tile's batches, and a list for each cell.
struct Staging {
    Batch<FORWARD_BATCH> batches[2];
    List<FORWARD_BATCH> lists[TILE_THREADS / HALF];
    float2 corner;  // of the tile
};
static_assert(sizeof(Staging) <= MOST_LISTED_BYTES, "lists hold addresses of 16 bits");

// Take a segment's splats through every pixel of the tile that is alive, and leave which cells each reaches. False if
// `what` became needless. Every thread of the block calls it; all have left the staging when it returns.
template <typename What>
__device__ inline bool walk(const View& view, const Segments& segments, const Segment& segment, const int* splats,
                            const float4* records, const Sight& sight, Staging& staging, What& what) {
    __shared__ int needless[2];
    List<FORWARD_BATCH>& own = staging.lists[threadIdx.x / HALF];
    unsigned own_half = ((1u << HALF) - 1u) << (half_index() * HALF);
    int entry = threadIdx.x;
    auto splat_at = [&](int position) { return position < segment.size ? splats[segment.begin + position] : -1; };
    auto receive = [&](Batch<FORWARD_BATCH>& batch, int position, int splat) {
        wait_for_requests();
        unsigned cells = 0u;
        if (splat >= 0) {
            float4* record = batch.records + entry * 3;
            float4 shape = record[0];
            float2 rest = *reinterpret_cast<const float2*>(record + 1);
            float furthest = furthest_sigma(view, rest.y);
            cells = reached_cells(staging.corner, shape, rest.x, furthest);
            stage(record, shape, rest.x, furthest, segment.first + position + 1);
            segments.reach[segment.begin + position] = static_cast<uint16_t>(cells);
        }
        batch.reach[entry] = static_cast<uint16_t>(cells);
    };

    int coming = splat_at(entry);
    if (coming >= 0) request(staging.batches[0].records + entry * 3, records, coming);
    int after = splat_at(FORWARD_BATCH + entry);
    receive(staging.batches[0], entry, coming);
    bool alive = what.alive(view);
    for (int offset = 0;; offset += FORWARD_BATCH) {
        int parity = offset / FORWARD_BATCH & 1;
        if constexpr (What::ASKS) {
            if (threadIdx.x == 0) needless[parity] = what.needless();
        }
        if (!__syncthreads_or(alive) || offset >= segment.size) return true;
        if constexpr (What::ASKS) {
            if (needless[parity]) return false;
        }
        const Batch<FORWARD_BATCH>& batch = staging.batches[parity];
        Batch<FORWARD_BATCH>& next = staging.batches[parity ^ 1];
        coming = after;
        if (coming >= 0) request(next.records + entry * 3, records, coming);
        after = splat_at(offset + 2 * FORWARD_BATCH + entry);
        unsigned living = __ballot_sync(ALL_LANES, alive);
        int listed = living != 0u ? list_entries(batch, living & own_half ? ~0u : 0u, own) : 0;
        for (int first = 0; first < listed; first += LISTED) {
            Group group(own.address + first);
#pragma unroll
            for (int i = 0; i < LISTED; ++i) what.meet(view, sight, group.address(i));
            alive = what.alive(view);
            if (!__any_sync(ALL_LANES, alive)) break;
        }
        receive(next, offset + FORWARD_BATCH + entry, coming);
    }
}

// Transmittance where a segment that is not the first begins; dark where it may not be blended.
template <bool RANGED>
__device__ inline float light_before(const View& view, const Segments& segments, const Segment& segment,
                                     const int* splats, const float4* records, const Sight& sight, bool rendered,
                                     Staging& staging) {
    __shared__ int latest;
    if (threadIdx.x == 0) latest = segments.state_of(segment, segment.number - 1);
    __syncthreads();
    if (latest != COMPLETE) {
        Attenuation<RANGED> own = {1.f, rendered, segments, segment};
        if (walk(view, segments, segment, splats, records, sight, staging, own)) {
            *segments.plane(segment.slot + segment.number, PRODUCT) = own.product;
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) atomicMax(segments.state + segment.slot + segment.number, +ATTENUATION_KNOWN);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) latest = 0;
    __syncthreads();
    // A thread waits for each of the segments before, whose blocks began earlier. The first leaves nothing but its end.
    bool dark = false;
    if (threadIdx.x < segment.number) {
        int known = UNKNOWN;
        while (!dark && (known = segments.state_of(segment, threadIdx.x)) == UNKNOWN) {
            __nanosleep(100);
            dark = segments.is_dark_before(segment);
        }
        if (known == COMPLETE) atomicMax(&latest, static_cast<int>(threadIdx.x));
    }
    __threadfence();
    if (__syncthreads_or(dark)) return -1.f;

    int number = latest;
    float left = __ldcg(segments.plane(segment.slot + number, LEFT)), product = 1.f;
    for (++number; number < segment.number; ++number) product *= __ldcg(segments.plane(segment.slot + number, PRODUCT));
    bool stops = product < 1.f && fabsf(left) * product < view.stop;
    return (stops && !is_dark(left) ? -left : left) * product;
}

template <bool RANGED>
__device__ inline void store_segment(const View& view, const Segments& segments, const Segment& segment,
                                     const Light<RANGED>& light) {
    int slot = segment.slot + segment.number;
    *segments.plane(slot, LEFT) = light.alive(view) ? light.transmittance : -light.transmittance;
    *segments.plane(slot, RED) = light.red;
    *segments.plane(slot, GREEN) = light.green;
    *segments.plane(slot, BLUE) = light.blue;
    *segments.plane(slot, DEPTH) = light.depth;
    *segments.plane(slot, STOP_DEPTH) = light.stopped_at();
    *segments.plane(slot, LAST) = __int_as_float(light.last);
    __threadfence();
    bool dark = !__syncthreads_or(light.alive(view));
    if (threadIdx.x == 0) {
        if (dark) atomicMax(segments.stopped + segment.slot, MOST_SEGMENTS - segment.number);
        atomicMax(segments.state + slot, +COMPLETE);
    }
}

// A tile's segments, front to back, in place of the last one's light.
template <bool RANGED>
__device__ inline void add_segments(const Segments& segments, const Segment& segment, Light<RANGED>& light) {
    light.red = light.green = light.blue = light.depth = 0.f;
    light.stop_depth = INFINITY;
    light.last = 0;
    int end = segments.dark_from(segment);
    for (int number = 0; number <= end && light.stop_depth == INFINITY; ++number) {
        int slot = segment.slot + number, last = __float_as_int(__ldcg(segments.plane(slot, LAST)));
        light.red += __ldcg(segments.plane(slot, RED));
        light.green += __ldcg(segments.plane(slot, GREEN));
        light.blue += __ldcg(segments.plane(slot, BLUE));
        light.depth += __ldcg(segments.plane(slot, DEPTH));
        light.transmittance = fabsf(__ldcg(segments.plane(slot, LEFT)));
        light.stop_depth = __ldcg(segments.plane(slot, STOP_DEPTH));
        if (last > 0) light.last = last;
    }
}

template <bool RANGED>
__device__ inline void store_pixel(const View& view, const Given& given, const Pixel& pixel, Light<RANGED>& light,
                                   const Pictures& out) {
    if (!pixel.inside) return;
    int64_t at = pixel.index(view);
    if (given.background != nullptr) {
        const float* behind = given.background + at * given.background_stride;
        light.red += light.transmittance * behind[0];
        light.green += light.transmittance * behind[1];
        light.blue += light.transmittance * behind[2];
    }
    out.colour[3 * at] = light.red;
    out.colour[3 * at + 1] = light.green;
    out.colour[3 * at + 2] = light.blue;
    out.transmittance[at] = light.transmittance;
    out.depth[at] = light.depth;
    out.stopped[at] = light.stopped_at() < INFINITY;
    out.last[at] = light.last;
    out.stop_depth[at] = light.stopped_at();
}

template <bool RANGED>
__global__ void __launch_bounds__(TILE_THREADS, RANGED ? 4 : 5) composite(View view, Segments segments,
                                                                         const int* splats, const float4* records,
                                                                         Given given, Pictures out) {
    __shared__ Staging staging;
    __shared__ Segment segment;
    __shared__ bool taken, skipped, finished;
    if (threadIdx.x == 0) {
        int ticket = atomicAdd(segments.head, 1);
        taken = ticket < segments.head[1];
        if (taken) {
            segment = segments.items[ticket];
            staging.corner = corner_of(view, segment.tile);
        }
        skipped = taken && segment.number > 0 && segments.is_dark_before(segment);
    }
    for (int i = 0; i < 2; ++i) place_no_splat(staging.batches[i]);
    __syncthreads();
    if (!taken) return;
    Pixel pixel = pixel_of(view, segment.tile, warp_index());
    bool rendered = pixel.inside && (given.subtiles == nullptr || (given.subtiles[segment.tile] >> warp_index() & 1));
    Sight sight = {pixel.x + 0.5f, pixel.y + 0.5f, RANGED ? depth_range_at(view, given.ranges, pixel) : float2{}};
    float left = given.start != nullptr && pixel.inside ? given.start[pixel.index(view)] : 1.f;
    Light<RANGED> light(left, rendered);
    if (!skipped) {
        if (segment.number > 0) {
            left = light_before<RANGED>(view, segments, segment, splats, records, sight, rendered, staging);
            light = Light<RANGED>(fabsf(left), rendered && !is_dark(left));
        }
        walk(view, segments, segment, splats, records, sight, staging, light);
    }
    if (segment.count > 1) {
        if (!skipped) store_segment(view, segments, segment, light);
        if (threadIdx.x == 0) finished = atomicAdd(segments.arrived + segment.slot, 1) == segment.count - 1;
        __syncthreads();
        if (!finished) return;
        __threadfence();
        add_segments(segments, segment, light);
    }
    store_pixel(view, given, pixel_at(view, sight.x, sight.y), light, out);
}

// segment_memory: of segment_bytes(count, instances), of which raster_backward reads what this leaves. cleared_pictures:
// bytes from `colour` on that are zero where nothing is written: all pictures, which lie one behind another, or none.
EXPORT int raster_forward(Queue queue, const View* view, const int* tiles, int64_t count, const int64_t* starts,
                          const int* splat, int64_t instances, const float* records, const float* start_transmittance,
                          const uint8_t* subtiles, const float* depth_range, const float* background,
                          int background_stride, void* segment_memory, int64_t cleared_pictures, float* colour,
                          float* transmittance, float* depth, uint8_t* stopped, int* last, float* stop_depth) {
    CHECK(cudaSetDevice(queue.device));
    if (cleared_pictures > 0) CHECK(cudaMemsetAsync(colour, 0, cleared_pictures, queue.stream));
    if (count == 0) return cudaSuccess;
    int64_t cleared = 0, bytes = 0;
    Segments segments = segments_in(segment_memory, count, instances, &cleared, &bytes);
    CHECK(plan_segments(queue.stream, segments, cleared, instances, tiles, count, starts));
    Given given = {start_transmittance, subtiles, reinterpret_cast<const float2*>(depth_range), background,
                   background_stride};
    Pictures pictures = {colour, transmittance, depth, stopped, last, stop_depth};
    auto kernel = depth_range != nullptr ? composite<true> : composite<false>;
    kernel<<<static_cast<unsigned>(most_segments(count, instances)), TILE_THREADS, 0, queue.stream>>>(
        *view, segments, splat, reinterpret_cast<const float4*>(records), given, pictures);
    return cudaGetLastError();
}
