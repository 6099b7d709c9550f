// The gradient of a splat's record by its Gaussian's parameters: a lane a splat, rows staged through shared memory. It
// is either written, or given at once to Adam: then the 59 floats never leave the chip.
#include "adam.cuh"
#include "gaussian.cuh"
#include "harmonics.cuh"
#include "rows.cuh"

// Replaces the Gaussian's parameters, in shared memory, by their gradient. record: the splat's; g: the gradient by it.
__device__ void differentiate(const View& view, int degree, const float* record, const float* g, float* own) {
    float3 offset = from_camera(view, own + MEAN);
    float3 p = to_view(view, offset);

    // Shape: conic -> image rows -> axes -> quaternion and scales, and the mean through the Jacobian.
    float inverse;
    float4 unit = unit_quaternion(own + QUATERNION, inverse);
    Matrix rotation = rotation_of(unit);
    float3 scale = make_float3(expf(own[LOG_SCALE]), expf(own[LOG_SCALE + 1]), expf(own[LOG_SCALE + 2]));
    Matrix axes = view_axes(view, rotation, scale);
    ImageRows rows = image_rows(view, p, axes);
    ImageRows by_rows = conic_gradient(view, rows, g + RECORD_CONIC);
    Matrix by_axes;
    float3 by_view = image_rows_gradient(view, p, axes, rows, by_rows, by_axes);
    float3 by_scale;
    float4 by_unit = axes_gradient(view, unit, rotation, scale, by_axes, by_scale);
    float4 by_quaternion = normalised_gradient(unit, inverse, by_unit);

    // Place.
    float gx = g[RECORD_MEAN2D] * view.fx, gy = g[RECORD_MEAN2D + 1] * view.fy;
    by_view.x += gx / p.z;
    by_view.y += gy / p.z;
    by_view.z += g[RECORD_DEPTH] - (gx * (p.x / p.z) + gy * (p.y / p.z)) / p.z;
    float3 by_mean = to_world(view, by_view);

    // Colour: no gradient where it is clamped, which a record shows as exactly zero.
    float by_colour[3];
    for (int i = 0; i < 3; ++i) by_colour[i] = record[RECORD_COLOUR + i] > 0.f ? g[RECORD_COLOUR + i] : 0.f;
    float shorter = 1.f / sqrtf(dot(offset, offset));
    float3 direction = shorter * offset;
    float basis[SH_COEFFICIENTS] = {}, weights[SH_COEFFICIENTS] = {};
    harmonics(degree, direction, basis);
    int used = (degree + 1) * (degree + 1);
#pragma unroll
    for (int k = 0; k < SH_COEFFICIENTS; ++k) {
        float* c = own + SH + 3 * k;
        // Coefficients beyond the degree were not fetched.
        if (k < used) weights[k] = by_colour[0] * c[0] + by_colour[1] * c[1] + by_colour[2] * c[2];
        for (int i = 0; i < 3; ++i) c[i] = finite_or_zero(by_colour[i] * basis[k]);
    }
    float3 by_direction = harmonics_gradient(degree, direction, weights);
    by_mean = by_mean + shorter * (by_direction - dot(by_direction, direction) * direction);

    own[MEAN] = finite_or_zero(by_mean.x);
    own[MEAN + 1] = finite_or_zero(by_mean.y);
    own[MEAN + 2] = finite_or_zero(by_mean.z);
    own[LOG_SCALE] = finite_or_zero(by_scale.x);
    own[LOG_SCALE + 1] = finite_or_zero(by_scale.y);
    own[LOG_SCALE + 2] = finite_or_zero(by_scale.z);
    own[QUATERNION] = finite_or_zero(by_quaternion.x);
    own[QUATERNION + 1] = finite_or_zero(by_quaternion.y);
    own[QUATERNION + 2] = finite_or_zero(by_quaternion.z);
    own[QUATERNION + 3] = finite_or_zero(by_quaternion.w);
    float opacity = record[RECORD_OPACITY];
    own[OPACITY_LOGIT] = finite_or_zero(g[RECORD_OPACITY] * opacity * (1.f - opacity));
}

// One view's splats.
struct Seen {
    const int64_t* rows;
    const float* records;
    const float* gradients;
    int64_t count;
    int degree;
};

