// The loops of all forward kernels: tiles of (row, output) pairs in registers, and vectors of consecutive features.
//
// A Step adds one vector of features to PLANES accumulators per pair. The features are divided into segments; after
// each segment, the accumulators are reduced to one number per pair and passed to `merge`. Adding the results of
// segments causes smaller rounding errors than one long sum.
#pragma once
#include "kernels.hpp"

namespace linfnet {
namespace {

constexpr long BLOCK_ROWS = 32, BLOCK_OUTS = 32, BLOCK_PAIRS = BLOCK_ROWS * BLOCK_OUTS;
constexpr long BLOCK_FEATURES = 512;  // 4 + 4 rows of 2 KiB fit in the L1 cache

#define LINFNET_INLINE inline __attribute__((always_inline))

template <class Step, int ROWS> struct Tile {
  F acc[Step::PLANES][ROWS][TILE_OUTS];

  template <class Load>
  LINFNET_INLINE void advance(const float* const* x, const float* const* w, long stride, long k, Load get) {
    F rows[Step::INPUTS][ROWS];
    for (int s = 0; s < Step::INPUTS; ++s)
      for (int r = 0; r < ROWS; ++r) rows[s][r] = get(x[s] + r * stride + k);
    for (int o = 0; o < TILE_OUTS; ++o) {
      const F column = get(w[o] + k);
      for (int r = 0; r < ROWS; ++r) {
        if constexpr (Step::PLANES == 1)
          acc[0][r][o] = Step::apply(acc[0][r][o], sub(rows[0][r], column));
        else
          Step::apply(acc[0][r][o], acc[1][r][o], rows[0][r], rows[1][r], column);
      }
    }
  }

  // out: PLANES matrices [BLOCK_ROWS, BLOCK_OUTS], starting at the first pair of this tile.
  LINFNET_INLINE void run(const float* const* x, const float* const* w, long stride, long count, float* out) {
    for (auto& plane : acc)
      for (auto& row : plane)
        for (F& a : row) a = set1(0.0f);
    long k = 0;
    for (; k + LANES <= count; k += LANES) advance(x, w, stride, k, [](const float* p) { return load(p); });
    const int rest = int(count - k);
    if (rest > 0) advance(x, w, stride, k, [rest](const float* p) { return load_part(p, rest); });
    for (int s = 0; s < Step::PLANES; ++s)
      for (int r = 0; r < ROWS; ++r) fold4<typename Step::Fold>(acc[s][r], out + s * BLOCK_PAIRS + r * BLOCK_OUTS);
  }
};

template <class Step, int ROWS> __attribute__((noinline)) void strip(const float* const* x, const float* w, long stride,
                                                                     long count, long outs, float* out) {
  for (long o = 0; o < outs; o += TILE_OUTS) {
    const float* columns[TILE_OUTS];
    for (int j = 0; j < TILE_OUTS; ++j) columns[j] = w + min_of(o + j, outs - 1) * stride;
    Tile<Step, ROWS> tile;
    tile.run(x, columns, stride, count, out + o);
  }
}

// Process a block of at most BLOCK_ROWS x BLOCK_OUTS pairs; call merge(first feature, matrices) after each segment.
template <class Step, long SEGMENT = BLOCK_FEATURES, class Merge>
void run_block(const float* const* x, const float* w, long rows, long outs, long features, Merge merge) {
  alignas(64) float partial[Step::PLANES * BLOCK_PAIRS];
  for (float& value : partial) value = 0.0f;
  for (long k = 0; k < features; k += SEGMENT) {
    const long count = min_of(SEGMENT, features - k);
    for (long r = 0; r < rows;) {
      const float* top[Step::INPUTS];
      for (int s = 0; s < Step::INPUTS; ++s) top[s] = x[s] + r * features + k;
      float* out = partial + r * BLOCK_OUTS;
      if (rows - r >= Step::ROWS) {
        strip<Step, Step::ROWS>(top, w + k, features, count, outs, out);
        r += Step::ROWS;
      } else {
        strip<Step, 1>(top, w + k, features, count, outs, out);
        r += 1;
      }
    }
    merge(k, partial);
  }
}

// Call body(row, rows, out, outs) for every block of pairs, in parallel.
template <class Body> void for_blocks(const Shape& shape, Body body) {
  const long across = blocks_of(shape.outs, BLOCK_OUTS);
  parallel_for(across * blocks_of(shape.rows, BLOCK_ROWS), shape.threads, [&](long i) {
    const long row = i / across * BLOCK_ROWS, out = i % across * BLOCK_OUTS;
    body(row, min_of(BLOCK_ROWS, shape.rows - row), out, min_of(BLOCK_OUTS, shape.outs - out));
  });
}

// Call call(offset, lanes) for each vector of `count` consecutive numbers.
template <class Call> LINFNET_INLINE void by_vectors(long count, Call call) {
  for (long o = 0; o < count; o += LANES) call(o, int(min_of(LANES, count - o)));
}

}  // namespace
}  // namespace linfnet
