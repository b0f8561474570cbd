// Sum powers for the distances of one tile of pairs per block (8 x 4 pairs per thread), over one part of the features.
//   TILE     rows of x and of w per block
//   GENERAL  0: sum of power(s (x - w)) by a chain; 1: sum of (|x - w| / pair_max)^p by special functions
//   UNROLL   features per iteration of the inner loop; about 700 instructions fit in the first instruction cache
#include "tile.cuh"
#include "power"

static_assert(TILE == 64, "the threads of a block are mapped to 64 x 64 pairs");
static constexpr int features_unrolled = UNROLL;
#define FOLD 64  // features summed in registers before the result is added to the total in shared memory

extern "C" __global__ void __launch_bounds__(128, GENERAL ? 4 : 5)
    dense_sums(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ sums,
               const float* __restrict__ pair_max, const u32* __restrict__ input_max, int n, int out, int features,
               int span, int aligned, float p, int target_exponent, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  __shared__ __align__(16) float xs[2][DEPTH][TILE_STRIDE], ws[2][DEPTH][TILE_STRIDE];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 top = (i64)blockIdx.x * TILE, left = (i64)blockIdx.y * TILE;
  int first = blockIdx.z * span, stop = min(features, first + span);

  int load_row = warp * 16 + (lane & 15), load_vector = lane >> 4;
  const float* x_row = x + min(top + load_row, (i64)n - 1) * features;
  const float* w_row = w + min(left + load_row, (i64)out - 1) * features;

  int row = (warp >> 1) * 32 + (lane >> 3) * 8, column = (warp & 1) * 32 + (lane & 7) * 4;
  float scale, exponent, offset[8][4];
  if constexpr (GENERAL) {
    scale = scale_for(__uint_as_float(input_max[0]), 0);
    exponent = p;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        i64 b = min(top + row + i, (i64)n - 1), o = min(left + column + j, (i64)out - 1);
        float m = pair_max[b * out + o] * scale;
        offset[i][j] = m > 0.0f && m < INFINITY_F ? -p * log2f(m) : 0.0f;
      }
  } else {
    scale = scale_for(__uint_as_float(input_max[0]) + __uint_as_float(input_max[1]), target_exponent);
    exponent = p - floorf(p);
  }

  // The totals are stored in shared memory because there are not enough registers.
  __shared__ float total[32][128];
  float part[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      part[i][j] = 0.0f;
      total[i * 4 + j][threadIdx.x] = 0.0f;
    }

  Staged xn = fetch(x_row, first + load_vector * 4, stop, aligned),
         wn = fetch(w_row, first + load_vector * 4, stop, aligned);
  store_tile(xs[0], load_row, load_vector, xn, scale);
  store_tile(ws[0], load_row, load_vector, wn, scale);
  __syncthreads();

  int buffer = 0;
  for (int k = first; k < stop; k += DEPTH) {
    int next = k + DEPTH;
    if (next < stop) {
      xn = fetch(x_row, next + load_vector * 4, stop, aligned);
      wn = fetch(w_row, next + load_vector * 4, stop, aligned);
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
        for (int j = 0; j < 4; ++j) part[i][j] += power(a[i] - e[j], exponent, GENERAL ? offset[i][j] : 0.0f);
    }
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
      store_tile(xs[buffer], load_row, load_vector, xn, scale);
      store_tile(ws[buffer], load_row, load_vector, wn, scale);
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
      sums[at] = total[i * 4 + j][threadIdx.x];
    }
}
