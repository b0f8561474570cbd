// Compute both gradients of dense distances, from one power per (row, output, feature):
//   grad_x[b, i] = sum_o c[b, o] slope(s (x[b, i] - w[o, i])),   grad_w[o, i] = -sum_b (the same terms).
// A lane processes two features, a warp keeps WARP_OUTS outputs in registers, and a block processes BLOCK_OUTS outputs
// at a time. grad_w is summed over the rows in registers. grad_x is summed over the warps in a fixed order, then over
// the outputs of the block in part_x.
//   GENERAL         0: slope() is a chain; 1: g 2^((p - 1) log2 (s |d|) + offset) by special functions
//   PAIRED          1: the chain is of s |d| times the power of two of each pair, which is stored in `offset`
//   NEED_X, NEED_W  which gradients are computed
//   ROWS            rows per iteration
//   UNROLL          number of these rows by which the inner loop is unrolled
//   WARPS, BLOCK_OUTS, BLOCK_FEATURES  warps, outputs and features per block
#include "common.cuh"
#include "power"

static_assert(WARPS == 8 && BLOCK_FEATURES == 64, "256 threads, two features per lane");
#define WARP_OUTS (BLOCK_OUTS / WARPS)
// Rows that each warp loads into shared memory and whose partial sums it adds.
#define WARP_ROWS (ROWS / WARPS)
// Loops longer than about 700 instructions do not fit in the first instruction cache.
static constexpr int rows_unrolled = UNROLL;

