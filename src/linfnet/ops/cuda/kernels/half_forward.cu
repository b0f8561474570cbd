// Distances for training at even p, in float16: two features per instruction, sums of FOLD stages in float16, the total
// in float32. Every output has a factor t, so that its sums of (t (x - w))^p are within the range of float16; pairs out
// of range are recomputed exactly. Words are pairs of float16; x and w are stored as words [rows, words].
//   TILE, DEPTH   rows of x and of w per block; words that a block loads at once
//   UNROLL        pairs of words per iteration of the inner loop; about 700 instructions fit in the first instruction cache
//   SAMPLES       rows of x from which the factors are estimated
//   add_power     source from linfnet/ops/powers.py: adds the p-th powers of two numbers to two sums
#include "common.cuh"
#include "half.cuh"
#include "exact.cuh"
#include "stage.cuh"
#include "power"

static_assert(TILE == 64, "the threads of a block are mapped to 64 x 64 pairs");
static constexpr int pairs_unrolled = UNROLL;
#define COLUMNS 4
#define PAIRS (8 * COLUMNS)
#define LOADS (TILE / 32)
#define FOLD 2              // stages that are summed in float16
#define CENTRE 4.0f         // log2 of a typical p-th power
#define GROUP 4             // outputs per block of half_factors
#define LEAST_SUM 0x1p-9f   // smallest trusted sum: terms below 2^-25 are lost
#define LEAST_SIZE 0x1p-6f  // smallest trusted distance, relative to the layer's largest |x| + |w|

// Estimate the factor of each output: the geometric mean over SAMPLES rows of the largest |x - w|, times the factor, to the
// power of p is 2^CENTRE. The middle of the range of trusted sums is 2^3.5; few distances are much larger than this mean,
// more are much smaller. The factor is rounded to float16.
extern "C" __global__ void __launch_bounds__(256)
    half_factors(const float* __restrict__ x, const float* __restrict__ w, const u32* __restrict__ input_max,
                 u32* __restrict__ factors, int n, int out, int features, float p, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  __shared__ u32 most[GROUP][SAMPLES];
  if (threadIdx.x < GROUP * SAMPLES) most[threadIdx.x / SAMPLES][threadIdx.x % SAMPLES] = 0;
  __syncthreads();
  float best[GROUP][SAMPLES] = {};
  const float *rows[SAMPLES], *anchors[GROUP];
#pragma unroll
  for (int s = 0; s < SAMPLES; ++s) rows[s] = x + ((i64)n * s / SAMPLES) * features;
#pragma unroll
  for (int j = 0; j < GROUP; ++j) anchors[j] = w + min((i64)blockIdx.x * GROUP + j, (i64)out - 1) * features;
  for (int i = threadIdx.x; i < features; i += 256) {
    float a[SAMPLES];
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) a[s] = rows[s][i];
#pragma unroll
    for (int j = 0; j < GROUP; ++j) {
      float e = anchors[j][i];
#pragma unroll
      for (int s = 0; s < SAMPLES; ++s) best[j][s] = fmaxf(best[j][s], fabsf(a[s] - e));
    }
  }
#pragma unroll
  for (int j = 0; j < GROUP; ++j)
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) {
      u32 bits = __reduce_max_sync(FULL_MASK, __float_as_uint(best[j][s]));
      if ((threadIdx.x & 31) == 0) atomicMax(&most[j][s], bits);
    }
  __syncthreads();
  int o = blockIdx.x * GROUP + threadIdx.x;
  if (threadIdx.x >= GROUP || o >= out) return;
  float logs = 0.0f;
#pragma unroll
  for (int s = 0; s < SAMPLES; ++s)
    logs += log2f(fmaxf(__uint_as_float(most[threadIdx.x][s]) * layer_scale(input_max), LEAST_SIZE));
  float factor = exp2f(CENTRE / p - logs / SAMPLES);
  factors[o] = half2_of(factor, factor);
}

