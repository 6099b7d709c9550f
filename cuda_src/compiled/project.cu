// Gaussians to splats. Two passes: `cull` reads the 44 B of a Gaussian that decide whether it is seen and leaves one
// bit; once these are counted, `make_splats` reads the visible rows whole. Splats are in the order of rows.
#include <algorithm>

#include "bin.cuh"
#include "bounds.cuh"
#include "gaussian.cuh"
#include "groups.cuh"
#include "harmonics.cuh"
#include "sums.h"

// Certainly outside the image: a bound on the footprint's extent from the largest axis alone, with room for rounding.
__device__ bool far_outside(const View& view, float3 p, const float* log_scale, float opacity) {
    float s = expf(fmaxf(fmaxf(log_scale[0], log_scale[1]), log_scale[2]));
    float2 u = jacobian_direction(view, p);
    float a = view.fx / p.z * s, b = view.fy / p.z * s;
    float sigmas = view.square ? 9.f : fmaxf(2.f * logf(opacity / view.alpha_min), 0.f);
    float extent_x = sqrtf(sigmas * (a * a * (1.f + u.x * u.x) + view.dilation)) * 1.01f + 2.f;
    float extent_y = sqrtf(sigmas * (b * b * (1.f + u.y * u.y) + view.dilation)) * 1.01f + 2.f;
    if (view.square) extent_x = extent_y = fmaxf(extent_x, extent_y) * 1.42f;
    float x = view.fx * (p.x / p.z) + view.cx, y = view.fy * (p.y / p.z) + view.cy;
    return x + extent_x < 0.f || x - extent_x > view.width || y + extent_y < 0.f || y - extent_y > view.height;
}

enum Touch { NO_TILE, A_TILE, UNDECIDED };

// Share of sigma's positive terms by which rounding may make it too large: five operations of half an ulp each.
constexpr float SIGMA_ROUNDING = 1e-6f;

// Whether the footprint meets a tile, as one lane finds out by few tests. A wide span may have thousands of tiles, and
// none that is met, where a slanted ellipse passes the image; but then the image as a whole is not met, and if it is, it
// is so where sigma is least, and nearly always the tile around that point too.
__device__ Touch touches_a_tile(const View& view, const Footprint& f) {
    float x0 = 0.5f - f.x, y0 = 0.5f - f.y, x1 = view.width - 0.5f - f.x, y1 = view.height - 0.5f - f.y;
    Nearest nearest = {clamped(0.f, x0, x1), clamped(0.f, y0, y1), 0.f};
    if (!view.square) {
        nearest = nearest_in(f, x0, y0, x1, y1);
        float terms = f.a * nearest.dx * nearest.dx + f.c * nearest.dy * nearest.dy;
        if (nearest.sigma > f.reach + SIGMA_ROUNDING * terms) return NO_TILE;
    }
    TileLimits all = {nullptr, nullptr};
    int near_x = static_cast<int>(clamped(f.x + nearest.dx, 0.f, view.width - 1.f)) / TILE;
    int near_y = static_cast<int>(clamped(f.y + nearest.dy, 0.f, view.height - 1.f)) / TILE;
    if (meets_tile(view, f, all, 0.f, near_x, near_y)) return A_TILE;
    Span span = span_of(view, f);
    if (span.count() > OWN_SPAN) return UNDECIDED;
    for (int y = span.y0; y < span.y1; ++y) {
        for (int x = span.x0; x < span.x1; ++x) {
            if (meets_tile(view, f, all, 0.f, x, y)) return A_TILE;
        }
    }
    return NO_TILE;
}

// Whether this lane's footprint meets a tile: of each that is undecided the warp tests 32 tiles at a time.
__device__ bool touch_together(const View& view, const Footprint& f, bool undecided) {
    bool touches = false;
    for (unsigned left = __ballot_sync(ALL_LANES, undecided); left != 0u; left &= left - 1) {
        int from = __ffs(static_cast<int>(left)) - 1;
        auto of = [&](float value) { return __shfl_sync(ALL_LANES, value, from); };
        Footprint its = {of(f.x), of(f.y), of(f.a), of(f.b), of(f.c), of(f.reach), of(f.radius)};
        Span span = span_of(view, its);
        int columns = span.x1 - span.x0;
        bool any = false;
        for (int first = 0; first < span.count() && !any; first += WARP) {
            int i = first + lane_index();
            any = __any_sync(ALL_LANES, i < span.count() && meets_tile(view, its, {nullptr, nullptr}, 0.f,
                                                                       span.x0 + i % columns, span.y0 + i / columns));
        }
        if (lane_index() == from) touches = any;
    }
    return touches;
}

