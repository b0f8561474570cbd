// Even p by matrix products: sum (x - w)^P = sum_j C(P, j) (-x)^(P - j) w^j, j = 1..P-1, beside the powers alone.
// Here is all but the products: powers as pairs of float16 (what the first drops, the second keeps), and their sums.
//   P: the power.
// Numbers are scaled to at most 1 by powers of two, powers then lifted to 2^TOP for the range of float16.
#include "common.cuh"

#define TERMS (P - 1)
#define TOP 15
// For how many more sums the slopes of a close pair count: two passes over its features, with scattered reads.
#define CLOSE_COST 7

static __device__ constexpr int choose(int n, int k) {
  int result = 1;
  for (int i = 1; i <= k; ++i) result = result * (n - i + 1) / i;
  return result;
}

static __device__ constexpr int bits_of(int n) {
  int bits = 0;
  while (n >> bits) ++bits;
  return bits;
}

// s with 1/2 < s * top <= 1, from the largest |x| and |w|.
static __device__ __forceinline__ int exponent_for(float top) {
  if (!(top > 0.0f && top < INFINITE)) return 0;
  int e = -1 - ilogbf(top);
  return e < -126 ? -126 : e > 126 ? 126 : e;
}

static __device__ __forceinline__ float layer_top(const u32* __restrict__ tops) {
  return larger(__uint_as_float(tops[0]), __uint_as_float(tops[1]));
}

static __device__ __forceinline__ int layer_exponent(const u32* __restrict__ tops) { return exponent_for(layer_top(tops)); }

// What lifts a power of the layer's largest number, at most 1, to between 2^(TOP - 1) and 2^TOP.
static __device__ __forceinline__ int lift_of(float power) {
  return power >= 0x1p-16f && power <= 1.0f ? TOP - 1 - ilogbf(power) : TOP;
}

struct Halves {
  uint2 first, second;
};

// Four floats as float16, and as float16 what that drops.
static __device__ __forceinline__ Halves halves(const float (&a)[4]) {
  u32 h[4], l[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    h[c] = to_half(a[c]);
    l[c] = to_half(a[c] - from_half((u16)h[c]));
  }
  return {make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16), make_uint2(l[0] | l[1] << 16, l[2] | l[3] << 16)};
}

static __device__ __forceinline__ float block_sum(float a) {
  __shared__ float shares[8];
  for (int step = 16; step > 0; step >>= 1) a += __shfl_xor_sync(FULL, a, step);
  if ((threadIdx.x & 31) == 0) shares[threadIdx.x >> 5] = a;
  __syncthreads();
  float total = 0.0f;
  for (int k = 0; k < 8; ++k) total += shares[k];
  __syncthreads();
  return total;
}

static __device__ __forceinline__ u32 block_max(u32 a) {
  __shared__ u32 shares[8];
  a = __reduce_max_sync(FULL, a);
  if ((threadIdx.x & 31) == 0) shares[threadIdx.x >> 5] = a;
  __syncthreads();
  u32 most = 0;
  for (int k = 0; k < 8; ++k) most = max(most, shares[k]);
  __syncthreads();
  return most;
}

// Powers of one row per block: into[part][row][j - 1][feature], part by part `apart` numbers away. Of w: w^j; of x
// (of_x): C(P, j) (-x)^(P - j). `alone`: sum of the P-th powers of the row.
extern "C" __global__ void __launch_bounds__(256)
powers(const float* __restrict__ a, const u32* __restrict__ tops, u16* __restrict__ into, i64 apart,
       float* __restrict__ alone, int features, int of_x) {
  float scale = two_to(layer_exponent(tops)), top = layer_top(tops) * scale, sum = 0.0f;
  i64 row = blockIdx.x;
  for (int k = threadIdx.x * 4; k < features; k += 1024) {
    float4 v = *reinterpret_cast<const float4*>(a + row * features + k);
    float u[4] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale}, power[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (of_x) u[c] = -u[c];
      power[c] = 1.0f;
    }
    float largest = 1.0f;
#pragma unroll
    for (int j = 1; j < P; ++j) {
      largest *= top;
      // With x the powers come in falling order of j.
      int place = of_x ? P - j - 1 : j - 1;
      float lift = two_to(lift_of(largest)), lifted[4];
      if (of_x) lift *= (float)choose(P, j) * two_to(-bits_of(choose(P, j)));
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        power[c] *= u[c];
        lifted[c] = power[c] * lift;
      }
      Halves pair = halves(lifted);
      u16* to = into + (row * TERMS + place) * features + k;
      *reinterpret_cast<uint2*>(to) = pair.first;
      *reinterpret_cast<uint2*>(to + apart) = pair.second;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) sum = fmaf(power[c], u[c], sum);
  }
  if (!alone) return;
  sum = block_sum(sum);
  if (threadIdx.x == 0) alone[row] = sum;
}

