// Distances for even p: these kernels compute the powers of x and w before the matrix products and add the products.
//   UNEXPANDED_COST  time for the slopes of an unexpanded pair (two passes with scattered reads), relative to
//                    recomputing one sum
#include "tensor_core.cuh"

static __device__ constexpr int bits_of(int n) {
  int bits = 0;
  while (n >> bits) ++bits;
  return bits;
}

// Return the exponent that scales a power (at most 1) of the layer's maximum to between 2^(HALF_EXPONENT - 1) and
// 2^HALF_EXPONENT.
static __device__ __forceinline__ int half_exponent(float power) {
  return power >= 0x1p-16f && power <= 1.0f ? HALF_EXPONENT - 1 - ilogbf(power) : HALF_EXPONENT;
}

// Compute the powers of one row per block. halves_out: [2, rows, TERMS, features], where the two halves are `stride`
// numbers apart, or one half if SINGLE. Index j - 1 contains w^j, or C(P, j) (-x)^(P - j) if `of_x` is set. `power_sum` receives the sum of
// the P-th powers of the row.
extern "C" __global__ void __launch_bounds__(256)
    powers(const float* __restrict__ a, const u32* __restrict__ input_max, u16* __restrict__ halves_out, i64 stride,
           float* __restrict__ power_sum, int features, int of_x) {
  float scale = two_to(layer_exponent(input_max)), top = layer_max(input_max) * scale, sum = 0.0f;
  i64 row = blockIdx.x;
  for (int k = threadIdx.x * 4; k < features; k += 1024) {
    float4 v = *reinterpret_cast<const float4*>(a + row * features + k);
    float u[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale}, power[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (of_x) u[c] = -u[c];
      power[c] = 1.0f;
    }
    float largest = 1.0f;
#pragma unroll
    for (int j = 1; j < P; ++j) {
      largest *= top;
      // For x, the powers are computed in descending order of the index.
      int index = of_x ? P - j - 1 : j - 1;
      float factor = two_to(half_exponent(largest)), scaled[4];
      if (of_x) factor *= (float)choose(P, j) * two_to(-bits_of(choose(P, j)));
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        power[c] *= u[c];
        scaled[c] = power[c] * factor;
      }
      Halves pair = halves(scaled);
      u16* to = halves_out + (row * TERMS + index) * features + k;
      *reinterpret_cast<uint2*>(to) = pair.first;
      if constexpr (!SINGLE) *reinterpret_cast<uint2*>(to + stride) = pair.second;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) sum = fmaf(power[c], u[c], sum);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) power_sum[row] = sum;
}

static __device__ __forceinline__ float power_of(float d) {
  float result = d * d;
#pragma unroll
  for (int k = 2; k < P; k += 2) result *= d * d;
  return result;
}

// Compute the sums of scaled powers of each pair, as `finish_sum` expects them. The terms with even j are positive;
// their sum E is at least half of sum (|x| + |w|)^P, so the ratio E / sum measures the cancellation. A pair with a
// ratio above `most_loss` is counted, and its warp computes the sum again without expansion. `unexpanded` (may be null)
// receives a bit for each pair with a ratio above `most_slope_loss`: cancellation would dominate its slopes. A pair
// with a sum below `least_sum` times the P-th power of the layer's maximum is treated like a pair above both limits,
// because its terms are out of the range of float16.
//   main: [TERMS * chunks, n, out];  cross: [2, TERMS, n, out], null if SINGLE.
extern "C" __global__ void __launch_bounds__(256)
    combine(const float* __restrict__ main, int chunks, const float* __restrict__ cross,
            const float* __restrict__ power_sum_x, const float* __restrict__ power_sum_w, const float* __restrict__ x,
            const float* __restrict__ w, const u32* __restrict__ input_max, float* __restrict__ sums,
            int* __restrict__ count, u32* __restrict__ unexpanded, int n, int out, int features, float most_loss,
            float most_slope_loss, float least_sum, int target_exponent) {
  i64 pairs = (i64)n * out, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  bool inside = at < pairs, cancels = false, mark = false;
  int exponent = layer_exponent(input_max);
  // Near the limits of the float range no power of two scales the numbers to about 1: every pair is counted, so that
  // the dense kernels compute the layer.
  bool out_of_range = exponent == 126 || exponent == -126;
  // The scale that `finish_sum` expects.
  float scale = scale_for(__uint_as_float(input_max[0]) + __uint_as_float(input_max[1]), target_exponent);
  float result = 0.0f;
  if (inside) {
    i64 b = at / out, o = at - b * out;
    float even = 0.0f, odd = 0.0f, small = 0.0f, top = layer_max(input_max) * two_to(exponent), largest[P + 1] = {1.0f};
#pragma unroll
    for (int j = 1; j <= P; ++j) largest[j] = largest[j - 1] * top;
#pragma unroll
    for (int j = 1; j < P; ++j) {
      float share = 0.0f,
            factor = two_to(bits_of(choose(P, j)) - half_exponent(largest[j]) - half_exponent(largest[P - j]));
      for (int k = 0; k < chunks; ++k) share += main[((j - 1) * chunks + k) * pairs + at];
      if (j % 2)
        odd = fmaf(share, factor, odd);
      else
        even = fmaf(share, factor, even);
      if constexpr (!SINGLE)
        small = fmaf(cross[(j - 1) * pairs + at] + cross[(TERMS + j - 1) * pairs + at], factor, small);
    }
    even += power_sum_x[b] + power_sum_w[o];
    float sum = (even + odd) + small;
    bool low = !(sum >= least_sum * largest[P]);
    cancels = out_of_range || low || !(even <= most_loss * sum);
    mark = low || !(even <= most_slope_loss * sum);
    result = scalbnf(sum, P * (ilogbf(scale) - exponent));
  }
  u32 left = __ballot_sync(FULL_MASK, inside && cancels), marks = __ballot_sync(FULL_MASK, inside && mark);
  if (unexpanded && inside && (threadIdx.x & 31) == 0) unexpanded[at >> 5] = marks;
  if ((threadIdx.x & 31) == 0 && (left || marks)) atomicAdd(count, __popc(left) + UNEXPANDED_COST * __popc(marks));
  while (left) {
    int lane = __ffs(left) - 1;
    left &= left - 1;
    i64 pair = __shfl_sync(FULL_MASK, at, lane);
    i64 b = pair / out, o = pair - b * out;
    float sum = 0.0f;
    for (int k = (threadIdx.x & 31) * 4; k < features; k += 128) {
      float4 u = *reinterpret_cast<const float4*>(x + b * features + k);
      float4 v = *reinterpret_cast<const float4*>(w + o * features + k);
      sum += power_of((u.x - v.x) * scale) + power_of((u.y - v.y) * scale) + power_of((u.z - v.z) * scale) +
             power_of((u.w - v.w) * scale);
    }
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(FULL_MASK, sum, step);
    if ((threadIdx.x & 31) == lane) result = sum;
  }
  if (inside) sums[at] = result;
}
