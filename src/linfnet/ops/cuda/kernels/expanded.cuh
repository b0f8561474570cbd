// Even p by matrix products: sum (x - w)^P = sum_j C(P, j) (-x)^(P - j) w^j, j = 1..P-1, beside the powers alone.
// Here is all but the products: powers as pairs of float16 (what the first drops, the second keeps), and their sums.
//   P: the power.
// Numbers are scaled to at most 1 by powers of two, powers then lifted to 2^TOP for the range of float16.
#include "common.cuh"

#define TERMS (P - 1)
#define TOP 15

static __device__ constexpr int choose(int n, int k) {
  int result = 1;
  for (int i = 1; i <= k; ++i) result = result * (n - i + 1) / i;
  return result;
}

// s with 1/2 < s * top <= 1, from the largest |x| and |w|.
static __device__ __forceinline__ int exponent_for(float top) {
  if (!(top > 0.0f && top < INFINITE)) return 0;
  int e = -1 - ilogbf(top);
  return e < -126 ? -126 : e > 126 ? 126 : e;
}

static __device__ __forceinline__ float layer_top(const u32* __restrict__ tops) {
  return larger(__uint_as_float(tops[0]), __uint_as_float(tops[1]));
}

static __device__ __forceinline__ int layer_exponent(const u32* __restrict__ tops) { return exponent_for(layer_top(tops)); }

struct Halves {
  uint2 first, second;
};

// Four floats as float16, and as float16 what that drops.
static __device__ __forceinline__ Halves halves(const float (&a)[4]) {
  u32 h[4], l[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    h[c] = to_half(a[c]);
    l[c] = to_half(a[c] - from_half((u16)h[c]));
  }
  return {make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16), make_uint2(l[0] | l[1] << 16, l[2] | l[3] << 16)};
}

static __device__ __forceinline__ float block_sum(float a) {
  __shared__ float shares[8];
  for (int step = 16; step > 0; step >>= 1) a += __shfl_xor_sync(FULL, a, step);
  if ((threadIdx.x & 31) == 0) shares[threadIdx.x >> 5] = a;
  __syncthreads();
  float total = 0.0f;
  for (int k = 0; k < 8; ++k) total += shares[k];
  __syncthreads();
  return total;
}