// gaussian: its first SH columns.
__device__ Touch look_at(const View& view, const float* gaussian, Footprint& f) {
    float3 p = to_view(view, from_camera(view, gaussian + MEAN));
    if (!(p.z >= view.near_plane && p.z <= view.far_plane)) return NO_TILE;
    float x = view.fx * (p.x / p.z) + view.cx, y = view.fy * (p.y / p.z) + view.cy;
    bool in_image = x >= 0.f && x <= view.width && y >= 0.f && y <= view.height;
    if (!in_image && far_outside(view, p, gaussian + LOG_SCALE, sigmoid(gaussian[OPACITY_LOGIT]))) return NO_TILE;
    float record[RECORD];
    if (!shape_record(view, gaussian, record)) return NO_TILE;
    f = footprint_of(view, record);
    return touches_a_tile(view, f);
}

// Which rows are visible, a group of 32 at a time, and memory to find that out.
struct Visible {
    unsigned* words;  // a bit a row
    int* counts;      // bits set of each word
    int64_t* ends;    // bits set up to and with each word
    int* groups;      // that have any, among others of -1
    int* listed;      // how many `groups` has
    int* candidates;  // [groups + 1], the last counts them; null without bounds
    Scratch scratch;
};

// Groups of rows that culling looks at: those in a list, in no order, or all of them where there are no bounds.
struct Candidates {
    const int* groups;  // null for all
    const int* count;
    __device__ int size(int64_t rows) const { return groups == nullptr ? static_cast<int>(groups_of(rows)) : *count; }
    __device__ int at(int k) const { return groups == nullptr ? k : groups[k]; }
};

// The groups that may be seen, and an empty word for each of the others; `cull` writes those of the candidates.
__global__ void __launch_bounds__(THREADS) choose_groups(ViewVolume volume, const float* bounds, int64_t count,
                                                         Visible visible, int* chosen) {
    int64_t group = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    bool has = group < groups_of(count), candidate = has && group_may_be_seen(volume, bound_at(bounds, group));
    if (has && !candidate) {
        visible.words[group] = 0u;
        visible.counts[group] = 0;
    }
    append(candidate, static_cast<int>(group), visible.candidates, chosen);
}

// What culling looks at, the first SH columns of a row, lies in at most LOOKED_PIECES pieces of 16 bytes, wherever in a
// piece the row begins. Four neighbouring lanes bring them, so that a copy of a warp touches 11 lines of 128 bytes;
// lanes that read their own rows would touch 32 with every column.
constexpr int LOOKED_PIECES = (SH + 2 * (PIECE - 1)) / PIECE;
constexpr int LOOKED_PITCH = LOOKED_PIECES * PIECE + PIECE;  // eight rows begin at eight different banks
constexpr int LOOKED_FLOATS = WARP * LOOKED_PITCH;
constexpr int LOOKS = 2;  // groups of a warp under way: one that is looked at, one that comes
// Blocks that a multiprocessor has at once, and in all: the second ones fill what the first ones leave.
constexpr int CULL_PLACES = 5, CULL_BLOCKS = 2 * CULL_PLACES;
static_assert(LOOKED_PIECES == 4 && WARP % LOOKED_PIECES == 0, "four lanes bring a row");

// Where in its first piece a row of a group begins.
__device__ int start_of(int row) { return row * PARAMETERS % PIECE; }

__device__ void fetch_looked(float* stage, const float* group, unsigned rows) {
    int piece = lane_index() % LOOKED_PIECES * PIECE;
#pragma unroll
    for (int row = lane_index() / LOOKED_PIECES; row < WARP; row += WARP / LOOKED_PIECES) {
        if ((rows >> row & 1u) && piece < start_of(row) + SH) {
            __pipeline_memcpy_async(stage + row * LOOKED_PITCH + piece,
                                    group + row * PARAMETERS - start_of(row) + piece, PIECE * sizeof(float));
        }
    }
}

