// Larger p: few features can affect a distance. With lo, hi the range of a feature in the batch,
//   |x - w| <= farthest = max(|hi - w|, |lo - w|)   and   pair_max >= gap = max(w - hi, lo - w, 0)
// for every row. Features with farthest < cut * (largest gap of the output) are not listed for that output. The others
// are listed by output for distances and grad_w, by feature for grad_x. Matrices are transposed: lanes own rows of the
// batch, and a list entry is the same for all lanes.
//   GROUP_ROWS  rows of the batch per block: a lane owns 4 consecutive rows out of every 128
//   POWER_MODE  how powers are computed (SCALE_PER_OUTPUT, SCALE_PER_PAIR, LOG_RATIO or LOG_RATIO_LARGE; see PowerMode
//   in
//               pruned.py)
#include "common.cuh"

#define WARPS 4
#define VECTORS (GROUP_ROWS / 128)
#define LANE_ROWS (4 * VECTORS)
#define NOT_A_NUMBER __int_as_float(0x7fc00000)

struct Entry {
  int at;  // index of the feature or of the output
  float w;
};

static __device__ __forceinline__ Entry entry_of(const int2* __restrict__ entries, int k) {
  int2 e = __ldg(entries + k);
  return Entry{e.x, __int_as_float(e.y)};
}

// Load this lane's rows of a group that starts at `from`.
static __device__ __forceinline__ void load_rows(float (&to)[LANE_ROWS], const float* __restrict__ from) {
#pragma unroll
  for (int q = 0; q < VECTORS; ++q)
    *reinterpret_cast<float4*>(to + 4 * q) = __ldg(reinterpret_cast<const float4*>(from) + q * 32 + (threadIdx.x & 31));
}

// Index in the group of the r-th row of this lane.
static __device__ __forceinline__ int lane_row(int r) { return r / 4 * 128 + (threadIdx.x & 31) * 4 + r % 4; }

// Store this lane's rows to a group in shared memory.
static __device__ __forceinline__ void store_rows(float (&to)[GROUP_ROWS], const float (&from)[LANE_ROWS]) {
#pragma unroll
  for (int r = 0; r < LANE_ROWS; ++r) to[lane_row(r)] = from[r];
}

// Sum over what the four warps stored for a row.
static __device__ __forceinline__ float sum_over_warps(const float (&shares)[WARPS][GROUP_ROWS], int row) {
  return (shares[0][row] + shares[1][row]) + (shares[2][row] + shares[3][row]);
}

// (a / m)^p for 0 <= a <= m, by the series of the logarithm in (m - a) / (m + a). The difference m - a is exact while
// a > m / 2, so the error stays relative to it. `factor` is power_factor(p). For large p (above 128) only a > 0.88 m
// matters: two terms of the series leave less than 2^-29 of m^p, and smaller numbers come out below the cut.
static __device__ __forceinline__ float power_of_ratio(float a, float m, float factor, bool large_p) {
  float z = __fdividef(m - a, m + a), q = z * z;
  float series =
      large_p ? fmaf(q, 1.0f / 3, 1.0f)
              : fmaf(q, fmaf(q, fmaf(q, fmaf(q, fmaf(q, 1.0f / 11, 1.0f / 9), 1.0f / 7), 1.0f / 5), 1.0f / 3), 1.0f);
  return exp2_fast(factor * (z * series));
}

static __device__ __forceinline__ float power_factor(float p) { return -2.885390082f * p; }

// The power of two s with 2^-0.5 <= s largest < 2^0.5; 0 if largest is infinite: finite differences have no slope
// there.
static __device__ __forceinline__ float scale_for_pair(float largest) {
  return largest == INFINITY_F ? 0.0f : scale_for(largest * 0.70710678f, 0);
}

// Start of the part of a list that a warp processes: four neighbouring parts.
static __device__ __forceinline__ int part_start(int count, int warp) { return (int)((i64)count * warp / WARPS); }
