// max |x - w| of 64 rows of x and 64 rows of w per block, 8 x 4 pairs per thread, one pass over a part of the features.
// With RUNS, also in which run of 32 features each maximum was first attained.
#include "stage.cuh"

#define RUN 32
#define ACROSS 4
#define PAIRS (8 * ACROSS)
#define LOADS (TILE / 32)

// One feature of one pair.
#define TERM(c) part[i * ACROSS + j] = larger(part[i * ACROSS + j], fabsf(a.c - e[j].c))

extern "C" __global__ void __launch_bounds__(128, 5)
distance(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ result, int* __restrict__ run, int n,
         int out, int features, int span, int vector, const int* __restrict__ gate) {
  if (closed(gate)) return;
  __shared__ __align__(16) float xs[2][TILE][STRIDE], ws[2][TILE][STRIDE];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 top = (i64)blockIdx.x * TILE, left = (i64)blockIdx.y * TILE;
  int first = blockIdx.z * span, stop = min(features, first + span);

  // A thread brings one quad of rows 32 apart, of x and of w.
  int load_row = threadIdx.x >> 2, quad = (threadIdx.x & 3) * 4;
  const float *x_from[LOADS], *w_from[LOADS];
#pragma unroll
  for (int h = 0; h < LOADS; ++h) x_from[h] = x + min(top + load_row + 32 * h, (i64)n - 1) * features + first + quad;
#pragma unroll
  for (int h = 0; h < LOADS; ++h) w_from[h] = w + min(left + load_row + 32 * h, (i64)out - 1) * features + first + quad;

  // It computes rows 4 apart and columns 8 apart.
  int row = (warp >> 1) * 32 + (lane >> 3), column = (warp & 1) * (TILE / 2) + (lane & 7);

  // The maxima as the run before left them wait in shared memory: registers are short. Runs are counted from the first
  // of this part, which has at most 2^16.
#if RUNS
  __shared__ unsigned short where[PAIRS][128];
  __shared__ float4 earlier[PAIRS / 4][128];
#endif
  float part[PAIRS];
#pragma unroll
  for (int q = 0; q < PAIRS; ++q) {
    part[q] = 0.0f;
#if RUNS
    where[q][threadIdx.x] = 0;
    if (q % 4 == 0) earlier[q / 4][threadIdx.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#endif
  }

  auto bring_stage = [&](int k, int buffer) {
#pragma unroll
    for (int h = 0; h < LOADS; ++h) {
      bring(&xs[buffer][load_row + 32 * h][quad], x_from[h], stop - k - quad, vector);
      x_from[h] += DEPTH;
    }
#pragma unroll
    for (int h = 0; h < LOADS; ++h) {
      bring(&ws[buffer][load_row + 32 * h][quad], w_from[h], stop - k - quad, vector);
      w_from[h] += DEPTH;
    }
  };
  auto finish_stage = [&]() {
    await_copies();
    __syncthreads();
  };

  bring_stage(first, 0);
  finish_stage();
  int buffer = 0;
  for (int k = first; k < stop; k += DEPTH) {
    int next = k + DEPTH;
    if (next < stop) bring_stage(next, buffer ^ 1);
    const float *x_at = xs[buffer][row], *w_at = ws[buffer][column];
#pragma unroll
    for (int c = 0; c < DEPTH; c += 4) {
      float4 e[ACROSS];
#pragma unroll
      for (int j = 0; j < ACROSS; ++j) e[j] = *reinterpret_cast<const float4*>(w_at + 8 * j * STRIDE + c);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float4 a = *reinterpret_cast<const float4*>(x_at + 4 * i * STRIDE + c);
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) TERM(x);
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) TERM(y);
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) TERM(z);
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) TERM(w);
      }
    }
#if RUNS
    // A run ends: it is noted where it raised the maximum.
    if ((next - first) % RUN == 0 || next >= stop) {
      u16 now = (k - first) / RUN;
      settle(now);
#pragma unroll
      for (int q = 0; q < PAIRS; q += 4) {
        float4 before = earlier[q / 4][threadIdx.x];
        if (__float_as_int(part[q + 0]) != __float_as_int(before.x)) where[q + 0][threadIdx.x] = now;
        if (__float_as_int(part[q + 1]) != __float_as_int(before.y)) where[q + 1][threadIdx.x] = now;
        if (__float_as_int(part[q + 2]) != __float_as_int(before.z)) where[q + 2][threadIdx.x] = now;
        if (__float_as_int(part[q + 3]) != __float_as_int(before.w)) where[q + 3][threadIdx.x] = now;
        earlier[q / 4][threadIdx.x] = make_float4(part[q], part[q + 1], part[q + 2], part[q + 3]);
      }
    }
#endif
    if (next < stop) finish_stage();
    buffer ^= 1;
  }

#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < ACROSS; ++j) {
      i64 b = top + row + 4 * i, o = left + column + 8 * j;
      if (b >= n || o >= out) continue;
      i64 at = ((i64)blockIdx.z * n + b) * out + o;
      result[at] = part[i * ACROSS + j];
#if RUNS
      run[at] = first / RUN + where[i * ACROSS + j][threadIdx.x];
#endif
    }
}
