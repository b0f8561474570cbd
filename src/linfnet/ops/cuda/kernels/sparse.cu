// Sparse layers at p = infinity: neuron o has the connections c = offsets[o] to offsets[o + 1] - 1, connection c leads
// to feature index[c] and has the weight weight[c].
//   ROWS   rows of x per block: 1, 2, 4 or 8. More than one row are copied to shared memory, feature by feature, so
//          that a lane reads the values of all rows in one or two accesses; one row is read through the cache
//   SAVE   1: also store the first connection that attains each maximum
//
// LANES neighbouring lanes share an output and the connections of its row; each lane finds the maxima of its
// connections for all rows of the block. Then the lanes exchange their maxima, so that each has the result of one row.
// Maxima are compared as unsigned bits: these order non-negative floats, and NaN above all of them.
#include "common.cuh"

#define LANES 8
#define OUTPUTS (32 / LANES)  // outputs per warp
static_assert(ROWS <= LANES && (ROWS & (ROWS - 1)) == 0, "the results of the rows are distributed over the lanes");

struct __align__(ROWS >= 4 ? 16 : 4 * ROWS) Values {
  float row[ROWS];
};

// The largest value of each row so far, and the connection that attains it. A lane meets its connections in ascending
// order; all start with the first connection of the output, which is the right one if all values are 0.
struct Best {
  u32 bits[ROWS];
  int at[ROWS];

  __device__ __forceinline__ explicit Best(int first) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) bits[r] = 0, at[r] = first;
  }

  __device__ __forceinline__ void raise(int r, float value, int c) {
    u32 v = __float_as_uint(value);
    if constexpr (SAVE) {
      if (v > bits[r]) bits[r] = v, at[r] = c;
    } else {
      bits[r] = max(bits[r], v);
    }
  }

  // Reduce over the LANES lanes of an output. Afterwards, bits[0] and at[0] belong to row `row_of(sub)`.
  __device__ __forceinline__ void reduce(int sub) {
    int width = ROWS;
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
      bool split = width > 1;
      // With more than one row left, a lane keeps one half of its rows and gives the other half away. Of eight rows, odd
      // lanes have the upper half first (see `read`), and every lane keeps the half that it has first.
      bool swap = sub & step && !(ROWS == 8 && step == 1);
      if (split) width /= 2;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if (r >= width) break;
        int other = split ? r + width : r;
        u32 mine = swap ? bits[other] : bits[r];
        u32 theirs = __shfl_xor_sync(FULL_MASK, swap ? bits[r] : bits[other], step);
        if constexpr (SAVE) {
          int mine_at = swap ? at[other] : at[r];
          int theirs_at = __shfl_xor_sync(FULL_MASK, swap ? at[r] : at[other], step);
          at[r] = theirs > mine || (theirs == mine && theirs_at < mine_at) ? theirs_at : mine_at;
        }
        bits[r] = max(mine, theirs);
      }
    }
  }
};

// The row whose result lane `sub` has after `reduce`: the first exchange (of lanes that differ in bit 0) divides the rows
// into a lower and an upper half, and so on. Lanes from ROWS on have copies.
static __device__ __forceinline__ int row_of(int sub) {
  return ((sub & 1) * 4 + (sub & 2) + (sub >> 2)) * ROWS / LANES;
}

// The values of one feature. Eight rows take two accesses; odd lanes begin with the upper half, so that each access of
// the lanes uses all banks of the shared memory.
static __device__ __forceinline__ Values read(const Values* values, int i, int sub) {
  if constexpr (ROWS < 8) return values[i];
  const float4* halves = reinterpret_cast<const float4*>(values + i);
  Values v;
  reinterpret_cast<float4*>(v.row)[0] = halves[sub & 1];
  reinterpret_cast<float4*>(v.row)[1] = halves[~sub & 1];
  return v;
}

// Copy the rows of a block to shared memory. Rows beyond the end repeat the last one.
static __device__ __forceinline__ void stage(Values* to, const float* __restrict__ x, i64 top, int n, int features) {
#pragma unroll 8
  for (int t = threadIdx.x; t < features * ROWS; t += blockDim.x) {
    int r = t % ROWS, i = t / ROWS;
    to[i].row[r] = x[min(top + r, (i64)n - 1) * features + i];
  }
}

// The output of a lane and its connections; beyond the end, o is -1 and there are none.
struct Output {
  int o, first, stop;

