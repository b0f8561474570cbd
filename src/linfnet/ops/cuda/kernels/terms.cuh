// Large p: of the terms |d|^p only those with |d| >= cut * max |d| count; large.py chooses `cut`.
// They are kept in lists: one per 32 rows x 32 outputs ("patch"), its features in order by ranges of 64. A term is a
// 16-bit code (row, output, feature within the range: 5 + 5 + 6 bits) and a float. offsets[patch][range] is where the
// range starts. Within a range the order is free: whatever is summed from a list is summed in integers. Lists are made
// of pages of 1024 terms taken from a pool that all patches share; table[patch] names the pages.
// control[0]: set if the pool or a table did not suffice; [1], [2]: pages taken while searching, and for good.
#include "common.cuh"

typedef unsigned short u16;

#define PATCH 32
#define PAIRS (PATCH * PATCH)
#define RANGE 64
#define PAGE 1024
#define TABLE 512  // pages of a patch at most

// What |d| must reach to count; nothing but infinity and NaN does once the maximum is one of them.
static __device__ __forceinline__ float threshold(float top, float cut) {
  return top == top ? fmaxf(top * cut, 1.4e-45f) : INFINITE;
}

// Adds to a 64-bit integer kept as two halves in shared memory: sums do not depend on their order.
static __device__ __forceinline__ void add_wide(u32* low, u32* high, i64 value) {
  u32 low_part = (u32)value, high_part = (u32)(value >> 32);
  u32 before = atomicAdd(low, low_part);
  high_part += before + low_part < low_part;
  if (high_part) atomicAdd(high, high_part);
}

static __device__ __forceinline__ i64 wide(u32 low, u32 high) { return (i64)((unsigned long long)high << 32 | low); }
