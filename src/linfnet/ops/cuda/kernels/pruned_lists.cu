// Kernels that run before and after the pruned kernels: they transpose matrices and compute the ranges of the features
// in the batch, the lists and the coefficients.
//   SQUARE  rows and columns of the square that one block transposes
#include "pruned.cuh"

// Transpose [rows, columns] to [columns, padded]; the last row is repeated up to `padded`.
extern "C" __global__ void __launch_bounds__(256)
    transpose(const float* __restrict__ source, float* __restrict__ target, int rows, int columns, int padded) {
  __shared__ float tile[SQUARE][SQUARE + 1];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, left = blockIdx.x * SQUARE, top = blockIdx.y * SQUARE;
  for (int r = warp; r < SQUARE; r += 8)
    if (left + lane < columns) tile[r][lane] = source[(i64)min(top + r, rows - 1) * columns + left + lane];
  __syncthreads();
  for (int c = warp; c < SQUARE; c += 8)
    if (left + c < columns && top + lane < padded) target[(i64)(left + c) * padded + top + lane] = tile[lane][c];
}

// Transpose [columns, padded] to [rows, columns]. Rows marked in `nonfinite` (may be null) become NaN.
extern "C" __global__ void __launch_bounds__(256)
    transpose_back(const float* __restrict__ source, float* __restrict__ target, const int* __restrict__ nonfinite,
                   int rows, int columns, int padded, const int* __restrict__ use_dense) {
  if (*use_dense) return;
  __shared__ float tile[SQUARE][SQUARE + 1];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, left = blockIdx.x * SQUARE, top = blockIdx.y * SQUARE;
  for (int c = warp; c < SQUARE; c += 8)
    if (left + c < columns) tile[c][lane] = source[(i64)(left + c) * padded + top + lane];
  __syncthreads();
  for (int r = warp; r < SQUARE; r += 8)
    if (left + lane < columns && top + r < rows)
      target[(i64)(top + r) * columns + left + lane] = nonfinite && nonfinite[top + r] ? NOT_A_NUMBER : tile[lane][r];
}

// Compute the smallest and largest value of each feature in the batch (NaN if any value is NaN); one warp per feature.
// input_max[0], if given, becomes the bits of the largest |x|; it must be 0 before.
extern "C" __global__ void __launch_bounds__(256)
    ranges(const float* __restrict__ x_transposed, float2* __restrict__ range, u32* __restrict__ input_max,
           int features, int padded) {
  int feature = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (feature >= features) return;
  float low = -INFINITY_F, high = -INFINITY_F;  // low: the largest -x, that is, minus the smallest x
  for (int r = lane; r < padded; r += 32) {
    float v = x_transposed[(i64)feature * padded + r];
    low = max_nan(low, -v), high = max_nan(high, v);
  }
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    low = max_nan(low, __shfl_xor_sync(FULL_MASK, low, step));
    high = max_nan(high, __shfl_xor_sync(FULL_MASK, high, step));
  }
  if (lane > 0) return;
  range[feature] = make_float2(-low, high);
  if (input_max) atomicMax(input_max, __float_as_uint(fabsf(max_nan(low, high))));
}

static __device__ __forceinline__ float farthest_of(float w, float2 range) {
  return max_nan(fabsf(range.y - w), fabsf(range.x - w));
}

// Return the sum over the lanes up to and including this one.
static __device__ __forceinline__ int sum_up_to_lane(int own, int lane) {
  int end = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    int before = __shfl_up_sync(FULL_MASK, end, step);
    if (lane >= step) end += before;
  }
  return end;
}

