// Gradients of sparse layers: each pair (b, o) adds grad * sign(x - w) to the feature of its decisive connection and
// subtracts it from the connection's weight. A warp computes one row of grad_x, over ascending o, or the weights of one
// output, over ascending b. It takes 32 pairs at a time and adds those of one sum one after another, so that all sums
// are in ascending order: the results have the bits of a sequential loop. There are no atomics.
#include "common.cuh"

#define AHEAD 8

// Add the numbers of the lanes to bins[key] in the order of the lanes; a negative key adds nothing.
static __device__ __forceinline__ void add_in_sequence(float* bins, int key, float number, int lane) {
  u32 group = __match_any_sync(FULL_MASK, key);
  bool leader = (group & ((1u << lane) - 1)) == 0 && key >= 0;
  u32 others = leader ? group & ~(1u << lane) : 0;
  float sum = leader ? bins[key] + number : 0.0f;
  while (__any_sync(FULL_MASK, others)) {
    int source = others ? __ffs(others) - 1 : lane;
    float other = __shfl_sync(FULL_MASK, number, source);
    if (others) {
      sum += other;
      others &= others - 1;
    }
  }
  if (leader) bins[key] = sum;
  __syncwarp();
}

// What one pair adds to the gradient of its feature; 0 times grad is 0 or NaN.
static __device__ __forceinline__ float flow(float grad, float x, float w) {
  float d = x - w;
  return d > 0.0f ? grad : d < 0.0f ? -grad : 0.0f * grad;
}

//   of_x         1: rows are those of x and items are outputs; 0: rows are outputs and items are rows of x
//   shared_rows  1 if each warp sums its row in shared memory (only if of_x is set); otherwise in the result, which is
//                0 at the start
extern "C" __global__ void __launch_bounds__(256)
    sparse_gradient(const float* __restrict__ grad, const float* __restrict__ x, const float* __restrict__ weight,
                    const int* __restrict__ index, const int* __restrict__ decisive, float* result, int n, int out,
                    int features, int of_x, int shared_rows) {
  DYNAMIC_SHARED(float, space);
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, items = of_x ? out : n;
  i64 row = (i64)blockIdx.x * (blockDim.x >> 5) + warp;
  if (row >= (of_x ? n : out)) return;
  float* line = of_x ? result + row * features : result;
  float* bins = shared_rows ? space + (i64)warp * features : line;
  if (shared_rows) {
    for (int k = lane; k < features; k += 32) bins[k] = 0.0f;
    __syncwarp();
  }
  for (int base = 0; base < items; base += 32 * AHEAD) {
    // Issue all loads of a batch before their first use: there are too few warps to hide the latency of single loads.
    // Lanes beyond the end repeat the last pair, and do not add it.
    int at[AHEAD], keys[AHEAD];
    float numbers[AHEAD], weights[AHEAD], inputs[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
      i64 item = min(base + a * 32 + lane, items - 1), pair = of_x ? row * out + item : item * out + row;
      at[a] = decisive[pair];
      numbers[a] = grad[pair];
    }
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
      keys[a] = index[at[a]];
      weights[a] = weight[at[a]];
    }
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
      i64 b = of_x ? row : min(base + a * 32 + lane, items - 1);
      inputs[a] = x[b * features + keys[a]];
    }
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
      numbers[a] = flow(numbers[a], inputs[a], weights[a]);
      if (!of_x) numbers[a] = -numbers[a], keys[a] = at[a];
      if (base + a * 32 + lane >= items) keys[a] = -1 - lane;  // matches no other lane
    }
#pragma unroll
    for (int a = 0; a < AHEAD; ++a)
      if (base + a * 32 < items) add_in_sequence(bins, keys[a], numbers[a], lane);
  }
  if (!shared_rows) return;
  for (int k = lane; k < features; k += 32) line[k] = bins[k];
}