static __device__ __forceinline__ float4 fetch4(const float* __restrict__ at, i64 left, bool whole, float beyond) {
  if (whole) return *reinterpret_cast<const float4*>(at);
  return make_float4(left > 0 ? at[0] : beyond, left > 1 ? at[1] : beyond, left > 2 ? at[2] : beyond,
                     left > 3 ? at[3] : beyond);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    dense_gradients(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ coefficient,
                    const float* __restrict__ offset, const u32* __restrict__ output_max, float* __restrict__ part_x,
                    float* __restrict__ part_w, int n, int out, int features, int out_span, int row_span, int aligned,
                    float exponent, int target_exponent, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  __shared__ __align__(16) float cs[2][ROWS][BLOCK_OUTS];                          // coefficients
  __shared__ __align__(16) float fs[2][GENERAL || PAIRED ? ROWS : 1][BLOCK_OUTS];  // offsets
  __shared__ float2 xs[2][ROWS][32];
  DYNAMIC_SHARED(float2, shares);  // [2][WARPS][ROWS][32], only if NEED_X
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 feature = (i64)blockIdx.x * BLOCK_FEATURES + lane;
  bool inside[2] = {feature < features, feature + 32 < features};
  // Lanes beyond the end repeat the last feature; their results are not written.
  i64 column[2] = {inside[0] ? feature : features - 1, inside[1] ? feature + 32 : features - 1};
  i64 first_out = (i64)blockIdx.y * out_span, stop_out = min(first_out + out_span, (i64)out);
  i64 first_row = (i64)blockIdx.z * row_span, stop_row = min(first_row + row_span, (i64)n);
  float scale = scale_for(__uint_as_float(output_max[0]), target_exponent);
  float inverse_scale = inverse_gradient_scale(output_max);
  // The part of the exponent that special functions compute.
  float special = GENERAL ? exponent : exponent - floorf(exponent);
  int rows = (int)(stop_row - first_row);

  for (i64 tile = first_out; tile < stop_out; tile += BLOCK_OUTS) {
    float wv[WARP_OUTS][2], sum_w[WARP_OUTS][2];
#pragma unroll
    for (int j = 0; j < WARP_OUTS; ++j) {
      // Beyond the end, the last output is repeated with coefficient 0, so that its differences stay in range.
      const float* from = w + min(tile + warp * WARP_OUTS + j, (i64)out - 1) * features;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        wv[j][h] = from[column[h]] * scale;
        sum_w[j][h] = 0.0f;
      }
    }
    i64 load_out = tile + lane * 4, left = stop_out - load_out;
    bool whole = aligned && left > 3;
    float4 next_c[WARP_ROWS], next_f[WARP_ROWS];
    float2 next_x[WARP_ROWS];
    const float* c_from = coefficient + (first_row + warp) * out + load_out;
    const float* f_from = offset + (first_row + warp) * out + load_out;
    const float* x_from = x + (first_row + warp) * features + column[0];
    float* sum_x = part_x + ((i64)blockIdx.y * n + first_row + warp) * features + feature;
    int apart = (int)(column[1] - column[0]);
#pragma unroll
    for (int e = 0; e < WARP_ROWS; ++e) {
      // Rows beyond the end keep the values of an earlier row (initially row 0) and have coefficient 0.
      next_x[e] = make_float2(x[first_row * features + column[0]], x[first_row * features + column[1]]);
      // With this offset their slope is 2^-inf = 0, even at the limits of the float range.
      if constexpr (GENERAL) next_f[e] = make_float4(-INFINITY_F, -INFINITY_F, -INFINITY_F, -INFINITY_F);
      if constexpr (PAIRED) next_f[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    // The first iteration, r = -ROWS, only loads rows.
    for (int r = -ROWS, buffer = 1; r < rows; r += ROWS, buffer ^= 1) {
      float2 before[WARP_ROWS];
      if constexpr (NEED_X) {
#pragma unroll
        for (int e = 0; e < WARP_ROWS; ++e) {
          const float* from = sum_x + (i64)e * WARPS * features;
          bool earlier = r >= 0 && r + e * WARPS + warp < rows && tile > first_out;
          before[e] = make_float2(earlier && inside[0] ? from[0] : 0.0f, earlier && inside[1] ? from[32] : 0.0f);
        }
      }
#pragma unroll
      for (int e = 0; e < WARP_ROWS; ++e) {
        next_c[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (r + ROWS + e * WARPS + warp < rows) {
          next_c[e] = fetch4(c_from + (i64)e * WARPS * out, left, whole, 0.0f);
          if constexpr (GENERAL || PAIRED)
            next_f[e] = fetch4(f_from + (i64)e * WARPS * out, left, whole, GENERAL ? -INFINITY_F : 0.0f);
          const float* from = x_from + (i64)e * WARPS * features;
          next_x[e] = make_float2(from[0], from[apart]);
        }
      }
      c_from += (i64)ROWS * out;
      if constexpr (GENERAL || PAIRED) f_from += (i64)ROWS * out;
      x_from += (i64)ROWS * features;
      if (r >= 0) {
#pragma unroll rows_unrolled
        for (int b = 0; b < ROWS; ++b) {
          float2 pair = xs[buffer][b][lane];
          float xv[2] = {pair.x, pair.y}, share[2] = {0.0f, 0.0f};
#pragma unroll
          for (int q = 0; q < WARP_OUTS; q += 4) {
            float c[4], f[4];
            *reinterpret_cast<float4*>(c) = *reinterpret_cast<const float4*>(&cs[buffer][b][warp * WARP_OUTS + q]);
            if constexpr (GENERAL || PAIRED)
              *reinterpret_cast<float4*>(f) = *reinterpret_cast<const float4*>(&fs[buffer][b][warp * WARP_OUTS + q]);
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                float d = xv[h] - wv[q + j][h];
                float t = slope(PAIRED ? d * f[j] : d, special, GENERAL ? f[j] : 0.0f);
                if constexpr (NEED_X) share[h] = fmaf(c[j], t, share[h]);
                if constexpr (NEED_W) sum_w[q + j][h] = fmaf(c[j], t, sum_w[q + j][h]);
              }
          }
          if constexpr (NEED_X)
            shares[((buffer * WARPS + warp) * ROWS + b) * 32 + lane] = make_float2(share[0], share[1]);
        }
      }
#pragma unroll
      for (int e = 0; e < WARP_ROWS; ++e) {
        int at = e * WARPS + warp;
        *reinterpret_cast<float4*>(&cs[buffer ^ 1][at][lane * 4]) = next_c[e];
        if constexpr (GENERAL || PAIRED) *reinterpret_cast<float4*>(&fs[buffer ^ 1][at][lane * 4]) = next_f[e];
        xs[buffer ^ 1][at][lane] = make_float2(next_x[e].x * scale, next_x[e].y * scale);
      }
      __syncthreads();
      if (!NEED_X || r < 0) continue;
#pragma unroll
      for (int e = 0; e < WARP_ROWS; ++e) {
        if (r + e * WARPS + warp >= rows) break;
#pragma unroll
        for (int v = 0; v < WARPS; ++v) {
          float2 share = shares[((buffer * WARPS + v) * ROWS + e * WARPS + warp) * 32 + lane];
          before[e].x = fmaf(share.x, inverse_scale, before[e].x);
          before[e].y = fmaf(share.y, inverse_scale, before[e].y);
        }
        float* to = sum_x + (i64)e * WARPS * features;
        if (inside[0]) to[0] = before[e].x;
        if (inside[1]) to[32] = before[e].y;
      }
      sum_x += (i64)ROWS * features;
    }
    if constexpr (NEED_W) {
#pragma unroll
      for (int j = 0; j < WARP_OUTS; ++j) {
        i64 o = tile + warp * WARP_OUTS + j;
        if (o >= stop_out) continue;
        float* target = part_w + ((i64)blockIdx.z * out + o) * features + feature;
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (inside[h]) target[32 * h] = -sum_w[j][h] * inverse_scale;
      }
    }
  }
}
