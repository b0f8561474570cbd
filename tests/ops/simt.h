// Emulates CUDA on a CPU, so that the kernels can be tested without a GPU; also replaces instructions.cuh.
#include "fibres.h"

#include <math.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

static void __syncthreads() { simt::wait(simt::block); }
static void __syncwarp() { simt::wait_for_warp(); }

template <class T> static T __shfl_sync(unsigned, T value, int source) { return simt::from_lane(value, source); }
template <class T> static T __shfl_xor_sync(unsigned, T value, int mask) {
  return simt::from_lane(value, simt::lane() ^ mask);
}
template <class T> static T __shfl_up_sync(unsigned, T value, int by) {
  return simt::from_lane(value, simt::lane() < by ? simt::lane() : simt::lane() - by);
}
static unsigned __ballot_sync(unsigned, bool vote) {
  return simt::exchanged(vote,
                         [](const uint64_t* shown) { return simt::lanes_where([&](int k) { return shown[k] != 0; }); });
}
static bool __any_sync(unsigned, unsigned vote) { return __ballot_sync(~0u, vote != 0) != 0; }
static unsigned __match_any_sync(unsigned, int value) {
  return simt::exchanged(value, [](const uint64_t* shown) {
    return simt::lanes_where([&](int k) { return shown[k] == shown[simt::lane()]; });
  });
}
static unsigned __reduce_max_sync(unsigned, unsigned value) {
  return simt::exchanged(value, [](const uint64_t* shown) {
    unsigned most = 0;
    simt::lanes_where([&](int k) { return most = shown[k] > most ? (unsigned)shown[k] : most; });
    return most;
  });
}

template <class T> static T __ldg(const T* at) { return *at; }
template <class A, class B> static auto min(A a, B b) { return a < b ? a : b; }
template <class A, class B> static auto max(A a, B b) { return a > b ? a : b; }
template <class To, class From> static To same_bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from, "as many bits");
  memcpy(&to, &from, sizeof to);
  return to;
}
static float __int_as_float(int a) { return same_bits<float>(a); }
static float __uint_as_float(unsigned a) { return same_bits<float>(a); }
static int __float_as_int(float a) { return same_bits<int>(a); }
static unsigned __float_as_uint(float a) { return same_bits<unsigned>(a); }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static int __popc(unsigned a) { return __builtin_popcount(a); }
static int __ffs(int a) { return __builtin_ffs(a); }
// The fast division returns 0 for the largest divisors.
static float __fdividef(float a, float b) { return a / (fabsf(b) > 0x1p126f ? INFINITY * b : b); }
template <class T, class U> static T atomicAdd(T* at, U value) {
  T before = *at;
  *at += value;
  return before;
}
template <class T, class U> static T atomicMax(T* at, U value) {
  T before = *at;
  *at = max(*at, (T)value);
  return before;
}
template <class T, class U> static T atomicOr(T* at, U value) {
  T before = *at;
  *at |= value;
  return before;
}

// Replacement of instructions.cuh; asynchronous copies take effect as late as possible.
typedef unsigned int u32;
typedef unsigned short u16;

#define DYNAMIC_SHARED(type, name) type* name = (type*)simt::dynamic_shared

// NaN is larger than all numbers; -0 is less than 0.
static float max_nan(float a, float b) { return a != a || b != b ? NAN : a > b || (a == b && !signbit(a)) ? a : b; }
// Subnormal numbers are treated as zero.
static float flushed(float a) { return fabsf(a) < 0x1p-126f ? 0.0f * a : a; }
static float log2_fast(float a) { return log2f(flushed(a)); }
static float exp2_fast(float a) { return flushed(exp2f(a)); }

// Compute in units in the last place: a normal number has 1024 to 2047 of them.
static u16 to_half(float a) {
  u16 sign = __float_as_uint(a) >> 16 & 0x8000;
  float size = fabsf(a);
  if (size != size) return 0x7fff;
  if (size >= 65520.0f) return sign | 0x7c00;
  int exponent = max(ilogbf(size), -14);
  return sign | ((exponent + 14) * 1024 + (int)rintf(scalbnf(size, 10 - exponent)));
}
static float from_half(u16 h) {
  int exponent = h >> 10 & 31, units = h & 1023;
  float size =
      exponent == 31 ? (units ? NAN : INFINITY) : scalbnf(units + (exponent ? 1024 : 0), max(exponent, 1) - 25);
  return copysignf(size, h & 0x8000 ? -1.0f : 1.0f);
}

// Two float16 numbers in 32 bits; products and sums of float16 numbers are exact in double, up to one rounding.
static u16 half_of_double(double a) {
  float near = (float)a;  // round to odd first, so that the second rounding is the only one
  if ((double)near != a && near == near && fabsf(near) < INFINITY) {
    u32 bits = __float_as_uint(near);
    if (!(bits & 1)) bits += fabs((double)near) < fabs(a) ? 1 : -1;
    near = __uint_as_float(bits);
  }
  return to_half(near);
}
static float low_float(u32 a) { return from_half(a & 0xffff); }
static float high_float(u32 a) { return from_half(a >> 16); }
static u32 half2_of(float low, float high) { return to_half(low) | (u32)to_half(high) << 16; }
static u32 half2_of_doubles(double low, double high) { return half_of_double(low) | (u32)half_of_double(high) << 16; }
static u32 half2_add(u32 a, u32 b) {
  return half2_of_doubles((double)low_float(a) + low_float(b), (double)high_float(a) + high_float(b));
}
static u32 half2_sub(u32 a, u32 b) {
  return half2_of_doubles((double)low_float(a) - low_float(b), (double)high_float(a) - high_float(b));
}
static u32 half2_mul(u32 a, u32 b) {
  return half2_of_doubles((double)low_float(a) * low_float(b), (double)high_float(a) * high_float(b));
}
static u32 half2_fma(u32 a, u32 b, u32 c) {
  return half2_of_doubles((double)low_float(a) * low_float(b) + low_float(c),
                          (double)high_float(a) * high_float(b) + high_float(c));
}
static u32 low_twice(u32 a) { return (a & 0xffff) | a << 16; }
static u32 high_twice(u32 a) { return a >> 16 | (a & 0xffff0000u); }

static void await_copies() {
  simt::Fibre& fibre = simt::fibres[simt::current];
  for (int k = 0; k < fibre.pending; ++k) {
    simt::Copy& copy = fibre.copies[k];
    if (copy.from)
      memcpy(copy.to, copy.from, copy.size);
    else
      memset(copy.to, 0, copy.size);
  }
  fibre.pending = 0;
}
static void begin_copy(void* to, const void* from, bool here, int size) {
  simt::Fibre& fibre = simt::fibres[simt::current];
  if (fibre.pending == simt::MOST_COPIES) await_copies();
  fibre.copies[fibre.pending++] = {to, here ? from : nullptr, size};
}
static void copy16(float* to, const float* from, bool here) { begin_copy(to, from, here, 16); }
static void copy4(float* to, const float* from, bool here) { begin_copy(to, from, here, 4); }
static void materialize(u16&) {}
