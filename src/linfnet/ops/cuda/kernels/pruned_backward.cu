// Compute gradients from the listed features:
//   grad_w[o, i] = -sum_b c[b, o] slope,   grad_x[b, i] = sum_o c[b, o] slope.
// The slope and the coefficient c depend on POWER_MODE:
//   SCALE_PER_OUTPUT   slope(s (x - w)), c = g (s y)^(1 - p), where s is one power of two per output
//   SCALE_PER_PAIR     the same, where s is one power of two per pair
//   LOG_RATIO(_LARGE)  sign(x - w) (|x - w| / pair_max)^(p - 1), c = g S^((1 - p) / p), where S is the saved sum
// g is grad times its scale. `saved_first` contains s, pair_max or its inverse (LARGE) for each pair. `exponent` is p - 1.
#include "pruned.cuh"
#include "power"

// `scale` is the power of two of the output; `pair` is the element of saved_first for the pair.
static __device__ __forceinline__ float listed_slope(float x, float w, float scale, float pair, float exponent) {
  if constexpr (POWER_MODE == SCALE_PER_OUTPUT) return slope(fmaf(x, scale, -w * scale), 0.0f, 0.0f);
  if constexpr (POWER_MODE == SCALE_PER_PAIR) return slope((x - w) * pair, 0.0f, 0.0f);
  float size = POWER_MODE == LOG_RATIO ? power_of_ratio(fabsf(x - w), pair, exponent)
                                       : power_by_inverse(fabsf(x - w), pair, exponent);
  return copysignf(size, x - w);
}

// Each block computes one output; its four warps divide the list.
extern "C" __global__ void __launch_bounds__(128)
    listed_grad_w(const float* __restrict__ x_transposed, const int2* __restrict__ entries,
                  const int* __restrict__ counts, const float* __restrict__ scales,
                  const float* __restrict__ coefficients, const float* __restrict__ saved_first,
                  const u32* __restrict__ output_max, const int* __restrict__ nonfinite, float* __restrict__ grad_w,
                  int features, int padded, float exponent, const int* __restrict__ use_dense) {
  if (*use_dense) return;
  if (nonfinite[blockIdx.x]) {
    for (int i = threadIdx.x; i < features; i += 128) grad_w[(i64)blockIdx.x * features + i] = NOT_A_NUMBER;
    return;
  }
  int warp = threadIdx.x >> 5, o = blockIdx.x, count = counts[o];
  entries += (i64)o * features;
  grad_w += (i64)o * features;
  for (int i = threadIdx.x; i < features; i += 128) grad_w[i] = 0.0f;
  __syncthreads();
  int start = part_start(count, warp), stop = part_start(count, warp + 1);
  float scale = scales[o], inverse_scale = inverse_gradient_scale(output_max);
  for (int group = 0; group < padded; group += GROUP_ROWS) {
    float c[LANE_ROWS], pair[LANE_ROWS];
    load_rows(c, coefficients + (i64)o * padded + group);
    if constexpr (POWER_MODE != SCALE_PER_OUTPUT) load_rows(pair, saved_first + (i64)o * padded + group);
#pragma unroll 2
    for (int k = start; k < stop; ++k) {
      Entry e = entry_of(entries, k);
      float x[LANE_ROWS], sum = 0.0f;
      load_rows(x, x_transposed + (i64)e.at * padded + group);
#pragma unroll
      for (int r = 0; r < LANE_ROWS; ++r) sum = fmaf(c[r], listed_slope(x[r], e.w, scale, pair[r], exponent), sum);
#pragma unroll
      for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(FULL_MASK, sum, step);
      if ((threadIdx.x & 31) == 0) grad_w[e.at] = fmaf(-sum, inverse_scale, group ? grad_w[e.at] : 0.0f);
    }
  }
}

// Each block computes one feature and group of rows; its four warps divide the list of outputs. The result is
// transposed.
extern "C" __global__ void __launch_bounds__(128)
    listed_grad_x(const float* __restrict__ x_transposed, const int2* __restrict__ entries,
                  const int* __restrict__ counts, const float* __restrict__ scales,
                  const float* __restrict__ coefficients, const float* __restrict__ saved_first,
                  const u32* __restrict__ output_max, float* __restrict__ grad_x_transposed, int out, int padded,
                  float exponent, const int* __restrict__ use_dense) {
  if (*use_dense) return;
  __shared__ float shared[LIST_WARPS][GROUP_ROWS];
  int warp = threadIdx.x >> 5, i = blockIdx.x, count = counts[i];
  i64 group = (i64)blockIdx.y * GROUP_ROWS;
  entries += (i64)i * out;
  coefficients += group;
  saved_first += group;
  int start = part_start(count, warp), stop = part_start(count, warp + 1);
  float x[LANE_ROWS], sum[LANE_ROWS] = {};
  load_rows(x, x_transposed + (i64)i * padded + group);
  for (int block = start; block < stop; block += 64) {
    float part[LANE_ROWS] = {};
    int end = min(block + 64, stop);
#pragma unroll 4
    for (int k = block; k < end; ++k) {
      Entry e = entry_of(entries, k);
      float scale = __ldg(scales + e.at), c[LANE_ROWS], pair[LANE_ROWS];
      load_rows(c, coefficients + (i64)e.at * padded);
      if constexpr (POWER_MODE != SCALE_PER_OUTPUT) load_rows(pair, saved_first + (i64)e.at * padded);
#pragma unroll
      for (int r = 0; r < LANE_ROWS; ++r)
        part[r] = fmaf(c[r], listed_slope(x[r], e.w, scale, pair[r], exponent), part[r]);
    }
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) sum[r] += part[r];
  }
  store_rows(shared[warp], sum);
  __syncthreads();
  for (int row = threadIdx.x; row < GROUP_ROWS; row += 128) {
    float total = sum_over_warps(shared, row) * inverse_gradient_scale(output_max);
    grad_x_transposed[(i64)i * padded + group + row] = total;
  }
}
