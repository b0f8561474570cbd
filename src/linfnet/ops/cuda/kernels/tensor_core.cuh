// Even p, computed by matrix products: sum_i (x - w)^P = sum_j C(P, j) sum_i (-x)^(P - j) w^j for j = 0..P. cuBLAS
// computes the products for j = 1..P-1; the kernels compute the powers before and the sums after the products. A power
// is stored as two float16 numbers; the second is the rounding error of the first. Used for p = 6, 8 and
// 10 (tensor_core.py): at p = 8, a step takes half the time of the dense kernels.
//   P       the power
//   SINGLE  whether a power is one float16 number, for training; second numbers and their products are not used
// Numbers are scaled to at most 1 by powers of two, and powers to at most 2^HALF_EXPONENT, for the range of float16.
#include "common.cuh"

#define TERMS (P - 1)
#define HALF_EXPONENT 15

static __device__ constexpr int choose(int n, int k) {
  int result = 1;
  for (int i = 1; i <= k; ++i) result = result * (n - i + 1) / i;
  return result;
}

// Return the exponent e with 1/2 < 2^e * largest <= 1, or 0 if largest is zero or not finite.
static __device__ __forceinline__ int exponent_for(float largest) {
  if (!(largest > 0.0f && largest < INFINITY_F)) return 0;
  int e = -1 - ilogbf(largest);
  return e < -126 ? -126 : e > 126 ? 126 : e;
}

// Return the largest |x| or |w| of the layer.
static __device__ __forceinline__ float layer_max(const u32* __restrict__ input_max) {
  return max_nan(__uint_as_float(input_max[0]), __uint_as_float(input_max[1]));
}

static __device__ __forceinline__ int layer_exponent(const u32* __restrict__ input_max) {
  return exponent_for(layer_max(input_max));
}

struct Halves {
  uint2 first, second;
};

// Convert four floats to float16; return the results and their rounding errors, also as float16.
static __device__ __forceinline__ Halves halves(const float (&a)[4]) {
  u32 h[4], l[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    h[c] = to_half(a[c]);
    l[c] = to_half(a[c] - from_half((u16)h[c]));
  }
  return {make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16), make_uint2(l[0] | l[1] << 16, l[2] | l[3] << 16)};
}

// Return the sum over the 256 threads of a block.
static __device__ __forceinline__ float block_sum(float a) {
  __shared__ float shares[8];
  for (int step = 16; step > 0; step >>= 1) a += __shfl_xor_sync(FULL_MASK, a, step);
  if ((threadIdx.x & 31) == 0) shares[threadIdx.x >> 5] = a;
  __syncthreads();
  float total = 0.0f;
  for (int k = 0; k < 8; ++k) total += shares[k];
  __syncthreads();
  return total;
}
