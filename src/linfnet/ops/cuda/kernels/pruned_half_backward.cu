// Gradients from the listed features in float16, for training at even p: two rows of the batch per instruction. As in
// half_backward.cu, each pair has a factor h, so that (h y)^(p - 1) = 2^10 and slopes are at most about 2^10, and
// coefficients c = g (h y)^(1 - p), scaled to at most 2 by a power of two per row (for grad_x) and per output (for grad_w).
// At most 16 terms are summed in float16. x, factors and coefficients are transposed and stored as words: pairs of float16
// of two consecutive rows (pruned_half_pairs.cu).
//   GROUP_ROWS  rows of the batch per block: a lane processes 8 consecutive rows of each WORD_GROUP
//   slope       source from linfnet/ops/powers.py: the (p - 1)-th powers of two numbers
#include "pruned.cuh"
#include "half.cuh"
#include "power"

#define WORD_GROUP (2 * LANE_GROUP)
#define LANE_WORDS (4 * GROUP_ROWS / WORD_GROUP)
#define MERGED 4  // entries whose sums over the lanes are computed together
#define TERMS 16  // terms that are summed in float16
static_assert(GROUP_ROWS % WORD_GROUP == 0 && LANE_WORDS <= TERMS,
              "a lane loads words in fours and sums them in float16");

// Load the words of this lane from the group that starts at `from`.
static __device__ __forceinline__ void load_words(u32 (&to)[LANE_WORDS], const u32* __restrict__ from) {
#pragma unroll
  for (int q = 0; q < LANE_WORDS / 4; ++q) {
    uint4 v = __ldg(reinterpret_cast<const uint4*>(from) + q * 32 + (threadIdx.x & 31));
    to[4 * q] = v.x, to[4 * q + 1] = v.y, to[4 * q + 2] = v.z, to[4 * q + 3] = v.w;
  }
}

// Return the slopes of two rows.
static __device__ __forceinline__ u32 word_slope(u32 x, u32 w, u32 factor) {
  return slope(half2_mul(half2_sub(x, w), factor));
}

// Each block computes one output; its four warps divide the list.
extern "C" __global__ void __launch_bounds__(128)
    half_listed_grad_w(const u32* __restrict__ words, const int2* __restrict__ entries, const int* __restrict__ counts,
                       const u32* __restrict__ factors, const u32* __restrict__ of_w, const u32* __restrict__ input_max,
                       const u32* __restrict__ out_max, float* __restrict__ grad_w, int features, int padded,
                       const int* __restrict__ use_dense) {
  if (*use_dense) return;
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, o = blockIdx.x, count = counts[o];
  entries += (i64)o * features;
  grad_w += (i64)o * features;
  for (int i = threadIdx.x; i < features; i += 128) grad_w[i] = 0.0f;
  __syncthreads();
  int start = part_start(count, warp), stop = part_start(count, warp + 1);
  float scale = layer_scale(input_max), back = -inverse_of_scale(out_max[o]);
  bool upper = lane & 16, odd = lane & 8;
  int mine = lane >> 3;  // the entry whose sum this lane receives
  for (int group = 0; group < padded; group += GROUP_ROWS) {
    u32 c[LANE_WORDS], h[LANE_WORDS];
    i64 pairs = ((i64)o * padded + group) / 2;
    load_words(c, of_w + pairs);
    load_words(h, factors + pairs);
    for (int k = start; k < stop; k += MERGED) {
      u32 x[MERGED][LANE_WORDS], w[MERGED];
      float sum[MERGED];
      int at = 0;
#pragma unroll
      for (int e = 0; e < MERGED; ++e) {
        Entry entry = entry_of(entries, min(k + e, stop - 1));
        load_words(x[e], words + ((i64)entry.at * padded + group) / 2);
        w[e] = half2_of(entry.w * scale, entry.w * scale);
        at = e == mine ? entry.at : at;
      }
#pragma unroll
      for (int e = 0; e < MERGED; ++e) {
        u32 part = 0;
#pragma unroll
        for (int v = 0; v < LANE_WORDS; ++v) part = half2_fma(c[v], word_slope(x[e][v], w[e], h[v]), part);
        sum[e] = low_float(part) + high_float(part);
      }
      // Each exchange halves the number of sums per lane; then 8 lanes share each sum.
      float low = (upper ? sum[2] : sum[0]) + __shfl_xor_sync(FULL_MASK, upper ? sum[0] : sum[2], 16);
      float high = (upper ? sum[3] : sum[1]) + __shfl_xor_sync(FULL_MASK, upper ? sum[1] : sum[3], 16);
      float total = (odd ? high : low) + __shfl_xor_sync(FULL_MASK, odd ? low : high, 8);
#pragma unroll
      for (int step = 4; step > 0; step >>= 1) total += __shfl_xor_sync(FULL_MASK, total, step);
      if ((lane & 7) == 0 && k + mine < stop) grad_w[at] = fmaf(total, back, group ? grad_w[at] : 0.0f);
    }
  }
}

// Each block computes one feature and group of rows; its four warps divide the list of outputs. The result is
// transposed.
extern "C" __global__ void __launch_bounds__(128)
    half_listed_grad_x(const u32* __restrict__ words, const int2* __restrict__ entries, const int* __restrict__ counts,
                       const u32* __restrict__ factors, const u32* __restrict__ of_x, const u32* __restrict__ input_max,
                       const u32* __restrict__ row_max, float* __restrict__ grad_x_transposed, int n, int out,
                       int padded, const int* __restrict__ use_dense) {
  if (*use_dense) return;
  __shared__ float shared[LIST_WARPS][GROUP_ROWS];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, i = blockIdx.x, count = counts[i];
  int group = blockIdx.y * GROUP_ROWS;
  entries += (i64)i * out;
  factors += group / 2;
  of_x += group / 2;
  int start = part_start(count, warp), stop = part_start(count, warp + 1);
  float scale = layer_scale(input_max), sum[2 * LANE_WORDS] = {};
  u32 x[LANE_WORDS];
  load_words(x, words + ((i64)i * padded + group) / 2);
  for (int block = start; block < stop; block += TERMS) {
    u32 part[LANE_WORDS] = {};
    int end = min(block + TERMS, stop);
#pragma unroll 4
    for (int k = block; k < end; ++k) {
      Entry e = entry_of(entries, k);
      u32 c[LANE_WORDS], h[LANE_WORDS], w = half2_of(e.w * scale, e.w * scale);
      load_words(h, factors + (i64)e.at * padded / 2);
      load_words(c, of_x + (i64)e.at * padded / 2);
#pragma unroll
      for (int v = 0; v < LANE_WORDS; ++v) part[v] = half2_fma(c[v], word_slope(x[v], w, h[v]), part[v]);
    }
#pragma unroll
    for (int v = 0; v < LANE_WORDS; ++v) sum[2 * v] += low_float(part[v]), sum[2 * v + 1] += high_float(part[v]);
  }
#pragma unroll
  for (int r = 0; r < 2 * LANE_WORDS; ++r) shared[warp][r / 8 * WORD_GROUP + lane * 8 + r % 8] = sum[r];
  __syncthreads();
  for (int row = threadIdx.x; row < GROUP_ROWS; row += 128) {
    float back = group + row < n ? inverse_of_scale(row_max[group + row]) : 0.0f;
    grad_x_transposed[(i64)i * padded + group + row] = sum_over_warps(shared, row) * back;
  }
}
