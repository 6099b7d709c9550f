// From the gradients of a step's splats to moved Gaussians in one pass: a warp has a group of 32 rows with both moments
// in shared memory, sums the gradient of each row over the views that see it in registers, and Adam follows at once, so
// that no gradient of parameters is ever written. Only visible rows move: Mallick et al. 2024 (Taming 3DGS); an optimizer
// within the backward pass: Hahlbohm et al. 2026 (Faster-GS).
#include <algorithm>
#include <type_traits>

#include "adam.cuh"
#include "bounds.cuh"
#include "differentiate.cuh"
#include "exchange.cuh"
#include "groups.cuh"

// One view of the step. overflow: nothing moves while it is set; null where nothing can set it. places: of splats whose
// gradient is a row of `kept`; NOWHERE: it is zero; ELSEWHERE: it is in `seen`. Null where each splat's is its own row of
// `kept` or, without these, of `seen`. zeros: rows of `kept` that are zero are counted. returned: in place of the
// gradients in `seen`, rows as they travel between ranks, of SENT_GRADIENTS; null: there are none. waits: all wait for
// PART_REST.
struct Sight {
    View view;
    Seen seen;
    const int* overflow;
    const int* places;
    const float4* kept;
    unsigned long long* zeros;
    const float* returned;
    int waits;

    __device__ int place_of(int splat) const {
        return places != nullptr ? __ldg(places + splat) : kept != nullptr ? splat : ELSEWHERE;
    }
};

// A group's splats in one view: bits of its rows, and the splat of the lowest.
struct GroupSplats {
    int first;
    unsigned rows;
};

enum Moves { MOVE_VISIBLE, MOVE_TOUCHED, MOVE_DENSE };
// Of the groups: all, those whose splats went to no other rank, those that have one that did.
enum Part { PART_ALL, PART_OWN, PART_REST };

// Learning rates as an argument of a kernel: no copy to the device, and no memory of the host that must outlive the call.
struct Rates {
    float values[PARAMETERS];
};

// What is the same for all rows of the step.
struct Step {
    Tables tables;
    float* rates;  // [PARAMETERS], from list_groups on
    int64_t rows;  // of the tables
    int views, degree;
    int moves;    // one of Moves
    int part;     // one of Part; for find_moving PART_ALL or any other
    int average;  // number of views that every row averages over; 0: those that see it
    float scale;  // of the averaged gradient
    Rule rule;
    float* bounds;        // of groups, widened by what moves; null where there are none
    Sight* sights;        // [views], from find_groups on
    GroupSplats* splats;  // [views, groups], then Lists, then whether each group waits
    int* groups;          // [2, groups]: those that move, or two lists of them, of which the second is PART_REST

    // Of both lists: how many groups they have, and how many of those were taken from them.
    struct Lists {
        int listed[2], taken[2];
    };
    __host__ __device__ Lists* lists() const { return reinterpret_cast<Lists*>(splats + views * groups_of(rows)); }
    __device__ int* list(bool rest) const { return groups + (rest ? groups_of(rows) : 0); }
    __host__ __device__ uint8_t* waits() const { return reinterpret_cast<uint8_t*>(lists() + 1); }
    int64_t bytes() const { return waits() + groups_of(rows) - reinterpret_cast<uint8_t*>(splats); }
};

// Two blocks a multiprocessor of five warps, or of four where several views need registers for 59 sums: 8 to 10 times
// 22 KB of rows under way, where 32 KB hide the latency of memory at full bandwidth. They stay until all rows are moved,
// so that kernels by which ranks signal one another meanwhile need registers beside them: test_compiled_build.py.
constexpr int MOVE_BLOCKS = 2;
constexpr int move_warps(bool one) { return one ? 5 : 4; }
constexpr int STAGED_FLOATS = 3 * GROUP_FLOATS;
constexpr int RATE_FLOATS = 64;  // PARAMETERS, and each warp's next group
static_assert(PARAMETERS + move_warps(true) <= RATE_FLOATS && RATE_FLOATS % PIECE == 0, "stages are at 16 bytes");
constexpr int move_bytes(int warps) { return (RATE_FLOATS + warps * STAGED_FLOATS) * static_cast<int>(sizeof(float)); }
// Columns of a row that Adam has in registers at once: 24 loads from shared memory before the first use.
constexpr int COLUMNS_AT_ONCE = 8;

