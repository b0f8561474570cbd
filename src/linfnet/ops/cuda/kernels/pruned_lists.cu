// Around the listed kernels: turned matrices, ranges of the features in the batch, lists, coefficients.
#include "pruned.cuh"

// [rows][columns] -> [columns][padded]; beyond the last row the last again.
extern "C" __global__ void __launch_bounds__(256)
turn(const float* __restrict__ from, float* __restrict__ to, int rows, int columns, int padded) {
  __shared__ float tile[32][33];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, left = blockIdx.x * 32, top = blockIdx.y * 32;
  for (int r = warp; r < 32; r += 8)
    if (left + lane < columns) tile[r][lane] = from[(i64)min(top + r, rows - 1) * columns + left + lane];
  __syncthreads();
  for (int c = warp; c < 32; c += 8)
    if (left + c < columns && top + lane < padded) to[(i64)(left + c) * padded + top + lane] = tile[lane][c];
}

// [columns][padded] -> [rows][columns]; rows that a NaN or an infinity spoils become NaN.
extern "C" __global__ void __launch_bounds__(256)
turn_back(const float* __restrict__ from, float* __restrict__ to, const int* __restrict__ spoiled, int rows, int columns,
          int padded, const int* __restrict__ flag) {
  if (flag && *flag) return;
  __shared__ float tile[32][33];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, left = blockIdx.x * 32, top = blockIdx.y * 32;
  for (int c = warp; c < 32; c += 8)
    if (left + c < columns) tile[c][lane] = from[(i64)(left + c) * padded + top + lane];
  __syncthreads();
  for (int r = warp; r < 32; r += 8)
    if (left + lane < columns && top + r < rows) 
      to[(i64)(top + r) * columns + left + lane] =
          spoiled && spoiled[top + r] ? NOT_A_NUMBER : tile[lane][r];
}

// Smallest and largest value of each feature in the batch, NaN if there is one; a warp per feature.
extern "C" __global__ void __launch_bounds__(256)
ranges(const float* __restrict__ turned, float2* __restrict__ range, int features, int padded) {
  int feature = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (feature >= features) return;
  float low = -INFINITE, high = -INFINITE;  // the largest of -x is minus the smallest x
  for (int r = lane; r < padded; r += 32) {
    float v = turned[(i64)feature * padded + r];
    low = larger(low, -v), high = larger(high, v);
  }
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    low = larger(low, __shfl_xor_sync(FULL, low, step));
    high = larger(high, __shfl_xor_sync(FULL, high, step));
  }
  if (lane == 0) range[feature] = make_float2(-low, high);
}

static __device__ __forceinline__ float reach_of(float w, float2 range) {
  return larger(fabsf(range.y - w), fabsf(range.x - w));
}

// A block per output: its bar (reach must not stay below it), its scale, and its list in the order of the features.
extern "C" __global__ void __launch_bounds__(256)
output_lists(const float* __restrict__ w, const float2* __restrict__ range, float* __restrict__ bars,
             float* __restrict__ scales, int2* __restrict__ entries, int* __restrict__ counts, u32* __restrict__ total,
             int features, float cut, int lift) {
  __shared__ float gaps[8], reaches[8];
  __shared__ int found[8];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 o = blockIdx.x;
  const float* row = w + o * features;
  int span = (features + 255) / 256 * 32, first = warp * span, stop = min(first + span, features);
  float gap = 0.0f, reach = 0.0f;
  for (int i = first + lane; i < stop; i += 32) {
    float v = row[i];
    float2 r = range[i];
    gap = fmaxf(gap, fmaxf(v - r.y, r.x - v));
    reach = fmaxf(reach, reach_of(v, r));
  }
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    gap = fmaxf(gap, __shfl_xor_sync(FULL, gap, step));
    reach = fmaxf(reach, __shfl_xor_sync(FULL, reach, step));
  }
  if (lane == 0) gaps[warp] = gap, reaches[warp] = reach;
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 8; ++v) gap = fmaxf(gap, gaps[v]), reach = fmaxf(reach, reaches[v]);
  float bar = gap < INFINITE ? gap * cut : 0.0f;
  int count = 0;
  for (int i = first; i < stop; i += 32) {
    bool keep = i + lane < stop && !(reach_of(row[i + lane], range[i + lane]) < bar);
    count += __popc(__ballot_sync(FULL, keep));
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
  for (int i = first; i < stop; i += 32) {
    float v = i + lane < stop ? row[i + lane] : 0.0f;
    bool keep = i + lane < stop && !(reach_of(v, range[i + lane]) < bar);
    u32 some = __ballot_sync(FULL, keep);
    if (keep) entries[base + __popc(some & ((1u << lane) - 1))] = make_int2(i + lane, __float_as_int(v));
    base += __popc(some);
  }
  if (threadIdx.x == 0) {
    bars[o] = bar;
    scales[o] = scale_for(reach, lift);
    counts[o] = all;
    atomicAdd(total, (u32)all);
  }
}