// Round a matrix, times the layer's scale and minus the factor of each row (1 if `factors` is null), to float16; features
// beyond the end become zero.
extern "C" __global__ void __launch_bounds__(256)
    half_words(const float* __restrict__ a, const u32* __restrict__ factors, const u32* __restrict__ input_max,
               u32* __restrict__ target, i64 size, int features, int words, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  float scale = layer_scale(input_max);
  i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < size; at += step) {
    i64 row = at / words;
    int i = 2 * (int)(at - row * words);
    float s = factors ? -scale * low_float(factors[row]) : scale;
    float low = i < features ? a[row * features + i] * s : 0.0f;
    target[at] = half2_of(low, i + 1 < features ? a[row * features + i + 1] * s : 0.0f);
  }
}

extern "C" __global__ void __launch_bounds__(128, 5)
    half_sums(const u32* __restrict__ x, const u32* __restrict__ w, const u32* __restrict__ factors,
              float* __restrict__ sums, int n, int out, int words, int span, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  __shared__ __align__(16) float xs[2][TILE][STAGE_STRIDE], ws[2][TILE][STAGE_STRIDE];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 top = (i64)blockIdx.x * TILE, left = (i64)blockIdx.y * TILE;
  int first = blockIdx.z * span, stop = min(words, first + span);

  int load_row = threadIdx.x >> 2, load_column = (threadIdx.x & 3) * 4;
  const u32 *x_from[LOADS], *w_from[LOADS];
#pragma unroll
  for (int h = 0; h < LOADS; ++h) {
    x_from[h] = x + min(top + load_row + 32 * h, (i64)n - 1) * words + first + load_column;
    w_from[h] = w + min(left + load_row + 32 * h, (i64)out - 1) * words + first + load_column;
  }
  int row = (warp >> 1) * 32 + (lane >> 3), column = (warp & 1) * (TILE / 2) + (lane & 7);
  // The totals are stored in shared memory because there are not enough registers.
  __shared__ float4 total[PAIRS / 4][128];
  u32 part[PAIRS], factor[COLUMNS];
#pragma unroll
  for (int q = 0; q < PAIRS; ++q) part[q] = 0;
#pragma unroll
  for (int q = 0; q < PAIRS / 4; ++q) total[q][threadIdx.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int j = 0; j < COLUMNS; ++j) factor[j] = factors[min(left + column + 8 * j, (i64)out - 1)];

  auto copy_stage = [&](int k, int buffer) {
#pragma unroll
    for (int h = 0; h < LOADS; ++h) {
      bool inside = stop - k - load_column > 0;
      copy16(&xs[buffer][load_row + 32 * h][load_column], reinterpret_cast<const float*>(x_from[h]), inside);
      copy16(&ws[buffer][load_row + 32 * h][load_column], reinterpret_cast<const float*>(w_from[h]), inside);
      x_from[h] += DEPTH, w_from[h] += DEPTH;
    }
  };
  copy_stage(first, 0);
  await_copies();
  __syncthreads();
  int buffer = 0;
  for (int k = first; k < stop; k += DEPTH) {
    int next = k + DEPTH;
    if (next < stop) copy_stage(next, buffer ^ 1);
    const float *x_at = xs[buffer][row], *w_at = ws[buffer][column];
#pragma unroll pairs_unrolled
    for (int c = 0; c < DEPTH; c += 2) {
      uint2 e[COLUMNS];
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) e[j] = *reinterpret_cast<const uint2*>(w_at + 8 * j * STAGE_STRIDE + c);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        uint2 a = *reinterpret_cast<const uint2*>(x_at + 4 * i * STAGE_STRIDE + c);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
          u32& sum = part[i * COLUMNS + j];
          sum = add_power(half2_fma(a.x, factor[j], e[j].x), sum);
          sum = add_power(half2_fma(a.y, factor[j], e[j].y), sum);
        }
      }
    }
    if ((next - first) % (FOLD * DEPTH) == 0 || next >= stop) {
#pragma unroll
      for (int q = 0; q < PAIRS; q += 4) {
        float4 sum = total[q / 4][threadIdx.x];
        sum.x += low_float(part[q]) + high_float(part[q]);
        sum.y += low_float(part[q + 1]) + high_float(part[q + 1]);
        sum.z += low_float(part[q + 2]) + high_float(part[q + 2]);
        sum.w += low_float(part[q + 3]) + high_float(part[q + 3]);
        total[q / 4][threadIdx.x] = sum;
        part[q] = part[q + 1] = part[q + 2] = part[q + 3] = 0;
      }
    }
    if (next < stop) {
      await_copies();
      __syncthreads();
    }
    buffer ^= 1;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float4 sum = total[i][threadIdx.x];
    float of_column[COLUMNS] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
      i64 b = top + row + 4 * i, o = left + column + 8 * j;
      if (b < n && o < out) sums[((i64)blockIdx.z * n + b) * out + o] = of_column[j];
    }
  }
}

