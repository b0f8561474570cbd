// p = infinity. Subtraction, absolute value and maximum are exact or correctly rounded, so all instruction-set levels
// give the same bits.
//
// Maxima are computed from bit patterns as integers: non-negative numbers keep their order, and NaN is the largest.
#pragma once
#include "tile.hpp"

namespace linfnet {
namespace {

constexpr long INDEX_SEGMENT = 128;  // features per segment; the index of a maximum is searched in one segment

struct StepMax {
  static constexpr int PLANES = 1, INPUTS = 1, ROWS = TILE_ROWS;
  typedef FoldMax Fold;
  static LINFNET_INLINE F apply(F acc, F d) { return as_float(maxi(as_int(acc), as_int(abs(d)))); }
};

// Plane 0 is the gap between box and w, plane 1 the farthest distance. Negative floats are also negative as integers.
struct StepBounds {
  static constexpr int PLANES = 2, INPUTS = 2, ROWS = TILE_ROWS / 2;
  typedef FoldMax Fold;
  static LINFNET_INLINE void apply(F& gap, F& farthest, F lower, F upper, F w) {
    const F below = sub(lower, w), above = sub(upper, w);
    gap = as_float(maxi(as_int(gap), maxi(as_int(below), as_int(sub(w, upper)))));
    farthest = as_float(maxi(as_int(farthest), as_int(abs(below))));
    farthest = as_float(maxi(as_int(farthest), as_int(abs(above))));
  }
};

LINFNET_INLINE F distance_of(const float* x, const float* w, int n) {
  return abs(n == LANES ? sub(load(x), load(w)) : sub(load_part(x, n), load_part(w, n)));
}

// Return the first feature of a segment at which size(k, lanes) has the bits of `value`, the maximum of the segment.
template <class Size> LINFNET_INLINE int first_at(float value, long begin, long features, Size size) {
  const I wanted = as_int(set1(value));
  // No size is greater than the maximum, so "not less" means equal. The integer comparison also works for NaN.
  const auto hits = [&](long k, int n) { return ~bits(greater(wanted, as_int(size(k, n)))) & ((1u << n) - 1); };
  if (features - begin < INDEX_SEGMENT) {
    for (long k = begin; k < features; k += LANES)
      if (const unsigned found = hits(k, int(min_of(LANES, features - k)))) return int(k) + __builtin_ctz(found);
    return int(begin);
  }
  // This code has no branches, because the position of the maximum cannot be predicted.
  unsigned long long half[2] = {0, 0};
  for (int i = 0; i < INDEX_SEGMENT / LANES; ++i)
    half[i * LANES / 64] |= (unsigned long long)hits(begin + i * LANES, LANES) << (i * LANES % 64);
  return int(begin) + (half[0] ? __builtin_ctzll(half[0]) : 64 + __builtin_ctzll(half[1] | 1ull << 63));
}

inline void keep_largest(const float* partial, float* best) {
  for (long i = 0; i < BLOCK_PAIRS; i += LANES)
    store(best + i, as_float(maxi(as_int(load(best + i)), as_int(load(partial + i)))));
}

// The same, and store in `where` the segment in which each maximum is first attained.
inline void keep_largest(const float* partial, float* best, int* where, long k) {
  for (long i = 0; i < BLOCK_PAIRS; i += LANES) {
    const F old = load(best + i), now = load(partial + i);
    const Mask better = greater(as_int(now), as_int(old));
    store(best + i, select(better, now, old));
    const I before = as_int(load(reinterpret_cast<float*>(where + i)));
    store(where + i, select(better, set1i(int(k)), before));
  }
}

template <class T> void copy_rows(const T* page, T* out, long rows, long outs, long stride) {
  for (long r = 0; r < rows; ++r) __builtin_memcpy(out + r * stride, page + r * BLOCK_OUTS, outs * sizeof(T));
}

void infinity(const float* x, const float* w, float* y, int* index, Shape shape) {
  const long in = shape.features;
  for_blocks(shape, [&](long row, long rows, long out, long outs) {
    const float* top = x + row * in;
    const float* left = w + out * in;
    alignas(64) float best[BLOCK_PAIRS] = {};
    if (!index) {
      run_block<StepMax>(&top, left, rows, outs, in, [&](long, const float* p) { keep_largest(p, best); });
      copy_rows(best, y + row * shape.outs + out, rows, outs, shape.outs);
      return;
    }
    alignas(64) int where[BLOCK_PAIRS] = {};
    run_block<StepMax, INDEX_SEGMENT>(&top, left, rows, outs, in,
                                      [&](long k, const float* p) { keep_largest(p, best, where, k); });
    for (long r = 0; r < rows; ++r)
      for (long o = 0; o < outs; ++o) {
        int& found = where[r * BLOCK_OUTS + o];
        const float *a = top + r * in, *b = left + o * in;
        found =
            first_at(best[r * BLOCK_OUTS + o], found, in, [&](long k, int n) { return distance_of(a + k, b + k, n); });
      }
    copy_rows(best, y + row * shape.outs + out, rows, outs, shape.outs);
    copy_rows(where, index + row * shape.outs + out, rows, outs, shape.outs);
  });
}

void bounds(const float* lower, const float* upper, const float* w, float* smallest, float* largest, int* near,
            int* far, Shape shape) {
  const long in = shape.features;
  for_blocks(shape, [&](long row, long rows, long out, long outs) {
    const float* box[2] = {lower + row * in, upper + row * in};
    const float* left = w + out * in;
    alignas(64) float best[2][BLOCK_PAIRS] = {};
    alignas(64) int where[2][BLOCK_PAIRS] = {};
    run_block<StepBounds, INDEX_SEGMENT>(box, left, rows, outs, in, [&](long k, const float* p) {
      keep_largest(p, best[0], where[0], k);
      keep_largest(p + BLOCK_PAIRS, best[1], where[1], k);
    });
    for (long r = 0; r < rows; ++r)
      for (long o = 0; o < outs; ++o) {
        const long i = r * BLOCK_OUTS + o;
        const float *a = box[0] + r * in, *b = box[1] + r * in, *c = left + o * in;
        const auto gap = [&](long k, int n) {
          const F anchor = load_part(c + k, n);
          const F below = sub(load_part(a + k, n), anchor), above = sub(anchor, load_part(b + k, n));
          return as_float(maxi(set1i(0), maxi(as_int(below), as_int(above))));
        };
        const auto farthest = [&](long k, int n) {
          const F below = distance_of(a + k, c + k, n), above = distance_of(b + k, c + k, n);
          return as_float(maxi(as_int(below), as_int(above)));
        };
        // A NaN with a negative sign does not appear in the gap, but always in the farthest distance.
        const bool nan = best[1][i] != best[1][i];
        if (near || nan) where[1][i] = first_at(best[1][i], where[1][i], in, farthest);
        if (nan) {
          best[0][i] = best[1][i];
          where[0][i] = where[1][i];
        } else if (near) {
          where[0][i] = first_at(best[0][i], where[0][i], in, gap);
        }
      }
    const long corner = row * shape.outs + out;
    copy_rows(best[0], smallest + corner, rows, outs, shape.outs);
    copy_rows(best[1], largest + corner, rows, outs, shape.outs);
    if (near) copy_rows(where[0], near + corner, rows, outs, shape.outs);
    if (far) copy_rows(where[1], far + corner, rows, outs, shape.outs);
  });
}

}  // namespace
}  // namespace linfnet
