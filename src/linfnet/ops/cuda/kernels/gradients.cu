// Kernels that run before and after dense_gradients: compute coefficients, add partial results, recompute pairs out of
// range.
#include "common.cuh"

// Whether dense_gradients computes a pair with this scaled distance; otherwise, `repair` computes it.
static __device__ __forceinline__ bool in_range(float scaled, float exponent, int general) {
  if (!(scaled > 0.0f && scaled < INFINITY_F)) return true;
  return general ? scaled >= SAFE_RATIO : exponent * log2f(scaled) > -96.0f;
}

// Compute the coefficients c[b, o] = g (s y)^(1 - p), or g and the offset (1 - p) log2 (s y) if `general` is set; g is
// grad times its scale. Pairs out of range get 0, and their row and output are marked in `flags`. If `paired` is set, s
// is multiplied by a power of two per pair, which is stored as the offset: no pair is out of range. `exponent` is p - 1.
extern "C" __global__ void __launch_bounds__(256)
    coefficients(const float* __restrict__ grad, const float* __restrict__ y, const float* __restrict__ residual,
                 const u32* __restrict__ output_max, float* __restrict__ coefficient, float* __restrict__ offset,
                 int* __restrict__ flags, int n, int out, float exponent, int target_exponent, int general, int paired,
                 const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (i64)n * out) return;
  float scale = scale_for(__uint_as_float(output_max[0]), target_exponent), scaled = y[at] * scale, c = 0.0f, f = 0.0f;
  if (paired) {
    f = scale_for(scaled * 0.70710678f, 0);
    scaled *= f;
  }
  if (!paired && !in_range(scaled, exponent, general)) {
    i64 b = at / out;
    flags[b] = 1;
    flags[n + (at - b * out)] = 1;
  } else if (scaled != 0.0f) {
    // (y + residual)^-exponent, to first order in the residual.
    float back = -exponent * (residual[at] / y[at]), g = grad[at] * gradient_scale(output_max);
    c = general ? g : g * fmaf(powf(scaled, -exponent), back, powf(scaled, -exponent));
    if (general) f = fmaf(-exponent, log2f(scaled), 1.4426950408889634f * back);
  }
  coefficient[at] = c;
  if (offset) offset[at] = f;
}

// Add partial results in a fixed order, four numbers at a time if the alignment permits.
extern "C" __global__ void __launch_bounds__(256)
    add_parts(const float* __restrict__ part, int parts, float* __restrict__ sum, i64 size,
              const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  i64 step = (i64)gridDim.x * blockDim.x, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  i64 vectors = size % 4 == 0 && (((size_t)part | (size_t)sum) & 15) == 0 ? size / 4 : 0;
  for (i64 at = first; at < vectors; at += step) {
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int s = 0; s < parts; ++s) {
      float4 v = reinterpret_cast<const float4*>(part)[s * vectors + at];
      total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
    }
    reinterpret_cast<float4*>(sum)[at] = total;
  }
  if (vectors > 0) return;
  for (i64 at = first; at < size; at += step) {
    float total = 0.0f;
    for (int s = 0; s < parts; ++s) total += part[s * size + at];
    sum[at] = total;
  }
}

// Add the exact slopes of the pairs out of range. Each block computes one row of grad_x (if `of_x` is set) or grad_w.
extern "C" __global__ void __launch_bounds__(256)
    repair(const float* __restrict__ grad, const float* __restrict__ x, const float* __restrict__ w,
           const float* __restrict__ y, const u32* __restrict__ output_max, const int* __restrict__ flags,
           float* result, int n, int out, int features, float exponent, int target_exponent, int general, int of_x,
           const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  i64 mine = blockIdx.x, others = of_x ? out : n;
  if (!flags[of_x ? mine : n + mine]) return;
  float scale = scale_for(__uint_as_float(output_max[0]), target_exponent);
  for (i64 other = 0; other < others; ++other) {
    i64 b = of_x ? mine : other, o = of_x ? other : mine;
    float distance = y[b * out + o];
    if (in_range(distance * scale, exponent, general)) continue;
    float g = of_x ? grad[b * out + o] : -grad[b * out + o];
    for (i64 k = threadIdx.x; k < features; k += blockDim.x) {
      float d = x[b * features + k] - w[o * features + k];
      float share = d == 0.0f ? 0.0f : copysignf(powf(fabsf(d) / distance, exponent), d);
      result[mine * features + k] = fmaf(g, share, result[mine * features + k]);
    }
  }
}