// The distance of a pair from its sum, or a negative number if the sum is not trusted.
static __device__ __forceinline__ float half_distance(const float* __restrict__ sums, int parts, i64 pairs, i64 at,
                                                      const u32* __restrict__ factors, int out, float scale, float p) {
  float sum = 0.0f;
  for (int s = 0; s < parts; ++s) sum += sums[s * pairs + at];
  if (!(sum >= LEAST_SUM && sum < INFINITY_F)) return -1.0f;
  float scaled = exp2f(log2f(sum) / p) / low_float(factors[at % out]);
  return scaled >= LEAST_SIZE && scaled < INFINITY_F ? scaled / scale : -1.0f;
}

// Count the pairs whose sums are not trusted.
extern "C" __global__ void __launch_bounds__(256)
    half_untrusted(const float* __restrict__ sums, int parts, const u32* __restrict__ factors,
                   const u32* __restrict__ input_max, u32* __restrict__ count, int n, int out, float p,
                   const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense)) return;
  i64 pairs = (i64)n * out, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  bool bad = at < pairs && half_distance(sums, parts, pairs, at, factors, out, layer_scale(input_max), p) < 0.0f;
  u32 found = __popc(__ballot_sync(FULL_MASK, bad));
  if ((threadIdx.x & 31) == 0 && found) atomicAdd(count, found);
}

// Set `fallback` to 1 if the float32 kernels must compute the layer: if this layer is active and too many pairs are not
// trusted.
extern "C" __global__ void __launch_bounds__(32)
    half_decide(const u32* __restrict__ count, int most, const int* __restrict__ active, int* fallback) {
  if (threadIdx.x == 0) *fallback = (!active || *active) && *count > (u32)most;
}

// Compute distances; pairs whose sums are not trusted are recomputed exactly by a whole warp each.
extern "C" __global__ void __launch_bounds__(256)
    half_finish(const float* __restrict__ sums, int parts, const float* __restrict__ x, const float* __restrict__ w,
                const u32* __restrict__ factors, const u32* __restrict__ input_max, const int* __restrict__ fallback,
                float* __restrict__ y, int n, int out, int features, float p, const int* __restrict__ use_dense) {
  if (dense_disabled(use_dense) || *fallback) return;
  i64 pairs = (i64)n * out, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  float result = 0.0f;
  if (at < pairs) result = half_distance(sums, parts, pairs, at, factors, out, layer_scale(input_max), p);
  u32 left = __ballot_sync(FULL_MASK, result < 0.0f);
  while (left) {
    int lane = __ffs(left) - 1;
    left &= left - 1;
    i64 pair = __shfl_sync(FULL_MASK, at, lane), b = pair / out, o = pair - b * out;
    float value = (float)exact_distance(x + b * features, w + o * features, features, p);
    if ((threadIdx.x & 31) == lane) result = value;
  }
  if (at < pairs) y[at] = result;
}
