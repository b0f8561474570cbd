// Compute the largest |x - w| of the listed features. Each block computes one output and group of rows; its four warps
// divide the list. Results are transposed.
//   FIND_INDEX  1: also store the first feature that attains the maximum, with bit 31 set if x < w
#include "pruned.cuh"

extern "C" __global__ void __launch_bounds__(128)
    listed_maximum(const float* __restrict__ x_transposed, const int2* __restrict__ entries,
                   const int* __restrict__ counts, float* __restrict__ y, int* __restrict__ index, int features,
                   int padded, const int* __restrict__ use_dense) {
  if (*use_dense) return;
  __shared__ u32 sizes[LIST_WARPS][GROUP_ROWS];
  __shared__ int indices[FIND_INDEX ? LIST_WARPS : 1][GROUP_ROWS];
  int warp = threadIdx.x >> 5, o = blockIdx.x, count = counts[o];
  i64 group = (i64)blockIdx.y * GROUP_ROWS;
  entries += (i64)o * features;
  x_transposed += group;
  int start = part_start(count, warp), stop = part_start(count, warp + 1);
  u32 best[LANE_ROWS];  // bits of non-negative floats order like the numbers; NaN is the largest
  int where[LANE_ROWS];
#pragma unroll
  for (int r = 0; r < LANE_ROWS; ++r) best[r] = where[r] = 0;
#pragma unroll 4
  for (int k = start; k < stop; ++k) {
    Entry e = entry_of(entries, k);
    float x[LANE_ROWS];
    load_rows(x, x_transposed + (i64)e.at * padded);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) {
      u32 d = __float_as_uint(x[r] - e.w), size = d & 0x7fffffffu;
      if (FIND_INDEX && (size > best[r] || k == start)) where[r] = e.at | (d & 0x80000000u);
      best[r] = max(best[r], size);
    }
  }
#pragma unroll
  for (int r = 0; r < LANE_ROWS; ++r) {
    sizes[warp][lane_row(r)] = best[r];
    if constexpr (FIND_INDEX) indices[warp][lane_row(r)] = where[r];
  }
  __syncthreads();
  for (int row = threadIdx.x; row < GROUP_ROWS; row += 128) {
    // The maximum of a part without entries is zero. If a row has distance zero, all features are listed and no part is
    // empty.
    u32 most = sizes[0][row];
    int winner = FIND_INDEX ? indices[0][row] : 0;
    for (int v = 1; v < LIST_WARPS; ++v)
      if (sizes[v][row] > most) {
        most = sizes[v][row];
        if constexpr (FIND_INDEX) winner = indices[v][row];
      }
    i64 at = (i64)o * padded + group + row;
    y[at] = __uint_as_float(most);
    if constexpr (FIND_INDEX) index[at] = most > 0 && most <= 0x7f800000u ? winner : winner & 0x7fffffff;
  }
}
