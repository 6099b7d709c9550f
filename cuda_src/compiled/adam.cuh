// Adam (Kingma & Ba 2015) of one number.
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
// Subnormals count as zero: beside epsilon they are.
__device__ inline float fast_root(float x) {
    float root;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}
__device__ inline float fast_ratio(float x, float y) {
    float ratio;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(ratio) : "f"(x), "f"(y));
    return ratio;
}

__device__ inline void adam(const RowRule& rule, float rate, float g, Moving& x) {
    // What is not finite, or whose square is not, would stay in the moments for ever: it counts as zero.
    g = fabsf(g * g) <= 3.402823466e38f ? g * rule.share : 0.f;
    x.moment1 += rule.take1 * (g - x.moment1);
    x.moment2 += rule.take2 * (g * g - x.moment2);
    x.parameter -= rate * rule.rate * fast_ratio(x.moment1, fast_root(x.moment2) * rule.correction2 + rule.epsilon);
}

// Parameters and both moments, [N, PARAMETERS] each.
struct Tables {
    float *parameters, *moment1, *moment2;
};
