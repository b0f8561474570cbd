// Compute distances from the listed features. Each block computes one output and group of rows; its four warps divide
// the list. The computation, and what is saved (transposed) for the backward pass, depend on POWER_MODE; S is the sum:
//   SCALE_PER_OUTPUT   sum of power(s (x - w)), where s is one power of two per output; a pair out of range sets
//                      use_dense; saves the residual of y
//   SCALE_PER_PAIR     pair_max, then the same sum, where s is one power of two per pair; saves s and S^((1 - p) / p)
//   LOG_RATIO(_LARGE)  pair_max, then the sum of (|x - w| / pair_max)^p by special functions; saves pair_max (LARGE: its
//                      inverse) and S^((1 - p) / p)
// If MARK is 1, features with |x - w| >= cut * pair_max for any row are marked in `kept` [out, features / 32], whose bits
// must be 0 before: lists use only the ranges of the features, and many features reach pair_max * cut in no row.
#include "pruned.cuh"
#include "power"

extern "C" __global__ void __launch_bounds__(128)
    listed_distance(const float* __restrict__ x_transposed, const int2* __restrict__ entries,
                    const int* __restrict__ counts, const float* __restrict__ scales, float* __restrict__ y,
                    float* __restrict__ saved_first, float* __restrict__ saved_second, u32* __restrict__ kept,
                    int features, int padded, float p, float cut, int* use_dense) {
  if (*(volatile int*)use_dense) return;
  __shared__ float shared[LIST_WARPS][GROUP_ROWS];
  __shared__ float group_max[GROUP_ROWS];
  int warp = threadIdx.x >> 5, o = blockIdx.x, count = counts[o];
  i64 group = (i64)blockIdx.y * GROUP_ROWS;
  entries += (i64)o * features;
  x_transposed += group;
  int start = part_start(count, warp), stop = part_start(count, warp + 1);
  float sum[LANE_ROWS] = {}, pair[LANE_ROWS] = {};  // pair: the maximum or the scale of each row
  float scale = 0.0f, limit[LANE_ROWS];
  if constexpr (MARK) kept += (i64)o * ((features + 31) / 32);
  if constexpr (POWER_MODE == SCALE_PER_OUTPUT) {
    scale = scales[o];
  } else {
#pragma unroll 4
    for (int k = start; k < stop; ++k) {
      Entry e = entry_of(entries, k);
      float x[LANE_ROWS];
      load_rows(x, x_transposed + (i64)e.at * padded);
#pragma unroll
      for (int r = 0; r < LANE_ROWS; ++r) pair[r] = max_nan(pair[r], fabsf(x[r] - e.w));
    }
    store_rows(shared[warp], pair);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
#pragma unroll
      for (int v = 0; v < LIST_WARPS; ++v) pair[r] = max_nan(pair[r], shared[v][lane_row(r)]);
    store_rows(group_max, pair);  // every warp stores the same values
    __syncthreads();
    if constexpr (MARK) {
#pragma unroll
      for (int r = 0; r < LANE_ROWS; ++r) limit[r] = pair[r] * cut;
    }
    if constexpr (POWER_MODE == SCALE_PER_PAIR) {
#pragma unroll
      for (int r = 0; r < LANE_ROWS; ++r) pair[r] = scale_for_pair(pair[r]);
    } else if constexpr (POWER_MODE == LOG_RATIO_LARGE) {
#pragma unroll
      for (int r = 0; r < LANE_ROWS; ++r) pair[r] = 1.0f / pair[r];
    }
  }
  for (int block = start; block < stop; block += 64) {
    float part[LANE_ROWS] = {};
    int end = min(block + 64, stop);
    u32 marks = 0;  // bits 0 and 1: whether entries block + lane and block + lane + 32 are marked
#pragma unroll 4
    for (int k = block; k < end; ++k) {
      Entry e = entry_of(entries, k);
      float x[LANE_ROWS], centre = e.w * scale;
      load_rows(x, x_transposed + (i64)e.at * padded);
#pragma unroll
      for (int r = 0; r < LANE_ROWS; ++r) {
        if constexpr (POWER_MODE == SCALE_PER_OUTPUT)
          part[r] += power(fmaf(x[r], scale, -centre), 0.0f, 0.0f);
        else if constexpr (POWER_MODE == SCALE_PER_PAIR)
          part[r] += power((x[r] - e.w) * pair[r], 0.0f, 0.0f);
        else if constexpr (POWER_MODE == LOG_RATIO)
          part[r] += power_of_ratio(fabsf(x[r] - e.w), pair[r], p);
        else
          part[r] += power_by_inverse(fabsf(x[r] - e.w), pair[r], p);
      }
      if constexpr (MARK) {
        bool reached = false;
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r) reached |= !(fabsf(x[r] - e.w) < limit[r]);
        bool mine = (k - block) % 32 == (threadIdx.x & 31);
        marks |= __any_sync(FULL_MASK, reached) && mine ? 1u << (k - block) / 32 : 0;
      }
    }
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) sum[r] += part[r];
    if constexpr (MARK) {
      for (int at = block + (threadIdx.x & 31); marks; at += 32, marks >>= 1) {
        if (!(marks & 1)) continue;
        int i = entry_of(entries, at).at;
        atomicOr(kept + i / 32, 1u << i % 32);
      }
    }
  }
  store_rows(shared[warp], sum);
  __syncthreads();
  for (int row = threadIdx.x; row < GROUP_ROWS; row += 128) {
    float s = sum_over_warps(shared, row);
    i64 at = (i64)o * padded + group + row;
    if constexpr (POWER_MODE == SCALE_PER_OUTPUT) {
      double result = 0.0;
      if (s >= SAFE_SUM && s < INFINITY_F) {
        result = exp2(log2((double)s) / p) / scale;
      } else {
        float most = 0.0f;
        for (int k = 0; k < count; ++k) {
          Entry e = entry_of(entries, k);
          most = max_nan(most, fabsf(x_transposed[(i64)e.at * padded + row] - e.w));
        }
        if (most != 0.0f) *(volatile int*)use_dense = 1;
      }
      float rounded = (float)result;
      y[at] = rounded;
      if (saved_first) saved_first[at] = (float)(result - rounded);
    } else if constexpr (POWER_MODE == SCALE_PER_PAIR) {
      float most = group_max[row], scale = scale_for_pair(most), distance = most, factor = 1.0f;
      if (most > 0.0f && most < INFINITY_F) {
        double l = log2((double)s);
        distance = (float)(exp2(l / p) / scale);
        factor = (float)exp2(l / p - l);
        if (!(s < INFINITY_F)) *(volatile int*)use_dense = 1;  // no power of two is small enough near the largest float
      } else if (most != most) {
        factor = most;
      }
      y[at] = distance;
      if (saved_first) saved_first[at] = scale, saved_second[at] = factor;
    } else {
      float most = group_max[row], distance = most, factor = 1.0f;
      if (most > 0.0f && most < INFINITY_F) {
        float l = log2f(s);
        distance = most * exp2f(l / p);
        factor = exp2f(l / p - l);
        // The fast division in power_of_ratio fails above 2^126; inverses leave the float range at both ends.
        if (most > 0x1p125f || (POWER_MODE == LOG_RATIO_LARGE && most < 0x1p-125f)) *(volatile int*)use_dense = 1;
      } else if (most != most) {
        factor = most;
      }
      y[at] = distance;
      // A maximum of zero is saved as one, so that the slopes become zero.
      float saved = most == 0.0f ? 1.0f : POWER_MODE == LOG_RATIO_LARGE ? 1.0f / most : most;
      if (saved_first) saved_first[at] = saved, saved_second[at] = factor;
    }
  }
}
