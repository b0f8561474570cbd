// Finds the terms that count: 64 rows x 64 outputs per block, 8 x 4 pairs per thread, a list per warp.
// The maxima over every `sample`-th chunk of 16 features give first thresholds; the thresholds rise with the maxima. The
// maximum of four neighbouring features is compared at once; what exceeds is looked at again and appended by the warp.
#include "terms.cuh"

#define TILE 64
#define DEPTH 16
#define QUEUE 512
#define PITCH 20  // eight neighbouring rows lie in eight different quads of banks

struct Stage {
  float x[TILE][PITCH], w[TILE][PITCH];
};

// Four floats at once where rows are aligned (VECTOR), one by one where not; zero beyond the last feature.
static __device__ __forceinline__ void copy_async(float* to, const float* from, int left) {
  u32 address = (u32)__cvta_generic_to_shared(to);
#if VECTOR
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(left > 0 ? 16 : 0) : "memory");
#else
#pragma unroll
  for (int j = 0; j < 4; ++j)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address + 4 * j), "l"(left > j ? from + j : from),
                 "r"(left > j ? 4 : 0)
                 : "memory");
#endif
}

// Where this thread's share of a chunk lies: one quad of two rows of each matrix. Beyond the last row, the last again.
struct Share {
  const float *x, *w;
  u32 x_at[2], w_at[2];
  int row, column;
};

