// Compute the largest |x - w| for one tile of pairs per block (8 x 4 pairs per thread), over one part of the features.
//   TILE     rows of x and of w per block
//   RUN      features per run
//   FIND_RUN 1: also store the first run in which each maximum is attained
#include "common.cuh"
#include "stage.cuh"

static_assert(TILE == 64, "the threads of a block are mapped to 64 x 64 pairs");
#define COLUMNS 4
#define PAIRS (8 * COLUMNS)
#define LOADS (TILE / 32)

// One feature of one pair.
#define TERM(c) part[i * COLUMNS + j] = max_nan(part[i * COLUMNS + j], fabsf(a.c - e[j].c))

extern "C" __global__ void __launch_bounds__(128, 5)
    dense_maximum(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ maxima,
                  int* __restrict__ run, int n, int out, int features, int span, int aligned,
                  const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  __shared__ __align__(16) float xs[2][TILE][STAGE_STRIDE], ws[2][TILE][STAGE_STRIDE];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 top = (i64)blockIdx.x * TILE, left = (i64)blockIdx.y * TILE;
  int first = blockIdx.z * span, stop = min(features, first + span);

  // Each thread copies four features of rows of x and w; its rows are 32 apart.
  int load_row = threadIdx.x >> 2, load_column = (threadIdx.x & 3) * 4;
  const float *x_from[LOADS], *w_from[LOADS];
#pragma unroll
  for (int h = 0; h < LOADS; ++h)
    x_from[h] = x + min(top + load_row + 32 * h, (i64)n - 1) * features + first + load_column;
#pragma unroll
  for (int h = 0; h < LOADS; ++h)
    w_from[h] = w + min(left + load_row + 32 * h, (i64)out - 1) * features + first + load_column;

  // Each thread processes rows that are 4 apart and columns that are 8 apart.
  int row = (warp >> 1) * 32 + (lane >> 3), column = (warp & 1) * (TILE / 2) + (lane & 7);

  // The maxima before the current run are stored in shared memory because there are not enough registers. Runs are
  // counted from the start of this part, which has at most 2^16 runs.
  __shared__ u16 where[FIND_RUN ? PAIRS : 1][128];
  __shared__ float4 earlier[FIND_RUN ? PAIRS / 4 : 1][128];
  float part[PAIRS];
#pragma unroll
  for (int q = 0; q < PAIRS; ++q) {
    part[q] = 0.0f;
    if constexpr (FIND_RUN) {
      where[q][threadIdx.x] = 0;
      if (q % 4 == 0) earlier[q / 4][threadIdx.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  auto copy_stage = [&](int k, int buffer) {
#pragma unroll
    for (int h = 0; h < LOADS; ++h) {
      copy4_async(&xs[buffer][load_row + 32 * h][load_column], x_from[h], stop - k - load_column, aligned);
      x_from[h] += DEPTH;
    }
#pragma unroll
    for (int h = 0; h < LOADS; ++h) {
      copy4_async(&ws[buffer][load_row + 32 * h][load_column], w_from[h], stop - k - load_column, aligned);
      w_from[h] += DEPTH;
    }
  };
  auto finish_stage = [&]() {
    await_copies();
    __syncthreads();
  };

  copy_stage(first, 0);
  finish_stage();
  int buffer = 0;
  for (int k = first; k < stop; k += DEPTH) {
    int next = k + DEPTH;
    if (next < stop) copy_stage(next, buffer ^ 1);
    const float *x_at = xs[buffer][row], *w_at = ws[buffer][column];
#pragma unroll
    for (int c = 0; c < DEPTH; c += 4) {
      float4 e[COLUMNS];
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) e[j] = *reinterpret_cast<const float4*>(w_at + 8 * j * STAGE_STRIDE + c);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float4 a = *reinterpret_cast<const float4*>(x_at + 4 * i * STAGE_STRIDE + c);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) TERM(x);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) TERM(y);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) TERM(z);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) TERM(w);
      }
    }
    // At the end of a run, store its index for the pairs whose maximum it raised.
    if (FIND_RUN && ((next - first) % RUN == 0 || next >= stop)) {
      u16 now = (k - first) / RUN;
      materialize(now);
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
    if (next < stop) finish_stage();
    buffer ^= 1;
  }

#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
      i64 b = top + row + 4 * i, o = left + column + 8 * j;
      if (b >= n || o >= out) continue;
      i64 at = ((i64)blockIdx.z * n + b) * out + o;
      maxima[at] = part[i * COLUMNS + j];
      if constexpr (FIND_RUN) run[at] = first / RUN + where[i * COLUMNS + j][threadIdx.x];
    }
}
