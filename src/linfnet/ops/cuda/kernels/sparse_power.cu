// Sparse layers at a finite p: distances, and their gradients with respect to x and to the weights. Connections as in
// sparse.cu. Powers are computed of ratios between 0 and 1: by multiplication if `whole` is the exponent, by powf if it
// is -1. There are no atomics, and the results of a row do not depend on the other rows.
//   ROWS   rows of x per block: 1, 2 or 4. More than one row are copied to shared memory, feature by feature
#include "common.cuh"

#define LANES 8
#define OUTPUTS (32 / LANES)  // results per warp

struct __align__(4 * ROWS) Values {
  float row[ROWS];
};

static __device__ __forceinline__ float power_of(float ratio, float exponent, int whole) {
  if (whole < 0) return powf(ratio, exponent);
  float power = 1.0f;
  for (int n = whole; n; n >>= 1) {
    if (n & 1) power *= ratio;
    ratio *= ratio;
  }
  return power;
}

// grad * sign(d) * (|d| / y)^exponent; slopes of ratios below `cut` are 0.
static __device__ __forceinline__ float flow(float grad, float d, float y, float exponent, int whole, float cut) {
  float ratio = fabsf(d) / (y == 0.0f ? 1.0f : y);
  float slope = ratio < cut ? 0.0f : power_of(ratio, exponent, whole);
  return grad * (d > 0.0f ? slope : d < 0.0f ? -slope : ratio);
}

// Copy the rows of a block to shared memory. Rows beyond the end repeat the last one.
static __device__ __forceinline__ void stage(Values* to, const float* __restrict__ from, i64 top, int n, int columns) {
#pragma unroll 4
  for (int t = threadIdx.x; t < columns * ROWS; t += blockDim.x) {
    int r = t % ROWS, i = t / ROWS;
    to[i].row[r] = from[min(top + r, (i64)n - 1) * columns + i];
  }
}

// The number of a result and its part of a list, from `first` to `stop`; beyond the end, at is -1 and there is none.
struct Part {
  int at, first, stop;

  __device__ __forceinline__ Part(i64 place, int count, const int* __restrict__ offsets,
                                  const int* __restrict__ order) {
    at = place < count ? order[place] : -1;
    first = at >= 0 ? offsets[at] : 0;
    stop = at >= 0 ? offsets[at + 1] : 0;
  }
};

// Sum over the LANES lanes of a result. A sum of two numbers has the same bits in either order.
static __device__ __forceinline__ float sum_of_lanes(float sum) {
#pragma unroll
  for (int step = 1; step < LANES; step *= 2) sum += __shfl_xor_sync(FULL_MASK, sum, step);
  return sum;
}

// Blocks: groups of ROWS rows in x; in y, parts of the outputs, as in sparse.cu.
extern "C" __global__ void __launch_bounds__(1024, 1)
    sparse_power(const float* __restrict__ x, const float* __restrict__ weight, const int* __restrict__ index,
                 const int* __restrict__ offsets, const int* __restrict__ order, float* __restrict__ y, float p,
                 int whole, float cut, int n, int out, int features) {
  DYNAMIC_SHARED(Values, staged);
  int warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 31, sub = lane % LANES;
  i64 top = (i64)blockIdx.x * ROWS;
  const Values* values = staged;
  if constexpr (ROWS > 1) {
    stage(staged, x, top, n, features);
    __syncthreads();
  } else {
    values = reinterpret_cast<const Values*>(x + top * features);
  }
  for (i64 left = ((i64)blockIdx.y * warps + warp) * OUTPUTS; left < out; left += (i64)gridDim.y * warps * OUTPUTS) {
    Part part(left + lane / LANES, out, offsets, order);
    u32 best[ROWS] = {};
    for (int c = part.first + sub; c < part.stop; c += LANES) {
      float w = weight[c];
      Values v = values[index[c]];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) best[r] = max(best[r], __float_as_uint(fabsf(v.row[r] - w)));
    }
    float largest[ROWS], scale[ROWS], sum[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      // Bits order non-negative floats, and NaN above all of them.
      for (int step = 1; step < LANES; step *= 2) best[r] = max(best[r], __shfl_xor_sync(FULL_MASK, best[r], step));
      largest[r] = __uint_as_float(best[r]);
      scale[r] = largest[r] > 0.0f && largest[r] < INFINITY_F ? largest[r] : 1.0f;
    }
    for (int c = part.first + sub; c < part.stop; c += LANES) {
      float w = weight[c];
      Values v = values[index[c]];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float ratio = fabsf(v.row[r] - w) / scale[r];
        if (!(ratio < cut)) sum[r] += power_of(ratio, p, whole);
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      sum[r] = sum_of_lanes(sum[r]);
      if (sub != r || part.at < 0 || top + r >= n) continue;
      // The root of one number per pair is computed in double precision. A maximum that is 0 or not finite is itself
      // the distance.
      bool usual = largest[r] > 0.0f && largest[r] < INFINITY_F;
      y[(top + r) * out + part.at] = usual ? (float)(largest[r] * pow((double)sum[r], 1.0 / p)) : largest[r];
    }
  }
}