static __device__ __forceinline__ void load(Stage& stage, const Share& share, int k, int features) {
  int left = features - k - share.column;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    u32 step = left > 0 ? k : 0;
    copy_async(&stage.x[share.row + 32 * part][share.column], share.x + (share.x_at[part] + step), left);
    copy_async(&stage.w[share.row + 32 * part][share.column], share.w + (share.w_at[part] + step), left);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

static __device__ __forceinline__ void loaded() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

static __device__ __forceinline__ float largest4(float4 a, float4 b) {
  return larger(larger(fabsf(a.x - b.x), fabsf(a.y - b.y)), larger(fabsf(a.z - b.z), fabsf(a.w - b.w)));
}

static __device__ __forceinline__ float4 quad_of(const float* row, int group) {
  return *reinterpret_cast<const float4*>(row + group * 4);
}

// The feature in which a row is largest: where a maximum of |x - w| is likely. A warp per row.
extern "C" __global__ void __launch_bounds__(256)
widest(const float* __restrict__ a, int* __restrict__ index, int rows, int features) {
  int lane = threadIdx.x & 31;
  i64 row = ((i64)blockIdx.x * 256 + threadIdx.x) >> 5;
  if (row >= rows) return;
  u32 best = 0;
  int where = lane < features ? lane : 0;
#pragma unroll 8
  for (int k = lane; k < features; k += 32) {
    u32 size = __float_as_uint(fabsf(a[row * features + k]));
    if (size > best) {
      best = size;
      where = k;
    }
  }
  u32 top = __reduce_max_sync(FULL, best);
  where = __reduce_min_sync(FULL, best == top ? (u32)where : FULL);
  if (lane == 0) index[row] = where;
}

// Where a warp appends: `left` free places from `at` on, the last of `pages` pages; `base` terms so far.
struct __align__(16) Tail {
  u32 at;
  int left, base, pages;
};

extern "C" __global__ void __launch_bounds__(128, 5)
find(const float* __restrict__ x, const float* __restrict__ w, const int* __restrict__ wide_x,
     const int* __restrict__ wide_w, float* __restrict__ peaks, u16* __restrict__ codes, float* __restrict__ values,
     int* __restrict__ offsets, int* __restrict__ table, int* control, int n, int out, int features, int sample,
     int pool, float cut) {
  __shared__ __align__(16) Stage stages[2];
  __shared__ float tops[32][128];
  __shared__ u16 queues[4][QUEUE];
  __shared__ Tail tails[4];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  i64 top = (i64)blockIdx.x * TILE, left = (i64)blockIdx.y * TILE;
  // Pairs of a thread: rows row + 4 i, outputs column + 8 j; the first pair is the highest bit of a mask.
  int row = (warp >> 1) * PATCH + (lane >> 3), column = (warp & 1) * PATCH + (lane & 7);
  i64 patch = ((i64)blockIdx.x * 2 + (warp >> 1)) * (2 * gridDim.y) + blockIdx.y * 2 + (warp & 1);
  int ranges = (features + RANGE - 1) / RANGE;
  offsets += patch * (ranges + 1);
  table += patch * TABLE;

  Share share;
  share.row = threadIdx.x >> 2, share.column = (threadIdx.x & 3) * 4;
  share.x = x + top * features, share.w = w + left * features;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    int quad = min(share.column, features - 1);
    share.x_at[part] = (u32)min((i64)share.row + 32 * part, n - 1 - top) * features + quad;
    share.w_at[part] = (u32)min((i64)share.row + 32 * part, out - 1 - left) * features + quad;
  }

  float bar[8][4];  // first maxima, then thresholds
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      i64 b = min(top + row + 4 * i, (i64)n - 1), o = min(left + column + 8 * j, (i64)out - 1);
      int kx = wide_x[b], kw = wide_w[o];
      bar[i][j] = larger(fabsf(x[b * features + kx] - w[o * features + kx]),
                         fabsf(x[b * features + kw] - w[o * features + kw]));
    }

  int current = 0;
  load(stages[0], share, 0, features);
  for (int k = 0; k < features; k += DEPTH * sample, current ^= 1) {
    loaded();
    __syncthreads();
    int next = k + DEPTH * sample;
    load(stages[current ^ 1], share, next < features ? next : 0, features);
    const Stage& stage = stages[current];
#pragma unroll 1
    for (int g = 0; g < DEPTH / 4; ++g) {
      float4 e[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) e[j] = quad_of(stage.w[column + 8 * j], g);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float4 a = quad_of(stage.x[row + 4 * i], g);
#pragma unroll
        for (int j = 0; j < 4; ++j) bar[i][j] = larger(bar[i][j], largest4(a, e[j]));
      }
    }
  }

  u32 valid = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      tops[i * 4 + j][threadIdx.x] = bar[i][j];
      bar[i][j] = threshold(bar[i][j], cut);
      if (top + row + 4 * i < n && left + column + 8 * j < out) valid |= 0x80000000u >> (i * 4 + j);
    }

  bool raised = false, over = false;
  if (lane == 0) tails[warp] = {0, 0, 0, 0};
  for (int k = 0; k < features; k += DEPTH, current ^= 1) {
    loaded();
    if (k % RANGE == 0) {
      if (over) *(volatile int*)control = 1;
      if (__syncthreads_or(over || (threadIdx.x == 0 && *(volatile int*)control))) return;  // the dense kernels' turn
      if (lane == 0) offsets[k / RANGE] = tails[warp].base;
      if (__any_sync(FULL, raised)) {
#pragma unroll
        for (int q = 0; q < 32; ++q) bar[q >> 2][q & 3] = threshold(tops[q][threadIdx.x], cut);
        raised = false;
      }
    } else {
      __syncthreads();
    }
    if (k + DEPTH < features) load(stages[current ^ 1], share, k + DEPTH, features);
    const Stage& stage = stages[current];

    u32 hits[4] = {0, 0, 0, 0};
#pragma unroll 1
    for (int g = 0; g < DEPTH / 4; ++g) {
      float4 e[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) e[j] = quad_of(stage.w[column + 8 * j], g);
      u32 below = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float4 a = quad_of(stage.x[row + 4 * i], g);
#pragma unroll
        for (int j = 0; j < 4; ++j)  // the sign of (maximum - threshold), pushed in from the right
          below = __funnelshift_l(__float_as_uint(largest4(a, e[j]) - bar[i][j]), below, 1);
      }
      hits[0] = hits[1];
      hits[1] = hits[2];
      hits[2] = hits[3];
      hits[3] = ~below & valid;
    }

    while (__any_sync(FULL, hits[0] | hits[1] | hits[2] | hits[3])) {
      // The hits of all lanes in one queue, so that every lane gets the same share of the work.
      int mine = __popc(hits[0]) + __popc(hits[1]) + __popc(hits[2]) + __popc(hits[3]), end = mine;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        int before = __shfl_up_sync(FULL, end, step);
        if (lane >= step) end += before;
      }
      // Lanes whose hits no longer fit wait for the next round.
      bool fits = end <= QUEUE;
      int queued = (int)__reduce_max_sync(FULL, fits ? (u32)end : 0u);
      u16* place = &queues[warp][fits ? end - mine : 0];
