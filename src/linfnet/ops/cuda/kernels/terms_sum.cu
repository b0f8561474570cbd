// From the terms found to distances: a block per patch evaluates its list, keeps the terms that count against the final
// maximum, and turns each into its slope (|d| / max)^(p - 1), signed. With S = sum (|d| / max)^p:
//   y = max S^(1/p),   factor = S^((1 - p)/p) = (max / y)^(p - 1).
#include "terms.cuh"

#define UNIT 1099511627776.0f  // 2^40: S is summed in units of 2^-40

// log2 (a / m) for m / 2 < a <= m, from the exact difference: the error stays relative to the logarithm.
static __device__ __forceinline__ float log2_ratio(float a, float m) {
  float z = (m - a) / (m + a), q = z * z;
  float series = fmaf(q, fmaf(q, fmaf(q, fmaf(q, fmaf(q, 1.0f / 11, 1.0f / 9), 1.0f / 7), 1.0f / 5), 1.0f / 3), 1.0f);
  return -2.885390082f * (z * series);
}

extern "C" __global__ void __launch_bounds__(128)
evaluate(const float* __restrict__ peaks, const u16* __restrict__ codes, const float* __restrict__ values,
         const int* __restrict__ offsets, const int* __restrict__ table, float* __restrict__ y,
         float* __restrict__ factors, u16* __restrict__ kept_codes, float* __restrict__ kept_values,
         int* __restrict__ kept_offsets, int* __restrict__ kept_table, int* control, int n, int out, int ranges,
         int patches, int kept_pool, float p, float cut) {
  __shared__ float tops[PAIRS];
  __shared__ u32 low[PAIRS], high[PAIRS];
  __shared__ int count, pages[TABLE];
  if (__syncthreads_or(threadIdx.x == 0 && *(volatile int*)control)) return;
  int lane = threadIdx.x & 31;
  i64 patch = (i64)blockIdx.y * patches + blockIdx.x;
  offsets += patch * (ranges + 1);
  table += patch * TABLE;
  if (factors) {
    kept_offsets += patch * (ranges + 1);
    kept_table += patch * TABLE;
  }
  for (int pair = threadIdx.x; pair < PAIRS; pair += 128) {
    tops[pair] = peaks[patch * PAIRS + pair];
    low[pair] = high[pair] = 0;
  }
  if (threadIdx.x == 0) count = 0;
  __syncthreads();

  int stop = offsets[0], held = 0;
  for (int range = 0; range < ranges; ++range) {
    int start = stop;
    stop = offsets[range + 1];
    if (factors) {
      // Pages enough even if every term of the range stays.
      bool over = false;
      if (threadIdx.x == 0) {
        kept_offsets[range] = count;
        for (; held * PAGE < count + stop - start; ++held) {
          int page = atomicAdd(control + 2, 1);
          over = page >= kept_pool || held == TABLE;
          if (over) break;
          kept_table[held] = pages[held] = page;
        }
        if (over) *(volatile int*)control = 1;
      }
      if (__syncthreads_or(over)) return;
    }
    for (int first = start; first < stop; first += 128) {
      int at = first + threadIdx.x;
      u32 code = 0;
      float slope = 0.0f;
      bool keep = false;
      if (at < stop) {
        i64 from = (i64)table[at / PAGE] * PAGE + at % PAGE;
        code = codes[from];
        float d = values[from], size = fabsf(d), top = tops[code >> 6];
        keep = size >= threshold(top, cut);
        if (keep) {
          float ratio = log2_ratio(size, top);
          add_wide(&low[code >> 6], &high[code >> 6], __float2ll_rn(exp2_fast(p * ratio) * UNIT));
          slope = copysignf(exp2_fast((p - 1.0f) * ratio), d);  // infinite maxima: not a number
        }
      }
      if (factors) {
        u32 some = __ballot_sync(FULL, keep);
        int base = 0;
        if (lane == 0) base = atomicAdd(&count, __popc(some));
        base = __shfl_sync(FULL, base, 0) + __popc(some & ((1u << lane) - 1));
        if (keep) {
          i64 to = (i64)pages[base / PAGE] * PAGE + base % PAGE;
          kept_codes[to] = (u16)code;
          kept_values[to] = slope;
        }
      }
    }
    if (factors) __syncthreads();
  }
  __syncthreads();
  if (factors && threadIdx.x == 0) kept_offsets[ranges] = count;
  for (int pair = threadIdx.x; pair < PAIRS; pair += 128) {
    i64 b = (i64)blockIdx.y * PATCH + pair / PATCH, o = (i64)blockIdx.x * PATCH + pair % PATCH;
    float top = tops[pair], sum = log2f((float)wide(low[pair], high[pair]) / UNIT), factor = 1.0f, distance = top;
    if (top > 0.0f && top < INFINITE) {
      distance = top * exp2f(sum / p);
      factor = exp2f(sum / p - sum);
    } else if (top != top) {
      factor = top;
    }
    if (b < n && o < out) y[b * out + o] = distance;
    if (factors) factors[patch * PAIRS + pair] = b < n && o < out ? factor : 0.0f;
  }
}
