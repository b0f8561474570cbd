// Both gradients of dense distances from one power per (row, output, feature):
//   grad_x[b, i] = sum_o c[b, o] slope(s (x[b, i] - w[o, i])),   grad_w[o, i] = -sum_b the same,   c = g (s y)^(1 - p).
// A lane owns one feature, a warp 16 outputs in registers, a block 128 outputs and up to 512 rows at a time; grad_w is
// summed in registers over the rows, grad_x over the warps in a fixed order and over the outputs in shared memory.
//   GENERAL 0: slope() is a chain of multiplications;  1: g 2^((p - 1) log2 (s |d|) + offset) by special functions.
#include "common.cuh"

#define WARPS 8
#define OUTS 16
#define BLOCK_OUTS (WARPS * OUTS)

static __device__ __forceinline__ float4 fetch4(const float* __restrict__ row, i64 at, i64 stop, bool vector) {
  if (vector && at + 3 < stop) return *reinterpret_cast<const float4*>(row + at);
  return make_float4(at < stop ? row[at] : 0.0f, at + 1 < stop ? row[at + 1] : 0.0f, at + 2 < stop ? row[at + 2] : 0.0f,
                     at + 3 < stop ? row[at + 3] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(256, 2)
slopes(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ coefficient,
       const float* __restrict__ offset, const u32* __restrict__ tops, float* __restrict__ part_x,
       float* __restrict__ part_w, int n, int out, int features, int stage_rows, int out_span, int row_span, int vector,
       float exponent, int lift) {
  extern __shared__ float sum_x[];  // [stage_rows][32]
  __shared__ __align__(16) float cs[2][WARPS][BLOCK_OUTS];
#if GENERAL
  __shared__ __align__(16) float fs[2][WARPS][BLOCK_OUTS];
#endif
  __shared__ float xs[2][WARPS][32];
#if NEED_X
  __shared__ float shares[2][WARPS][WARPS][32];
#endif
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 feature = (i64)blockIdx.x * 32 + lane;
  bool here = feature < features;
  i64 column = here ? feature : features - 1;
  i64 first_out = (i64)blockIdx.y * out_span, stop_out = min(first_out + out_span, (i64)out);
  i64 first_row = (i64)blockIdx.z * row_span, stop_row = min(first_row + row_span, (i64)n);
  float scale = scale_for(__uint_as_float(tops[0]), lift);

  for (i64 stage = first_row; stage < stop_row; stage += stage_rows) {
    int rows = (int)min((i64)stage_rows, stop_row - stage);
#if NEED_X
    for (int r = warp; r < stage_rows; r += WARPS) sum_x[r * 32 + lane] = 0.0f;
#endif
    for (i64 tile = first_out; tile < stop_out; tile += BLOCK_OUTS) {
      float wv[OUTS], sum_w[OUTS];
#pragma unroll
      for (int j = 0; j < OUTS; ++j) {
        // Beyond the end the last row stands in with coefficient 0: its differences stay in range.
        i64 o = min(tile + warp * OUTS + j, (i64)out - 1);
        wv[j] = w[o * features + column] * scale;
        sum_w[j] = 0.0f;
      }
      i64 row = stage + warp, place = tile + lane * 4;
      bool live = row < stop_row;
      float4 next_c = fetch4(coefficient + min(row, stop_row - 1) * out, place, live ? stop_out : 0, vector);
#if GENERAL
      float4 next_f = fetch4(offset + min(row, stop_row - 1) * out, place, live ? stop_out : 0, vector);
#endif
      float next_x = x[min(row, stop_row - 1) * features + column] * scale;
      __syncthreads();
      *reinterpret_cast<float4*>(&cs[0][warp][lane * 4]) = next_c;
#if GENERAL
      *reinterpret_cast<float4*>(&fs[0][warp][lane * 4]) = next_f;
#endif
      xs[0][warp][lane] = next_x;
      __syncthreads();

      int buffer = 0;
      for (int r = 0; r < rows; r += WARPS, buffer ^= 1) {
        if (r + WARPS < rows) {
          row = stage + r + WARPS + warp;
          live = row < stop_row;
          next_c = fetch4(coefficient + min(row, stop_row - 1) * out, place, live ? stop_out : 0, vector);
#if GENERAL
          next_f = fetch4(offset + min(row, stop_row - 1) * out, place, live ? stop_out : 0, vector);
#endif
          next_x = x[min(row, stop_row - 1) * features + column] * scale;
        }
#pragma unroll
        for (int b = 0; b < WARPS; ++b) {
          float xv = xs[buffer][b][lane];
#if NEED_X
          float share[2] = {0.0f, 0.0f};  // two, so that sums wait less for each other
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
            for (int j = 0; j < 4; ++j) {
              float d = xv - wv[q + j];
#if GENERAL
              float t = copysignf(exp2_fast(fmaf(exponent, log2_fast(fabsf(d)), f[j])), d);
#else
              float t = slope(d);
#endif
#if NEED_X
              share[j & 1] = fmaf(c[j], t, share[j & 1]);
#endif
#if NEED_W
              sum_w[q + j] = fmaf(c[j], t, sum_w[q + j]);
#endif
            }
          }
#if NEED_X
          shares[buffer][warp][b][lane] = share[0] + share[1];
#endif
        }
        if (r + WARPS < rows) {
          *reinterpret_cast<float4*>(&cs[buffer ^ 1][warp][lane * 4]) = next_c;
#if GENERAL
          *reinterpret_cast<float4*>(&fs[buffer ^ 1][warp][lane * 4]) = next_f;
#endif
          xs[buffer ^ 1][warp][lane] = next_x;
        }
        __syncthreads();
#if NEED_X
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < WARPS; ++v) sum += shares[buffer][v][warp][lane];
        sum_x[(r + warp) * 32 + lane] += sum;
#endif
      }
#if NEED_W
#pragma unroll
      for (int j = 0; j < OUTS; ++j) {
        i64 o = tile + warp * OUTS + j;
        if (here && o < stop_out) {
          float* target = part_w + ((i64)blockIdx.z * out + o) * features + feature;
          *target = stage == first_row ? -sum_w[j] : *target - sum_w[j];
        }
      }
#endif
    }
#if NEED_X
    for (int r = warp; r < rows; r += WARPS)
      if (here) part_x[((i64)blockIdx.y * n + stage + r) * features + feature] = sum_x[r * 32 + lane];
#endif
  }
}
