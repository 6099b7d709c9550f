// Alpha compositing of the listed tiles, front to back (Kerbl et al. 2023, eq. 3 and appendix C).
#include "compositing.cuh"

// What is left at each pixel; see cuda_src.operators.Raster. Only pixels of listed tiles are written.
struct Pictures {
    float* colour;
    float* transmittance;
    float* depth;
    uint8_t* stopped;
    int* last;
    float* stop_depth;
};

__global__ void __launch_bounds__(TILE_THREADS, 5) composite(View view, TileLists lists, const float* start,
                                                          const uint8_t* subtiles, const float2* ranges, Pictures out) {
    __shared__ Batch batch;
    int tile = lists.tiles[blockIdx.x];
    Pixel pixel = pixel_of(view, tile);
    const int* splats = lists.splat + lists.starts[blockIdx.x];
    int length = static_cast<int>(lists.starts[blockIdx.x + 1] - lists.starts[blockIdx.x]);

    float transmittance = start != nullptr && pixel.inside ? start[pixel.index(view)] : 1.f;
    float2 range = depth_range_at(view, ranges, pixel);
    float red = 0.f, green = 0.f, blue = 0.f, depth = 0.f, stop_depth = INFINITY;
    int last = 0;
    bool rendered = subtiles == nullptr || (subtiles[tile] >> warp_index() & 1);
    bool done = !pixel.inside || !rendered;

    for (int offset = 0; offset < length; offset += TILE_THREADS) {
        if (__syncthreads_and(done)) break;
        int size = min(length - offset, TILE_THREADS);
        load_batch(batch, view, lists.records, tile, splats + offset, size);
        for (int group = 0; group < size && !__all_sync(ALL_LANES, done); group += WARP) {
            unsigned entries = reaching(batch, group, size);
            while (entries) {
                int entry = group + __ffs(entries) - 1;
                entries &= entries - 1;
                float4 shape = batch.records[entry * 3], rest = batch.records[entry * 3 + 1];
                float2 tail = *reinterpret_cast<const float2*>(&batch.records[entry * 3 + 2]);
                Density d = density_at(view, pixel, shape, rest);
                bool seen = !done && d.sigma >= 0.f && d.alpha >= view.alpha_min && range.x <= tail.y && tail.y < range.y;
                if (!seen) continue;
                float after = transmittance * (1.f - d.alpha);
                if (after < view.stop) {
                    done = true;
                    stop_depth = tail.y;
                    continue;
                }
                float weight = transmittance * d.alpha;
                red += weight * rest.z;
                green += weight * rest.w;
                blue += weight * tail.x;
                depth += weight * tail.y;
                transmittance = after;
                last = offset + entry + 1;
            }
        }
    }
    if (!pixel.inside) return;
    int64_t at = pixel.index(view);
    out.colour[3 * at] = red;
    out.colour[3 * at + 1] = green;
    out.colour[3 * at + 2] = blue;
    out.transmittance[at] = transmittance;
    out.depth[at] = depth;
    out.stopped[at] = stop_depth < INFINITY;
    out.last[at] = last;
    out.stop_depth[at] = stop_depth;
}

EXPORT int raster_forward(Queue queue, const View* view, const int* tiles, int64_t count, const int64_t* starts,
                          const int* splat, const float* records, const float* start_transmittance,
                          const uint8_t* subtiles, const float* depth_range, float* colour, float* transmittance,
                          float* depth, uint8_t* stopped, int* last, float* stop_depth) {
    CHECK(cudaSetDevice(queue.device));
    if (count == 0) return cudaSuccess;
    composite<<<static_cast<unsigned>(count), TILE_THREADS, 0, queue.stream>>>(
        *view, {tiles, starts, splat, records}, start_transmittance, subtiles,
        reinterpret_cast<const float2*>(depth_range), {colour, transmittance, depth, stopped, last, stop_depth});
    return cudaGetLastError();
}
