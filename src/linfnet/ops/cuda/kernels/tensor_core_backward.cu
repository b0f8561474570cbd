// Gradients for even p: these kernels compute coefficients and powers of features before the matrix products, and apply
// Horner's scheme to the products. They also add the slopes of unexpanded pairs. If SINGLE, the sums of coefficients are
// those of the rounded ones: a rounded coefficient then changes the slopes of its pair by a factor, which does not cancel.
#include "tensor_core.cuh"

static __device__ __forceinline__ u32 block_max(u32 a) {
  __shared__ u32 shares[8];
  a = __reduce_max_sync(FULL_MASK, a);
  if ((threadIdx.x & 31) == 0) shares[threadIdx.x >> 5] = a;
  __syncthreads();
  u32 most = 0;
  for (int k = 0; k < 8; ++k) most = max(most, shares[k]);
  __syncthreads();
  return most;
}

static __device__ __forceinline__ float slope_of(float d) {
  float result = d;
#pragma unroll
  for (int k = 1; k < P - 1; k += 2) result *= d * d;
  return result;
}

static __device__ __forceinline__ bool is_unexpanded(const u32* __restrict__ unexpanded, i64 pair) {
  return unexpanded[pair >> 5] >> (pair & 31) & 1;
}

// Return the coefficient of a pair in the expansion: zero for an unexpanded pair.
static __device__ __forceinline__ float expanded_coefficient(const float* __restrict__ c,
                                                             const u32* __restrict__ unexpanded, i64 pair) {
  return is_unexpanded(unexpanded, pair) ? 0.0f : c[pair];
}

// Convert coefficients to float16 for grad_x, scaled by a power of two per row. halves_out: [2, n, out], or
// [n, out] if SINGLE.
extern "C" __global__ void __launch_bounds__(256)
    split_rows(const float* __restrict__ c, const u32* __restrict__ unexpanded, u16* __restrict__ halves_out,
               int* __restrict__ exponents, float* __restrict__ coefficient_sum, int n, int out) {
  i64 row = blockIdx.x;
  u32 most = 0;
  for (int o = threadIdx.x; o < out; o += 256)
    most = max(most, __float_as_uint(expanded_coefficient(c, unexpanded, row * out + o)) & 0x7fffffffu);
  int e = exponent_for(__uint_as_float(block_max(most)));
  float scale = two_to(e), sum = 0.0f;
  for (int o = threadIdx.x * 4; o < out; o += 1024) {
    float scaled[4];
    for (int k = 0; k < 4; ++k)
      scaled[k] = expanded_coefficient(c, unexpanded, row * out + o + k) * scale * two_to(HALF_EXPONENT);
    Halves pair = halves(scaled);
    u16* to = halves_out + row * out + o;
    *reinterpret_cast<uint2*>(to) = pair.first;
    if constexpr (!SINGLE) *reinterpret_cast<uint2*>(to + (i64)n * out) = pair.second;
    if constexpr (SINGLE)
      for (int k = 0; k < 4; ++k) scaled[k] = from_half(to_half(scaled[k]));
    sum += (scaled[0] + scaled[1]) + (scaled[2] + scaled[3]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    exponents[row] = e;
    coefficient_sum[row] = sum;
  }
}

// Compute the largest |a| of each of the 32 columns of a block, by 8 warps; if `unexpanded` is not null, a contains
// coefficients.
static __device__ __forceinline__ float column_max(const float* __restrict__ a, const u32* __restrict__ unexpanded,
                                                   i64 column, int rows, int columns) {
  __shared__ u32 warp_max[8][32];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  u32 most = 0;
  if (column < columns)
    for (i64 b = warp; b < rows; b += 8) {
      i64 at = b * columns + column;
      most = max(most, __float_as_uint(unexpanded ? expanded_coefficient(a, unexpanded, at) : a[at]) & 0x7fffffffu);
    }
  warp_max[warp][lane] = most;
  __syncthreads();
  for (int k = 0; k < 8; ++k) most = max(most, warp_max[k][lane]);
  return __uint_as_float(most);
}

// Convert coefficients to float16 for grad_w, scaled by a power of two per output. halves_out: [first, second, first]
// of [n, out], so that the small products with second halves are summed before the large ones; [n, out] if SINGLE.
extern "C" __global__ void __launch_bounds__(256)
    split_columns(const float* __restrict__ c, const u32* __restrict__ unexpanded, u16* __restrict__ halves_out,
                  int* __restrict__ exponents, float* __restrict__ coefficient_sum, int n, int out) {
  __shared__ float sums[8][32];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 o = (i64)blockIdx.x * 32 + lane, pairs = (i64)n * out;
  int e = exponent_for(column_max(c, unexpanded, o, n, out));
  float scale = two_to(e), sum = 0.0f;
  if (o < out)
    for (i64 b = warp; b < n; b += 8) {
      float scaled = expanded_coefficient(c, unexpanded, b * out + o) * scale * two_to(HALF_EXPONENT);
      u16 first = to_half(scaled);
      halves_out[b * out + o] = first;
      if constexpr (!SINGLE) {
        halves_out[pairs + b * out + o] = to_half(scaled - from_half(first));
        halves_out[2 * pairs + b * out + o] = first;
      }
      sum += SINGLE ? from_half(first) : scaled;
    }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && o < out) {
    sum = 0.0f;
    for (int k = 0; k < 8; ++k) sum += sums[k][lane];
    exponents[o] = e;
    coefficient_sum[o] = sum;
  }
}

