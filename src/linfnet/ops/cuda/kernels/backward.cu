// Both gradients of dense distances from one power per (row, output, feature):
//   grad_x[b, i] = sum_o c[b, o] slope(s (x[b, i] - w[o, i])),   grad_w[o, i] = -sum_b the same,   c = g (s y)^(1 - p),
// with g in its own unit.
// A lane owns two features, a warp 16 outputs in registers, a block 128 outputs at a time. grad_w is summed in registers
// over the rows; grad_x over the warps in a fixed order, then over the block's outputs in the partial result itself.
//   GENERAL 0: slope() is a chain of multiplications;  1: g 2^((p - 1) log2 (s |d|) + offset) by special functions.
#include "common.cuh"
#include "power"

#define WARPS 8
#define OUTS 16
#define BLOCK_OUTS (WARPS * OUTS)
#define EACH (ROWS / WARPS)  // rows that a warp brings to shared memory, and whose shares it adds up
// Loops longer than about 700 instructions no longer fit the nearest instruction cache.
static constexpr int rows_unrolled = UNROLL;

static __device__ __forceinline__ float4 fetch4(const float* __restrict__ at, i64 left, bool whole, float beyond) {
  if (whole) return *reinterpret_cast<const float4*>(at);
  return make_float4(left > 0 ? at[0] : beyond, left > 1 ? at[1] : beyond, left > 2 ? at[2] : beyond,
                     left > 3 ? at[3] : beyond);
}

extern "C" __global__ void __launch_bounds__(256, 2)
slopes(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ coefficient,
       const float* __restrict__ offset, const u32* __restrict__ tops, float* __restrict__ part_x,
       float* __restrict__ part_w, int n, int out, int features, int out_span, int row_span, int vector,
       float exponent, int lift, const int* __restrict__ gate) {
  if (closed(gate)) return;
  __shared__ __align__(16) float cs[2][ROWS][BLOCK_OUTS];
#if GENERAL
  __shared__ __align__(16) float fs[2][ROWS][BLOCK_OUTS];
#endif
  __shared__ float2 xs[2][ROWS][32];
#if NEED_X
  DYNAMIC_SHARED(float2, shares);  // [2][WARPS][ROWS][32]
#endif
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 feature = (i64)blockIdx.x * 64 + lane;
  bool here[2] = {feature < features, feature + 32 < features};
  // Beyond the end the last feature stands in: its results are not written.
  i64 column[2] = {here[0] ? feature : features - 1, here[1] ? feature + 32 : features - 1};
  i64 first_out = (i64)blockIdx.y * out_span, stop_out = min(first_out + out_span, (i64)out);
  i64 first_row = (i64)blockIdx.z * row_span, stop_row = min(first_row + row_span, (i64)n);
  float scale = scale_for(__uint_as_float(tops[0]), lift), unit = gradient_unit(tops);
#if !GENERAL
  float fraction = exponent - floorf(exponent);
#endif

  int rows = (int)(stop_row - first_row);

  for (i64 tile = first_out; tile < stop_out; tile += BLOCK_OUTS) {
    float wv[OUTS][2], sum_w[OUTS][2];
#pragma unroll
    for (int j = 0; j < OUTS; ++j) {
      // Beyond the end the last output stands in with coefficient 0: its differences stay in range.
      const float* from = w + min(tile + warp * OUTS + j, (i64)out - 1) * features;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        wv[j][h] = from[column[h]] * scale;
        sum_w[j][h] = 0.0f;
      }
    }
    i64 place = tile + lane * 4, left = stop_out - place;
    bool whole = vector && left > 3;
    float4 next_c[EACH];
#if GENERAL
    float4 next_f[EACH];
#endif
    float2 next_x[EACH];
    const float* c_from = coefficient + (first_row + warp) * out + place;
#if GENERAL
    const float* f_from = offset + (first_row + warp) * out + place;
#endif
    const float* x_from = x + (first_row + warp) * features + column[0];
    int apart = (int)(column[1] - column[0]);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      // Rows beyond the end keep values from before, at first those of row 0, and have coefficient 0.
      next_x[e] = make_float2(x[first_row * features + column[0]], x[first_row * features + column[1]]);
#if GENERAL
      // The slope of what stands in is 2^-inf, at the end of the float range as well.
      next_f[e] = make_float4(-INFINITE, -INFINITE, -INFINITE, -INFINITE);
#endif
    }