static __device__ __forceinline__ float power_of(float d) {
  float result = d * d;
#pragma unroll
  for (int k = 2; k < P; k += 2) result *= d * d;
  return result;
}

static __device__ __forceinline__ float slope_of(float d) {
  float result = d;
#pragma unroll
  for (int k = 1; k < P - 1; k += 2) result *= d * d;
  return result;
}

static __device__ __forceinline__ bool is_close(const u32* __restrict__ close, i64 pair) {
  return close[pair >> 5] >> (pair & 31) & 1;
}

// Sums of the products of each pair, to what `finish_sum` takes. Terms with even j are positive and tell what cancels:
// the sum of (|x| + |w|)^P lies between that of the even terms and its double. A pair that loses more than `most` to it
// is summed again by its warp, without expansion, and counted. `close`, if given, gets a bit for each pair that loses
// more than `most_slope`: its slopes would drown in what cancels.
// A pair with a sum below `least` of the largest number's power is one of both: its terms leave the range of float16.
//   main: [TERMS * chunks, n, out];  cross: [2, TERMS, n, out].
extern "C" __global__ void __launch_bounds__(256)
combine(const float* __restrict__ main, int chunks, const float* __restrict__ cross, const float* __restrict__ alone_x,
        const float* __restrict__ alone_w, const float* __restrict__ x, const float* __restrict__ w,
        const u32* __restrict__ tops, float* __restrict__ sums, int* __restrict__ count, u32* __restrict__ close, int n,
        int out, int features, float most, float most_slope, float least, int lift) {
  i64 pairs = (i64)n * out, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  bool here = at < pairs, ill = false, near = false;
  int mine = layer_exponent(tops);
  // At the ends of the float range no power of two brings the numbers near 1: that is for the dense kernels.
  bool beyond = mine == 126 || mine == -126;
  // What `finish_sum` scales by.
  float scale = scale_for(__uint_as_float(tops[0]) + __uint_as_float(tops[1]), lift);
  float result = 0.0f;
  if (here) {
    i64 b = at / out, o = at - b * out;
    float even = 0.0f, odd = 0.0f, small = 0.0f, top = layer_top(tops) * two_to(mine), largest[P + 1] = {1.0f};
#pragma unroll
    for (int j = 1; j <= P; ++j) largest[j] = largest[j - 1] * top;
#pragma unroll
    for (int j = 1; j < P; ++j) {
      float share = 0.0f, unit = two_to(bits_of(choose(P, j)) - lift_of(largest[j]) - lift_of(largest[P - j]));
      for (int k = 0; k < chunks; ++k) share += main[((j - 1) * chunks + k) * pairs + at];
      if (j % 2) odd = fmaf(share, unit, odd);
      else even = fmaf(share, unit, even);
      small = fmaf(cross[(j - 1) * pairs + at] + cross[(TERMS + j - 1) * pairs + at], unit, small);
    }
    even += alone_x[b] + alone_w[o];
    float sum = (even + odd) + small;
    bool low = !(sum >= least * largest[P]);
    ill = beyond || low || !(even <= most * sum);
    near = low || !(even <= most_slope * sum);
    result = scalbnf(sum, P * (ilogbf(scale) - mine));
  }
  u32 left = __ballot_sync(FULL, here && ill), marks = __ballot_sync(FULL, here && near);
  if (close && here && (threadIdx.x & 31) == 0) close[at >> 5] = marks;
  if ((threadIdx.x & 31) == 0 && (left || marks)) atomicAdd(count, __popc(left) + CLOSE_COST * __popc(marks));
  while (left) {
    int lane = __ffs(left) - 1;
    left &= left - 1;
    i64 pair = __shfl_sync(FULL, at, lane);
    i64 b = pair / out, o = pair - b * out;
    float sum = 0.0f;
    for (int k = (threadIdx.x & 31) * 4; k < features; k += 128) {
      float4 u = *reinterpret_cast<const float4*>(x + b * features + k);
      float4 v = *reinterpret_cast<const float4*>(w + o * features + k);
      sum += power_of((u.x - v.x) * scale) + power_of((u.y - v.y) * scale) + power_of((u.z - v.z) * scale) +
             power_of((u.w - v.w) * scale);
    }
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(FULL, sum, step);
    if ((threadIdx.x & 31) == lane) result = sum;
  }
  if (here) sums[at] = result;
}

