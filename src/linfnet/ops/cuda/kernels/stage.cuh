// Copy stages of TILE rows and 16 features to shared memory while the previous stage is processed: row by row, 16 bytes
// at a time, without using registers. Rows are 20 floats apart: 8 neighbouring rows are read without bank conflicts.
#include "common.cuh"

#define DEPTH 16
#define STAGE_STRIDE (DEPTH + 4)

// Four features of a row, of which `left` exist; zero beyond the end, where zero changes neither maximum nor sum.
static __device__ __forceinline__ void copy4_async(float* to, const float* __restrict__ from, int left, bool aligned) {
  if (aligned) {
    copy16(to, from, left > 0);
  } else {
#pragma unroll
    for (int c = 0; c < 4; ++c) copy4(to + c, from + c, left > c);
  }
}