// Where each group's splats of one view are among all of them; the groups it does not see keep their zeros.
__global__ void __launch_bounds__(THREADS) find_groups(Sight sight, int number, Step step) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i == 0) step.sights[number] = sight;
    const int64_t* rows = sight.seen.rows;
    bool has = i < sight.seen.in_use();
    unsigned having = __ballot_sync(ALL_LANES, has);
    if (!has) return;
    int group = static_cast<int>(rows[i] / WARP);
    GroupSplats* own = step.splats + number * groups_of(step.rows) + group;
    // The splats of a group are neighbours: most of a warp's lanes have the same one or two.
    unsigned peers = __match_any_sync(having, group), bits = __reduce_or_sync(peers, 1u << (rows[i] % WARP));
    if (lane_index() == __ffs(peers) - 1) atomicOr(&own->rows, bits);
    if (sight.places != nullptr ? sight.places[i] == ELSEWHERE : sight.waits) step.waits()[group] = 1;
    if (i == 0 || rows[i - 1] / WARP != group) own->first = static_cast<int>(i);
}

// The groups to move, in one list or in two: none while any overflow is set. And the rates, where move_groups finds them.
__global__ void __launch_bounds__(THREADS) list_groups(Step step, Rates rates) {
    if (blockIdx.x == 0 && threadIdx.x < PARAMETERS) step.rates[threadIdx.x] = rates.values[threadIdx.x];
    int64_t group = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, groups = groups_of(step.rows);
    bool stopped = false, moves = group < groups && step.moves == MOVE_DENSE;
    for (int v = 0; v < step.views; ++v) {
        const int* overflow = step.sights[v].overflow;
        stopped = stopped || (overflow != nullptr && *overflow != 0);
        if (group < groups) moves = moves || step.splats[v * groups + group].rows != 0u;
    }
    moves = moves && !stopped;
    bool waits = moves && step.part != PART_ALL && step.waits()[group] != 0;
    append(moves && !waits, static_cast<int>(group), step.list(false), step.lists()->listed);
    if (step.part == PART_ALL) return;
    __syncthreads();
    append(waits, static_cast<int>(group), step.list(true), step.lists()->listed + 1);
}

// Sums over views of a row's gradient.
struct SummedGradient {
    float sums[PARAMETERS] = {};
    __device__ float at(int column) const { return sums[column]; }
    __device__ void add(const RowGradient& of_view) {
#pragma unroll
        for (int column = 0; column < PARAMETERS; ++column) sums[column] += of_view.at(column);
    }
};

template <typename Gradient>
__device__ bool is_zero(const Gradient& gradient) {
    bool zero = true;
#pragma unroll
    for (int column = 0; column < PARAMETERS; ++column) zero = zero && gradient.at(column) == 0.f;
    return zero;
}

// own: the row's parameters in the stage, with its moments GROUP_FLOATS behind one another.
template <typename Gradient>
__device__ void move_row(const RowRule& rule, const float* rates, const Gradient& gradient, float* own) {
#pragma unroll
    for (int first = 0; first < PARAMETERS; first += COLUMNS_AT_ONCE) {
        Moving moving[COLUMNS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < COLUMNS_AT_ONCE; ++i) {
            int column = first + i;
            if (column < PARAMETERS) moving[i] = {own[column], own[column + GROUP_FLOATS], own[column + 2 * GROUP_FLOATS]};
        }
#pragma unroll
        for (int i = 0; i < COLUMNS_AT_ONCE; ++i) {
            int column = first + i;
            if (column < PARAMETERS) adam(rule, rates[column], gradient.at(column), moving[i]);
        }
#pragma unroll
        for (int i = 0; i < COLUMNS_AT_ONCE; ++i) {
            int column = first + i;
            if (column >= PARAMETERS) continue;
            own[column] = moving[i].parameter;
            own[column + GROUP_FLOATS] = moving[i].moment1;
            own[column + 2 * GROUP_FLOATS] = moving[i].moment2;
        }
    }
}

// Which splat of a view is a lane's, if its row has one, and where its gradient is.
struct SplatPlace {
    int splat = 0, place = NOWHERE;
    bool has = false;
    SplatPlace() = default;
    __device__ SplatPlace(const Sight& sight, GroupSplats splats) {
        unsigned bit = 1u << lane_index();
        has = splats.rows & bit;
        splat = splats.first + __popc(splats.rows & (bit - 1));
        if (has) place = sight.place_of(splat);
    }
};

