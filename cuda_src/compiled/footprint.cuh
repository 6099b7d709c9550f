// Does a splat's footprint meet a tile? The level set alpha = alpha_min against the tile's pixel centres.
//
// What is counted in one kernel is listed in another, so that both must decide alike to the last bit: every operation
// here is rounded by itself (the compiler may not fuse it), whatever code surrounds it. Functions of one instruction do
// where their error does not count: along an edge sigma is flat at its least value, and extents are bounds with room.
// Tests of tiles against the ellipse itself: Radl et al. 2024 (StopThePop), Feng et al. 2024 (FlashGS); an extent that goes
// by opacity: Hanson et al. 2025 (Speedy-Splat).
#pragma once

#include "approximate.cuh"
#include "config.h"

struct Footprint {
    float x, y;         // mean, pixels
    float a, b, c;      // conic
    float reach;        // largest sigma at which alpha >= alpha_min
    float radius;
};

struct Span {
    int x0, x1, y0, y1;  // tiles [x0, x1) x [y0, y1)
    __device__ int count() const { return (x1 - x0) * (y1 - y0); }
};

__device__ inline Footprint footprint_of(const View& view, const float* record) {
    return {record[RECORD_MEAN2D],
            record[RECORD_MEAN2D + 1],
            record[RECORD_CONIC],
            record[RECORD_CONIC + 1],
            record[RECORD_CONIC + 2],
            logf(__fdiv_rn(record[RECORD_OPACITY], view.alpha_min)),
            record[RECORD_RADIUS]};
}

__device__ inline float sigma_exact(const Footprint& f, float dx, float dy) {
    float squares = __fadd_rn(__fmul_rn(__fmul_rn(f.a, dx), dx), __fmul_rn(__fmul_rn(f.c, dy), dy));
    return __fadd_rn(__fmul_rn(0.5f, squares), __fmul_rn(__fmul_rn(f.b, dx), dy));
}

// Where in a rectangle sigma is least, from the mean, and how large it is there.
struct Nearest {
    float dx, dy, sigma;
};

// Of a rectangle whose borders are given from the mean.
//
// Sigma is convex and smallest at the mean, so from outside the minimum lies on an edge that faces the mean: one edge
// or two, along each of which sigma is a parabola.
__device__ inline Nearest nearest_in(const Footprint& f, float x0, float y0, float x1, float y1) {
    float dx = x0 > 0.f ? x0 : (x1 < 0.f ? x1 : 0.f);
    float dy = y0 > 0.f ? y0 : (y1 < 0.f ? y1 : 0.f);
    Nearest found = {dx, dy, dx == 0.f && dy == 0.f ? 0.f : 3.402823466e38f};
    if (dx != 0.f) {
        float best = __fmul_rn(__fmul_rn(-f.b, dx), inverse_fast(f.c));
        found.dy = fminf(fmaxf(best, y0), y1);
        found.sigma = sigma_exact(f, dx, found.dy);
    }
    if (dy != 0.f) {
        float best = __fmul_rn(__fmul_rn(-f.b, dy), inverse_fast(f.a));
        float along = fminf(fmaxf(best, x0), x1), sigma = sigma_exact(f, along, dy);
        found.sigma = fminf(found.sigma, sigma);
        if (found.sigma == sigma) found.dx = along, found.dy = dy;
    }
    return found;
}

// The footprint, ellipse or square, meets the rectangle of pixel centres.
__device__ inline bool meets(const Footprint& f, bool square, float x0, float y0, float x1, float y1) {
    x0 = __fsub_rn(x0, f.x), x1 = __fsub_rn(x1, f.x), y0 = __fsub_rn(y0, f.y), y1 = __fsub_rn(y1, f.y);
    if (square) return x0 <= f.radius && x1 >= -f.radius && y0 <= f.radius && y1 >= -f.radius;
    return nearest_in(f, x0, y0, x1, y1).sigma <= f.reach;
}

// Half the extent of sigma <= reach along one axis, pixels, not less: bounds what is then tested exactly.
//
// across: the conic's diagonal entry of the other axis. The determinant of a needle's conic cancels, so it counts at
// the lower end of its rounding error; radius (3 sigma of the longer axis) bounds what is left.
__device__ inline float half_extent(const Footprint& f, float across) {
    float twice = __fmul_rn(2.f, fmaxf(f.reach, 0.f)), third = __fmul_rn(f.radius, 1.f / 3.f);
    float square = __fmul_rn(__fmul_rn(third, third), twice);
    float determinant = __fsub_rn(__fmul_rn(__fmul_rn(f.a, f.c), 1.f - 1e-6f), __fmul_rn(f.b, f.b));
    if (determinant > 0.f) square = fminf(square, __fmul_rn(__fmul_rn(twice, across), inverse_fast(determinant)));
    return __fmul_rn(root_fast(square), 1.001f);
}

__device__ inline int2 tile_span(float centre, float extent, int tiles) {
    float last = static_cast<float>(tiles);
    float lo = fminf(fmaxf(__fmul_rn(__fsub_rn(centre, extent), 1.f / TILE), 0.f), last);
    float hi = fminf(fmaxf(__fadd_rn(__fmul_rn(__fadd_rn(centre, extent), 1.f / TILE), 1.f), 0.f), last);
    return make_int2(static_cast<int>(lo), static_cast<int>(hi));
}

// Tiles outside which the footprint meets nothing.
__device__ inline Span span_of(const View& view, const Footprint& f) {
    float extent_x = view.square ? f.radius : half_extent(f, f.c);
    float extent_y = view.square ? f.radius : half_extent(f, f.a);
    int2 x = tile_span(f.x, extent_x, view.tiles_x), y = tile_span(f.y, extent_y, view.tiles_y);
    return {x.x, max(x.y, x.x), y.x, max(y.y, y.x)};
}

// Which sub-tiles of which tiles are rendered, and how deep: [tiles of the image] each, or null for no limit.
struct TileLimits {
    const uint8_t* subtiles;
    const float* depth;
};

// The footprint meets the tile: its whole rectangle where all sub-tiles are rendered, else one of those that are.
__device__ inline bool meets_tile(const View& view, const Footprint& f, const TileLimits& limits, float depth, int x,
                                  int y) {
    int tile = y * view.tiles_x + x;
    if (limits.depth != nullptr && depth > limits.depth[tile]) return false;
    float left = x * TILE + 0.5f, top = y * TILE + 0.5f;
    float right = min(x * TILE + TILE, view.width) - 0.5f, bottom = min(y * TILE + TILE, view.height) - 0.5f;
    unsigned mask = limits.subtiles == nullptr ? 255u : limits.subtiles[tile];
    if (mask == 255u) return meets(f, view.square, left, top, right, bottom);
    if (!meets(f, view.square, left, top, right, bottom)) return false;
    for (int s = 0; s < 8; ++s) {
        float x0 = left + (s & 1) * SUBTILE_WIDTH, y0 = top + (s >> 1) * SUBTILE_HEIGHT;
        float x1 = fminf(x0 + (SUBTILE_WIDTH - 1), right), y1 = fminf(y0 + (SUBTILE_HEIGHT - 1), bottom);
        if ((mask >> s & 1u) && x0 <= x1 && y0 <= y1 && meets(f, view.square, x0, y0, x1, y1)) return true;
    }
    return false;
}