// Compute the scale, the list (in the order of the features) and the bits of each output; one block per output.
// `listed` [out, features / 32] has one bit per feature: whether it is in the list. input_max[1], if given, becomes the
// bits of the largest |w|; it must be 0 before. The bits of `kept`, if given, become 0. If `stored`, the dynamic shared
// memory has one float per feature.
extern "C" __global__ void __launch_bounds__(256)
    output_lists(const float* __restrict__ w, const float2* __restrict__ range, float* __restrict__ scales,
                 int2* __restrict__ entries, int* __restrict__ counts, u32* __restrict__ listed, u32* __restrict__ kept,
                 u32* __restrict__ total, u32* __restrict__ input_max, int features, float cut, int target_exponent,
                 int stored) {
  DYNAMIC_SHARED(float, space);
  __shared__ float gaps[8], farthests[8];
  __shared__ int found[8];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, words = (features + 31) / 32;
  i64 o = blockIdx.x;
  const float* row = w + o * features;
  int span = (words + 7) / 8, first = min(warp * span, words), stop = min(first + span, words);  // words of this warp
  int end_feature = min(stop * 32, features);
  float gap = 0.0f, farthest = 0.0f;
  u32 largest = 0;
#pragma unroll 4
  for (int i = first * 32 + lane; i < end_feature; i += 32) {
    float v = row[i];
    float2 r = range[i];
    float above = v - r.y, below = r.x - v, far = max_nan(fabsf(above), fabsf(below));  // as farthest_of
    gap = fmaxf(gap, fmaxf(above, below));
    farthest = fmaxf(farthest, far);
    largest = max(largest, __float_as_uint(fabsf(v)));
    if (stored) space[i] = far;
  }
  largest = __reduce_max_sync(FULL_MASK, largest);
  if (input_max && lane == 0) atomicMax(input_max + 1, largest);
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    gap = fmaxf(gap, __shfl_xor_sync(FULL_MASK, gap, step));
    farthest = fmaxf(farthest, __shfl_xor_sync(FULL_MASK, farthest, step));
  }
  if (lane == 0) gaps[warp] = gap, farthests[warp] = farthest;
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 8; ++v) gap = fmaxf(gap, gaps[v]), farthest = fmaxf(farthest, farthests[v]);
  float threshold = gap < INFINITY_F ? gap * cut : 0.0f;
  int count = 0;
  listed += o * words;
  for (int block = first; block < stop; block += 32) {
    int last = min(block + 32, stop);
    u32 own = 0;
#pragma unroll 4
    for (int k = block; k < last; ++k) {
      int i = k * 32 + lane;
      bool inside = i < end_feature && !((stored ? space[i] : farthest_of(row[i], range[i])) < threshold);
      u32 word = __ballot_sync(FULL_MASK, inside);
      if (k - block == lane) own = word;
      count += __popc(word);
    }
    if (block + lane < stop) {
      listed[block + lane] = own;
      if (kept) kept[o * words + block + lane] = 0;
    }
  }
  if (lane == 0) found[warp] = count;
  __syncthreads();
  int base = 0, all = 0;
#pragma unroll
  for (int v = 0; v < 8; ++v) {
    if (v < warp) base += found[v];
    all += found[v];
  }
  entries += o * features;
  for (int block = first; block < stop; block += 32) {
    u32 word = block + lane < stop ? listed[block + lane] : 0;  // written by this lane
    int own = __popc(word), end = sum_up_to_lane(own, lane);
    for (int slot = base + end - own; word; word &= word - 1, ++slot) {
      int i = (block + lane) * 32 + __ffs(word) - 1;
      entries[slot] = make_int2(i, __float_as_int(row[i]));
    }
    base += __shfl_sync(FULL_MASK, end, 31);
  }
  if (threadIdx.x == 0) {
    scales[o] = scale_for(farthest, target_exponent);
    counts[o] = all;
    atomicAdd(total, (u32)all);
  }
}

// Set use_dense to 1 if there are more than `most` entries in total, otherwise to 0.
extern "C" __global__ void __launch_bounds__(32) decide_dense(const u32* __restrict__ total, int most, int* use_dense) {
  if (threadIdx.x == 0) *use_dense = *total > (u32)most;
}

// Remove the entries that pruned_forward.cu has not marked; one warp per output.
extern "C" __global__ void __launch_bounds__(256)
    keep_marked(const u32* __restrict__ kept, int2* __restrict__ entries, int* __restrict__ counts, int out, int features,
                const int* __restrict__ use_dense) {
  if (*use_dense) return;
  int o = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31, base = 0;
  if (o >= out) return;
  kept += (i64)o * ((features + 31) / 32);
  entries += (i64)o * features;
  int count = counts[o];
  for (int k = 0; k < count; k += 32) {
    int2 e = k + lane < count ? entries[k + lane] : make_int2(0, 0);
    bool stays = k + lane < count && (kept[e.x / 32] >> e.x % 32 & 1);
    u32 word = __ballot_sync(FULL_MASK, stays);
    if (stays) entries[base + __popc(word & ((1u << lane) - 1))] = e;
    base += __popc(word);
    __syncwarp();
  }
  if (lane == 0) counts[o] = base;
}