// That splat. kept: its gradient is one that the rank kept.
struct OwnSplat {
    bool there, kept;
    Words record, gradient;
    __device__ OwnSplat(const Sight& sight, SplatPlace at)
        : there(at.has),
          kept(at.place >= 0),
          record(sight.seen.records, at.splat, at.has),
          gradient(kept ? sight.kept : sight.seen.gradients, kept ? at.place : at.splat,
                   kept || (at.place == ELSEWHERE && sight.seen.gradients != nullptr)) {
        if (sight.seen.gradients == nullptr && at.place == ELSEWHERE) {
            const float* row = sight.returned + static_cast<int64_t>(at.splat) * SENT_GRADIENTS;
#pragma unroll
            for (int i = 0; i < SENT_GRADIENTS; ++i) gradient.values[i] = __ldg(row + i);
        }
        // What is not drawn, since its colour is not finite, never moves.
        there = there && !isnan(record.values[RECORD_DEPTH]);
    }
    __device__ bool kept_zero() const {
        bool zero = kept;
#pragma unroll
        for (int i = 0; i < RECORD_STRIDE; ++i) zero = zero && gradient.values[i] == 0.f;
        return zero;
    }
    __device__ RowGradient differentiated(const View& view, int degree, const float* own) const {
        return differentiate(view, degree, record.values, gradient.values, own);
    }
};

// Sights as an argument of a kernel: of few views in the constant bank, where what is the same for all lanes takes no
// registers, or in memory.
constexpr int FEW_VIEWS = 8;
template <int VIEWS>
struct GivenSights {
    Sight of[VIEWS];
    __device__ const Sight& operator[](int v) const { return of[v]; }
};
struct KeptSights {
    const Sight* of;
    __device__ const Sight& operator[](int v) const { return of[v]; }
};
static_assert(sizeof(GivenSights<FEW_VIEWS>) + sizeof(Step) <= 4096, "arguments of a kernel");
template <bool ONE, bool FEW>
using Sights = std::conditional_t<ONE, GivenSights<1>, std::conditional_t<FEW, GivenSights<FEW_VIEWS>, KeptSights>>;

// ONE: the step has one view; FEW: it has few.
template <bool ONE, bool FEW>
__global__ void __launch_bounds__(move_warps(ONE) * WARP, MOVE_BLOCKS)
    move_groups(const __grid_constant__ Sights<ONE, FEW> sights, Step step) {
    extern __shared__ __align__(16) float shared[];
    float* rates = shared;
    float* stage = shared + RATE_FLOATS + warp_index() * STAGED_FLOATS;
    float* own = stage + lane_index() * PARAMETERS;
    for (int i = threadIdx.x; i < PARAMETERS; i += blockDim.x) rates[i] = step.rates[i];
    __syncthreads();
    bool dense = step.moves == MOVE_DENSE, touched_only = step.moves == MOVE_TOUCHED;
    int64_t groups = groups_of(step.rows);
    bool rest = step.part == PART_REST;
    const int* list = step.list(rest);
    const Step::Lists& lists = *step.lists();
    int zeros = 0, first = blockIdx.x * (blockDim.x / WARP) + warp_index();
    // After its first a warp takes whichever group is next: a block that found no room on its multiprocessor, beside a
    // kernel that waits for another rank, would else begin its share when all others are through with theirs.
    volatile int& next = reinterpret_cast<int*>(shared)[PARAMETERS + warp_index()];
    for (int number = first < lists.listed[rest] ? list[first] : -1; number >= 0; number = next) {
        int taken = lane_index() == 0 ? atomicAdd(step.lists()->taken + rest, 1) : 0;
        int64_t group = number, at = group * GROUP_FLOATS;
        const GroupSplats* splats = step.splats + group;
        unsigned there = rows_there(step.rows, group), wanted = dense ? there : 0u;
        for (int v = 0; v < (ONE ? 1 : step.views); ++v) wanted |= splats[v * groups].rows;
        auto place_in = [&](int v) {
            return v < step.views ? SplatPlace(sights[v], splats[v * groups]) : SplatPlace();
        };
        // On the way before what is waited for: where a gradient is has to be known before it is asked for.
        SplatPlace place = place_in(0);
        int floats = __popc(there) * PARAMETERS;
        unsigned pieces = pieces_of(wanted, PARAMETERS, floats);
        auto fetch_moments = [&] {
            fetch_pieces(stage + GROUP_FLOATS, step.tables.moment1 + at, pieces, floats);
            fetch_pieces(stage + 2 * GROUP_FLOATS, step.tables.moment2 + at, pieces, floats);
        };
        fetch_pieces(stage, step.tables.parameters + at, pieces, floats);
        __pipeline_commit();
        if (!touched_only) fetch_moments();
        if (lane_index() == 0) {
            int k = gridDim.x * (blockDim.x / WARP) + taken;
            if (k < lists.listed[rest]) {
                __pipeline_memcpy_async(const_cast<int*>(&next), list + k, sizeof(int));
            } else {
                next = -1;
            }
        }
        __pipeline_commit();
        auto await_parameters = [] {
            __pipeline_wait_prior(1);
            __syncwarp();
        };

        std::conditional_t<ONE, RowGradient, SummedGradient> gradient;
        int views = 0;
        if constexpr (ONE) {
            OwnSplat splat(sights[0], place);
            zeros += splat.kept_zero();
            await_parameters();
            if (splat.there) {
                views = 1;
                gradient = splat.differentiated(sights[0].view, step.degree, own);
            }
        } else {
            await_parameters();
            for (int v = 0; v < step.views; ++v) {
                OwnSplat splat(sights[v], place);
                place = place_in(v + 1);
                zeros += splat.kept_zero();
                if (splat.there) {
                    ++views;
                    gradient.add(splat.differentiated(sights[v].view, step.degree, own));
                }
            }
        }

        bool moves = dense ? there >> lane_index() & 1u : views > 0 && !(touched_only && is_zero(gradient));
        unsigned moved = __ballot_sync(ALL_LANES, moves);
        if (moved != wanted) pieces = pieces_of(moved, PARAMETERS, floats);
        if (touched_only) {
            fetch_moments();
            __pipeline_commit();
        }
        __pipeline_wait_prior(0);
        __syncwarp();
        if (moves) {
            RowRule rule = rule_of(step.rule, step.average > 0 ? step.average : views);
            rule.share *= step.scale;
            move_row(rule, rates, gradient, own);
            if (step.bounds != nullptr) {
                const View& any = sights[0].view;  // Convention and footprint are those of every view.
                widen_group(step.bounds, group * WARP + lane_index(), make_float3(own[MEAN], own[MEAN + 1], own[MEAN + 2]),
                            extent_of(own + LOG_SCALE, own[OPACITY_LOGIT], any.alpha_min, any.square));
            }
        }
        __syncwarp();
        store_pieces(step.tables.parameters + at, stage, pieces, floats);
        store_pieces(step.tables.moment1 + at, stage + GROUP_FLOATS, pieces, floats);
        store_pieces(step.tables.moment2 + at, stage + 2 * GROUP_FLOATS, pieces, floats);
        __syncwarp();
    }
    zeros = __reduce_add_sync(ALL_LANES, zeros);
    if (lane_index() == 0 && zeros > 0) atomicAdd(sights[0].zeros, static_cast<unsigned long long>(zeros));
}

