// Weighted sums of the TERMS largest sizes of each pair, from the smallest term to the largest, with the bits of the
// reference. Each block computes 32 x 32 pairs, 2 x 2 per thread, in two passes over the features: the first finds the
// maxima of 16 classes of features, whose TERMS-th largest is a lower bound on the TERMS-th largest size; the second
// sorts the sizes that reach this bound, usually little more than TERMS.
//   TERMS    number of terms, at most 16
//   MEASURE  the size of a feature: DISTANCE |x - w|, or over the box from x to `upper` the GAP or the FARTHEST distance
//   SAVE     1 if the features of the largest sizes are stored; of equal sizes, the first is the larger one
#include "common.cuh"

#define SIDE 32   // rows of x and of w per block
#define DEPTH 32  // features that a block loads at once
#define STRIDE (DEPTH + 4)
#define CLASSES 16

static_assert(TERMS >= 1 && TERMS <= CLASSES && DEPTH % CLASSES == 0, "the bound needs as many classes as terms");

// Bits of a number that is not negative: they are ordered like the numbers, and NaN is the largest.
static __device__ __forceinline__ int size_of(float x, float upper, float w) {
  float below = x - w;
  if (MEASURE == DISTANCE) return __float_as_int(fabsf(below));
  float above = upper - w;
  if (MEASURE == GAP) return __float_as_int(fabsf(max_nan(max_nan(below, -above), 0.0f)));
  return __float_as_int(max_nan(fabsf(below), fabsf(above)));
}

// Four features of a row. Features beyond the end are 0 in all matrices: their size is 0, which changes no result.
static __device__ __forceinline__ float4 fetch(const float* __restrict__ row, int k, int features, bool aligned) {
  if (aligned && k + 3 < features) return *reinterpret_cast<const float4*>(row + k);
  return make_float4(k < features ? row[k] : 0.0f, k + 1 < features ? row[k + 1] : 0.0f,
                     k + 2 < features ? row[k + 2] : 0.0f, k + 3 < features ? row[k + 3] : 0.0f);
}

struct Tiles {
  float x[SIDE][STRIDE], w[SIDE][STRIDE], upper[MEASURE == DISTANCE ? 1 : SIDE][STRIDE];
};

// Load features k to k + DEPTH - 1 of all rows of the block.
static __device__ __forceinline__ void load(Tiles& tiles, const float* x_row, const float* upper_row,
                                            const float* w_row, int k, int features, bool aligned) {
  int row = threadIdx.x / 8, column = threadIdx.x % 8 * 4;
  __syncthreads();
  *reinterpret_cast<float4*>(&tiles.x[row][column]) = fetch(x_row, k + column, features, aligned);
  *reinterpret_cast<float4*>(&tiles.w[row][column]) = fetch(w_row, k + column, features, aligned);
  if constexpr (MEASURE != DISTANCE)
    *reinterpret_cast<float4*>(&tiles.upper[row][column]) = fetch(upper_row, k + column, features, aligned);
  __syncthreads();
}

// Compute the sizes of four features of the 2 x 2 pairs of a thread.
static __device__ __forceinline__ void sizes_at(const Tiles& tiles, int row, int column, int k, int (*size)[2][4]) {
  float x[2][4], upper[2][4], w[2][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    *reinterpret_cast<float4*>(x[i]) = *reinterpret_cast<const float4*>(&tiles.x[row + 16 * i][k]);
    *reinterpret_cast<float4*>(w[i]) = *reinterpret_cast<const float4*>(&tiles.w[column + 16 * i][k]);
    if constexpr (MEASURE != DISTANCE)
      *reinterpret_cast<float4*>(upper[i]) = *reinterpret_cast<const float4*>(&tiles.upper[row + 16 * i][k]);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) size[i][j][c] = size_of(x[i][c], MEASURE == DISTANCE ? 0.0f : upper[i][c], w[j][c]);
}

extern "C" __global__ void __launch_bounds__(256, TERMS <= 10 ? 2 : 1)
    sorted_sums(const float* __restrict__ x, const float* __restrict__ upper, const float* __restrict__ w, float* y,
                int* index, int n, int out, int features, int aligned, float f0, float f1, float f2, float f3, float f4,
                float f5, float f6, float f7, float f8, float f9, float f10, float f11, float f12, float f13, float f14,
                float f15) {
  __shared__ __align__(16) Tiles tiles;
  i64 top = (i64)blockIdx.x * SIDE, left = (i64)blockIdx.y * SIDE;
  int row = threadIdx.x / 16, column = threadIdx.x % 16;
  i64 x_at = min(top + threadIdx.x / 8, (i64)n - 1) * features,
      w_at = min(left + threadIdx.x / 8, (i64)out - 1) * features;
  const float *x_row = x + x_at, *upper_row = MEASURE == DISTANCE ? x_row : upper + x_at, *w_row = w + w_at;

  int limit[2][2];  // sizes that are not above the limit do not count
  {
    int maxima[2][2][CLASSES] = {};
    for (int k = 0; k < features; k += DEPTH) {
      load(tiles, x_row, upper_row, w_row, k, features, aligned);
#pragma unroll
      for (int d = 0; d < DEPTH; d += 4) {
        int size[2][2][4];
        sizes_at(tiles, row, column, d, size);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c)
              maxima[i][j][(d + c) % CLASSES] = max(maxima[i][j][(d + c) % CLASSES], size[i][j][c]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int bound = 0;
#pragma unroll
        for (int a = 0; a < CLASSES; ++a) {
          int reached = 0;
#pragma unroll
          for (int b = 0; b < CLASSES; ++b) reached += maxima[i][j][b] >= maxima[i][j][a];
          if (reached >= TERMS) bound = max(bound, maxima[i][j][a]);
        }
        limit[i][j] = bound - 1;
      }
  }

  int largest[2][2][TERMS], feature[2][2][SAVE ? TERMS : 1];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int t = 0; t < TERMS; ++t) largest[i][j][t] = -1;
  for (int k = 0; k < features; k += DEPTH) {
    load(tiles, x_row, upper_row, w_row, k, features, aligned);
#pragma unroll 2
    for (int d = 0; d < DEPTH; d += 4) {
      int size[2][2][4];
      sizes_at(tiles, row, column, d, size);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            if (size[i][j][c] <= limit[i][j]) continue;
            int now = size[i][j][c], at = k + d + c;
            bool above = false;  // all entries after the first that `now` is above move down by one
#pragma unroll
            for (int t = 0; t < TERMS; ++t) {
              int old = largest[i][j][t];
              above = above || now > old;
              largest[i][j][t] = above ? now : old;
              now = above ? old : now;
              if constexpr (SAVE) {
                int old_at = feature[i][j][t];
                feature[i][j][t] = above ? at : old_at;
                at = above ? old_at : at;
              }
            }
            limit[i][j] = max(limit[i][j], largest[i][j][TERMS - 1]);
          }
    }
  }

  const float factors[16] = {f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15};
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      i64 b = top + row + 16 * i, o = left + column + 16 * j;
      if (b >= n || o >= out) continue;
      // Products and sums must not be fused.
      float sum = __fmul_rn(factors[TERMS - 1], __int_as_float(largest[i][j][TERMS - 1]));
#pragma unroll
      for (int t = TERMS - 2; t >= 0; --t)
        sum = __fadd_rn(sum, __fmul_rn(factors[t], __int_as_float(largest[i][j][t])));
      y[b * out + o] = sum;
      if constexpr (SAVE) {
#pragma unroll
        for (int t = 0; t < TERMS; ++t) index[(b * out + o) * TERMS + t] = feature[i][j][t];
      }
    }
}