// In the warp's stage, row by lane, the gradients of the `present` splats from `first` on. row: of this lane's splat.
__device__ void stage_gradients(const View& view, const float* parameters, const Seen& seen, int64_t first, int present,
                                int64_t row, float* stage) {
    bool mine = lane_index() < present;
    int64_t splat = first + (mine ? lane_index() : 0);
    fetch_rows(stage, parameters, row, present, SH + 3 * (seen.degree + 1) * (seen.degree + 1));
    float record[RECORD], g[GRADIENT];
    for (int i = 0; i < RECORD; ++i) record[i] = seen.records[splat * RECORD + i];
    for (int i = 0; i < GRADIENT; ++i) g[i] = seen.gradients[splat * GRADIENT + i];
    await_rows();
    if (mine) differentiate(view, seen.degree, record, g, stage + lane_index() * PARAMETERS);
}

__device__ int present_from(const Seen& seen, int64_t first) {
    return static_cast<int>(min(seen.count - first, static_cast<int64_t>(WARP)));
}

__global__ void __launch_bounds__(STAGE_THREADS) project_gradient(View view, const float* parameters, Seen seen,
                                                                 float* out) {
    __shared__ float stages[STAGE_THREADS * PARAMETERS];
    float* stage = stages + warp_index() * WARP * PARAMETERS;
    int64_t step = static_cast<int64_t>(gridDim.x) * STAGE_THREADS;
    int64_t first = static_cast<int64_t>(blockIdx.x) * STAGE_THREADS + warp_index() * WARP;
    for (; first < seen.count; first += step) {
        int present = present_from(seen, first);
        int64_t row = seen.rows[first + min(lane_index(), present - 1)];
        stage_gradients(view, parameters, seen, first, present, row, stage);
        store_rows(out + first * PARAMETERS, stage, present, PARAMETERS);
    }
}

// touched_only: rows whose gradient is all zero do not move.
__global__ void __launch_bounds__(STAGE_THREADS) move_seen(View view, Tables tables, Seen seen, const float* rates,
                                                          Rule rule, bool touched_only) {
    __shared__ float stages[STAGE_THREADS * PARAMETERS];
    float* stage = stages + warp_index() * WARP * PARAMETERS;
    float own_rates[ROW_STEPS];
    lane_rates(rates, own_rates);
    RowRule once = rule_of(rule, 1);
    int64_t step = static_cast<int64_t>(gridDim.x) * STAGE_THREADS;
    int64_t first = static_cast<int64_t>(blockIdx.x) * STAGE_THREADS + warp_index() * WARP;
    for (; first < seen.count; first += step) {
        int present = present_from(seen, first);
        int64_t row = seen.rows[first + min(lane_index(), present - 1)];
        bool moves = lane_index() < present;
        if (moves) {
            expect_row(tables.moment1, row);
            expect_row(tables.moment2, row);
        }
        stage_gradients(view, tables.parameters, seen, first, present, row, stage);
        if (touched_only && moves) {
            moves = false;
            for (int i = 0; i < PARAMETERS; ++i) moves |= stage[lane_index() * PARAMETERS + i] != 0.f;
        }
        int64_t place = moves ? row : -1;
        __syncwarp();
        for (int r = 0; r < present; r += ROWS_AT_ONCE) {
            move_rows(
                tables, r, own_rates, [&](int i) { return __shfl_sync(ALL_LANES, place, i); },
                [&](int) { return once; }, [&](int i, int column) { return stage[i * PARAMETERS + column]; });
        }
        __syncwarp();
    }
}

EXPORT int project_backward(Queue queue, const View* view, const float* parameters, const int64_t* rows,
                            const float* records, int64_t splats, int degree, const float* gradients, float* out) {
    CHECK(cudaSetDevice(queue.device));
    if (splats == 0) return cudaSuccess;
    project_gradient<<<blocks_for(splats, STAGE_THREADS), STAGE_THREADS, 0, queue.stream>>>(
        *view, parameters, {rows, records, gradients, splats, degree}, out);
    return cudaGetLastError();
}

EXPORT int project_backward_adam(Queue queue, const View* view, float* parameters, float* moment1, float* moment2,
                                 const int64_t* rows, const float* records, int64_t splats, int degree,
                                 const float* gradients, const float* rates, const Rule* rule, int touched_only) {
    CHECK(cudaSetDevice(queue.device));
    if (splats == 0) return cudaSuccess;
    move_seen<<<blocks_for(splats, STAGE_THREADS), STAGE_THREADS, 0, queue.stream>>>(
        *view, {parameters, moment1, moment2}, {rows, records, gradients, splats, degree}, rates, *rule,
        touched_only != 0);
    return cudaGetLastError();
}
