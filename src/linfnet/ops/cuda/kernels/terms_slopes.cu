// Gradients from the terms kept: grad_x[b, i] = sum_o c[b, o] slope, grad_w[o, i] = -sum_b c[b, o] slope, c = grad * factor.
// OF_X 1: a block owns 32 rows of x and 128 features, and goes through the lists of all outputs; OF_X 0: 32 rows of w.
// Sums are 64-bit integers in units of 2^-48 of the largest |grad|: any order, the same bits.
#include "terms.cuh"

#define WARPS 8
#define WIDTH (2 * RANGE)
#define DEEP 48
#define AHEAD 4

// c in the order of the lists, the bits of the largest |grad|, and which rows a NaN or an infinity spoils.
extern "C" __global__ void __launch_bounds__(256)
weigh(const float* __restrict__ grad, const float* __restrict__ factors, float* __restrict__ coefficients,
      u32* __restrict__ top, int* __restrict__ spoiled, const int* __restrict__ flag, int n, int out, int patches) {
  if (*flag) return;
  u32 most = 0;
  i64 patch = (i64)blockIdx.y * patches + blockIdx.x;
  for (int pair = threadIdx.x; pair < PAIRS; pair += 256) {
    i64 b = (i64)blockIdx.y * PATCH + pair / PATCH, o = (i64)blockIdx.x * PATCH + pair % PATCH;
    float c = 0.0f;
    if (b < n && o < out) {
      float g = grad[b * out + o];
      c = g * factors[patch * PAIRS + pair];
      most = max(most, __float_as_uint(fabsf(g)));
      if (!(fabsf(c) < INFINITE)) spoiled[b] = spoiled[n + o] = 1;
    }
    coefficients[patch * PAIRS + pair] = c;
  }
  most = __reduce_max_sync(FULL, most);
  if ((threadIdx.x & 31) == 0 && most > 0) atomicMax(top, most);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
gather(const u16* __restrict__ codes, const float* __restrict__ values, const int* __restrict__ offsets,
       const int* __restrict__ table, const float* __restrict__ coefficients, const u32* __restrict__ tops, const int* __restrict__ spoiled,
       float* __restrict__ result, const int* __restrict__ flag, int rows, int features, int ranges, int lists,
       i64 patch_step, i64 list_step) {
  extern __shared__ u32 space[];
  u32 *low = space, *high = space + PATCH * WIDTH, *broken = space + 2 * PATCH * WIDTH;  // [32][128] each
  float* weights = reinterpret_cast<float*>(broken + PATCH * WIDTH / 32);                // [warps][32 x 32]
  if (*flag) return;
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, range = blockIdx.x * (WIDTH / RANGE);
  for (int at = threadIdx.x; at < 2 * PATCH * WIDTH + PATCH * WIDTH / 32; at += WARPS * 32) space[at] = 0;
  float scale = scale_for(__uint_as_float(tops[0]), 0);
  float* mine = weights + warp * PAIRS;
  __syncthreads();

  for (int list = warp; list < lists; list += WARPS) {
    i64 patch = blockIdx.y * patch_step + list * list_step;
    const int* bounds = offsets + patch * (ranges + 1) + range;
    int start = bounds[0], middle = bounds[1], stop = range + 2 <= ranges ? bounds[2] : middle;
    if (start == stop) continue;
    const float* c = coefficients + patch * PAIRS;
    if (stop - start > 256) {
      __syncwarp();
#pragma unroll
      for (int q = 0; q < PAIRS / 128; ++q)
        reinterpret_cast<float4*>(mine)[q * 32 + lane] = reinterpret_cast<const float4*>(c)[q * 32 + lane];
      __syncwarp();
      c = mine;
    }
    const int* pages = table + patch * TABLE;
    for (int base = start; base < stop; base += 32 * AHEAD) {
      u32 code[AHEAD];
      float value[AHEAD];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        int at = base + a * 32 + lane;
        i64 from = (i64)pages[min(at, stop - 1) / PAGE] * PAGE + at % PAGE;
        code[a] = at < stop ? codes[from] : 0;
        value[a] = at < stop ? values[from] : 0.0f;
      }
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        int at = base + a * 32 + lane;
        if (at >= stop) continue;
        u32 pair = code[a] >> 6, row = OF_X ? pair >> 5 : pair & 31;
        int place = row * WIDTH + (code[a] & 63) + (at >= middle ? RANGE : 0);
        float flow = c[pair] * value[a];
        if (flow == flow)
          add_wide(&low[place], &high[place], __float2ll_rn(flow * scale * two_to(DEEP)));
        else
          atomicOr(&broken[place >> 5], 1u << (place & 31));
      }
    }
  }
  __syncthreads();

  for (int place = threadIdx.x; place < PATCH * WIDTH; place += WARPS * 32) {
    i64 row = (i64)blockIdx.y * PATCH + place / WIDTH;
    int feature = blockIdx.x * WIDTH + place % WIDTH;
    if (row >= rows || feature >= features) continue;
    float sum = (float)wide(low[place], high[place]) * two_to(-DEEP) / scale;
    if (spoiled[row] || (broken[place >> 5] >> (place & 31) & 1)) sum = __int_as_float(0x7fc00000);
    result[row * features + feature] = OF_X ? sum : -sum;
  }
}
