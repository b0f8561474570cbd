// Gradients at p = infinity: the gradient of each pair is added to the feature that attains its maximum. `saved`
// contains the index of that feature and, in bit 31, whether x < w. Each warp computes one row of the result and adds
// 32 pairs at a time in a fixed order, without atomics, so that results are reproducible bit for bit. The row is summed
// in shared memory if it fits, otherwise in the result.
#include "common.cuh"

#define AHEAD 8

static __device__ __forceinline__ void add_in_order(float* bins, int index, float flow, float sign, int lane) {
  u32 group = __match_any_sync(FULL_MASK, index);
  bool leader = (group & ((1u << lane) - 1)) == 0;
  u32 others = leader ? group & ~(1u << lane) : 0;
  float sum = flow;
  while (__any_sync(FULL_MASK, others)) {
    int source = others ? __ffs(others) - 1 : lane;
    float other = __shfl_sync(FULL_MASK, flow, source);
    if (others) {
      sum += other;
      others &= others - 1;
    }
  }
  if (leader && index >= 0) bins[index] += sign * sum;
  __syncwarp();
}

//   stride_row, stride_item  strides of `saved`, y and grad along the rows of the result and along the items of one row
//   share                    number of warps that process one row, each a part of its items; their sums are added in
//                            order
//   shared_rows              1 if the rows are summed in shared memory
extern "C" __global__ void scatter(const float* __restrict__ grad, const float* __restrict__ y,
                                   const int* __restrict__ saved, float* __restrict__ result, int rows, int items,
                                   int features, i64 stride_row, i64 stride_item, float sign, int share,
                                   int shared_rows) {
  DYNAMIC_SHARED(float, space);
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 row = (i64)blockIdx.x * ((blockDim.x >> 5) / share) + warp / share;
  bool inside = row < rows;
  float* line = result + row * features;
  float* bins = shared_rows ? space + (i64)warp * features : line;
  int part = (items + 32 * share - 1) / (32 * share) * 32, first = warp % share * part, stop = min(items, first + part);
  if (inside) {
    for (int k = lane; k < features; k += 32) bins[k] = 0.0f;
    __syncwarp();
    for (int base = first; base < stop; base += 32 * AHEAD) {
      // Issue all loads of a batch before the first use: there are too few warps to hide the latency of single loads.
      int indices[AHEAD];
      float flows[AHEAD];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        int item = base + a * 32 + lane;
        indices[a] = -1 - lane;  // lanes beyond the end match no other lane
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
  if (!inside) return;
  bins = space + (i64)(warp - warp % share) * features;
  for (int k = warp % share * 32 + lane; k < features; k += 32 * share) {
    float sum = bins[k];
    for (int s = 1; s < share; ++s) sum += bins[(i64)s * features + k];
    line[k] = sum;
  }
}
