// Gradients for training at even p, in float16: two features per instruction. With a factor h of each pair, so that
// (h y)^(p - 1) = 2^10, the slopes (h (x - w))^(p - 1) are at most 2^10. They are multiplied by c = g (h y)^(1 - p), scaled
// to at most 2 by a power of two per row (for grad_x) and per output (for grad_w), and summed in float16 over at most 16
// terms; the sums of these are float32.
// A lane processes four features, a warp keeps WARP_OUTS outputs in registers.
//   NEED_X, NEED_W  which gradients are computed
//   WARPS, HALF_OUTS, HALF_FEATURES  warps, outputs and features per block
//   ROWS            rows per iteration
//   UNROLL          number of these rows by which the inner loop is unrolled
//   slope           source from linfnet/ops/powers.py: the (p - 1)-th powers of two numbers
#include "common.cuh"
#include "half.cuh"
#include "power"

static_assert(WARPS == 8 && HALF_FEATURES == 128 && HALF_OUTS == 64 && ROWS == 32, "loads are mapped to 256 threads");
static constexpr int rows_unrolled = UNROLL;
#define WARP_OUTS (HALF_OUTS / WARPS)
#define WARP_ROWS (ROWS / WARPS)

// Whether half_gradients computes a pair; otherwise, `repair` does (with general = 1).
static __device__ __forceinline__ bool half_in_range(float relative) {
  return !(relative > 0.0f && relative < INFINITY_F) || relative >= SAFE_RATIO;
}

// Compute the factor h and both coefficients of each pair. `exponent` is p - 1.
extern "C" __global__ void __launch_bounds__(256)
    half_coefficients(const float* __restrict__ grad, const float* __restrict__ y, const u32* __restrict__ output_max,
                      const u32* __restrict__ input_max, const u32* __restrict__ row_max,
                      const u32* __restrict__ out_max, u32* __restrict__ coefficient, u16* __restrict__ factor,
                      int* __restrict__ flags, int n, int out, float exponent, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (i64)n * out) return;
  float relative = y[at] * scale_for(__uint_as_float(output_max[0]), 0), scaled = y[at] * layer_scale(input_max);
  float c = 0.0f;
  u16 h = 0;
  i64 b = at / out, o = at - b * out;
  if (!half_in_range(relative)) {
    flags[b] = flags[n + o] = 1;
  } else if (relative != 0.0f) {
    h = to_half(exp2f(10.0f / exponent) / scaled);
    c = grad[at] * powf(from_half(h) * scaled, -exponent);
  }
  factor[at] = h;
  coefficient[at] = half2_of(c * scale_for(__uint_as_float(row_max[b]), TOP_EXPONENT),
                             c * scale_for(__uint_as_float(out_max[o]), TOP_EXPONENT));
}

