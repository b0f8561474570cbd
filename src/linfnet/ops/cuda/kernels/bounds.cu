// Smallest and largest infinity distance of 64 boxes to 64 rows of w per block, 8 x 4 pairs per thread.
//   INDEX 1: also in which run of 32 features each was first attained.
#include "tile.cuh"

extern "C" __global__ void __launch_bounds__(128, 3)
bounds(const float* __restrict__ lower, const float* __restrict__ upper, const float* __restrict__ w,
       float* __restrict__ smallest, float* __restrict__ largest, int* __restrict__ near_run, int* __restrict__ far_run,
       int n, int out, int features, int span, int vector) {
  __shared__ __align__(16) float ls[DEPTH][STRIDE], us[DEPTH][STRIDE], ws[DEPTH][STRIDE];
#if INDEX
  __shared__ unsigned short near_at[32][128], far_at[32][128];
#endif
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 top = (i64)blockIdx.x * TILE, left = (i64)blockIdx.y * TILE;
  int first = blockIdx.z * span, stop = min(features, first + span);

  int load_row = warp * 16 + (lane & 15), quad = lane >> 4;
  i64 box = min(top + load_row, (i64)n - 1) * features;
  const float* w_row = w + min(left + load_row, (i64)out - 1) * features;
  int row = (warp >> 1) * 32 + (lane >> 3) * 8, column = (warp & 1) * 32 + (lane & 7) * 4;

  float gap[8][4], reach[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      gap[i][j] = reach[i][j] = 0.0f;
#if INDEX
      near_at[i * 4 + j][threadIdx.x] = far_at[i * 4 + j][threadIdx.x] = 0;
#endif
    }

  for (int k = first; k < stop; k += DEPTH) {
    Staged l = fetch(lower + box, k + quad * 4, stop, vector), u = fetch(upper + box, k + quad * 4, stop, vector);
    Staged v = fetch(w_row, k + quad * 4, stop, vector);
    __syncthreads();
    place(ls, load_row, quad, l, 1.0f);
    place(us, load_row, quad, u, 1.0f);
    place(ws, load_row, quad, v, 1.0f);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      // Maxima of this stage alone, so that the run which raised the total is known; four rows at a time.
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
            g[a][j] = larger(larger(g[a][j], below), -above);
            r[a][j] = larger(larger(r[a][j], fabsf(below)), fabsf(above));
          }
      }
#pragma unroll
      for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#if INDEX
          if (__float_as_uint(g[a][j]) > __float_as_uint(gap[i + a][j])) near_at[(i + a) * 4 + j][threadIdx.x] = (k - first) >> 5;
          if (__float_as_uint(r[a][j]) > __float_as_uint(reach[i + a][j])) far_at[(i + a) * 4 + j][threadIdx.x] = (k - first) >> 5;
#endif
          gap[i + a][j] = larger(gap[i + a][j], g[a][j]);
          reach[i + a][j] = larger(reach[i + a][j], r[a][j]);
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
      largest[at] = reach[i][j];
#if INDEX
      near_run[at] = (first >> 5) + near_at[i * 4 + j][threadIdx.x];
      far_run[at] = (first >> 5) + far_at[i * 4 + j][threadIdx.x];
#endif
    }
}
