// Count how often each weight of a dense layer attains the largest |x - w| of an output, and how often the second
// largest, over a batch. Each block finds both for one tile of pairs (4 x 4 pairs per thread) over all features; the
// counts are integers, so that their order does not matter.
//   TILE   rows of x and of w per block
//   DEPTH  features that a block loads at once
#include "common.cuh"

static_assert(TILE == 64 && DEPTH == 16, "256 threads load four features each and process 4 x 4 pairs each");
#define STRIDE (TILE + 4)

// Four features of a row. Features beyond the end are NaN, which is never larger than another number.
static __device__ __forceinline__ float4 fetch(const float* __restrict__ row, int k, int features, bool aligned) {
  if (aligned && k + 3 < features) return *reinterpret_cast<const float4*>(row + k);
  float none = __int_as_float(0x7fffffff);
  return make_float4(k < features ? row[k] : none, k + 1 < features ? row[k + 1] : none,
                     k + 2 < features ? row[k + 2] : none, k + 3 < features ? row[k + 3] : none);
}

static __device__ __forceinline__ void store(float (*tile)[STRIDE], int row, int k, float4 v) {
  tile[k][row] = v.x, tile[k + 1][row] = v.y, tile[k + 2][row] = v.z, tile[k + 3][row] = v.w;
}

extern "C" __global__ void __launch_bounds__(256, 2)
    count_deciding(const float* __restrict__ x, const float* __restrict__ w, int* first, int* second, int n, int out,
                   int features, int aligned) {
  __shared__ __align__(16) float xs[DEPTH][STRIDE], ws[DEPTH][STRIDE];
  i64 top = (i64)blockIdx.x * TILE, left = (i64)blockIdx.y * TILE;
  int load_row = threadIdx.x / 4, load_column = threadIdx.x % 4 * 4;
  int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  const float* x_row = x + min(top + load_row, (i64)n - 1) * features;
  const float* w_row = w + min(left + load_row, (i64)out - 1) * features;

  float most[4][4], next[4][4];  // the largest and the second largest difference of each pair, and their features
  int most_at[4][4], next_at[4][4];
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) most[r][c] = next[r][c] = -1.0f, most_at[r][c] = next_at[r][c] = 0;

  float4 x_next = fetch(x_row, load_column, features, aligned), w_next = fetch(w_row, load_column, features, aligned);
  for (int k = 0; k < features; k += DEPTH) {
    __syncthreads();
    store(xs, load_row, load_column, x_next);
    store(ws, load_row, load_column, w_next);
    __syncthreads();
    if (k + DEPTH < features) {
      x_next = fetch(x_row, k + DEPTH + load_column, features, aligned);
      w_next = fetch(w_row, k + DEPTH + load_column, features, aligned);
    }
#pragma unroll 4
    for (int d = 0; d < DEPTH; ++d) {
      float a[4], e[4];
      *reinterpret_cast<float4*>(a) = *reinterpret_cast<const float4*>(&xs[d][row]);
      *reinterpret_cast<float4*>(e) = *reinterpret_cast<const float4*>(&ws[d][column]);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float v[4];
        bool larger = false;  // rare after the first features: one branch for four pairs
#pragma unroll
        for (int c = 0; c < 4; ++c) v[c] = fabsf(a[r] - e[c]), larger |= v[c] > next[r][c];
        if (!larger) continue;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (v[c] > most[r][c]) {
            next[r][c] = most[r][c], next_at[r][c] = most_at[r][c];
            most[r][c] = v[c], most_at[r][c] = k + d;
          } else if (v[c] > next[r][c]) {
            next[r][c] = v[c], next_at[r][c] = k + d;
          }
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      i64 o = left + column + c;
      if (top + row + r >= n || o >= out) continue;
      atomicAdd(first + o * features + most_at[r][c], 1);
      if (second && features > 1) atomicAdd(second + o * features + next_at[r][c], 1);
    }
}