// Compute the exponent that scales each feature, from its largest |a| or, if larger, 2^-6 of the layer's maximum.
extern "C" __global__ void __launch_bounds__(256)
    feature_exponents(const float* __restrict__ a, const u32* __restrict__ input_max, int* __restrict__ exponents,
                      int rows, int features) {
  i64 k = (i64)blockIdx.x * 32 + (threadIdx.x & 31);
  float top = column_max(a, nullptr, k, rows, features);
  int layer = layer_exponent(input_max);
  if (threadIdx.x < 32 && k < features) exponents[k] = top > 0.0f ? min(exponent_for(top), min(layer + 6, 126)) : layer;
}

// Compute the powers a^j, j = 1..P-1, of one row per block; each feature has a separate scale. halves_out: [first,
// second] of [rows, TERMS, features], [second, first, first] if `thrice` is set, or [first] if SINGLE.
extern "C" __global__ void __launch_bounds__(256)
    feature_powers(const float* __restrict__ a, const int* __restrict__ exponents, u16* __restrict__ halves_out,
                   int rows, int features, int thrice) {
  i64 row = blockIdx.x, stride = (i64)rows * TERMS * features;
  i64 first = thrice && !SINGLE ? stride : 0, second = thrice ? 0 : stride;
  for (int k = threadIdx.x * 4; k < features; k += 1024) {
    float4 v = *reinterpret_cast<const float4*>(a + row * features + k);
    int4 e = *reinterpret_cast<const int4*>(exponents + k);
    float u[4] = {v.x * two_to(e.x), v.y * two_to(e.y), v.z * two_to(e.z), v.w * two_to(e.w)}, power[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) power[c] = two_to(HALF_EXPONENT);
#pragma unroll
    for (int j = 1; j < P; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) power[c] *= u[c];
      Halves pair = halves(power);
      u16* to = halves_out + (row * TERMS + j - 1) * features + k;
      *reinterpret_cast<uint2*>(to + first) = pair.first;
      if constexpr (!SINGLE) {
        *reinterpret_cast<uint2*>(to + second) = pair.second;
        if (thrice) *reinterpret_cast<uint2*>(to + 2 * stride) = pair.first;
      }
    }
  }
}

