// Adam on the given rows, with the batch rule by row: a row seen by v views takes gradient / v, rate sqrt(v), beta^v,
// epsilon / sqrt(v).
#include "adam.cuh"

constexpr int ROW_STEPS = (PARAMETERS + WARP - 1) / WARP;  // columns of a row that one lane has
// Rows that a warp has under way at once: 4 rows x 3 tables x 2 columns are 24 loads a lane before the first use.
constexpr int ROWS_AT_ONCE = 4;

// Move the rows `first ... first + ROWS_AT_ONCE - 1` of the warp; what a row needs is asked of functions of its number:
// `row_at` its place in the tables or -1 to leave it alone, `rule_at` its rule, `gradient_at(r, column)`.
template <typename RowAt, typename RuleAt, typename GradientAt>
__device__ void move_rows(const Tables& tables, int first, const float (&rates)[ROW_STEPS], RowAt row_at,
                          RuleAt rule_at, GradientAt gradient_at) {
    Moving moving[ROWS_AT_ONCE][ROW_STEPS];
    float gradient[ROWS_AT_ONCE][ROW_STEPS];
    int64_t at[ROWS_AT_ONCE];
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; ++i) {
        at[i] = row_at(first + i);
#pragma unroll
        for (int k = 0; k < ROW_STEPS; ++k) {
            int column = lane_index() + k * WARP;
            if (at[i] < 0 || column >= PARAMETERS) continue;
            int64_t place = at[i] * PARAMETERS + column;
            gradient[i][k] = gradient_at(first + i, column);
            moving[i][k] = {tables.parameters[place], tables.moment1[place], tables.moment2[place]};
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; ++i) {
        if (at[i] < 0) continue;
        RowRule rule = rule_at(first + i);
#pragma unroll
        for (int k = 0; k < ROW_STEPS; ++k) {
            int column = lane_index() + k * WARP;
            if (column >= PARAMETERS) continue;
            int64_t place = at[i] * PARAMETERS + column;
            adam(rule, rates[k], gradient[i][k], moving[i][k]);
            tables.parameters[place] = moving[i][k].parameter;
            tables.moment1[place] = moving[i][k].moment1;
            tables.moment2[place] = moving[i][k].moment2;
        }
    }
}

__device__ inline void lane_rates(const float* rates, float (&own)[ROW_STEPS]) {
#pragma unroll
    for (int k = 0; k < ROW_STEPS; ++k) {
        int column = lane_index() + k * WARP;
        own[k] = column < PARAMETERS ? rates[column] : 0.f;
    }
}

__global__ void __launch_bounds__(THREADS) update_rows(Tables tables, const int64_t* rows, const float* gradients,
                                                       const int* views, int64_t count, const float* rates, Rule rule) {
    float own_rates[ROW_STEPS];
    lane_rates(rates, own_rates);
    int64_t warps = static_cast<int64_t>(gridDim.x) * (THREADS / WARP);
    int64_t warp = static_cast<int64_t>(blockIdx.x) * (THREADS / WARP) + warp_index();
    for (int64_t first = warp * ROWS_AT_ONCE; first < count; first += warps * ROWS_AT_ONCE) {
        move_rows(
            tables, 0, own_rates, [&](int i) { return first + i < count ? rows[first + i] : -1; },
            [&](int i) { return rule_of(rule, views[first + i]); },
            [&](int i, int column) { return gradients[(first + i) * PARAMETERS + column]; });
    }
}

EXPORT int adam_rows(Queue queue, float* parameters, float* moment1, float* moment2, const int64_t* rows,
                     const float* gradients, const int* views, int64_t count, const float* rates, const Rule* rule) {
    CHECK(cudaSetDevice(queue.device));
    if (count == 0) return cudaSuccess;
    update_rows<<<blocks_for(count, THREADS / WARP * ROWS_AT_ONCE), THREADS, 0, queue.stream>>>(
        {parameters, moment1, moment2}, rows, gradients, views, count, rates, *rule);
    return cudaGetLastError();
}
