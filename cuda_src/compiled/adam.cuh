// Adam (Kingma & Ba 2015) of one number, and of rows by whole warps.
#pragma once

#include "config.h"

// What is the same for all rows of a step; logarithms and complements come from float64.
struct Rule {
    float log_beta1, log_beta2;
    float one_minus_beta1, one_minus_beta2;
    float correction1, correction2;  // 1 / (1 - beta1^images), 1 / sqrt(1 - beta2^images)
    float epsilon;
};

// What a row's number of views makes of the rule (Grendel, section 4, with the row's views in place of the batch).
struct RowRule {
    float take1, take2;  // 1 - beta^v
    float share;         // of the summed gradient: 1 / v
    float rate;          // of the unit step: sqrt(v) and the first moment's correction
    float correction2, epsilon;
};

__device__ inline RowRule rule_of(const Rule& rule, int views) {
    if (views == 1) {
        return {rule.one_minus_beta1, rule.one_minus_beta2, 1.f, rule.correction1, rule.correction2, rule.epsilon};
    }
    float v = static_cast<float>(views), root = sqrtf(v);
    // expm1: 1 - 0.999 has few digits left in float32.
    return {-expm1f(v * rule.log_beta1), -expm1f(v * rule.log_beta2), 1.f / v,
            root * rule.correction1,     rule.correction2,            rule.epsilon / root};
}

struct Moving {
    float parameter, moment1, moment2;
};

// To 2 units in the last place, which a learning rate does not notice; IEEE roots and divisions take 30 instructions.
__device__ inline float fast_root(float x) {
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}

__device__ inline void adam(const RowRule& rule, float rate, float g, Moving& x) {
    // What is not finite, or whose square is not, would stay in the moments for ever: it counts as zero.
    g = fabsf(g * g) <= 3.402823466e38f ? g * rule.share : 0.f;
    x.moment1 += rule.take1 * (g - x.moment1);
    x.moment2 += rule.take2 * (g * g - x.moment2);
    x.parameter -= rate * rule.rate * __fdividef(x.moment1, fast_root(x.moment2) * rule.correction2 + rule.epsilon);
}

struct Tables {
    float *parameters, *moment1, *moment2;
};

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