extern "C" __global__ void __launch_bounds__(256, 2)
    half_gradients(const u32* __restrict__ x, const float* __restrict__ w, const u32* __restrict__ coefficient,
                   const u16* __restrict__ factor, const u32* __restrict__ input_max, const u32* __restrict__ row_max,
                   const u32* __restrict__ out_max, float* __restrict__ part_x, float* __restrict__ part_w, int n,
                   int out, int features, int words, int out_span, int row_span, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  __shared__ __align__(16) u32 cs[2][ROWS][HALF_OUTS];
  __shared__ __align__(16) u32 hs[2][ROWS][HALF_OUTS / 2];
  __shared__ __align__(16) u32 xs[2][ROWS][HALF_FEATURES / 2];
  DYNAMIC_SHARED(uint2, shares);  // [WARPS][ROWS][32], only if NEED_X
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 feature = (i64)blockIdx.x * HALF_FEATURES + lane * 4;
  bool inside = feature < features;  // `features` is a multiple of 4
  i64 column = inside ? feature : features - 4;
  i64 first_out = (i64)blockIdx.y * out_span, stop_out = min(first_out + out_span, (i64)out);
  i64 first_row = (i64)blockIdx.z * row_span, stop_row = min(first_row + row_span, (i64)n);
  float scale = layer_scale(input_max);
  int rows = (int)(stop_row - first_row);
  // Each thread copies 16 bytes of rows that are 16 (x and coefficients) or 32 (factors) apart.
  int load_row = threadIdx.x >> 4, load_at = (threadIdx.x & 15) * 4;
  int factor_row = threadIdx.x >> 3, factor_at = (threadIdx.x & 7) * 8;
  i64 word = (i64)blockIdx.x * (HALF_FEATURES / 2) + load_at;

  for (i64 tile = first_out; tile < stop_out; tile += HALF_OUTS) {
    // Rows and outputs beyond the end have coefficient, factor and x = 0.
    const u32* c_from = coefficient + (first_row + load_row) * out + tile + load_at;
    const u32* x_from = x + (first_row + load_row) * words + word;
    const u16* h_from = factor + (first_row + factor_row) * out + tile + factor_at;
    bool c_inside = tile + load_at < stop_out, x_inside = word < words, h_inside = tile + factor_at < stop_out;
    auto copy_rows = [&](int left, int buffer) {
#pragma unroll
      for (int e = 0; e < ROWS; e += 16) {
        bool here = load_row + e < left;
        copy16(reinterpret_cast<float*>(&cs[buffer][e + load_row][load_at]),
               reinterpret_cast<const float*>(c_from + (i64)e * out), here && c_inside);
        copy16(reinterpret_cast<float*>(&xs[buffer][e + load_row][load_at]),
               reinterpret_cast<const float*>(x_from + (i64)e * words), here && x_inside);
      }
      copy16(reinterpret_cast<float*>(&hs[buffer][factor_row][factor_at / 2]), reinterpret_cast<const float*>(h_from),
             factor_row < left && h_inside);
      c_from += (i64)ROWS * out;
      x_from += (i64)ROWS * words;
      h_from += (i64)ROWS * out;
    };
    u32 wv[WARP_OUTS][2], part[WARP_OUTS][2];
    float sum_w[WARP_OUTS][4];
#pragma unroll
    for (int j = 0; j < WARP_OUTS; ++j) {
      i64 o = min(tile + warp * WARP_OUTS + j, (i64)out - 1);
      float4 v = *reinterpret_cast<const float4*>(w + o * features + column);
      wv[j][0] = half2_of(v.x * scale, v.y * scale), wv[j][1] = half2_of(v.z * scale, v.w * scale);
      part[j][0] = part[j][1] = 0;
#pragma unroll
      for (int h = 0; h < 4; ++h) sum_w[j][h] = 0.0f;
    }
    copy_rows(rows, 0);
    await_copies();
    __syncthreads();
    for (int r = 0, buffer = 0; r < rows; r += ROWS, buffer ^= 1) {
      if (r + ROWS < rows) copy_rows(rows - r - ROWS, buffer ^ 1);
#pragma unroll 1
      for (int run = 0; run < ROWS; run += 16) {
#pragma unroll rows_unrolled
        for (int b = run; b < run + 16; ++b) {
          uint2 a = *reinterpret_cast<const uint2*>(&xs[buffer][b][lane * 2]);
          u32 xv[2] = {a.x, a.y}, share[2] = {0, 0};
#pragma unroll
          for (int q = 0; q < WARP_OUTS; q += 4) {
            uint4 c4 = *reinterpret_cast<const uint4*>(&cs[buffer][b][warp * WARP_OUTS + q]);
            uint2 h4 = *reinterpret_cast<const uint2*>(&hs[buffer][b][(warp * WARP_OUTS + q) / 2]);
            u32 c[4] = {c4.x, c4.y, c4.z, c4.w};
            u32 h[4] = {low_twice(h4.x), high_twice(h4.x), low_twice(h4.y), high_twice(h4.y)};
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
              for (int v = 0; v < 2; ++v) {
                u32 t = slope(half2_mul(half2_sub(xv[v], wv[q + j][v]), h[j]));
                if constexpr (NEED_X) share[v] = half2_fma(low_twice(c[j]), t, share[v]);
                if constexpr (NEED_W) part[q + j][v] = half2_fma(high_twice(c[j]), t, part[q + j][v]);
              }
          }
          if constexpr (NEED_X) shares[(warp * ROWS + b) * 32 + lane] = make_uint2(share[0], share[1]);
        }
        if constexpr (NEED_W) {
#pragma unroll
          for (int j = 0; j < WARP_OUTS; ++j)
#pragma unroll
            for (int v = 0; v < 2; ++v) {
              sum_w[j][2 * v] += low_float(part[j][v]);
              sum_w[j][2 * v + 1] += high_float(part[j][v]);
              part[j][v] = 0;
            }
        }
      }
      await_copies();
      __syncthreads();
      if constexpr (NEED_X) {
        i64 top = first_row + r + warp * WARP_ROWS;
        float* sum_x = part_x + ((i64)blockIdx.y * n + top) * features + feature;
#pragma unroll
        for (int e = 0; e < WARP_ROWS; ++e) {
          if (top + e >= stop_row) break;
          float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
          for (int v = 0; v < WARPS; v += 2) {
            const uint2* at = shares + (v * ROWS + warp * WARP_ROWS + e) * 32 + lane;
            uint2 one = at[0], other = at[ROWS * 32];
            u32 low = half2_add(one.x, other.x), high = half2_add(one.y, other.y);
            total.x += low_float(low), total.y += high_float(low);
            total.z += low_float(high), total.w += high_float(high);
          }
          float back = inverse_of_scale(row_max[top + e]);
          float4* to = reinterpret_cast<float4*>(sum_x + (i64)e * features);
          float4 before = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if (tile > first_out && inside) before = *to;
          if (inside)
            *to = make_float4(fmaf(total.x, back, before.x), fmaf(total.y, back, before.y),
                              fmaf(total.z, back, before.z), fmaf(total.w, back, before.w));
        }
      }
      __syncthreads();
    }
    if constexpr (NEED_W) {
#pragma unroll
      for (int j = 0; j < WARP_OUTS; ++j) {
        i64 o = tile + warp * WARP_OUTS + j;
        if (o >= stop_out || !inside) continue;
        float back = -inverse_of_scale(out_max[o]);
        *reinterpret_cast<float4*>(part_w + ((i64)blockIdx.z * out + o) * features + feature) =
            make_float4(sum_w[j][0] * back, sum_w[j][1] * back, sum_w[j][2] * back, sum_w[j][3] * back);
      }
    }
  }
}
