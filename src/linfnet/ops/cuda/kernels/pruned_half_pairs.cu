// Words, factors and coefficients for pruned_half_backward.cu; the source is the same for all p.
//   SQUARE  rows and columns of the square that one block transposes
#include "common.cuh"
#include "half.cuh"

#define LEAST_SIZE 0x1p-4f  // smallest distance of these kernels, relative to the layer's largest |x| + |w|

// Compute the words of the transposed x, times the layer's scale.
extern "C" __global__ void __launch_bounds__(256)
    half_listed_words(const float2* __restrict__ x_transposed, const u32* __restrict__ input_max,
                      u32* __restrict__ words, i64 size, const int* __restrict__ use_dense) {
  if (*use_dense) return;
  float scale = layer_scale(input_max);
  i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < size; at += step) {
    float2 v = x_transposed[at];
    words[at] = half2_of(v.x * scale, v.y * scale);
  }
}

// Compute the factor and both coefficients of each pair, transposed, with zeros in the padding. `unfit` becomes 1 if a
// pair is out of range or not finite. `exponent` is p - 1.
extern "C" __global__ void __launch_bounds__(256)
    half_listed_pairs(const float* __restrict__ grad, const float* __restrict__ y, const u32* __restrict__ input_max,
                      const u32* __restrict__ row_max, const u32* __restrict__ out_max, u16* __restrict__ factors,
                      u16* __restrict__ of_x, u16* __restrict__ of_w, int* __restrict__ unfit, int n, int out,
                      int padded, float exponent, const int* __restrict__ use_dense) {
  if (*use_dense) return;
  __shared__ float grads[SQUARE][SQUARE + 1], sizes[SQUARE][SQUARE + 1];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, left = blockIdx.x * SQUARE, top = blockIdx.y * SQUARE;
  float scale = layer_scale(input_max), target = exp2f(10.0f / exponent);
  for (int r = warp; r < SQUARE; r += 8) {
    bool inside = left + lane < out && top + r < n;
    i64 at = (i64)(top + r) * out + left + lane;
    grads[r][lane] = inside ? grad[at] : 0.0f;
    sizes[r][lane] = inside ? y[at] * scale : 0.0f;
  }
  __syncthreads();
  bool bad = !(__uint_as_float(input_max[0]) + __uint_as_float(input_max[1]) < INFINITY_F);
  float row_scale = top + lane < n ? scale_for(__uint_as_float(row_max[top + lane]), TOP_EXPONENT) : 1.0f;
  for (int c = warp; c < SQUARE; c += 8) {
    if (left + c >= out) continue;
    float g = grads[lane][c], size = sizes[lane][c], coefficient = 0.0f;
    u16 h = 0;
    if (size != 0.0f) {
      bad |= !(size >= LEAST_SIZE && size < INFINITY_F);
      h = to_half(target / size);
      coefficient = g * powf(from_half(h) * size, -exponent);
    }
    bad |= !(fabsf(g) < INFINITY_F);
    i64 at = (i64)(left + c) * padded + top + lane;
    factors[at] = h;
    of_x[at] = to_half(coefficient * row_scale);
    of_w[at] = to_half(coefficient * scale_for(__uint_as_float(out_max[left + c]), TOP_EXPONENT));
  }
  if (bad) *unfit = 1;
}

// Decide which kernels compute the gradients, if the lists are not too long. A flag of 1 makes kernels return: skip[0]
// those of pruned_half_backward.cu, skip[1] those of pruned_backward.cu; run[0] is 1 if the latter run.
extern "C" __global__ void __launch_bounds__(32)
    half_listed_decide(const int* __restrict__ unfit, const int* __restrict__ too_long, int* __restrict__ skip,
                       int* __restrict__ run) {
  if (threadIdx.x > 0) return;
  skip[0] = *too_long || *unfit;
  skip[1] = *too_long || !*unfit;
  run[0] = !*too_long && *unfit;
}
