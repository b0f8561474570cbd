// The largest |x - w| of the listed features, and with INDEX the first feature that attains it (bit 31: x - w is negative
// there). A block per output and group of rows, its four warps share the list; results are turned.
#include "pruned.cuh"

extern "C" __global__ void __launch_bounds__(128)
listed_maximum(const float* __restrict__ turned, const int2* __restrict__ entries, const int* __restrict__ counts,
               float* __restrict__ y, int* __restrict__ index, int features, int padded, const int* __restrict__ flag) {
  if (*flag) return;
  __shared__ u32 sizes[WARPS][GROUP];
#if INDEX
  __shared__ int places[WARPS][GROUP];
#endif
  int warp = threadIdx.x >> 5, o = blockIdx.x, count = counts[o];
  i64 group = (i64)blockIdx.y * GROUP;
  entries += (i64)o * features;
  turned += group;
  int start = part_start(count, warp), stop = part_start(count, warp + 1);
  u32 best[OWN];  // bits of numbers >= 0 order like the numbers, NaN above all
  int where[OWN];
#pragma unroll
  for (int r = 0; r < OWN; ++r) best[r] = where[r] = 0;
#pragma unroll 4
  for (int k = start; k < stop; ++k) {
    Entry e = entry_of(entries, k);
    float x[OWN];
    own_rows(x, turned + (i64)e.at * padded);
#pragma unroll
    for (int r = 0; r < OWN; ++r) {
      u32 d = __float_as_uint(x[r] - e.w), size = d & 0x7fffffffu;
#if INDEX
      if (size > best[r] || k == start) where[r] = e.at | (d & 0x80000000u);
#endif
      best[r] = max(best[r], size);
    }
  }
#pragma unroll
  for (int r = 0; r < OWN; ++r) {
    sizes[warp][own_row(r)] = best[r];
#if INDEX
    places[warp][own_row(r)] = where[r];
#endif
  }
  __syncthreads();
  for (int row = threadIdx.x; row < GROUP; row += 128) {
    // Parts without entries come out as zero. A row at distance zero has all features listed: no part is empty then.
    u32 most = sizes[0][row];
#if INDEX
    int place = places[0][row];
#endif
    for (int v = 1; v < WARPS; ++v)
      if (sizes[v][row] > most) {
        most = sizes[v][row];
#if INDEX
        place = places[v][row];
#endif
      }
    i64 at = (i64)o * padded + group + row;
    y[at] = __uint_as_float(most);
#if INDEX
    index[at] = most > 0 && most <= 0x7f800000u ? place : place & 0x7fffffff;
#endif
  }
}
