// How 64 rows of 16 features come to shared memory while the stage before is computed: row by row, 16 bytes at a time,
// without passing through registers. Rows lie 20 floats apart: 8 neighbouring rows are read without bank conflicts.
#include "common.cuh"

#define TILE 64
#define DEPTH 16
#define STRIDE (DEPTH + 4)

// One quad of a row; zero beyond the end, where zero changes neither maximum nor sum.
static __device__ __forceinline__ void bring(float* to, const float* __restrict__ from, int left, bool vector) {
  if (vector) {
    copy16(to, from, left > 0);
  } else {
#pragma unroll
    for (int c = 0; c < 4; ++c) copy4(to + c, from + c, left > c);
  }
}