#pragma unroll
      for (int g = 0; g < 4; ++g)
        if (fits)
          while (hits[g]) {
            int q = __clz(hits[g]);
            hits[g] ^= 0x80000000u >> q;
            *place++ = (u16)(lane << 7 | q << 2 | g);
          }
      __syncwarp();

      for (int first = 0; first < queued; first += 32) {
        u32 keep = 0, code = 0;
        float4 d = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first + lane < queued) {
          u32 item = queues[warp][first + lane], g = item & 3, q = item >> 2 & 31, owner = item >> 7;
          u32 in_row = (owner >> 3) + 4 * (q >> 2), in_column = (owner & 7) + 8 * (q & 3);
          float4 a = quad_of(stage.x[(warp >> 1) * PATCH + in_row], g);
          float4 e = quad_of(stage.w[(warp & 1) * PATCH + in_column], g);
          d = make_float4(a.x - e.x, a.y - e.y, a.z - e.z, a.w - e.w);
          float* most = &tops[q][warp * 32 + owner];
          float before = *most, bound = threshold(before, cut), best = largest4(a, e);
          keep = (u32)!(fabsf(d.x) < bound) | (u32)!(fabsf(d.y) < bound) << 1 | (u32)!(fabsf(d.z) < bound) << 2 |
                 (u32)!(fabsf(d.w) < bound) << 3;
          if (!(best <= before)) {  // bits of numbers >= 0 order like the numbers, NaN above all
            atomicMax(reinterpret_cast<u32*>(most), __float_as_uint(best));
            raised = true;
          }
          code = in_row << 11 | in_column << 6 | (k % RANGE + 4 * g);
        }
        while (u32 some = __ballot_sync(FULL, keep)) {
          int count = __popc(some), rank = __popc(some & ((1u << lane) - 1));
          Tail tail = tails[warp];
          u32 next = 0;
          if (count > tail.left) {
            if (lane == 0) next = atomicAdd(control + 1, 1);
            next = __shfl_sync(FULL, next, 0);
            over |= next >= (u32)pool || tail.pages >= TABLE;
            if (lane == 0 && !over) table[tail.pages] = next;
            next *= PAGE;
          }
          if (keep && !over) {
            u32 at = rank < tail.left ? tail.at + rank : next + rank - tail.left;
            codes[at] = (u16)(code + __ffs(keep) - 1);
            values[at] = keep & 1 ? d.x : keep & 2 ? d.y : keep & 4 ? d.z : d.w;
          }
          __syncwarp();
          bool turned = count > tail.left;
          tail.at = turned ? next + count - tail.left : tail.at + count;
          tail.left += (turned ? PAGE : 0) - count;
          tail.base += count;
          tail.pages += turned;
          if (lane == 0) tails[warp] = tail;
          keep &= keep - 1;
          __syncwarp();
        }
      }
      __syncwarp();
      if (over) break;
    }
  }
  if (lane == 0) {
    offsets[ranges] = tails[warp].base;
    if (over) *(volatile int*)control = 1;
  }
#pragma unroll
  for (int q = 0; q < 32; ++q) {
    int pair = ((lane >> 3) + 4 * (q >> 2)) * PATCH + (lane & 7) + 8 * (q & 3);
    peaks[patch * PAIRS + pair] = tops[q][threadIdx.x];
  }
}
