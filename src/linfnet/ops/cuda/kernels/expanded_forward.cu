// Distances of even p around matrix products: powers of x and w, and what the products add up to.
#include "expanded.cuh"

// For how many more sums the slopes of a close pair count: two passes over its features, with scattered reads.
#define CLOSE_COST 7

static __device__ constexpr int bits_of(int n) {
  int bits = 0;
  while (n >> bits) ++bits;
  return bits;
}

// What lifts a power of the layer's largest number, at most 1, to between 2^(TOP - 1) and 2^TOP.
static __device__ __forceinline__ int lift_of(float power) {
  return power >= 0x1p-16f && power <= 1.0f ? TOP - 1 - ilogbf(power) : TOP;
}

// Powers of one row per block: into[part][row][j - 1][feature], part by part `apart` numbers away. Of w: w^j; of x
// (of_x): C(P, j) (-x)^(P - j). `alone`: sum of the P-th powers of the row.
extern "C" __global__ void __launch_bounds__(256)
powers(const float* __restrict__ a, const u32* __restrict__ tops, u16* __restrict__ into, i64 apart,
       float* __restrict__ alone, int features, int of_x) {
  float scale = two_to(layer_exponent(tops)), top = layer_top(tops) * scale, sum = 0.0f;
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
      // With x the powers come in falling order of j.
      int place = of_x ? P - j - 1 : j - 1;
      float lift = two_to(lift_of(largest)), lifted[4];
      if (of_x) lift *= (float)choose(P, j) * two_to(-bits_of(choose(P, j)));
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        power[c] *= u[c];
        lifted[c] = power[c] * lift;
      }
      Halves pair = halves(lifted);
      u16* to = into + (row * TERMS + place) * features + k;
      *reinterpret_cast<uint2*>(to) = pair.first;
      *reinterpret_cast<uint2*>(to + apart) = pair.second;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) sum = fmaf(power[c], u[c], sum);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) alone[row] = sum;
}

static __device__ __forceinline__ float power_of(float d) {
  float result = d * d;
#pragma unroll
  for (int k = 2; k < P; k += 2) result *= d * d;
  return result;
}

// Sums of the products of each pair, to what `finish_sum` takes. Terms with even j are positive and tell what cancels:
// the sum of (|x| + |w|)^P lies between that of the even terms and its double. A pair that loses more than `most` to it
// is summed again by its warp, without expansion, and counted. `close`, if given, gets a bit for each pair that loses
// more than `most_slope`: its slopes would drown in what cancels.
// A pair with a sum below `least` of the largest number's power is one of both: its terms leave the range of float16.
//   main: [TERMS * chunks, n, out];  cross: [2, TERMS, n, out].
extern "C" __global__ void __launch_bounds__(256)
combine(const float* __restrict__ main, int chunks, const float* __restrict__ cross, const float* __restrict__ alone_x,
        const float* __restrict__ alone_w, const float* __restrict__ x, const float* __restrict__ w,
        const u32* __restrict__ tops, float* __restrict__ sums, int* __restrict__ count, u32* __restrict__ close, int n,
        int out, int features, float most, float most_slope, float least, int lift) {
  i64 pairs = (i64)n * out, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  bool here = at < pairs, ill = false, near = false;
  int mine = layer_exponent(tops);
  // At the ends of the float range no power of two brings the numbers near 1: that is for the dense kernels.
  bool beyond = mine == 126 || mine == -126;
  // What `finish_sum` scales by.
  float scale = scale_for(__uint_as_float(tops[0]) + __uint_as_float(tops[1]), lift);
  float result = 0.0f;
  if (here) {
    i64 b = at / out, o = at - b * out;
    float even = 0.0f, odd = 0.0f, small = 0.0f, top = layer_top(tops) * two_to(mine), largest[P + 1] = {1.0f};
#pragma unroll
    for (int j = 1; j <= P; ++j) largest[j] = largest[j - 1] * top;
#pragma unroll
    for (int j = 1; j < P; ++j) {
      float share = 0.0f, unit = two_to(bits_of(choose(P, j)) - lift_of(largest[j]) - lift_of(largest[P - j]));
      for (int k = 0; k < chunks; ++k) share += main[((j - 1) * chunks + k) * pairs + at];
      if (j % 2) odd = fmaf(share, unit, odd);
      else even = fmaf(share, unit, even);
      small = fmaf(cross[(j - 1) * pairs + at] + cross[(TERMS + j - 1) * pairs + at], unit, small);
    }
    even += alone_x[b] + alone_w[o];
    float sum = (even + odd) + small;
    bool low = !(sum >= least * largest[P]);
    ill = beyond || low || !(even <= most * sum);
    near = low || !(even <= most_slope * sum);
    result = scalbnf(sum, P * (ilogbf(scale) - mine));
  }
  u32 left = __ballot_sync(FULL, here && ill), marks = __ballot_sync(FULL, here && near);
  if (close && here && (threadIdx.x & 31) == 0) close[at >> 5] = marks;
  if ((threadIdx.x & 31) == 0 && (left || marks)) atomicAdd(count, __popc(left) + CLOSE_COST * __popc(marks));
  while (left) {
    int lane = __ffs(left) - 1;
    left &= left - 1;
    i64 pair = __shfl_sync(FULL, at, lane);
    i64 b = pair / out, o = pair - b * out;
    float sum = 0.0f;
    for (int k = (threadIdx.x & 31) * 4; k < features; k += 128) {
      float4 u = *reinterpret_cast<const float4*>(x + b * features + k);
      float4 v = *reinterpret_cast<const float4*>(w + o * features + k);
      sum += power_of((u.x - v.x) * scale) + power_of((u.y - v.y) * scale) + power_of((u.z - v.z) * scale) +
             power_of((u.w - v.w) * scale);
    }
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(FULL, sum, step);
    if ((threadIdx.x & 31) == lane) result = sum;
  }
  if (here) sums[at] = result;
}