// Blocks: groups of ROWS rows in x; in y, parts of the features. Entry e of the list of a feature, from starts[feature] to
// starts[feature + 1] - 1, is a connection to the neuron neuron[e] with the weight weight[e].
extern "C" __global__ void __launch_bounds__(1024, 1)
    sparse_power_inputs(const float* __restrict__ grad, const float* __restrict__ y, const float* __restrict__ x,
                        const float* __restrict__ weight, const int* __restrict__ neuron,
                        const int* __restrict__ starts, const int* __restrict__ order, float* __restrict__ grad_x,
                        float exponent, int whole, float cut, int n, int out, int features) {
  DYNAMIC_SHARED(Values, staged);
  int warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 31, sub = lane % LANES;
  i64 top = (i64)blockIdx.x * ROWS;
  const Values *grads = staged, *distances = staged + out;
  if constexpr (ROWS > 1) {
    stage(staged, grad, top, n, out);
    stage(staged + out, y, top, n, out);
    __syncthreads();
  } else {
    grads = reinterpret_cast<const Values*>(grad + top * out);
    distances = reinterpret_cast<const Values*>(y + top * out);
  }
  for (i64 left = ((i64)blockIdx.y * warps + warp) * OUTPUTS; left < features;
       left += (i64)gridDim.y * warps * OUTPUTS) {
    Part part(left + lane / LANES, features, starts, order);
    float inputs[ROWS], sum[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) inputs[r] = part.at >= 0 ? x[min(top + r, (i64)n - 1) * features + part.at] : 0.0f;
    for (int e = part.first + sub; e < part.stop; e += LANES) {
      float w = weight[e];
      int o = neuron[e];
      Values g = grads[o], size = distances[o];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) sum[r] += flow(g.row[r], inputs[r] - w, size.row[r], exponent, whole, cut);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      sum[r] = sum_of_lanes(sum[r]);
      if (sub == r && part.at >= 0 && top + r < n) grad_x[(top + r) * features + part.at] = sum[r];
    }
  }
}

// A warp computes the gradients of the weights of one neuron; each lane sums those of a connection over all rows.
extern "C" __global__ void __launch_bounds__(256)
    sparse_power_weights(const float* __restrict__ grad, const float* __restrict__ y, const float* __restrict__ x,
                         const float* __restrict__ weight, const int* __restrict__ index,
                         const int* __restrict__ offsets, float* __restrict__ grad_w, float exponent, int whole,
                         float cut, int n, int out, int features) {
  i64 o = (i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (o >= out) return;
  for (int c = offsets[o] + (threadIdx.x & 31); c < offsets[o + 1]; c += 32) {
    float w = weight[c], sum = 0.0f;
    const float* input = x + index[c];
#pragma unroll 4
    for (i64 b = 0; b < n; ++b)
      sum -= flow(grad[b * out + o], input[b * features] - w, y[b * out + o], exponent, whole, cut);
    grad_w[c] = sum;
  }
}
