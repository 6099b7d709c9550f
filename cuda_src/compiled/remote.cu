// Gradients of tile instances added to accumulators that may lie in another GPU's memory: one vector reduction each.
#include "config.h"

constexpr int MOST_OWNERS = 64;

// By owner: slots of an inbox that its records have, from the end of the one before on, and their accumulators.
struct Owners {
    int64_t ends[MOST_OWNERS];
    float* accumulators[MOST_OWNERS];
};

// Lanes that share an instance: two words of four floats, and the ninth.
constexpr int PIECES = 3;
static_assert(GRADIENT_STRIDE >= 4 * PIECES && ACCUMULATOR_STRIDE >= 4 * PIECES, "a piece is four floats");

__device__ inline void add_word(float* to, float4 word) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(word.x), "f"(word.y),
                 "f"(word.z), "f"(word.w)
                 : "memory");
#else
    atomicAdd_system(to, word.x);
    atomicAdd_system(to + 1, word.y);
    atomicAdd_system(to + 2, word.z);
    atomicAdd_system(to + 3, word.w);
#endif
}

__global__ void __launch_bounds__(THREADS) add_instances(const float* gradients, const int* slots, const bool* walked,
                                                         int64_t count, Owners owners) {
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t t = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; t < PIECES * count; t += step) {
        int64_t instance = t / PIECES;
        int piece = static_cast<int>(t % PIECES), owner = 0;
        if (!walked[instance]) continue;
        int64_t slot = slots[instance], first = 0;
        while (slot >= owners.ends[owner]) first = owners.ends[owner++];
        float* to = owners.accumulators[owner] + (slot - first) * ACCUMULATOR_STRIDE + 4 * piece;
        const float* from = gradients + instance * GRADIENT_STRIDE + 4 * piece;
        if (piece < PIECES - 1) {
            add_word(to, *reinterpret_cast<const float4*>(from));
        } else {
            atomicAdd_system(to, *from);
        }
    }
}

EXPORT int add_to_owners(Queue queue, const float* gradients, const int* slots, const bool* walked, int64_t count,
                         const Owners* owners) {
    CHECK(cudaSetDevice(queue.device));
    if (count == 0) return cudaSuccess;
    add_instances<<<blocks_for(PIECES * count, THREADS), THREADS, 0, queue.stream>>>(gradients, slots, walked, count,
                                                                                    *owners);
    return cudaGetLastError();
}
