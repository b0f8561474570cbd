// Single instructions that C++ has no word for, and memory whose size the launch says. All of the kernels' assembly is
// here: to run the kernels on a CPU, tests put tests/ops/simt.h in place of this file.
typedef unsigned int u32;
typedef unsigned short u16;

#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]

// fmaxf drops NaN; this keeps it, and the absolute value costs nothing.
static __device__ __forceinline__ float larger(float a, float b) {
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

// A float16, as its bits.
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

// Copies from global to shared memory that run beside the computation; zeros are written where nothing is to be read.
static __device__ __forceinline__ void copy16(float* to, const float* from, bool here) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
               "r"(here ? 16 : 0));
}

static __device__ __forceinline__ void copy4(float* to, const float* from, bool here) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
               "r"(here ? 4 : 0));
}

// Until every copy this thread began has arrived; a barrier must follow before others read.
static __device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The value is computed here, not once more in front of each use.
static __device__ __forceinline__ void settle(u16& value) { asm volatile("" : "+h"(value)); }