// A warp looks at a group. groups: by candidate, the group if any of its rows is seen, else -1. status: cleared for
// make_splats.
__global__ void __launch_bounds__(THREADS, CULL_PLACES) cull(View view, const float* parameters, int64_t count,
                                                             Candidates candidates, Visible visible, int64_t* status) {
    __shared__ __align__(16) float stages[THREADS / WARP][LOOKS][LOOKED_FLOATS];
    int size = candidates.size(count), warps = gridDim.x * (THREADS / WARP);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *visible.listed = size;
        status[0] = status[1] = status[2] = 0;
    }
    int k = blockIdx.x * (THREADS / WARP) + warp_index();
    if (k >= size) return;
    float(&own_stages)[LOOKS][LOOKED_FLOATS] = stages[warp_index()];
    // The number of a group is read one group before its rows are.
    int group = candidates.at(k), next = k + warps < size ? candidates.at(k + warps) : -1;
    fetch_looked(own_stages[0], parameters + static_cast<int64_t>(group) * GROUP_FLOATS, rows_there(count, group));
    __pipeline_commit();
    for (int turn = 0; group >= 0; k += warps, turn ^= 1) {
        int after = k + 2 * warps < size ? candidates.at(k + 2 * warps) : -1;
        if (next >= 0) {
            fetch_looked(own_stages[turn ^ 1], parameters + static_cast<int64_t>(next) * GROUP_FLOATS,
                         rows_there(count, next));
        }
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncwarp();
        const float* own = own_stages[turn] + lane_index() * LOOKED_PITCH + start_of(lane_index());
        bool there = rows_there(count, group) >> lane_index() & 1u;
        Footprint f = {};
        Touch touch = there ? look_at(view, own, f) : NO_TILE;
        bool together = touch_together(view, f, touch == UNDECIDED);
        unsigned word = __ballot_sync(ALL_LANES, touch == A_TILE || together);
        if (lane_index() == 0) {
            visible.words[group] = word;
            visible.counts[group] = __popc(word);
            visible.groups[k] = word != 0u ? group : -1;
        }
        group = next;
        next = after;
    }
}

__device__ void colour_record(const View& view, const float* gaussian, int degree, float record[RECORD]) {
    float3 offset = from_camera(view, gaussian + MEAN);
    float basis[SH_COEFFICIENTS];
    harmonics(degree, (1.f / sqrtf(dot(offset, offset))) * offset, basis);
    for (int colour = 0; colour < 3; ++colour) {
        const float* c = gaussian + SH + colour;
        float value = 0.5f + basis[0] * c[0];
        if (degree >= 1) {
#pragma unroll
            for (int k = 1; k < 4; ++k) value += basis[k] * c[3 * k];
        }
        if (degree >= 2) {
#pragma unroll
            for (int k = 4; k < 9; ++k) value += basis[k] * c[3 * k];
        }
        if (degree >= 3) {
#pragma unroll
            for (int k = 9; k < SH_COEFFICIENTS; ++k) value += basis[k] * c[3 * k];
        }
        // Not fmaxf: it would hide not-a-number.
        record[RECORD_COLOUR + colour] = value < 0.f ? 0.f : value;
    }
}

// Where splats go: as many as there is room for. status[0]: how many there are; status[1]: how many of them are not
// finite after all, whose colour only this kernel sees; status[2]: of records that travel, tiles that they meet.
// overflow: set if there is no room for all; may be null.
struct Target {
    int64_t room;
    int64_t* rows;
    int64_t* ids;  // null if nobody wants them there
    float4* records;
    int64_t* status;
    int* overflow;
    int travels;  // records have their ids in them
};

__device__ void write_record(const float (&record)[RECORD], float id, float4* target) {
    static_assert(RECORD_STRIDE == 12 && RECORD == 11 && RECORD_ID == 11, "a record is three words of 16 bytes");
    target[0] = make_float4(record[0], record[1], record[2], record[3]);
    target[1] = make_float4(record[4], record[5], record[6], record[7]);
    target[2] = make_float4(record[8], record[9], record[10], id);
}