  __device__ __forceinline__ Output(i64 place, int out, const int* __restrict__ offsets,
                                    const int* __restrict__ order) {
    o = place < out ? order[place] : -1;
    first = o >= 0 ? offsets[o] : 0;
    stop = o >= 0 ? offsets[o + 1] : 0;
  }
};

// The row and the output of which a lane stores the results; the other lanes of an output store nothing.
struct Target {
  i64 at;
  bool stores;

  __device__ __forceinline__ Target(i64 top, int o, int sub, int n, int out) {
    i64 b = top + row_of(sub);
    at = b * out + o;
    stores = o >= 0 && b < n && sub < ROWS;
  }
};

// Blocks: groups of ROWS rows in x; in y, parts of the outputs. The outputs are dealt out in turn, OUTPUTS to a warp.
// `order` lists them by falling number of connections, so that the outputs of a warp have about the same number.
extern "C" __global__ void __launch_bounds__(1024, 1)
    sparse_distance(const float* __restrict__ x, const float* __restrict__ weight, const int* __restrict__ index,
                    const int* __restrict__ offsets, const int* __restrict__ order, float* __restrict__ y,
                    int* __restrict__ decisive, int n, int out, int features) {
  DYNAMIC_SHARED(Values, staged);
  int warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 31, sub = lane % LANES;
  i64 top = (i64)blockIdx.x * ROWS;
  const Values* values = staged;
  if constexpr (ROWS > 1) {
    stage(staged, x, top, n, features);
    __syncthreads();
  } else {
    values = reinterpret_cast<const Values*>(x + top * features);
  }
  for (i64 left = ((i64)blockIdx.y * warps + warp) * OUTPUTS; left < out; left += (i64)gridDim.y * warps * OUTPUTS) {
    Output output(left + lane / LANES, out, offsets, order);
    Best best(output.first);
#pragma unroll 2
    for (int c = output.first + sub; c < output.stop; c += LANES) {
      float w = weight[c];
      Values v = read(values, index[c], sub);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) best.raise(r, fabsf(v.row[r] - w), c);
    }
    best.reduce(sub);
    Target target(top, output.o, sub, n, out);
    if (!target.stores) continue;
    y[target.at] = __uint_as_float(best.bits[0]);
    if constexpr (SAVE) decisive[target.at] = best.at[0];
  }
}

// The smallest and the largest distance over the boxes from lower to upper; blocks as above.
extern "C" __global__ void __launch_bounds__(1024, 1)
    sparse_bounds(const float* __restrict__ lower, const float* __restrict__ upper, const float* __restrict__ weight,
                  const int* __restrict__ index, const int* __restrict__ offsets, const int* __restrict__ order,
                  float* __restrict__ smallest, float* __restrict__ largest, int* __restrict__ near,
                  int* __restrict__ far, int n, int out, int features) {
  DYNAMIC_SHARED(Values, staged);
  int warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 31, sub = lane % LANES;
  i64 top = (i64)blockIdx.x * ROWS;
  const Values *lows = staged, *highs = staged + features;
  if constexpr (ROWS > 1) {
    stage(staged, lower, top, n, features);
    stage(staged + features, upper, top, n, features);
    __syncthreads();
  } else {
    lows = reinterpret_cast<const Values*>(lower + top * features);
    highs = reinterpret_cast<const Values*>(upper + top * features);
  }
  for (i64 left = ((i64)blockIdx.y * warps + warp) * OUTPUTS; left < out; left += (i64)gridDim.y * warps * OUTPUTS) {
    Output output(left + lane / LANES, out, offsets, order);
    Best gap(output.first), farthest(output.first);
    for (int c = output.first + sub; c < output.stop; c += LANES) {
      float w = weight[c];
      int i = index[c];
      Values low = read(lows, i, sub), high = read(highs, i, sub);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float below = low.row[r] - w, above = high.row[r] - w;
        // The absolute value makes a negative zero positive.
        gap.raise(r, fabsf(max_nan(max_nan(below, -above), 0.0f)), c);
        farthest.raise(r, max_nan(fabsf(below), fabsf(above)), c);
      }
    }
    gap.reduce(sub);
    farthest.reduce(sub);
    Target target(top, output.o, sub, n, out);
    if (!target.stores) continue;
    smallest[target.at] = __uint_as_float(gap.bits[0]);
    largest[target.at] = __uint_as_float(farthest.bits[0]);
    if constexpr (SAVE) near[target.at] = gap.at[0], far[target.at] = farthest.at[0];
  }
}
