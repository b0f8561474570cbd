// From partial results of the forward pass to distances and indices. One thread per pair, 64-bit addresses.
#include "common.cuh"

// The exact way, by a whole warp: the maximum first, then powers of numbers in [0, 1].
static __device__ double exact_distance(const float* __restrict__ x, const float* __restrict__ w, int features, float p) {
  int lane = threadIdx.x & 31;
  u32 most = 0;
  for (int k = lane; k < features; k += 32) most = max(most, __float_as_uint(fabsf(x[k] - w[k])));
  float top = __uint_as_float(__reduce_max_sync(FULL, most));
  if (!(top > 0.0f && top < INFINITE)) return top;
  float sum = 0.0f;
  for (int k = lane; k < features; k += 32) sum += powf(fabsf(x[k] - w[k]) / top, p);
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(FULL, sum, step);
  return top * pow((double)sum, 1.0 / p);
}

// Sums of scaled powers to distances; pairs whose sum left the safe range are computed again, exactly.
// `peak`: null, or the pair's maximum by which each term was divided. `rest`: null, or what rounding y to float32 drops:
// the slope takes the (p - 1)-th power of y and would multiply that error by p - 1.
extern "C" __global__ void __launch_bounds__(256)
finish_sum(const float* __restrict__ part, int parts, const float* __restrict__ x, const float* __restrict__ w,
           const float* __restrict__ peak, const u32* __restrict__ tops, float* __restrict__ y, float* __restrict__ rest, int n,
           int out, int features, float p, int lift, const int* __restrict__ gate) {
  if (closed(gate)) return;
  i64 pairs = (i64)n * out, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  bool here = at < pairs, exact = false;
  double result = 0.0;
  if (here) {
    float sum = 0.0f;
    for (int s = 0; s < parts; ++s) sum += part[s * pairs + at];
    if (peak) {
      float scale = scale_for(__uint_as_float(tops[0]), 0), m = peak[at] * scale;
      exact = !(m >= SAFE_RATIO && m < INFINITE);
      // The terms carried the rounded offset -p log2 m: it is taken back with the same rounding.
      result = exp2((log2((double)sum) - (double)(-p * log2f(m))) / p) / scale;
    } else {
      float scale = scale_for(__uint_as_float(tops[0]) + __uint_as_float(tops[1]), lift);
      exact = !(sum >= SAFE_SUM && sum < INFINITE);
      result = exact ? 0.0 : exp2(log2((double)sum) / p) / scale;
    }
  }
  u32 left = __ballot_sync(FULL, here && exact);
  while (left) {
    int lane = __ffs(left) - 1;
    left &= left - 1;
    i64 pair = __shfl_sync(FULL, at, lane);
    i64 b = pair / out, o = pair - b * out;
    double value = exact_distance(x + b * features, w + o * features, features, p);
    if ((threadIdx.x & 31) == lane) result = value;
  }
  if (!here) return;
  float rounded = (float)result;
  y[at] = rounded;
  if (rest) rest[at] = rounded < INFINITE ? (float)(result - rounded) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(256)
finish_max(const float* __restrict__ part, int parts, float* __restrict__ y, i64 pairs, const int* __restrict__ gate) {
  if (closed(gate)) return;
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= pairs) return;
  float best = 0.0f;
  for (int s = 0; s < parts; ++s) best = larger(best, part[s * pairs + at]);
  y[at] = best;
}

// What of one feature counts: MEASURE 0 |x - w|; 1 the gap max(lower - w, w - upper, 0); 2 the reach max |.|.
static __device__ __forceinline__ float measured(int measure, float lower, float upper, float w) {
  if (measure == 0) return fabsf(lower - w);
  if (measure == 1) return larger(larger(lower - w, w - upper), 0.0f);
  return larger(fabsf(lower - w), fabsf(upper - w));
}

static __device__ __forceinline__ float4 quad_at(const float* __restrict__ row, int k, int features, bool vector) {
  if (vector) return k < features ? *reinterpret_cast<const float4*>(row + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return make_float4(k < features ? row[k] : 0.0f, k + 1 < features ? row[k + 1] : 0.0f,
                     k + 2 < features ? row[k + 2] : 0.0f, k + 3 < features ? row[k + 3] : 0.0f);
}

// The first largest feature, from the first run of 32 that holds it: a warp looks at the runs of its 32 pairs, four at
// a time, 8 lanes each. `index` may be the array the runs are in. With `sign`, bit 31 says that x - w is negative there.
extern "C" __global__ void __launch_bounds__(256)
finish_index(const float* __restrict__ part, const int* run, int parts, const float* __restrict__ lower,
             const float* __restrict__ upper, const float* __restrict__ w, float* y, int* index, int n, int out,
             int features, int measure, int sign, int vector, const int* __restrict__ gate) {
  if (closed(gate)) return;
  int lane = threadIdx.x & 31;
  i64 pairs = (i64)n * out, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  // Lanes beyond the end look at the last pair.
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
  for (int turn = 0; turn < 8; ++turn) {
    int pair = turn * 4 + (lane >> 3);
    u32 wanted = __shfl_sync(FULL, best, pair);
    int k = __shfl_sync(FULL, where, pair) * 32 + (lane & 7) * 4;
    i64 row = (i64)__shfl_sync(FULL, b, pair) * features, anchors = (i64)__shfl_sync(FULL, o, pair) * features;
    float4 low = quad_at(lower + row, k, features, vector), anchor = quad_at(w + anchors, k, features, vector), high = low;
    if (measure) high = quad_at(upper + row, k, features, vector);
    float lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
    float centres[4] = {anchor.x, anchor.y, anchor.z, anchor.w};
    int code = -1;
#pragma unroll
    for (int c = 3; c >= 0; --c) {
      float value = measured(measure, lows[c], highs[c], centres[c]);
      bool hit = wanted > 0x7f800000u ? value != value : __float_as_uint(value) == wanted;
      if (hit && k + c < features) code = 2 * c + (lows[c] < centres[c]);
    }
    // The first lane of eight with a hit; every lane asks for the pair it will write.
    u32 hits = __ballot_sync(FULL, code >= 0) >> (lane & 3) * 8 & 0xff;
    int winner = hits ? __ffs(hits) - 1 : 0;
    code = __shfl_sync(FULL, code, (lane & 3) * 8 + winner);
    if (lane >> 2 == turn && hits) {
      found = where * 32 + winner * 4 + (code >> 1);
      if (sign && (code & 1)) found |= 0x80000000;
    }
  }
  if (at < pairs) {
    y[at] = __uint_as_float(best);
    index[at] = found;
  }
}