// A warp makes the splats of a group: a lane has a row. TRAVELS: as of Target.
template <bool TRAVELS>
__global__ void __launch_bounds__(STAGE_THREADS, 5) make_splats(View view, const float* parameters, const int64_t* ids,
                                                            int64_t count, int degree, Visible visible, Target target) {
    __shared__ __align__(16) float stages[STAGE_THREADS / WARP][GROUP_FLOATS];
    float* stage = stages[warp_index()];
    int64_t total = visible.ends[groups_of(count) - 1];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        target.status[0] = total;
        if (target.overflow != nullptr && total > target.room) *target.overflow = 1;
    }
    int listed = *visible.listed, warps = gridDim.x * (STAGE_THREADS / WARP), tiles = 0;
    // From the last group to the first: what culling read lately, and what binning reads first, is still in L2.
    for (int k = blockIdx.x * (STAGE_THREADS / WARP) + warp_index(); k < listed; k += warps) {
        int64_t group = visible.groups[listed - 1 - k], row = group * WARP + lane_index();
        if (group < 0) continue;
        unsigned word = visible.words[group];
        const float* source = parameters + group * GROUP_FLOATS;
        int floats = __popc(rows_there(count, group)) * PARAMETERS;
        fetch_pieces(stage, source, pieces_of(word, SH + 3 * (degree + 1) * (degree + 1), floats), floats);
        __pipeline_commit();
        bool seen = word >> lane_index() & 1u;
        int64_t splat = visible.ends[group] - __popc(word) + __popc(word & ((1u << lane_index()) - 1));
        bool writes = seen && splat < target.room;
        bool names = writes && target.ids != nullptr;
        int64_t id = names || (TRAVELS && writes) ? ids[row] : 0;
        __pipeline_wait_prior(0);
        __syncwarp();
        float record[RECORD] = {};
        bool drawn = false;
        if (writes) {
            const float* own = stage + lane_index() * PARAMETERS;
            drawn = shape_record(view, own, record);
            colour_record(view, own, degree, record);
            for (int i = 0; i < 3; ++i) drawn = drawn && finite(record[RECORD_COLOUR + i]);
            if (!drawn) {
                atomicAdd(reinterpret_cast<unsigned long long*>(target.status + 1), 1ull);
                record[RECORD_DEPTH] = nanf("");
            }
            target.rows[splat] = row;
            if (names) target.ids[splat] = id;
            float word = TRAVELS ? __int_as_float(static_cast<int>(id)) : 0.f;
            write_record(record, word, target.records + splat * (RECORD_STRIDE / 4));
        }
        if (TRAVELS) {
            for_each_tile(Listing(view), footprint_of(view, record), 0.f, drawn, [&](int, int) { ++tiles; });
        }
        __syncwarp();
    }
    if (!TRAVELS) return;
    tiles = __reduce_add_sync(ALL_LANES, tiles);
    if (lane_index() == 0 && tiles > 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(target.status + 2), static_cast<unsigned long long>(tiles));
    }
}

// The splats of the rows that are known to be visible. target->status: zeros before.
static cudaError_t make(Queue queue, const View* view, const float* parameters, const int64_t* ids, int64_t count,
                        int degree, const Visible* visible, const Target* target) {
    int blocks = blocks_for(count, STAGE_THREADS);
    auto kernel = target->travels ? make_splats<true> : make_splats<false>;
    kernel<<<blocks, STAGE_THREADS, 0, queue.stream>>>(*view, parameters, ids, count, degree, *visible, *target);
    return cudaGetLastError();
}

// Which Gaussians are visible, and their splats. volume and bounds: null to look at every row.
EXPORT int project_gaussians(Queue queue, const View* view, const ViewVolume* volume, const float* bounds,
                             const float* parameters, const int64_t* ids, int64_t count, int degree,
                             const Visible* visible, const Target* target) {
    CHECK(cudaSetDevice(queue.device));
    int64_t all = groups_of(count);
    Candidates looked_at = {nullptr, nullptr};
    if (bounds != nullptr) {
        int* chosen = visible->candidates + all;
        CHECK(cudaMemsetAsync(chosen, 0, sizeof(int), queue.stream));
        choose_groups<<<static_cast<unsigned>((all + THREADS - 1) / THREADS), THREADS, 0, queue.stream>>>(
            *volume, bounds, count, *visible, chosen);
        CHECK(cudaGetLastError());
        looked_at = {visible->candidates, chosen};
    }
    int blocks = std::min(blocks_for(all, THREADS / WARP), CULL_BLOCKS * MULTIPROCESSORS);
    cull<<<blocks, THREADS, 0, queue.stream>>>(*view, parameters, count, looked_at, *visible, target->status);
    CHECK(cudaGetLastError());
    CHECK(prefix_sums(queue.stream, visible->scratch, visible->counts, visible->ends, all));
    return make(queue, view, parameters, ids, count, degree, visible, target);
}

// Again the splats of the rows that project_gaussians found, now that there is room for them.
EXPORT int project_visible(Queue queue, const View* view, const float* parameters, const int64_t* ids, int64_t count,
                           int degree, const Visible* visible, const Target* target) {
    CHECK(cudaSetDevice(queue.device));
    CHECK(cudaMemsetAsync(target->status, 0, 3 * sizeof(int64_t), queue.stream));
    return make(queue, view, parameters, ids, count, degree, visible, target);
}