// Transpose the bits of lists: `bits` [out / 32, features] has one bit per output.
extern "C" __global__ void __launch_bounds__(256)
    transpose_bits(const u32* __restrict__ listed, u32* __restrict__ bits, int out, int features,
                   const int* __restrict__ use_dense) {
  if (*use_dense) return;
  int lane = threadIdx.x & 31, words = (features + 31) / 32, k = blockIdx.x * 8 + (threadIdx.x >> 5);
  int o = blockIdx.y * 32 + lane, i = k * 32 + lane;
  if (k >= words) return;
  u32 row = o < out ? listed[(i64)o * words + k] : 0, column = 0;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    u32 word = __ballot_sync(FULL_MASK, row >> j & 1);
    if (lane == j) column = word;
  }
  if (i < features) bits[(i64)blockIdx.y * features + i] = column;
}

// Compute the list of each feature, in the order of the outputs; one warp per feature.
extern "C" __global__ void __launch_bounds__(256)
    feature_lists(const float* __restrict__ w, const u32* __restrict__ bits, int2* __restrict__ entries,
                  int* __restrict__ counts, int out, int features, const int* __restrict__ use_dense) {
  if (*use_dense) return;
  int i = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31, words = (out + 31) / 32, base = 0;
  if (i >= features) return;
  entries += (i64)i * out;
  for (int block = 0; block < words; block += 32) {
    u32 word = block + lane < words ? bits[(i64)(block + lane) * features + i] : 0;
    int own = __popc(word), end = sum_up_to_lane(own, lane);
    for (int slot = base + end - own; word; word &= word - 1, ++slot) {
      int o = (block + lane) * 32 + __ffs(word) - 1;
      entries[slot] = make_int2(o, __float_as_int(w[(i64)o * features + i]));
    }
    base += __shfl_sync(FULL_MASK, end, 31);
  }
  if (lane == 0) counts[i] = base;
}

// Compute the coefficients for pruned_backward.cu, transposed, with zeros in the padding. Rows and outputs with NaN or
// infinity are marked in `nonfinite`.
extern "C" __global__ void __launch_bounds__(256)
    transposed_coefficients(const float* __restrict__ grad, const float* __restrict__ y,
                            const float* __restrict__ scales, const float* __restrict__ saved_first,
                            const float* __restrict__ saved_second, const u32* __restrict__ output_max,
                            float* __restrict__ coefficients, int* __restrict__ nonfinite, int n, int out, int padded,
                            float exponent, const int* __restrict__ use_dense) {
  if (*use_dense) return;
  __shared__ float grads[SQUARE][SQUARE + 1], sizes[SQUARE][SQUARE + 1];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, left = blockIdx.x * SQUARE, top = blockIdx.y * SQUARE;
  float scale = gradient_scale(output_max);
  for (int r = warp; r < SQUARE; r += 8) {
    bool inside = left + lane < out && top + r < n;
    i64 at = (i64)(top + r) * out + left + lane;
    grads[r][lane] = inside ? grad[at] * scale : 0.0f;
    sizes[r][lane] = inside ? y[at] : 0.0f;
  }
  __syncthreads();
  for (int c = warp; c < SQUARE; c += 8) {
    if (left + c >= out) continue;
    i64 at = (i64)(left + c) * padded + top + lane;
    float g = grads[lane][c], size = sizes[lane][c], value = 0.0f;
    if (saved_second) {
      if (top + lane < n) value = g * saved_second[at];
    } else if (size != 0.0f) {
      // (y + residual)^-exponent, to first order in the residual.
      float power = powf(size * scales[left + c], -exponent);
      value = g * fmaf(power, -exponent * (saved_first[at] / size), power);
    }
    if (!(fabsf(value) < INFINITY_F)) nonfinite[top + lane] = nonfinite[n + left + c] = 1;
    coefficients[at] = value;
  }
}