// A coefficient as the expansion takes it: none of a close pair.
static __device__ __forceinline__ float expanded_part(const float* __restrict__ c, const u32* __restrict__ close, i64 pair) {
  return is_close(close, pair) ? 0.0f : c[pair];
}

// Coefficients as float16 for grad_x: scaled by a power of two per row. into: [2, n, out].
extern "C" __global__ void __launch_bounds__(256)
split_rows(const float* __restrict__ c, const u32* __restrict__ close, u16* __restrict__ into,
           int* __restrict__ exponents, float* __restrict__ alone, int n, int out) {
  i64 row = blockIdx.x;
  u32 most = 0;
  for (int o = threadIdx.x; o < out; o += 256)
    most = max(most, __float_as_uint(expanded_part(c, close, row * out + o)) & 0x7fffffffu);
  int e = exponent_for(__uint_as_float(block_max(most)));
  float scale = two_to(e), sum = 0.0f;
  for (int o = threadIdx.x * 4; o < out; o += 1024) {
    float lifted[4];
    for (int k = 0; k < 4; ++k) lifted[k] = expanded_part(c, close, row * out + o + k) * scale * two_to(TOP);
    Halves pair = halves(lifted);
    u16* to = into + row * out + o;
    *reinterpret_cast<uint2*>(to) = pair.first;
    *reinterpret_cast<uint2*>(to + (i64)n * out) = pair.second;
    sum += (lifted[0] + lifted[1]) + (lifted[2] + lifted[3]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    exponents[row] = e;
    alone[row] = sum;
  }
}

// The largest |a| of each of 32 columns per block, by 8 warps; with `close`, of what the expansion takes.
static __device__ __forceinline__ float column_top(const float* __restrict__ a, const u32* __restrict__ close, i64 column,
                                                   int rows, int columns) {
  __shared__ u32 tops[8][32];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  u32 most = 0;
  if (column < columns)
    for (i64 b = warp; b < rows; b += 8) {
      i64 at = b * columns + column;
      most = max(most, __float_as_uint(close ? expanded_part(a, close, at) : a[at]) & 0x7fffffffu);
    }
  tops[warp][lane] = most;
  __syncthreads();
  for (int k = 0; k < 8; ++k) most = max(most, tops[k][lane]);
  return __uint_as_float(most);
}

// Coefficients as float16 for grad_w: scaled by a power of two per output. into: [first, second, first] of [n, out], so
// that the small products with what was dropped are added up before the large ones.
extern "C" __global__ void __launch_bounds__(256)
split_columns(const float* __restrict__ c, const u32* __restrict__ close, u16* __restrict__ into,
              int* __restrict__ exponents, float* __restrict__ alone, int n, int out) {
  __shared__ float sums[8][32];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 o = (i64)blockIdx.x * 32 + lane, pairs = (i64)n * out;
  int e = exponent_for(column_top(c, close, o, n, out));
  float scale = two_to(e), sum = 0.0f;
  if (o < out)
    for (i64 b = warp; b < n; b += 8) {
      float lifted = expanded_part(c, close, b * out + o) * scale * two_to(TOP);
      u16 first = to_half(lifted);
      into[b * out + o] = into[2 * pairs + b * out + o] = first;
      into[pairs + b * out + o] = to_half(lifted - from_half(first));
      sum += lifted;
    }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && o < out) {
    sum = 0.0f;
    for (int k = 0; k < 8; ++k) sum += sums[k][lane];
    exponents[o] = e;
    alone[o] = sum;
  }
}

