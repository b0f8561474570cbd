// Copies from global to shared memory that run beside the computation; zeros are written where nothing is to be read.
#include "common.cuh"

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
