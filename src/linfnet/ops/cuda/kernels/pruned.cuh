// Larger p: of a neuron's features only those can count, for any row of the batch, whose |x - w| may come near the
// largest. With lo, hi the range of a feature in the batch: |x - w| <= reach = max(|hi - w|, |lo - w|), and the largest
// |x - w| of every row is at least the largest gap = max(w - hi, lo - w, 0). Features with reach < cut * largest gap are
// left out for the whole batch. What is left is listed: by outputs for distances and grad_w, by features for grad_x.
// Matrices are turned (rows of the batch last, filled up to whole groups with the last row): lanes are rows, a list entry is
// the same for all of them. QUADS: a lane owns 4 neighbouring rows in each of QUADS x 128.
#include "common.cuh"

#define WARPS 4
#define GROUP (128 * QUADS)
#define OWN (4 * QUADS)
#define NOT_A_NUMBER __int_as_float(0x7fc00000)

struct Entry {
  int at;   // the feature, or the output
  float w;
};

static __device__ __forceinline__ Entry entry_of(const int2* __restrict__ entries, int k) {
  int2 e = __ldg(entries + k);
  return Entry{e.x, __int_as_float(e.y)};
}

// This lane's rows of a group that starts at `from`.
static __device__ __forceinline__ void own_rows(float (&to)[OWN], const float* __restrict__ from) {
#pragma unroll
  for (int q = 0; q < QUADS; ++q)
    *reinterpret_cast<float4*>(to + 4 * q) = __ldg(reinterpret_cast<const float4*>(from) + q * 32 + (threadIdx.x & 31));
}

static __device__ __forceinline__ int own_row(int r) { return r / 4 * 128 + (threadIdx.x & 31) * 4 + r % 4; }

// The way back, to a group in shared memory.
static __device__ __forceinline__ void leave_rows(float (&to)[GROUP], const float (&from)[OWN]) {
#pragma unroll
  for (int r = 0; r < OWN; ++r) to[own_row(r)] = from[r];
}

// The sum of what the four warps left for a row.
static __device__ __forceinline__ float over_warps(const float (&left)[WARPS][GROUP], int row) {
  return (left[0][row] + left[1][row]) + (left[2][row] + left[3][row]);
}

// (a / m)^p for 0 <= a <= m, by the logarithm, from the exact difference: its error stays relative to it while a > m / 2.
// `factor` is power_factor(p). POWERS 3 is for p above 128, where only a > 0.88 m counts: two terms of the series leave less
// than 2^-29 of m^p, and what is smaller still comes out below the cut.
static __device__ __forceinline__ float power_of_ratio(float a, float m, float factor) {
  float z = __fdividef(m - a, m + a), q = z * z;
#if POWERS == 3
  float series = fmaf(q, 1.0f / 3, 1.0f);
#else
  float series = fmaf(q, fmaf(q, fmaf(q, fmaf(q, fmaf(q, 1.0f / 11, 1.0f / 9), 1.0f / 7), 1.0f / 5), 1.0f / 3), 1.0f);
#endif
  return exp2_fast(factor * (z * series));
}

static __device__ __forceinline__ float power_factor(float p) { return -2.885390082f * p; }

// The power of two s with 2^-0.5 <= s top < 2^0.5; 0 where top is infinite: finite differences have no slope there.
static __device__ __forceinline__ float pair_scale(float top) {
  return top == INFINITE ? 0.0f : scale_for(top * 0.70710678f, 0);
}

// The part of a list that a warp works on: four neighbouring parts.
static __device__ __forceinline__ int part_start(int count, int warp) { return (int)((i64)count * warp / WARPS); }
