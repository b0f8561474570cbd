// Compute the largest absolute value of one or two matrices, as bits of a float. Such bits order like integers; NaN is
// larger than all numbers.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    absolute_max(const float* __restrict__ first_matrix, i64 first_size, const float* __restrict__ second_matrix,
                 i64 second_size, u32* __restrict__ max_bits, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  const float* __restrict__ a = blockIdx.y ? second_matrix : first_matrix;
  i64 size = blockIdx.y ? second_size : first_size;
  u32 best = 0;
  i64 step = (i64)gridDim.x * blockDim.x, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  i64 vectors = ((size_t)a & 15) == 0 ? size / 4 : 0;
  const uint4* a4 = reinterpret_cast<const uint4*>(a);
#pragma unroll 4
  for (i64 i = first; i < vectors; i += step) {
    uint4 v = a4[i];
    best = max(best, max(max(v.x & 0x7fffffffu, v.y & 0x7fffffffu), max(v.z & 0x7fffffffu, v.w & 0x7fffffffu)));
  }
  for (i64 i = vectors * 4 + first; i < size; i += step) best = max(best, __float_as_uint(a[i]) & 0x7fffffffu);
  best = __reduce_max_sync(FULL_MASK, best);
  if ((threadIdx.x & 31) == 0 && best > 0) atomicMax(max_bits + blockIdx.y, best);
}

// Compute the largest |grad| of each row and each output, as bits. A block reads 64 rows and 256 outputs.
extern "C" __global__ void __launch_bounds__(256)
    half_gradient_max(const float* __restrict__ grad, u32* __restrict__ row_max, u32* __restrict__ out_max, int n,
                      int out, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  int o = blockIdx.x * 256 + threadIdx.x, first = blockIdx.y * 64, stop = min(first + 64, n);
  u32 column = 0;
  for (int b = first; b < stop; ++b) {
    u32 size = o < out ? __float_as_uint(grad[(i64)b * out + o]) & 0x7fffffffu : 0;
    column = max(column, size);
    size = __reduce_max_sync(FULL_MASK, size);
    if ((threadIdx.x & 31) == 0 && size) atomicMax(row_max + b, size);
  }
  if (o < out && column) atomicMax(out_max + o, column);
}
