// Instructions without a C++ equivalent, and dynamic shared memory. This file holds all assembly of the kernels: to run
// the kernels on a CPU, tests replace it with tests/ops/simt.h.
typedef unsigned int u32;
typedef unsigned short u16;

#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]

// Maximum that propagates NaN, unlike fmaxf. The hardware takes the absolute value of an operand at no cost.
static __device__ __forceinline__ float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

static __device__ __forceinline__ float log2_fast(float a) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}

static __device__ __forceinline__ float exp2_fast(float a) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}

// Convert to float16; return its bits.
static __device__ __forceinline__ u16 to_half(float a) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(a));
  return h;
}

static __device__ __forceinline__ float from_half(u16 h) {
  float a;
  asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"(h));
  return a;
}

// Asynchronous copies of 16 and 4 bytes from global to shared memory; if `inside` is false, zeros are written and
// nothing is read.
static __device__ __forceinline__ void copy16(float* to, const float* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
               "r"(inside ? 16 : 0));
}

static __device__ __forceinline__ void copy4(float* to, const float* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
               "r"(inside ? 4 : 0));
}

// Wait for all copies that this thread started; a barrier must follow before other threads read them.
static __device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Make the compiler compute the value once, here, and not again before each use.
static __device__ __forceinline__ void materialize(u16& value) { asm volatile("" : "+h"(value)); }

// Two float16 numbers in 32 bits. Each instruction computes both, and rounds each to the nearest float16.
static __device__ __forceinline__ u32 half2_of(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

static __device__ __forceinline__ u32 half2_add(u32 a, u32 b) {
  u32 r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

static __device__ __forceinline__ u32 half2_sub(u32 a, u32 b) {
  u32 r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

static __device__ __forceinline__ u32 half2_mul(u32 a, u32 b) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

static __device__ __forceinline__ u32 half2_fma(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

// The first or the second number, twice.
static __device__ __forceinline__ u32 low_twice(u32 a) {
  u32 r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l}; }" : "=r"(r) : "r"(a));
  return r;
}

static __device__ __forceinline__ u32 high_twice(u32 a) {
  u32 r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h}; }" : "=r"(r) : "r"(a));
  return r;
}

static __device__ __forceinline__ float low_float(u32 a) { return from_half((u16)(a & 0xffff)); }

static __device__ __forceinline__ float high_float(u32 a) { return from_half((u16)(a >> 16)); }
