// Distances from the listed features: a block per output and group of rows, its four warps share the list.
//   POWERS 0: sum of power(s (x - w)), s one power of two per output; a pair out of range sets the flag.
//   POWERS 1: the pair's maximum first, then the same with one power of two per pair.
//   POWERS 2 and 3: the pair's maximum first, then the sum of (|x - w| / maximum)^p by special functions.
// Kept for the backward, turned: 0: what y lost when it was rounded; 1: s and S^((1 - p)/p), S the sum; 2 and 3: the maximum
// and S^((1 - p)/p).
#include "pruned.cuh"
#include "power"

extern "C" __global__ void __launch_bounds__(128)
listed_distance(const float* __restrict__ turned, const int2* __restrict__ entries, const int* __restrict__ counts,
                const float* __restrict__ scales, float* __restrict__ y, float* __restrict__ first_kept,
                float* __restrict__ second_kept, int features, int padded, float p, int* flag) {
  if (*(volatile int*)flag) return;
  __shared__ float shared[WARPS][GROUP];
  int warp = threadIdx.x >> 5, o = blockIdx.x, count = counts[o];
  i64 group = (i64)blockIdx.y * GROUP;
  entries += (i64)o * features;
  turned += group;
  int start = part_start(count, warp), stop = part_start(count, warp + 1);
  float sum[OWN] = {};
#if POWERS > 0
  __shared__ float tops[GROUP];
  float top[OWN] = {};
#pragma unroll 4
  for (int k = start; k < stop; ++k) {
    Entry e = entry_of(entries, k);
    float x[OWN];
    own_rows(x, turned + (i64)e.at * padded);
#pragma unroll
    for (int r = 0; r < OWN; ++r) top[r] = larger(top[r], fabsf(x[r] - e.w));
  }
  leave_rows(shared[warp], top);
  __syncthreads();
#pragma unroll
  for (int r = 0; r < OWN; ++r)
#pragma unroll
    for (int v = 0; v < WARPS; ++v) top[r] = larger(top[r], shared[v][own_row(r)]);
  leave_rows(tops, top);  // the same from every warp
  __syncthreads();
#if POWERS == 1
#pragma unroll
  for (int r = 0; r < OWN; ++r) top[r] = pair_scale(top[r]);
#endif
#else
  float scale = scales[o], fraction = 0.0f;
#endif
  for (int block = start; block < stop; block += 64) {
    float part[OWN] = {};
    int end = min(block + 64, stop);
#pragma unroll 4
    for (int k = block; k < end; ++k) {
      Entry e = entry_of(entries, k);
      float x[OWN];
      own_rows(x, turned + (i64)e.at * padded);
#if POWERS >= 2
#pragma unroll
      for (int r = 0; r < OWN; ++r) part[r] += power_of_ratio(fabsf(x[r] - e.w), top[r], power_factor(p));
#elif POWERS == 1
#pragma unroll
      for (int r = 0; r < OWN; ++r) part[r] += power((x[r] - e.w) * top[r], 0.0f);
#else
      float centre = e.w * scale;
#pragma unroll
      for (int r = 0; r < OWN; ++r) part[r] += power(fmaf(x[r], scale, -centre), fraction);
#endif
    }
#pragma unroll
    for (int r = 0; r < OWN; ++r) sum[r] += part[r];
  }
  leave_rows(shared[warp], sum);
  __syncthreads();
  for (int row = threadIdx.x; row < GROUP; row += 128) {
    float s = over_warps(shared, row);
    i64 at = (i64)o * padded + group + row;
#if POWERS == 1
    float most = tops[row], scale = pair_scale(most), distance = most, factor = 1.0f;
    if (most > 0.0f && most < INFINITE) {
      double l = log2((double)s);
      distance = (float)(exp2(l / p) / scale);
      factor = (float)exp2(l / p - l);
      if (!(s < INFINITE)) *(volatile int*)flag = 1;  // the largest of all floats: no power of two is small enough
    } else if (most != most) {
      factor = most;
    }
    y[at] = distance;
    if (first_kept) first_kept[at] = scale, second_kept[at] = factor;
#elif POWERS >= 2
    float most = tops[row], distance = most, factor = 1.0f;
    if (most > 0.0f && most < INFINITE) {
      float l = log2f(s);
      distance = most * exp2f(l / p);
      factor = exp2f(l / p - l);
      if (most > 0x1p125f) *(volatile int*)flag = 1;  // the quick division of power_of_ratio ends at 2^126
    } else if (most != most) {
      factor = most;
    }
    y[at] = distance;
    // A maximum of zero is kept as one: the slopes come out as zero.
    if (first_kept) first_kept[at] = most == 0.0f ? 1.0f : most, second_kept[at] = factor;
#else
    double result = 0.0;
    if (s >= SAFE_SUM && s < INFINITE) {
      result = exp2(log2((double)s) / p) / scale;
    } else {
      float most = 0.0f;
      for (int k = 0; k < count; ++k) {
        Entry e = entry_of(entries, k);
        most = larger(most, fabsf(turned[(i64)e.at * padded + row] - e.w));
      }
      if (most != 0.0f) *(volatile int*)flag = 1;
    }
    float rounded = (float)result;
    y[at] = rounded;
    if (first_kept) first_kept[at] = (float)(result - rounded);
#endif
  }
}
