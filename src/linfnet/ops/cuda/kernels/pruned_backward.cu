// Gradients from the listed features: grad_w[o, i] = -sum_b c[b, o] slope, grad_x[b, i] = sum_o c[b, o] slope, where
//   POWERS 0: slope = slope(s (x - w)), c = g (s y)^(1 - p), s one power of two per output;
//   POWERS 1: the same with one power of two per pair;
//   POWERS 2 and 3: slope = (|x - w| / maximum)^(p - 1), signed, c = g S^((1 - p)/p).
// g is in its own unit. `kept`: the power of two, or the maximum, of each pair.
#include "pruned.cuh"
#include "power"

#if POWERS == 0
#define SLOPE(x, w, scale, own) slope(fmaf(x, scale, -(w) * (scale)), 0.0f)
#elif POWERS == 1
#define SLOPE(x, w, scale, own) slope(((x) - (w)) * (own), 0.0f)
#else
#define SLOPE(x, w, scale, own) copysignf(power_of_ratio(fabsf((x) - (w)), own, power_factor(exponent)), (x) - (w))
#endif

// A block per output; its four warps share the list. `result` starts as zero.
extern "C" __global__ void __launch_bounds__(128)
listed_grad_w(const float* __restrict__ turned, const int2* __restrict__ entries, const int* __restrict__ counts,
              const float* __restrict__ scales, const float* __restrict__ coefficients, const float* __restrict__ kept,
              const u32* __restrict__ largest, const int* __restrict__ spoiled, float* __restrict__ result, int features,
              int padded, float exponent, const int* __restrict__ flag) {
  if (*flag) return;
  if (spoiled[blockIdx.x]) {
    for (int i = threadIdx.x; i < features; i += 128) result[(i64)blockIdx.x * features + i] = NOT_A_NUMBER;
    return;
  }
  int warp = threadIdx.x >> 5, o = blockIdx.x, count = counts[o];
  entries += (i64)o * features;
  result += (i64)o * features;
  int start = part_start(count, warp), stop = part_start(count, warp + 1);
  float scale = scales[o], unit = gradient_unit(largest);
  for (int group = 0; group < padded; group += GROUP) {
    float c[OWN], own[OWN];
    own_rows(c, coefficients + (i64)o * padded + group);
#if POWERS > 0
    own_rows(own, kept + (i64)o * padded + group);
#endif
#pragma unroll 2
    for (int k = start; k < stop; ++k) {
      Entry e = entry_of(entries, k);
      float x[OWN], sum = 0.0f;
      own_rows(x, turned + (i64)e.at * padded + group);
#pragma unroll
      for (int r = 0; r < OWN; ++r) sum = fmaf(c[r], SLOPE(x[r], e.w, scale, own[r]), sum);
#pragma unroll
      for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(FULL, sum, step);
      if ((threadIdx.x & 31) == 0) result[e.at] = fmaf(-sum, unit, group ? result[e.at] : 0.0f);
    }
  }
}

// A block per feature and group of rows; its four warps share the list of outputs. `result` is turned.
extern "C" __global__ void __launch_bounds__(128)
listed_grad_x(const float* __restrict__ turned, const int2* __restrict__ entries, const int* __restrict__ counts,
              const float* __restrict__ scales, const float* __restrict__ coefficients, const float* __restrict__ kept,
              const u32* __restrict__ largest, float* __restrict__ result, int out, int padded, float exponent,
              const int* __restrict__ flag) {
  if (*flag) return;
  __shared__ float shared[WARPS][GROUP];
  int warp = threadIdx.x >> 5, i = blockIdx.x, count = counts[i];
  i64 group = (i64)blockIdx.y * GROUP;
  entries += (i64)i * out;
  coefficients += group;
  kept += group;
  int start = part_start(count, warp), stop = part_start(count, warp + 1);
  float x[OWN], sum[OWN] = {};
  own_rows(x, turned + (i64)i * padded + group);
  for (int block = start; block < stop; block += 64) {
    float part[OWN] = {};
    int end = min(block + 64, stop);
#pragma unroll 4
    for (int k = block; k < end; ++k) {
      Entry e = entry_of(entries, k);
      float scale = __ldg(scales + e.at), c[OWN], own[OWN];
      own_rows(c, coefficients + (i64)e.at * padded);
#if POWERS > 0
      own_rows(own, kept + (i64)e.at * padded);
#endif
#pragma unroll
      for (int r = 0; r < OWN; ++r) part[r] = fmaf(c[r], SLOPE(x[r], e.w, scale, own[r]), part[r]);
    }
#pragma unroll
    for (int r = 0; r < OWN; ++r) sum[r] += part[r];
  }
  leave_rows(shared[warp], sum);
  __syncthreads();
  for (int row = threadIdx.x; row < GROUP; row += 128)
    result[(i64)i * padded + group + row] = over_warps(shared, row) * gradient_unit(largest);
}