#if NEED_X
    float* sum_x = part_x + ((i64)blockIdx.y * n + first_row + warp) * features + feature;
#endif

    // Turn -1 only brings the first rows.
    for (int r = -ROWS, buffer = 1; r < rows; r += ROWS, buffer ^= 1) {
#if NEED_X
      float2 before[EACH];
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        const float* from = sum_x + (i64)e * WARPS * features;
        bool earlier = r >= 0 && r + e * WARPS + warp < rows && tile > first_out;
        before[e] = make_float2(earlier && here[0] ? from[0] : 0.0f, earlier && here[1] ? from[32] : 0.0f);
      }
#endif
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        next_c[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (r + ROWS + e * WARPS + warp < rows) {
          next_c[e] = fetch4(c_from + (i64)e * WARPS * out, left, whole, 0.0f);
#if GENERAL
          next_f[e] = fetch4(f_from + (i64)e * WARPS * out, left, whole, -INFINITE);
#endif
          const float* from = x_from + (i64)e * WARPS * features;
          next_x[e] = make_float2(from[0], from[apart]);
        }
      }
      c_from += (i64)ROWS * out;
#if GENERAL
      f_from += (i64)ROWS * out;
#endif
      x_from += (i64)ROWS * features;
      if (r >= 0) {
#pragma unroll rows_unrolled
        for (int b = 0; b < ROWS; ++b) {
          float2 pair = xs[buffer][b][lane];
          float xv[2] = {pair.x, pair.y};
#if NEED_X
          float share[2] = {0.0f, 0.0f};
#endif
#pragma unroll
          for (int q = 0; q < OUTS; q += 4) {
            float c[4];
            *reinterpret_cast<float4*>(c) = *reinterpret_cast<const float4*>(&cs[buffer][b][warp * OUTS + q]);
#if GENERAL
            float f[4];
            *reinterpret_cast<float4*>(f) = *reinterpret_cast<const float4*>(&fs[buffer][b][warp * OUTS + q]);
#endif
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                float d = xv[h] - wv[q + j][h];
#if GENERAL
                float t = copysignf(exp2_fast(fmaf(exponent, log2_fast(fabsf(d)), f[j])), d);
#else
                float t = slope(d, fraction);
#endif
#if NEED_X
                share[h] = fmaf(c[j], t, share[h]);
#endif
#if NEED_W
                sum_w[q + j][h] = fmaf(c[j], t, sum_w[q + j][h]);
#endif
              }
          }
#if NEED_X
          shares[((buffer * WARPS + warp) * ROWS + b) * 32 + lane] = make_float2(share[0], share[1]);
#endif
        }
      }
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        int at = e * WARPS + warp;
        *reinterpret_cast<float4*>(&cs[buffer ^ 1][at][lane * 4]) = next_c[e];
#if GENERAL
        *reinterpret_cast<float4*>(&fs[buffer ^ 1][at][lane * 4]) = next_f[e];
#endif
        xs[buffer ^ 1][at][lane] = make_float2(next_x[e].x * scale, next_x[e].y * scale);
      }
      __syncthreads();
#if NEED_X
      if (r < 0) continue;
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        if (r + e * WARPS + warp >= rows) break;
#pragma unroll
        for (int v = 0; v < WARPS; ++v) {
          float2 share = shares[((buffer * WARPS + v) * ROWS + e * WARPS + warp) * 32 + lane];
          before[e].x = fmaf(share.x, unit, before[e].x);
          before[e].y = fmaf(share.y, unit, before[e].y);
        }
        float* to = sum_x + (i64)e * WARPS * features;
        if (here[0]) to[0] = before[e].x;
        if (here[1]) to[32] = before[e].y;
      }
      sum_x += (i64)ROWS * features;
#endif
    }
#if NEED_W
#pragma unroll
    for (int j = 0; j < OUTS; ++j) {
      i64 o = tile + warp * OUTS + j;
      if (o >= stop_out) continue;
      float* target = part_w + ((i64)blockIdx.z * out + o) * features + feature;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (here[h]) target[32 * h] = -sum_w[j][h] * unit;
    }
#endif
  }
}
