// Gradients of records on the way back to the owners of their splats.
#include "exchange.cuh"

// The columns of a gradient that travel; false if all are exactly zero.
struct Gradient {
    float values[SENT_GRADIENTS];
    __device__ explicit Gradient(const float4* row) {
        float4 a = row[0], b = row[1];
        values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
        values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
        values[8] = row[2].x;
    }
    __device__ bool any() const {
        bool some = false;
#pragma unroll
        for (float value : values) some |= value != 0.f;
        return some;
    }
};
static_assert(GRADIENT_STRIDE == 12 && SENT_GRADIENTS == 9, "a row is three words of 16 bytes");

// Rows of nine floats are put together in shared memory: written lane by lane they would touch every sector nine times.
__global__ void __launch_bounds__(THREADS) pack_gradient_rows(const float4* __restrict__ gradients, int64_t others,
                                                              Hole hole, float* out, unsigned long long* zeros) {
    __shared__ float stage[THREADS * SENT_GRADIENTS];
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    int without = 0;
    for (int64_t base = static_cast<int64_t>(blockIdx.x) * THREADS; base < others; base += step) {
        int here = static_cast<int>(min(others - base, static_cast<int64_t>(THREADS)));
        bool zero = false;
        if (threadIdx.x < here) {
            Gradient own(gradients + hole.row(base + threadIdx.x) * (GRADIENT_STRIDE / 4));
            zero = !own.any();
#pragma unroll
            for (int j = 0; j < SENT_GRADIENTS; ++j) stage[threadIdx.x * SENT_GRADIENTS + j] = own.values[j];
        }
        without += __syncthreads_count(zero);
        for (int i = threadIdx.x; i < here * SENT_GRADIENTS; i += THREADS) {
            int n = i / SENT_GRADIENTS;
            out[hole.row(base + n) * SENT_GRADIENTS + i - n * SENT_GRADIENTS] = stage[i];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && without > 0) atomicAdd(zeros, static_cast<unsigned long long>(without));
}

// Gradients of every splat, or of those alone that went to other ranks too, summed rank after rank. own: null, or where
// this rank's are, in the hole.
__global__ void __launch_bounds__(THREADS) sum_routes(Routes routes, const float* __restrict__ returned, int own_rank,
                                                      const float4* __restrict__ own, Hole hole, float4* out,
                                                      unsigned long long* zeros, bool shared) {
    float total[SENT_GRADIENTS] = {};
    uint64_t mask = own_mask(routes), own_bit = 1ull << own_rank;
    bool zero = false, summed = own_splat() < routes.splats && (!shared || (mask & ~own_bit) != 0);
    for_each_rank(routes, mask, [&](int rank, unsigned lanes, int64_t at) {
        int64_t place = at + lanes_below(lanes);
        if (!summed || !(lanes >> lane_index() & 1) || place >= routes.end(rank)) return;
        if (rank == own_rank && own != nullptr) {
            Gradient kept(own + (hole.first + place - routes.begin(rank)) * (GRADIENT_STRIDE / 4));
            zero = !kept.any();
#pragma unroll
            for (int j = 0; j < SENT_GRADIENTS; ++j) total[j] += kept.values[j];
        } else {
#pragma unroll
            for (int j = 0; j < SENT_GRADIENTS; ++j) total[j] += returned[place * SENT_GRADIENTS + j];
        }
    });
    if (summed) {
        float4* row = out + own_splat() * (GRADIENT_STRIDE / 4);
        row[0] = make_float4(total[0], total[1], total[2], total[3]);
        row[1] = make_float4(total[4], total[5], total[6], total[7]);
        row[2] = make_float4(total[8], 0.f, 0.f, 0.f);
    }
    int without = __syncthreads_count(zero);
    if (threadIdx.x == 0 && without > 0) atomicAdd(zeros, static_cast<unsigned long long>(without));
}

EXPORT int pack_gradients(Queue queue, const float4* gradients, int64_t rows, int64_t first, int64_t count, float* out,
                          unsigned long long* zeros) {
    CHECK(cudaSetDevice(queue.device));
    int64_t others = rows - count;
    pack_gradient_rows<<<blocks_for(others, THREADS), THREADS, 0, queue.stream>>>(gradients, others,
                                                                                  Hole{first, count}, out, zeros);
    return cudaGetLastError();
}

EXPORT int sum_gradients(Queue queue, const Routes* routes, const float* returned, int own_rank, const float4* own,
                         int64_t first, int64_t count, float4* out, unsigned long long* zeros, int shared) {
    CHECK(cudaSetDevice(queue.device));
    sum_routes<<<static_cast<unsigned>(routes->blocks), THREADS, 0, queue.stream>>>(
        *routes, returned, own_rank, own, Hole{first, count}, out, zeros, shared != 0);
    return cudaGetLastError();
}