// Too many entries in all: the flag opens the dense kernels.
extern "C" __global__ void decide(const u32* __restrict__ total, int most, int* flag) {
  if (threadIdx.x == 0) *flag = *total > (u32)most;
}

// One bit per output and feature, [out / 32][features]: whether the pair is listed.
extern "C" __global__ void __launch_bounds__(256)
mark(const float* __restrict__ w, const float2* __restrict__ range, const float* __restrict__ bars, u32* __restrict__ bits,
     int out, int features, const int* __restrict__ flag) {
  if (flag && *flag) return;
  int i = blockIdx.x * 256 + threadIdx.x, first = blockIdx.y * 32;
  if (i >= features) return;
  float2 r = range[i];
  u32 word = 0;
#pragma unroll 8
  for (int j = 0; j < 32; ++j) {
    int o = min(first + j, out - 1);
    if (!(reach_of(w[(i64)o * features + i], r) < bars[o]) && first + j < out) word |= 1u << j;
  }
  bits[(i64)blockIdx.y * features + i] = word;
}

// The lists of the features, in the order of the outputs; a warp per feature.
extern "C" __global__ void __launch_bounds__(256)
feature_lists(const float* __restrict__ w, const u32* __restrict__ bits, int2* __restrict__ entries,
              int* __restrict__ counts, int out, int features, const int* __restrict__ flag) {
  if (flag && *flag) return;
  int i = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31, words = (out + 31) / 32, base = 0;
  if (i >= features) return;
  entries += (i64)i * out;
  for (int block = 0; block < words; block += 32) {
    u32 word = block + lane < words ? bits[(i64)(block + lane) * features + i] : 0;
    int mine = __popc(word), end = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      int before = __shfl_up_sync(FULL, end, step);
      if (lane >= step) end += before;
    }
    for (int to = base + end - mine; word; word &= word - 1, ++to) {
      int o = (block + lane) * 32 + __ffs(word) - 1;
      entries[to] = make_int2(o, __float_as_int(w[(i64)o * features + i]));
    }
    base += __shfl_sync(FULL, end, 31);
  }
  if (lane == 0) counts[i] = base;
}

// The coefficients of pruned_backward.cu, turned; zero in the rows that fill up. Rows and outputs with a NaN or an infinity
// are marked in `spoiled`.
extern "C" __global__ void __launch_bounds__(256)
turned_coefficients(const float* __restrict__ grad, const float* __restrict__ y, const float* __restrict__ scales,
                    const float* __restrict__ first_kept, const float* __restrict__ second_kept,
                    const u32* __restrict__ largest, float* __restrict__ to, int* __restrict__ spoiled, int n, int out,
                    int padded, float exponent, const int* __restrict__ flag) {
  if (*flag) return;
  __shared__ float grads[32][33], sizes[32][33];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, left = blockIdx.x * 32, top = blockIdx.y * 32;
  float scale = gradient_scale(largest);
  for (int r = warp; r < 32; r += 8) {
    bool here = left + lane < out && top + r < n;
    i64 at = (i64)(top + r) * out + left + lane;
    grads[r][lane] = here ? grad[at] * scale : 0.0f;
    sizes[r][lane] = here ? y[at] : 0.0f;
  }
  __syncthreads();
  for (int c = warp; c < 32; c += 8) {
    if (left + c >= out) continue;
    i64 at = (i64)(left + c) * padded + top + lane;
    float g = grads[lane][c], size = sizes[lane][c], value = 0.0f;
    if (second_kept) {
      if (top + lane < n) value = g * second_kept[at];
    } else if (size != 0.0f) {
      // y + rest to the power of -exponent, to first order in the rest.
      float power = powf(size * scales[left + c], -exponent);
      value = g * fmaf(power, -exponent * (first_kept[at] / size), power);
    }
    if (!(fabsf(value) < INFINITE)) spoiled[top + lane] = spoiled[n + left + c] = 1;
    to[at] = value;
  }
}