// The power of two of each feature: its largest |a|, but no less than 2^-6 of the layer's largest number.
extern "C" __global__ void __launch_bounds__(256)
feature_exponents(const float* __restrict__ a, const u32* __restrict__ tops, int* __restrict__ exponents, int rows,
                  int features) {
  i64 k = (i64)blockIdx.x * 32 + (threadIdx.x & 31);
  float top = column_top(a, nullptr, k, rows, features);
  int layer = layer_exponent(tops);
  if (threadIdx.x < 32 && k < features) exponents[k] = top > 0.0f ? min(exponent_for(top), min(layer + 6, 126)) : layer;
}

// Powers a^j, j = 1..P-1, of one row per block, each feature in its own scale. into: [first, second] of
// [rows, TERMS, features], or [second, first, first] with `thrice`.
extern "C" __global__ void __launch_bounds__(256)
feature_powers(const float* __restrict__ a, const int* __restrict__ exponents, u16* __restrict__ into, int rows,
               int features, int thrice) {
  i64 row = blockIdx.x, apart = (i64)rows * TERMS * features;
  i64 first = thrice ? apart : 0, second = thrice ? 0 : apart;
  for (int k = threadIdx.x * 4; k < features; k += 1024) {
    float4 v = *reinterpret_cast<const float4*>(a + row * features + k);
    int4 e = *reinterpret_cast<const int4*>(exponents + k);
    float u[4] = {v.x * two_to(e.x), v.y * two_to(e.y), v.z * two_to(e.z), v.w * two_to(e.w)}, power[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) power[c] = two_to(TOP);
#pragma unroll
    for (int j = 1; j < P; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) power[c] *= u[c];
      Halves pair = halves(power);
      u16* to = into + (row * TERMS + j - 1) * features + k;
      *reinterpret_cast<uint2*>(to + first) = pair.first;
      *reinterpret_cast<uint2*>(to + second) = pair.second;
      if (thrice) *reinterpret_cast<uint2*>(to + 2 * apart) = pair.first;
    }
  }
}

static __device__ __forceinline__ float4 add4(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// grad_x[b, i] = sum_j C(P - 1, j) x^(P - 1 - j) (-1)^j sum_o c w^j, each feature in its own scale.
//   main: [chunks, n, TERMS, features], cross likewise.
extern "C" __global__ void __launch_bounds__(256)
finish_x(const float* __restrict__ main, int chunks, const float* __restrict__ cross, int crosses,
         const float* __restrict__ alone, const int* __restrict__ exponents, const int* __restrict__ feature_exponents,
         const float* __restrict__ x, const u32* __restrict__ largest, float* __restrict__ grad_x, int n, int features,
         int lift) {
  i64 row = blockIdx.y, whole = (i64)n * TERMS * features;
  int k = (blockIdx.x * 256 + threadIdx.x) * 4;
  if (k >= features) return;
  float4 v = *reinterpret_cast<const float4*>(x + row * features + k);
  int4 e4 = *reinterpret_cast<const int4*>(feature_exponents + k);
  int e[4] = {e4.x, e4.y, e4.z, e4.w};
  float u[4] = {v.x * two_to(e[0]), v.y * two_to(e[1]), v.z * two_to(e[2]), v.w * two_to(e[3])}, sum[4];
  // The sum of the coefficients alone lacks the lift of w's powers.
  for (int c = 0; c < 4; ++c) sum[c] = alone[row] * two_to(TOP);
#pragma unroll
  for (int j = 1; j < P; ++j) {
    i64 at = (row * TERMS + j - 1) * features + k;
    float4 term = *reinterpret_cast<const float4*>(main + at), small = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int part = 1; part < chunks; ++part) term = add4(term, *reinterpret_cast<const float4*>(main + part * whole + at));
    for (int part = 0; part < crosses; ++part) small = add4(small, *reinterpret_cast<const float4*>(cross + part * whole + at));
    term = add4(term, small);
    float terms[4] = {term.x, term.y, term.z, term.w}, weight = (float)((j % 2 ? -1 : 1) * choose(P - 1, j));
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[c] = fmaf(sum[c], u[c], weight * terms[c]);
  }
  int s = ilogbf(scale_for(__uint_as_float(largest[0]), lift));
  int back = -2 * TOP - exponents[row] - ilogbf(gradient_scale(largest));
  *reinterpret_cast<float4*>(grad_x + row * features + k) =
      make_float4(scalbnf(sum[0], (P - 1) * (s - e[0]) + back), scalbnf(sum[1], (P - 1) * (s - e[1]) + back),
                  scalbnf(sum[2], (P - 1) * (s - e[2]) + back), scalbnf(sum[3], (P - 1) * (s - e[3]) + back));
}

