// Copy stages of TILE rows and DEPTH features to shared memory while the previous stage is processed: row by row, 16
// bytes at a time, without using registers. Rows are 20 floats apart, so that 8 neighbouring rows are read without bank
// conflicts. Include common.cuh first.
static_assert(DEPTH == 16, "the threads of a block copy 16 features of each row");
#define STAGE_STRIDE (DEPTH + 4)

// Copy four features of a row, of which `left` exist. Zeros are written beyond the end of the row: they change neither
// a maximum nor a sum.
static __device__ __forceinline__ void copy4_async(float* to, const float* __restrict__ from, int left, bool aligned) {
  if (aligned) {
    copy16(to, from, left > 0);
  } else {
#pragma unroll
    for (int c = 0; c < 4; ++c) copy4(to + c, from + c, left > c);
  }
}
