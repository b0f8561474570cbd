// Shared by the kernels that compute in float16.
#include "common.cuh"

// The power of two by which x and w are multiplied before they are rounded to float16.
static __device__ __forceinline__ float layer_scale(const u32* __restrict__ input_max) {
  return scale_for(__uint_as_float(input_max[0]) + __uint_as_float(input_max[1]), 0);
}
