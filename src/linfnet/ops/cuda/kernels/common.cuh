// What the kernels share: gates, and scales that are powers of two.
#pragma nv_diag_suppress 177  // not every kernel uses every function
#include "instructions.cuh"
typedef long long i64;

#define FULL 0xffffffffu
#define INFINITE __int_as_float(0x7f800000)

// Kernels behind a gate run only if it is not zero: the device decides, the host need not know.
static __device__ __forceinline__ bool closed(const int* gate) { return gate && !*gate; }

// 2^e for -126 <= e <= 127, exactly.
static __device__ __forceinline__ float two_to(int e) { return __int_as_float((e + 127) << 23); }

// The power of two s with 2^(lift - 1) < s * top <= 2^lift; 1 where top is zero or not finite.
static __device__ __forceinline__ float scale_for(float top, int lift) {
  if (!(top > 0.0f && top < INFINITE)) return 1.0f;
  int e = lift - 1 - ilogbf(top);
  return two_to(e < -126 ? -126 : e > 126 ? 126 : e);
}

// Gradients are summed in a unit of their own, in which the layer's largest is between 2^23 and 2^24: multiplied by a
// power of y, from 2^-100 to 2^100, it stays in the float range. `largest`: bits of the largest y and of the largest |g|.
static __device__ __forceinline__ float gradient_scale(const u32* __restrict__ largest) {
  return scale_for(__uint_as_float(largest[1]), 24);
}

// The way back: 1 / gradient_scale, exactly.
static __device__ __forceinline__ float gradient_unit(const u32* __restrict__ largest) {
  return __int_as_float(0x7f000000 - __float_as_int(gradient_scale(largest)));
}

// How far the scaled sums and slopes may lie from 1 before a pair is recomputed exactly.
#define SAFE_SUM 7.888609052210118e-31f      // 2^-100
#define SAFE_RATIO 0.0625f                   // the special-function kernels trust maxima down to 2^-4 of the layer's
