// Larger p: few features can affect a distance. With lo, hi the range of a feature in the batch,
//   |x - w| <= farthest = max(|hi - w|, |lo - w|)   and   pair_max >= gap = max(w - hi, lo - w, 0)
// for every row. Features with farthest < cut * (largest gap of the output) are not listed for that output. The other
// features are listed by output for distances and grad_w, and by feature for grad_x. Matrices are transposed: each lane
// processes some rows of the batch, and all lanes read the same list entry.
//   LANE_GROUP  rows that a warp processes with one float4 per lane
//   GROUP_ROWS  rows of the batch per block: a lane processes 4 consecutive rows of each LANE_GROUP
//   POWER_MODE  how powers are computed: SCALE_PER_OUTPUT, SCALE_PER_PAIR, LOG_RATIO or LOG_RATIO_LARGE
//               (see PowerMode in linfnet/ops/powers.py)
#include "common.cuh"

#define LIST_WARPS 4  // warps per block that share a list
#define VECTORS (GROUP_ROWS / LANE_GROUP)
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

// Load the rows of this lane from the group that starts at `from`.
static __device__ __forceinline__ void load_rows(float (&to)[LANE_ROWS], const float* __restrict__ from) {
#pragma unroll
  for (int q = 0; q < VECTORS; ++q)
    *reinterpret_cast<float4*>(to + 4 * q) = __ldg(reinterpret_cast<const float4*>(from) + q * 32 + (threadIdx.x & 31));
}

// Return the index, within the group, of the r-th row of this lane.
static __device__ __forceinline__ int lane_row(int r) { return r / 4 * LANE_GROUP + (threadIdx.x & 31) * 4 + r % 4; }

// Store the rows of this lane in a group in shared memory.
static __device__ __forceinline__ void store_rows(float (&to)[GROUP_ROWS], const float (&from)[LANE_ROWS]) {
#pragma unroll
  for (int r = 0; r < LANE_ROWS; ++r) to[lane_row(r)] = from[r];
}

// Return the sum of the numbers that the four warps stored for a row.
static __device__ __forceinline__ float sum_over_warps(const float (&shares)[LIST_WARPS][GROUP_ROWS], int row) {
  return (shares[0][row] + shares[1][row]) + (shares[2][row] + shares[3][row]);
}

// Return (a / m)^p for 0 <= a <= m, by the series of the logarithm in (m - a) / (m + a). The difference m - a is exact
// if a > m / 2, so the error stays relative to it.
static __device__ __forceinline__ float power_of_ratio(float a, float m, float p) {
  float z = __fdividef(m - a, m + a), q = z * z;
  float series = fmaf(q, fmaf(q, fmaf(q, fmaf(q, fmaf(q, 1.0f / 11, 1.0f / 9), 1.0f / 7), 1.0f / 5), 1.0f / 3), 1.0f);
  return exp2_fast(-2.885390082f * p * (z * series));
}

// Return (a / m)^p for p > 128 and `inverse` = 1 / m: with u = 1 - a / m, the series of the logarithm in u. Only u < 0.12
// matters: three terms change the result by less than 2^-20 of m^p, and results for larger u are below the cut. The
// rounding of the inverse changes all powers of a pair by the same factor, hence neither y nor the slopes.
static __device__ __forceinline__ float power_by_inverse(float a, float inverse, float p) {
  float u = fmaf(-a, inverse, 1.0f), factor = -1.4426950408889634f * p;
  return exp2_fast(u * fmaf(u, fmaf(u, factor * (1.0f / 3), factor * 0.5f), factor));
}

// Return the power of two s with 2^-0.5 <= s * largest < 2^0.5, or 0 if largest is infinite: the slopes of finite
// differences are then zero.
static __device__ __forceinline__ float scale_for_pair(float largest) {
  return largest == INFINITY_F ? 0.0f : scale_for(largest * 0.70710678f, 0);
}

// Return the start of the part of a list that a warp processes; a list is divided into four consecutive parts.
static __device__ __forceinline__ int part_start(int count, int warp) { return (int)((i64)count * warp / LIST_WARPS); }
