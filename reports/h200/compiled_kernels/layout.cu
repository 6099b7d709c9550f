// How a table of Gaussians should lie in memory: rows of 236 B, rows of 256 B, blocks of 32 rows (AoSoA-32), or a plane for
// each of the 59 columns (separate arrays). Three passes that a training step makes, on parameters and two moments:
//   cull  reads 11 columns of every row            read  reads 59 columns of the visible rows, writes 48 B each
//   move  reads and writes 59 columns of three tables of the visible rows (Adam)
// Visible rows: a wedge of a square, as a camera sees a plane, with 5 % holes. Rows in Morton order, or shuffled.
//   nvcc -O3 -std=c++17 -gencode arch=compute_90,code=sm_90 layout.cu -o layout && ./layout
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cmath>
#include <cstdlib>
#include <vector>
#include <cuda_runtime.h>
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e)); exit(1); } } while (0)
constexpr int P = 59, GEOMETRY = 11, WARP = 32;
struct Rows { int pitch; __device__ int64_t at(int64_t r, int c) const { return r * pitch + c; } };
struct Blocks { __device__ int64_t at(int64_t r, int c) const { return (r >> 5) * (P * WARP) + c * WARP + (r & 31); } };
struct Planes { int64_t pitch; __device__ int64_t at(int64_t r, int c) const { return c * pitch + r; } };
__device__ float adam(float& p, float& m, float& v, float g) {
    m += 0.1f * (g - m); v += 0.001f * (g * g - v);
    return p -= 1e-5f * __fdividef(m, __fsqrt_rn(v) + 1e-15f);
}
__global__ void fill(float* t, int64_t n) {
    int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) { uint64_t h = (i + 1) * 0x9E3779B97F4A7C15ull; h ^= h >> 29; t[i] = (h & 0xffffff) * 0x1p-24f; }
}
template <class L> __global__ void cull(L l, const float* t, int64_t n, unsigned* words) {
    int64_t r = blockIdx.x * 256ll + threadIdx.x;
    float s = 0.f;
    if (r < n) for (int c = 0; c < GEOMETRY; ++c) s += t[l.at(r, c)];
    unsigned w = __ballot_sync(~0u, s > 0.f);
    if ((threadIdx.x & 31) == 0 && r < n) words[r >> 5] = w;
}
template <class L> __global__ void read_lane(L l, const float* t, const int* rows, int64_t v, float4* out) {
    for (int64_t i = blockIdx.x * 128ll + threadIdx.x; i < v; i += gridDim.x * 128ll) {
        int64_t r = rows[i];
        float s[12] = {};
#pragma unroll
        for (int c = 0; c < P; ++c) s[c % 12] += t[l.at(r, c)];
        for (int k = 0; k < 3; ++k) out[3 * i + k] = make_float4(s[4 * k], s[4 * k + 1], s[4 * k + 2], s[4 * k + 3]);
    }
}
template <int BATCH, class L> __global__ void __launch_bounds__(128) move_lane(L l, float* p, float* m, float* q, const int* rows, int64_t v) {
    for (int64_t i = blockIdx.x * 128ll + threadIdx.x; i < v; i += gridDim.x * 128ll) {
        int64_t r = rows[i];
#pragma unroll 1
        for (int c0 = 0; c0 < P; c0 += BATCH) {
            float a[BATCH], b[BATCH], d[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k) if (c0 + k < P) { int64_t x = l.at(r, c0 + k); a[k] = p[x]; b[k] = m[x]; d[k] = q[x]; }
#pragma unroll
            for (int k = 0; k < BATCH; ++k) if (c0 + k < P) { int64_t x = l.at(r, c0 + k); adam(a[k], b[k], d[k], 1e-3f * (c0 + k)); p[x] = a[k]; m[x] = b[k]; q[x] = d[k]; }
        }
    }
}
// Rows: a warp for 32 rows, lanes along the row; `W` floats a lane and load.
template <int W> __global__ void __launch_bounds__(128) read_row(int pitch, const float* t, const int* rows, int64_t v, float4* out) {
    __shared__ float stage[4][WARP * (W == 1 ? P : 68)];
    constexpr int S = W == 1 ? P : 68;
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
    for (int64_t f = blockIdx.x * 128ll + w * 32; f < v; f += gridDim.x * 128ll) {
        int row = rows[min(f + lane, v - 1)];
        int present = min(v - f, (int64_t)32);
        if (W == 1) {
            for (int r = 0; r < present; ++r) {
                const float* s = t + (int64_t)__shfl_sync(~0u, row, r) * pitch;
                for (int c = lane; c < P; c += 32) stage[w][r * S + c] = s[c];
            }
        } else {
            for (int r = 0; r < 32; r += 2) {
                int mine = r + (lane >> 4);
                const float4* s = reinterpret_cast<const float4*>(t + (int64_t)__shfl_sync(~0u, row, mine) * pitch);
                if (mine < present) *reinterpret_cast<float4*>(&stage[w][mine * S + 4 * (lane & 15)]) = s[lane & 15];
            }
        }
        __syncwarp();
        float s[12] = {};
        for (int c = 0; c < P; ++c) s[c % 12] += stage[w][lane * S + c];
        if (lane < present) for (int k = 0; k < 3; ++k) out[3 * (f + lane) + k] = make_float4(s[4 * k], s[4 * k + 1], s[4 * k + 2], s[4 * k + 3]);
        __syncwarp();
    }
}
template <int W> __global__ void __launch_bounds__(128) move_row(int pitch, float* p, float* m, float* q, const int* rows, int64_t v) {
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
    for (int64_t f = blockIdx.x * 128ll + w * 32; f < v; f += gridDim.x * 128ll) {
        int row = rows[min(f + lane, v - 1)];
        int present = min(v - f, (int64_t)32);
        if (W == 1) {
            for (int r0 = 0; r0 < present; r0 += 4) {
                float a[4][2], b[4][2], d[4][2];
#pragma unroll
                for (int i = 0; i < 4; ++i) for (int k = 0; k < 2; ++k) {
                    int c = lane + 32 * k; int64_t x = (int64_t)__shfl_sync(~0u, row, r0 + i) * pitch + c;
                    if (c < P && r0 + i < present) { a[i][k] = p[x]; b[i][k] = m[x]; d[i][k] = q[x]; }
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) for (int k = 0; k < 2; ++k) {
                    int c = lane + 32 * k; int64_t x = (int64_t)__shfl_sync(~0u, row, r0 + i) * pitch + c;
                    if (c < P && r0 + i < present) { adam(a[i][k], b[i][k], d[i][k], 1e-3f * c); p[x] = a[i][k]; m[x] = b[i][k]; q[x] = d[i][k]; }
                }
            }
        } else {
            for (int r0 = 0; r0 < 32; r0 += 4) {
                float4 a[2], b[2], d[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    int mine = r0 + 2 * i + (lane >> 4); int64_t x = (int64_t)__shfl_sync(~0u, row, mine) * (pitch / 4) + (lane & 15);
                    if (mine < present) { a[i] = ((float4*)p)[x]; b[i] = ((float4*)m)[x]; d[i] = ((float4*)q)[x]; }
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    int mine = r0 + 2 * i + (lane >> 4); int64_t x = (int64_t)__shfl_sync(~0u, row, mine) * (pitch / 4) + (lane & 15);
                    if (mine < present) {
                        adam(a[i].x, b[i].x, d[i].x, 1e-3f); adam(a[i].y, b[i].y, d[i].y, 1e-3f); adam(a[i].z, b[i].z, d[i].z, 1e-3f); adam(a[i].w, b[i].w, d[i].w, 1e-3f);
                        ((float4*)p)[x] = a[i]; ((float4*)m)[x] = b[i]; ((float4*)q)[x] = d[i];
                    }
                }
            }
        }
    }
}
static uint32_t compact(uint64_t x) { x &= 0x5555555555555555ull; x = (x | x >> 1) & 0x3333333333333333ull; x = (x | x >> 2) & 0x0f0f0f0f0f0f0f0full; x = (x | x >> 4) & 0x00ff00ff00ff00ffull; x = (x | x >> 8) & 0x0000ffff0000ffffull; x = (x | x >> 16); return (uint32_t)x; }
template <class F> float time_of(F f) {
    std::vector<float> ms;
    cudaEvent_t a, b; CHECK(cudaEventCreate(&a)); CHECK(cudaEventCreate(&b));
    for (int i = 0; i < 9; ++i) { CHECK(cudaEventRecord(a)); f(); CHECK(cudaEventRecord(b)); CHECK(cudaEventSynchronize(b)); float t; CHECK(cudaEventElapsedTime(&t, a, b)); if (i > 1) ms.push_back(t); }
    CHECK(cudaGetLastError());
    std::sort(ms.begin(), ms.end()); return ms[ms.size() / 2];
}
int main() {
    printf("%-10s %-9s %-8s %9s %9s %9s  %9s %9s %9s\n", "layout", "order", "rows M", "cull ms", "read ms", "move ms", "cull GB/s", "read GB/s", "move GB/s");
    for (int64_t millions : {5, 20, 80}) {
        int64_t n = millions * 1000000;
        int64_t bytes = n * 64 * 4;
        float *p, *m, *q; CHECK(cudaMalloc(&p, bytes)); CHECK(cudaMalloc(&m, bytes)); CHECK(cudaMalloc(&q, bytes));
        for (float* t : {p, m, q}) fill<<<(unsigned)((n * 64 + 255) / 256), 256>>>(t, n * 64);
        unsigned* words; CHECK(cudaMalloc(&words, n / 8 + 64));
        for (int shuffled = 0; shuffled < 2; ++shuffled) {
            // Density is the same whatever N: a wedge of 4.3 M cells (or what the square has of it), from its middle.
            std::vector<int> rows; double side = sqrt((double)n);
            double reach = sqrt(4.3e6 * 2 / 0.9); uint64_t noise = 88172645463325252ull;
            for (int64_t r = 0, code = 0; r < n; ++code) {
                double x = compact(code), y = compact(code >> 1);
                if (x >= side || y >= side) { if (code > 8 * n) break; continue; }
                double dx = x - side / 2, dy = y - side * 0.1;
                noise ^= noise << 13; noise ^= noise >> 7; noise ^= noise << 17;
                if (dy > 0 && fabs(dx) < 0.45 * dy && dy < reach && noise % 20) rows.push_back((int)r);
                ++r;
            }
            int64_t v = rows.size();
            if (shuffled) {
                for (auto& r : rows) { noise ^= noise << 13; noise ^= noise >> 7; noise ^= noise << 17; r = (int)(noise % n); }
                std::sort(rows.begin(), rows.end()); rows.erase(std::unique(rows.begin(), rows.end()), rows.end()); v = rows.size();
            }
            int* list; float4* out; CHECK(cudaMalloc(&list, v * 4)); CHECK(cudaMalloc(&out, v * 48)); CHECK(cudaMemcpy(list, rows.data(), v * 4, cudaMemcpyHostToDevice));
            unsigned all = (n + 255) / 256; int grid = std::min<int64_t>((v + 127) / 128, 132 * 64);
            auto report = [&](const char* name, float c, float r, float u) {
                printf("%-10s %-9s %3ld/%.2f %9.3f %9.3f %9.3f  %9.0f %9.0f %9.0f\n", name, shuffled ? "shuffled" : "Morton", (long)millions, v / 1e6, c, r, u, n * 44 / c / 1e6, v * (236 + 48) / r / 1e6, v * 1416 / u / 1e6);
                fflush(stdout);
            };
            report("rows 236", time_of([&] { cull<<<all, 256>>>(Rows{59}, p, n, words); }), time_of([&] { read_row<1><<<grid, 128>>>(59, p, list, v, out); }), time_of([&] { move_row<1><<<grid, 128>>>(59, p, m, q, list, v); }));
            report("rows 256", time_of([&] { cull<<<all, 256>>>(Rows{64}, p, n, words); }), time_of([&] { read_row<4><<<grid, 128>>>(64, p, list, v, out); }), time_of([&] { move_row<4><<<grid, 128>>>(64, p, m, q, list, v); }));
            float bm[3] = {time_of([&] { move_lane<4><<<grid, 128>>>(Blocks{}, p, m, q, list, v); }), time_of([&] { move_lane<8><<<grid, 128>>>(Blocks{}, p, m, q, list, v); }), time_of([&] { move_lane<12><<<grid, 128>>>(Blocks{}, p, m, q, list, v); })};
            report("blocks 32", time_of([&] { cull<<<all, 256>>>(Blocks{}, p, n, words); }), time_of([&] { read_lane<<<grid, 128>>>(Blocks{}, p, list, v, out); }), *std::min_element(bm, bm + 3));
            int64_t pitch = (n + 31) / 32 * 32;
            float pm[3] = {time_of([&] { move_lane<4><<<grid, 128>>>(Planes{pitch}, p, m, q, list, v); }), time_of([&] { move_lane<8><<<grid, 128>>>(Planes{pitch}, p, m, q, list, v); }), time_of([&] { move_lane<12><<<grid, 128>>>(Planes{pitch}, p, m, q, list, v); })};
            report("planes", time_of([&] { cull<<<all, 256>>>(Planes{pitch}, p, n, words); }), time_of([&] { read_lane<<<grid, 128>>>(Planes{pitch}, p, list, v, out); }), *std::min_element(pm, pm + 3));
            printf("           move, 4 / 8 / 12 columns under way: blocks %.3f %.3f %.3f, planes %.3f %.3f %.3f\n", bm[0], bm[1], bm[2], pm[0], pm[1], pm[2]);
            CHECK(cudaFree(list)); CHECK(cudaFree(out));
        }
        CHECK(cudaFree(p)); CHECK(cudaFree(m)); CHECK(cudaFree(q)); CHECK(cudaFree(words));
    }
}
