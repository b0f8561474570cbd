// Sums for the distances of 64 rows of x to 64 rows of w per block, 8 x 4 pairs per thread, one pass over a
// part of the features.
//   GENERAL 0  sum power(s (x - w))            GENERAL 1  sum (s |x - w| / peak)^p by special functions, peak per pair
//   UNROLL  features per turn of the inner loop: longer than about 700 instructions, it no longer fits the nearest cache
#include "tile.cuh"
#include "power"

static constexpr int features_unrolled = UNROLL;
#define FOLD 64

extern "C" __global__ void __launch_bounds__(128, GENERAL ? 4 : 5)
distance(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ result, const float* __restrict__ peak,
         const u32* __restrict__ tops, int n, int out, int features, int span, int vector, float p, int lift,
         const int* __restrict__ gate) {
  if (closed(gate)) return;
  __shared__ __align__(16) float xs[2][DEPTH][STRIDE], ws[2][DEPTH][STRIDE];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 top = (i64)blockIdx.x * TILE, left = (i64)blockIdx.y * TILE;
  int first = blockIdx.z * span, stop = min(features, first + span);

  int load_row = warp * 16 + (lane & 15), quad = lane >> 4;
  const float* x_row = x + min(top + load_row, (i64)n - 1) * features;
  const float* w_row = w + min(left + load_row, (i64)out - 1) * features;

  int row = (warp >> 1) * 32 + (lane >> 3) * 8, column = (warp & 1) * 32 + (lane & 7) * 4;
  float scale = 1.0f;
#if !GENERAL
  scale = scale_for(__uint_as_float(tops[0]) + __uint_as_float(tops[1]), lift);
  float fraction = p - floorf(p);
#else
  scale = scale_for(__uint_as_float(tops[0]), 0);
  float offset[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      i64 b = min(top + row + i, (i64)n - 1), o = min(left + column + j, (i64)out - 1);
      float m = peak[b * out + o] * scale;
      offset[i][j] = m > 0.0f && m < INFINITE ? -p * log2f(m) : 0.0f;
    }
#endif

  // The long sums wait in shared memory: registers are short.
  __shared__ float total[32][128];
  float part[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      part[i][j] = 0.0f;
      total[i * 4 + j][threadIdx.x] = 0.0f;
    }

  Staged xn = fetch(x_row, first + quad * 4, stop, vector), wn = fetch(w_row, first + quad * 4, stop, vector);
  place(xs[0], load_row, quad, xn, scale);
  place(ws[0], load_row, quad, wn, scale);
  __syncthreads();

  int buffer = 0;
  for (int k = first; k < stop; k += DEPTH) {
    int next = k + DEPTH;
    if (next < stop) {
      xn = fetch(x_row, next + quad * 4, stop, vector);
      wn = fetch(w_row, next + quad * 4, stop, vector);
    }
#pragma unroll features_unrolled
    for (int c = 0; c < DEPTH; ++c) {
      float a[8], e[4];
      *reinterpret_cast<float4*>(a) = *reinterpret_cast<const float4*>(&xs[buffer][c][row]);
      *reinterpret_cast<float4*>(a + 4) = *reinterpret_cast<const float4*>(&xs[buffer][c][row + 4]);
      *reinterpret_cast<float4*>(e) = *reinterpret_cast<const float4*>(&ws[buffer][c][column]);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float d = a[i] - e[j];
#if !GENERAL
          part[i][j] += power(d, fraction);
#else
          part[i][j] += exp2_fast(fmaf(p, log2_fast(fabsf(d)), offset[i][j]));
#endif
        }
    }
    // A run ends: its sum is added to the long one.
    if ((next - first) % FOLD == 0 || next >= stop) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          total[i * 4 + j][threadIdx.x] += part[i][j];
          part[i][j] = 0.0f;
        }
    }
    if (next < stop) {
      buffer ^= 1;
      place(xs[buffer], load_row, quad, xn, scale);
      place(ws[buffer], load_row, quad, wn, scale);
      __syncthreads();
    }
  }

#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      i64 b = top + row + i, o = left + column + j;
      if (b >= n || o >= out) continue;
      i64 at = ((i64)blockIdx.z * n + b) * out + o;
      result[at] = total[i * 4 + j][threadIdx.x];
    }
}