static __device__ __forceinline__ float4 add4(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Divide four sums by the scales of their features (`e`), of their coefficients (`row`) and of the powers.
static __device__ __forceinline__ float4 unscaled(const float (&sum)[4], const int (&e)[4], int row,
                                                  const u32* __restrict__ output_max, int target_exponent, float sign) {
  int s = ilogbf(scale_for(__uint_as_float(output_max[0]), target_exponent)),
      back = -2 * HALF_EXPONENT - row - ilogbf(gradient_scale(output_max));
  float result[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) result[c] = sign * scalbnf(sum[c], (P - 1) * (s - e[c]) + back);
  return make_float4(result[0], result[1], result[2], result[3]);
}

// grad_x[b, i] = sum_j C(P - 1, j) x^(P - 1 - j) (-1)^j sum_o c w^j; each feature has a separate scale.
//   main: [chunks, n, TERMS, features];  cross: [2, n, TERMS, features], null if SINGLE.
extern "C" __global__ void __launch_bounds__(256)
    finish_x(const float* __restrict__ main, int chunks, const float* __restrict__ cross,
             const float* __restrict__ coefficient_sum, const int* __restrict__ exponents,
             const int* __restrict__ feature_exponents, const float* __restrict__ x, const u32* __restrict__ output_max,
             float* __restrict__ grad_x, int n, int features, int target_exponent) {
  i64 row = blockIdx.y, whole = (i64)n * TERMS * features;
  int k = (blockIdx.x * 256 + threadIdx.x) * 4;
  if (k >= features) return;
  float4 v = *reinterpret_cast<const float4*>(x + row * features + k);
  int4 e4 = *reinterpret_cast<const int4*>(feature_exponents + k);
  int e[4] = {e4.x, e4.y, e4.z, e4.w};
  float u[4] = {v.x * two_to(e[0]), v.y * two_to(e[1]), v.z * two_to(e[2]), v.w * two_to(e[3])}, sum[4];
  // The sum of the coefficients is not multiplied by the scale of the powers of w.
  for (int c = 0; c < 4; ++c) sum[c] = coefficient_sum[row] * two_to(HALF_EXPONENT);
#pragma unroll
  for (int j = 1; j < P; ++j) {
    i64 at = (row * TERMS + j - 1) * features + k;
    float4 term = *reinterpret_cast<const float4*>(main + at);
    for (int part = 1; part < chunks; ++part)
      term = add4(term, *reinterpret_cast<const float4*>(main + part * whole + at));
    if constexpr (!SINGLE)
      term = add4(term, add4(*reinterpret_cast<const float4*>(cross + at),
                             *reinterpret_cast<const float4*>(cross + whole + at)));
    float terms[4] = {term.x, term.y, term.z, term.w}, weight = (float)((j % 2 ? -1 : 1) * choose(P - 1, j));
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[c] = fmaf(sum[c], u[c], weight * terms[c]);
  }
  *reinterpret_cast<float4*>(grad_x + row * features + k) =
      unscaled(sum, e, exponents[row], output_max, target_exponent, 1.0f);
}

// grad_w[o, i] = -sum_j C(P - 1, j) (-w)^(P - 1 - j) sum_b c x^j; each feature has a separate scale.
extern "C" __global__ void __launch_bounds__(256)
    finish_w(const float* __restrict__ main, const float* __restrict__ coefficient_sum,
             const int* __restrict__ exponents, const int* __restrict__ feature_exponents, const float* __restrict__ w,
             const u32* __restrict__ output_max, float* __restrict__ grad_w, int features, int target_exponent) {
  i64 row = blockIdx.y;
  int k = (blockIdx.x * 256 + threadIdx.x) * 4;
  if (k >= features) return;
  float4 v = *reinterpret_cast<const float4*>(w + row * features + k);
  int4 e4 = *reinterpret_cast<const int4*>(feature_exponents + k);
  int e[4] = {e4.x, e4.y, e4.z, e4.w};
  float u[4] = {-v.x * two_to(e[0]), -v.y * two_to(e[1]), -v.z * two_to(e[2]), -v.w * two_to(e[3])}, sum[4];
  for (int c = 0; c < 4; ++c) sum[c] = coefficient_sum[row] * two_to(HALF_EXPONENT);
#pragma unroll
  for (int j = 1; j < P; ++j) {
    float4 term = *reinterpret_cast<const float4*>(main + (row * TERMS + j - 1) * features + k);
    float terms[4] = {term.x, term.y, term.z, term.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[c] = fmaf(sum[c], u[c], (float)choose(P - 1, j) * terms[c]);
  }
  *reinterpret_cast<float4*>(grad_w + row * features + k) =
      unscaled(sum, e, exponents[row], output_max, target_exponent, -1.0f);
}

// Add the slopes of the unexpanded pairs, in a fixed order. Each block computes one row of grad_x (if `of_x` is set) or
// of grad_w and processes the pairs of that row 256 at a time.
extern "C" __global__ void __launch_bounds__(256)
    add_unexpanded(const float* __restrict__ c, const u32* __restrict__ unexpanded, const float* __restrict__ x,
                   const float* __restrict__ w, const u32* __restrict__ output_max, float* __restrict__ result, int n,
                   int out, int features, int target_exponent, int of_x) {
  __shared__ int found[256], counts[8];
  i64 mine = blockIdx.x;
  int others = of_x ? out : n, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float scale = scale_for(__uint_as_float(output_max[0]), target_exponent),
        inverse_scale = of_x ? inverse_gradient_scale(output_max) : -inverse_gradient_scale(output_max);
  for (int first = 0; first < others; first += 256) {
    int other = first + threadIdx.x, total = 0;
    bool inside = other < others && is_unexpanded(unexpanded, of_x ? mine * out + other : (i64)other * out + mine);
    u32 votes = __ballot_sync(FULL_MASK, inside);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int position = __popc(votes & ((1u << lane) - 1));
    for (int k = 0; k < 8; ++k) {
      if (k < warp) position += counts[k];
      total += counts[k];
    }
    if (inside) found[position] = other;
    __syncthreads();
    for (int k = threadIdx.x * 4; total > 0 && k < features; k += 1024) {
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int i = 0; i < total; ++i) {
        i64 b = of_x ? mine : found[i], o = of_x ? found[i] : mine;
        float4 u = *reinterpret_cast<const float4*>(x + b * features + k);
        float4 v = *reinterpret_cast<const float4*>(w + o * features + k);
        float factor = c[b * out + o];
        sum = make_float4(
            fmaf(factor, slope_of((u.x - v.x) * scale), sum.x), fmaf(factor, slope_of((u.y - v.y) * scale), sum.y),
            fmaf(factor, slope_of((u.z - v.z) * scale), sum.z), fmaf(factor, slope_of((u.w - v.w) * scale), sum.w));
      }
      float4* to = reinterpret_cast<float4*>(result + mine * features + k);
      *to = add4(
          *to, make_float4(sum.x * inverse_scale, sum.y * inverse_scale, sum.z * inverse_scale, sum.w * inverse_scale));
    }
    __syncthreads();
  }
}
