// Compute distances and indices from the partial results of the forward pass, with one thread per pair.
//   RUN                         features per run
//   DISTANCE, GAP, FARTHEST     values of `measure`
#include "common.cuh"
#include "exact.cuh"

// Compute distances from sums of scaled powers. Pairs whose sum is out of the safe range are recomputed exactly.
// `pair_max` is null or contains the maximum by which each term of a pair was divided. `residual` is null or receives
// the exact distance minus y: slopes use the (p - 1)-th power of y, which multiplies this error by p - 1.
extern "C" __global__ void __launch_bounds__(256)
    finish_sum(const float* __restrict__ part, int parts, const float* __restrict__ x, const float* __restrict__ w,
               const float* __restrict__ pair_max, const u32* __restrict__ input_max, float* __restrict__ y,
               float* __restrict__ residual, int n, int out, int features, float p, int target_exponent,
               const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  i64 pairs = (i64)n * out, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  bool inside = at < pairs, exact = false;
  double result = 0.0;
  if (inside) {
    float sum = 0.0f;
    for (int s = 0; s < parts; ++s) sum += part[s * pairs + at];
    if (pair_max) {
      float scale = scale_for(__uint_as_float(input_max[0]), 0), m = pair_max[at] * scale;
      exact = !(m >= SAFE_RATIO && m < INFINITY_F);
      // The terms contain the rounded offset -p log2 m, so the same rounded number is subtracted.
      result = exp2((log2((double)sum) - (double)(-p * log2f(m))) / p) / scale;
    } else {
      float scale = scale_for(__uint_as_float(input_max[0]) + __uint_as_float(input_max[1]), target_exponent);
      exact = !(sum >= SAFE_SUM && sum < INFINITY_F);
      result = exact ? 0.0 : exp2(log2((double)sum) / p) / scale;
    }
  }
  u32 left = __ballot_sync(FULL_MASK, inside && exact);
  while (left) {
    int lane = __ffs(left) - 1;
    left &= left - 1;
    i64 pair = __shfl_sync(FULL_MASK, at, lane);
    i64 b = pair / out, o = pair - b * out;
    double value = exact_distance(x + b * features, w + o * features, features, p);
    if ((threadIdx.x & 31) == lane) result = value;
  }
  if (!inside) return;
  float rounded = (float)result;
  y[at] = rounded;
  if (residual) residual[at] = rounded < INFINITY_F ? (float)(result - rounded) : 0.0f;
}

// Count the pairs whose sums of scaled powers are out of the safe range.
extern "C" __global__ void __launch_bounds__(256)
    count_unsafe(const float* __restrict__ part, int parts, u32* __restrict__ count, i64 pairs,
                 const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  float sum = SAFE_SUM;
  if (at < pairs) {
    sum = 0.0f;
    for (int s = 0; s < parts; ++s) sum += part[s * pairs + at];
  }
  u32 found = __popc(__ballot_sync(FULL_MASK, !(sum >= SAFE_SUM && sum < INFINITY_F)));
  if ((threadIdx.x & 31) == 0 && found) atomicAdd(count, found);
}

// Choose between the chain, flags[0], and special functions, flags[1], if more than `most` sums are out of range.
extern "C" __global__ void __launch_bounds__(32)
    choose_powers(const u32* __restrict__ count, int most, const int* __restrict__ active, int* flags) {
  if (threadIdx.x) return;
  bool on = !active || *active, general = *count > (u32)most;
  flags[0] = on && !general, flags[1] = on && general;
}

extern "C" __global__ void __launch_bounds__(256)
    finish_max(const float* __restrict__ part, int parts, float* __restrict__ y, i64 pairs,
               const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= pairs) return;
  float best = 0.0f;
  for (int s = 0; s < parts; ++s) best = max_nan(best, part[s * pairs + at]);
  y[at] = best;
}

// The quantity to maximise: |x - w| with x = `lower`, the gap, or the largest |x - w| for x between lower and upper.
static __device__ __forceinline__ float measured(int measure, float lower, float upper, float w) {
  if (measure == DISTANCE) return fabsf(lower - w);
  if (measure == GAP) return max_nan(max_nan(lower - w, w - upper), 0.0f);
  return max_nan(fabsf(lower - w), fabsf(upper - w));
}

static __device__ __forceinline__ float4 load4(const float* __restrict__ row, int k, int features, bool aligned) {
  if (aligned) return k < features ? *reinterpret_cast<const float4*>(row + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return make_float4(k < features ? row[k] : 0.0f, k + 1 < features ? row[k + 1] : 0.0f,
                     k + 2 < features ? row[k + 2] : 0.0f, k + 3 < features ? row[k + 3] : 0.0f);
}

// Find the first feature that attains the maximum, in the first run that contains it. A warp searches the runs of its
// 32 pairs, four runs at a time with 8 lanes per run. `index` may be the same array as `run`. If `sign` is set, bit 31
// of the index is 1 where x < w.
extern "C" __global__ void __launch_bounds__(256)
    finish_index(const float* __restrict__ part, const int* run, int parts, const float* __restrict__ lower,
                 const float* __restrict__ upper, const float* __restrict__ w, float* y, int* index, int n, int out,
                 int features, int measure, int sign, int aligned, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  int lane = threadIdx.x & 31;
  i64 pairs = (i64)n * out, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  // Lanes beyond the end repeat the last pair.
  i64 mine = min(at, pairs - 1);
  u32 best = __float_as_uint(part[mine]);
  int where = run[mine];
  for (int s = 1; s < parts; ++s) {
    u32 other = __float_as_uint(part[s * pairs + mine]);
    if (other > best) {
      best = other;
      where = run[s * pairs + mine];
    }
  }
  int b = (int)(pairs <= 0xffffffffll ? (u32)mine / (u32)out : mine / out), o = (int)(mine - (i64)b * out), found = 0;
#pragma unroll 4
  for (int step = 0; step < 8; ++step) {
    int pair = step * 4 + (lane >> 3);
    u32 wanted = __shfl_sync(FULL_MASK, best, pair);
    int k = __shfl_sync(FULL_MASK, where, pair) * RUN + (lane & 7) * 4;
    i64 row = (i64)__shfl_sync(FULL_MASK, b, pair) * features,
        anchors = (i64)__shfl_sync(FULL_MASK, o, pair) * features;
    float4 low = load4(lower + row, k, features, aligned), anchor = load4(w + anchors, k, features, aligned),
           high = low;
    if (measure != DISTANCE) high = load4(upper + row, k, features, aligned);
    float lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
    float centres[4] = {anchor.x, anchor.y, anchor.z, anchor.w};
    int code = -1;
#pragma unroll
    for (int c = 3; c >= 0; --c) {
      float value = measured(measure, lows[c], highs[c], centres[c]);
      bool hit = wanted > 0x7f800000u ? value != value : __float_as_uint(value) == wanted;
      if (hit && k + c < features) code = 2 * c + (lows[c] < centres[c]);
    }
    // Select the first of the eight lanes with a hit. Every lane reads the result of the pair that it will write.
    u32 hits = __ballot_sync(FULL_MASK, code >= 0) >> (lane & 3) * 8 & 0xff;
    int winner = hits ? __ffs(hits) - 1 : 0;
    code = __shfl_sync(FULL_MASK, code, (lane & 3) * 8 + winner);
    if (lane >> 2 == step && hits) {
      found = where * RUN + winner * 4 + (code >> 1);
      if (sign && (code & 1)) found |= 0x80000000;
    }
  }
  if (at < pairs) {
    y[at] = __uint_as_float(best);
    index[at] = found;
  }
}
