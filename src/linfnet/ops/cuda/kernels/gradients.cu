// Around the dense backward: coefficients before it; partial sums and the pairs out of range after it.
#include "common.cuh"

// Whether the dense kernels serve a pair: the same decision in every kernel that asks.
static __device__ __forceinline__ bool served(float scaled, float exponent, int general) {
  if (!(scaled > 0.0f && scaled < INFINITE)) return true;
  return general ? scaled >= SAFE_RATIO : exponent * log2f(scaled) > -96.0f;
}

// c[b, o] = g (s y)^(1 - p), or (g, (1 - p) log2 (s y)) for the special functions, g in its own unit; pairs out of range
// get 0 and a flag.
extern "C" __global__ void __launch_bounds__(256)
coefficients(const float* __restrict__ grad, const float* __restrict__ y, const float* __restrict__ rest, const u32* __restrict__ tops,
             float* __restrict__ coefficient, float* __restrict__ offset, int* __restrict__ flags, int n, int out,
             float exponent, int lift, int general, const int* __restrict__ gate) {
  if (closed(gate)) return;
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (i64)n * out) return;
  float scale = scale_for(__uint_as_float(tops[0]), lift), scaled = y[at] * scale, c = 0.0f, f = 0.0f;
  if (!served(scaled, exponent, general)) {
    i64 b = at / out;
    flags[b] = 1;
    flags[n + (at - b * out)] = 1;
  } else if (scaled != 0.0f) {
    // y + rest to the power of -exponent, to first order in the rest.
    float back = -exponent * (rest[at] / y[at]), g = grad[at] * gradient_scale(tops);
    c = general ? g : g * fmaf(powf(scaled, -exponent), back, powf(scaled, -exponent));
    f = fmaf(-exponent, log2f(scaled), 1.4426950408889634f * back);
  }
  coefficient[at] = c;
  if (general) offset[at] = f;
}

// The sum of partial results in their order, four at a time (size and addresses allowing).
extern "C" __global__ void __launch_bounds__(256)
add_parts(const float* __restrict__ part, int parts, float* __restrict__ sum, i64 size,
          const int* __restrict__ gate) {
  if (closed(gate)) return;
  i64 step = (i64)gridDim.x * blockDim.x, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  i64 quads = size % 4 == 0 && (((size_t)part | (size_t)sum) & 15) == 0 ? size / 4 : 0;
  for (i64 at = first; at < quads; at += step) {
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int s = 0; s < parts; ++s) {
      float4 v = reinterpret_cast<const float4*>(part)[s * quads + at];
      total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
    }
    reinterpret_cast<float4*>(sum)[at] = total;
  }
  if (quads > 0) return;
  for (i64 at = first; at < size; at += step) {
    float total = 0.0f;
    for (int s = 0; s < parts; ++s) total += part[s * size + at];
    sum[at] = total;
  }
}

// Adds the exact slopes of the pairs that were out of range. Block r owns one row of grad_x (of_x) or of grad_w.
extern "C" __global__ void __launch_bounds__(256)
repair(const float* __restrict__ grad, const float* __restrict__ x, const float* __restrict__ w,
       const float* __restrict__ y, const u32* __restrict__ tops, const int* __restrict__ flags, float* result, int n,
       int out, int features, float exponent, int lift, int general, int of_x, const int* __restrict__ gate) {
  if (closed(gate)) return;
  i64 mine = blockIdx.x, others = of_x ? out : n;
  if (!flags[of_x ? mine : n + mine]) return;
  float scale = scale_for(__uint_as_float(tops[0]), lift);
  for (i64 other = 0; other < others; ++other) {
    i64 b = of_x ? mine : other, o = of_x ? other : mine;
    float distance = y[b * out + o];
    if (served(distance * scale, exponent, general)) continue;
    float g = of_x ? grad[b * out + o] : -grad[b * out + o];
    for (i64 k = threadIdx.x; k < features; k += blockDim.x) {
      float d = x[b * features + k] - w[o * features + k];
      float share = d == 0.0f ? 0.0f : copysignf(powf(fabsf(d) / distance, exponent), d);
      result[mine * features + k] = fmaf(g, share, result[mine * features + k]);
    }
  }
}
