// Compute the smallest and largest infinity distance of TILE boxes to TILE rows of w per block, 8 x 4 pairs per thread.
//   TILE     boxes and rows of w per block
//   RUN      features per run
//   FIND_RUN 1: also store the first run in which each bound is attained
#include "tile.cuh"

static_assert(TILE == 64, "the threads of a block are mapped to 64 x 64 pairs");

extern "C" __global__ void __launch_bounds__(128, 3)
    bounds(const float* __restrict__ lower, const float* __restrict__ upper, const float* __restrict__ w,
           float* __restrict__ smallest, float* __restrict__ largest, int* __restrict__ near_run,
           int* __restrict__ far_run, int n, int out, int features, int span, int aligned) {
  __shared__ __align__(16) float ls[DEPTH][TILE_STRIDE], us[DEPTH][TILE_STRIDE], ws[DEPTH][TILE_STRIDE];
  __shared__ u16 near_at[FIND_RUN ? 32 : 1][128], far_at[FIND_RUN ? 32 : 1][128];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 top = (i64)blockIdx.x * TILE, left = (i64)blockIdx.y * TILE;
  int first = blockIdx.z * span, stop = min(features, first + span);

  int load_row = warp * 16 + (lane & 15), load_vector = lane >> 4;
  i64 box = min(top + load_row, (i64)n - 1) * features;
  const float* w_row = w + min(left + load_row, (i64)out - 1) * features;
  int row = (warp >> 1) * 32 + (lane >> 3) * 8, column = (warp & 1) * 32 + (lane & 7) * 4;

  float gap[8][4], farthest[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      gap[i][j] = farthest[i][j] = 0.0f;
      if constexpr (FIND_RUN) near_at[i * 4 + j][threadIdx.x] = far_at[i * 4 + j][threadIdx.x] = 0;
    }

  for (int k = first; k < stop; k += DEPTH) {
    Staged l = fetch(lower + box, k + load_vector * 4, stop, aligned),
           u = fetch(upper + box, k + load_vector * 4, stop, aligned);
    Staged v = fetch(w_row, k + load_vector * 4, stop, aligned);
    __syncthreads();
    store_tile(ls, load_row, load_vector, l, 1.0f);
    store_tile(us, load_row, load_vector, u, 1.0f);
    store_tile(ws, load_row, load_vector, v, 1.0f);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      // Compute the maxima of this stage only, to know which run raised the total; four rows at a time.
      float g[4][4], r[4][4];
#pragma unroll
      for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int j = 0; j < 4; ++j) g[a][j] = r[a][j] = 0.0f;
#pragma unroll
      for (int c = 0; c < DEPTH; ++c) {
        float lo[4], up[4], e[4];
        *reinterpret_cast<float4*>(lo) = *reinterpret_cast<const float4*>(&ls[c][row + i]);
        *reinterpret_cast<float4*>(up) = *reinterpret_cast<const float4*>(&us[c][row + i]);
        *reinterpret_cast<float4*>(e) = *reinterpret_cast<const float4*>(&ws[c][column]);
#pragma unroll
        for (int a = 0; a < 4; ++a)
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            float below = lo[a] - e[j], above = up[a] - e[j];
            g[a][j] = max_nan(max_nan(g[a][j], below), -above);
            r[a][j] = max_nan(max_nan(r[a][j], fabsf(below)), fabsf(above));
          }
      }
#pragma unroll
      for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if constexpr (FIND_RUN) {
            u16 now = (k - first) / RUN;
            if (__float_as_uint(g[a][j]) > __float_as_uint(gap[i + a][j])) near_at[(i + a) * 4 + j][threadIdx.x] = now;
            if (__float_as_uint(r[a][j]) > __float_as_uint(farthest[i + a][j]))
              far_at[(i + a) * 4 + j][threadIdx.x] = now;
          }
          gap[i + a][j] = max_nan(gap[i + a][j], g[a][j]);
          farthest[i + a][j] = max_nan(farthest[i + a][j], r[a][j]);
        }
    }
  }

#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      i64 b = top + row + i, o = left + column + j;
      if (b >= n || o >= out) continue;
      i64 at = ((i64)blockIdx.z * n + b) * out + o;
      smallest[at] = gap[i][j];
      largest[at] = farthest[i][j];
      if constexpr (FIND_RUN) {
        near_run[at] = first / RUN + near_at[i * 4 + j][threadIdx.x];
        far_run[at] = first / RUN + far_at[i * 4 + j][threadIdx.x];
      }
    }
}