// grad_w[o, i] = -sum_j C(P - 1, j) (-w)^(P - 1 - j) sum_b c x^j, each feature in its own scale.
extern "C" __global__ void __launch_bounds__(256)
finish_w(const float* __restrict__ main, const float* __restrict__ alone, const int* __restrict__ exponents,
         const int* __restrict__ feature_exponents, const float* __restrict__ w, const u32* __restrict__ largest,
         float* __restrict__ grad_w, int features, int lift) {
  i64 row = blockIdx.y;
  int k = (blockIdx.x * 256 + threadIdx.x) * 4;
  if (k >= features) return;
  float4 v = *reinterpret_cast<const float4*>(w + row * features + k);
  int4 e4 = *reinterpret_cast<const int4*>(feature_exponents + k);
  int e[4] = {e4.x, e4.y, e4.z, e4.w};
  float u[4] = {-v.x * two_to(e[0]), -v.y * two_to(e[1]), -v.z * two_to(e[2]), -v.w * two_to(e[3])}, sum[4];
  for (int c = 0; c < 4; ++c) sum[c] = alone[row] * two_to(TOP);
#pragma unroll
  for (int j = 1; j < P; ++j) {
    float4 term = *reinterpret_cast<const float4*>(main + (row * TERMS + j - 1) * features + k);
    float terms[4] = {term.x, term.y, term.z, term.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) sum[c] = fmaf(sum[c], u[c], (float)choose(P - 1, j) * terms[c]);
  }
  int s = ilogbf(scale_for(__uint_as_float(largest[0]), lift));
  int back = -2 * TOP - exponents[row] - ilogbf(gradient_scale(largest));
  *reinterpret_cast<float4*>(grad_w + row * features + k) =
      make_float4(-scalbnf(sum[0], (P - 1) * (s - e[0]) + back), -scalbnf(sum[1], (P - 1) * (s - e[1]) + back),
                  -scalbnf(sum[2], (P - 1) * (s - e[2]) + back), -scalbnf(sum[3], (P - 1) * (s - e[3]) + back));
}

// Adds the slopes of the close pairs, without expansion and in their order. Block r owns row r of grad_x (of_x) or of
// grad_w, and goes through its pairs 256 at a time.
extern "C" __global__ void __launch_bounds__(256)
add_close(const float* __restrict__ c, const u32* __restrict__ close, const float* __restrict__ x,
          const float* __restrict__ w, const u32* __restrict__ largest, float* __restrict__ result, int n, int out,
          int features, int lift, int of_x) {
  __shared__ int found[256], counts[8];
  i64 mine = blockIdx.x;
  int others = of_x ? out : n, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float scale = scale_for(__uint_as_float(largest[0]), lift), unit = of_x ? gradient_unit(largest) : -gradient_unit(largest);
  for (int first = 0; first < others; first += 256) {
    int other = first + threadIdx.x, total = 0;
    bool here = other < others && is_close(close, of_x ? mine * out + other : (i64)other * out + mine);
    u32 votes = __ballot_sync(FULL, here);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int place = __popc(votes & ((1u << lane) - 1));
    for (int k = 0; k < 8; ++k) {
      if (k < warp) place += counts[k];
      total += counts[k];
    }
    if (here) found[place] = other;
    __syncthreads();
    for (int k = threadIdx.x * 4; total > 0 && k < features; k += 1024) {
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int i = 0; i < total; ++i) {
        i64 b = of_x ? mine : found[i], o = of_x ? found[i] : mine;
        float4 u = *reinterpret_cast<const float4*>(x + b * features + k);
        float4 v = *reinterpret_cast<const float4*>(w + o * features + k);
        float factor = c[b * out + o];
        sum = make_float4(fmaf(factor, slope_of((u.x - v.x) * scale), sum.x), fmaf(factor, slope_of((u.y - v.y) * scale), sum.y),
                          fmaf(factor, slope_of((u.z - v.z) * scale), sum.z), fmaf(factor, slope_of((u.w - v.w) * scale), sum.w));
      }
      float4* to = reinterpret_cast<float4*>(result + mine * features + k);
      *to = add4(*to, make_float4(sum.x * unit, sum.y * unit, sum.z * unit, sum.w * unit));
    }
    __syncthreads();
  }
}
