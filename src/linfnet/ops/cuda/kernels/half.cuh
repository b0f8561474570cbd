// Shared by the kernels that compute in float16; include common.cuh first.

// The power of two by which x and w are multiplied before they are rounded to float16.
static __device__ __forceinline__ float layer_scale(const u32* __restrict__ input_max) {
  return scale_for(__uint_as_float(input_max[0]) + __uint_as_float(input_max[1]), 0);
}

#define TOP_EXPONENT 11  // the largest |g| of a row or an output is scaled to 2^11: c = 2^-10 g is at most 2

// 1 / scale_for(largest, TOP_EXPONENT), exactly.
static __device__ __forceinline__ float inverse_of_scale(u32 largest) {
  return __int_as_float(0x7f000000 - __float_as_int(scale_for(__uint_as_float(largest), TOP_EXPONENT)));
}
