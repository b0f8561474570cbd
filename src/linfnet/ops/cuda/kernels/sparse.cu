// Gradients at p = infinity: one flow per pair, to the coordinate that won. `saved` is its index, bit 31 the sign of x - w.
// A warp owns one row of the result and takes the flows 32 at a time in order, equal indices summed lane by lane: no
// atomics, the same bits every time. The row is gathered in shared memory where it fits, in the result itself where not.
#include "common.cuh"

#define AHEAD 8

static __device__ __forceinline__ void add_in_order(float* bins, int index, float flow, float sign, int lane) {
  u32 group = __match_any_sync(FULL, index);
  bool leader = (group & ((1u << lane) - 1)) == 0;
  u32 rest = leader ? group & ~(1u << lane) : 0;
  float sum = flow;
  while (__any_sync(FULL, rest)) {
    int source = rest ? __ffs(rest) - 1 : lane;
    float other = __shfl_sync(FULL, flow, source);
    if (rest) {
      sum += other;
      rest &= rest - 1;
    }
  }
  if (leader && index >= 0) bins[index] += sign * sum;
  __syncwarp();
}

// stride_row, stride_item: of `saved`, y and grad along the rows of the result and along the items of one row.
// `share` warps of a block work on one row, each on its part of the items, and their sums are added in order.
extern "C" __global__ void
scatter(const float* __restrict__ grad, const float* __restrict__ y, const int* __restrict__ saved,
        float* __restrict__ result, int rows, int items, int features, i64 stride_row, i64 stride_item, float sign,
        int share, int shared_rows) {
  DYNAMIC_SHARED(float, space);
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 row = (i64)blockIdx.x * ((blockDim.x >> 5) / share) + warp / share;
  bool here = row < rows;
  float* line = result + row * features;
  float* bins = shared_rows ? space + (i64)warp * features : line;
  int part = (items + 32 * share - 1) / (32 * share) * 32, first = warp % share * part, stop = min(items, first + part);
  if (here) {
    for (int k = lane; k < features; k += 32) bins[k] = 0.0f;
    __syncwarp();
    for (int base = first; base < stop; base += 32 * AHEAD) {
      // All loads of a batch before its first use: few warps run, and each would wait for every single one.
      int indices[AHEAD];
      float flows[AHEAD];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        int item = base + a * 32 + lane;
        indices[a] = -1 - lane;  // lanes beyond the end match nobody
        flows[a] = 0.0f;
        if (item < stop) {
          i64 at = row * stride_row + item * stride_item;
          int code = saved[at];
          float distance = y[at], g = grad[at];
          indices[a] = code & 0x7fffffff;
          flows[a] = distance != distance ? distance : distance == 0.0f ? 0.0f : code < 0 ? -g : g;
        }
      }
#pragma unroll
      for (int a = 0; a < AHEAD; ++a)
        if (base + a * 32 < stop) add_in_order(bins, indices[a], flows[a], sign, lane);
    }
  }
  if (!shared_rows) return;
  __syncthreads();
  if (!here) return;
  bins = space + (i64)(warp - warp % share) * features;
  for (int k = warp % share * 32 + lane; k < features; k += 32 * share) {
    float sum = bins[k];
    for (int s = 1; s < share; ++s) sum += bins[(i64)s * features + k];
    line[k] = sum;
  }
}
