// The distance of one pair without any precomputed scale, for pairs out of range; include common.cuh first.
// Compute the exact distance of one pair by a whole warp: first the maximum, then powers of numbers in [0, 1].
static __device__ double exact_distance(const float* __restrict__ x, const float* __restrict__ w, int features,
                                        float p) {
  int lane = threadIdx.x & 31;
  u32 most = 0;
  for (int k = lane; k < features; k += 32) most = max(most, __float_as_uint(fabsf(x[k] - w[k])));
  float top = __uint_as_float(__reduce_max_sync(FULL_MASK, most));
  if (!(top > 0.0f && top < INFINITY_F)) return top;
  float sum = 0.0f;
  for (int k = lane; k < features; k += 32) sum += powf(fabsf(x[k] - w[k]) / top, p);
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(FULL_MASK, sum, step);
  return top * pow((double)sum, 1.0 / p);
}