template <bool ONE, bool FEW>
static cudaError_t launch(Queue queue, const Sights<ONE, FEW>& sights, const Step& step) {
    int multiprocessors, room;
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, queue.device));
    CHECK(cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, queue.device));
    int floats = room / static_cast<int>(sizeof(float));
    int warps = std::min(move_warps(ONE), (floats - RATE_FLOATS) / STAGED_FLOATS);
    int bytes = move_bytes(warps);
    CHECK(cudaFuncSetAttribute(move_groups<ONE, FEW>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    int64_t blocks = std::min<int64_t>((groups_of(step.rows) + warps - 1) / warps, multiprocessors * MOVE_BLOCKS);
    move_groups<ONE, FEW><<<static_cast<unsigned>(blocks), warps * WARP, bytes, queue.stream>>>(sights, step);
    return cudaGetLastError();
}

DYNAMIC_SHARED(move_groups_true, move_bytes(move_warps(true)), MOVE_BLOCKS)
DYNAMIC_SHARED(move_groups_false, move_bytes(move_warps(false)), MOVE_BLOCKS)

// Which groups move. sights: [step->views] of the host.
EXPORT int find_moving(Queue queue, const Sight* sights, const Step* step, const Rates* rates) {
    CHECK(cudaSetDevice(queue.device));
    int64_t groups = groups_of(step->rows);
    CHECK(cudaMemsetAsync(step->splats, 0, step->bytes(), queue.stream));
    for (int v = 0; v < step->views; ++v) {
        int64_t blocks = std::max<int64_t>((sights[v].seen.count + THREADS - 1) / THREADS, 1);
        find_groups<<<static_cast<unsigned>(blocks), THREADS, 0, queue.stream>>>(sights[v], v, *step);
        CHECK(cudaGetLastError());
    }
    list_groups<<<static_cast<unsigned>((groups + THREADS - 1) / THREADS), THREADS, 0, queue.stream>>>(*step, *rates);
    return cudaGetLastError();
}

// Move those of the step's part that find_moving has found.
EXPORT int move_found(Queue queue, const Sight* sights, const Step* step) {
    CHECK(cudaSetDevice(queue.device));
    if (step->views == 1) return launch<true, true>(queue, {sights[0]}, *step);
    if (step->views > FEW_VIEWS) return launch<false, false>(queue, {step->sights}, *step);
    GivenSights<FEW_VIEWS> few = {};
    std::copy(sights, sights + step->views, few.of);
    return launch<false, true>(queue, few, *step);
}

EXPORT int project_backward_adam(Queue queue, const Sight* sights, const Step* step, const Rates* rates) {
    int failed = find_moving(queue, sights, step, rates);
    return failed ? failed : move_found(queue, sights, step);
}
