// Integer p with a short chain of multiplications: the sum of |d|^p, without a separate pass for the maximum.
//
// x and w are scaled by a power of two, estimated from a few sampled pairs, so that the sums stay in the middle of the
// float range. A pair whose sum is NaN, or too large or small to be accurate, is computed again with its maximum.
#pragma once

#include "general.hpp"

namespace linfnet {
namespace {

// Features per uncompensated sum; more for large P, because the P-th root reduces the rounding error.
template <int P> constexpr long SUM_SEGMENT = (P < 4 ? 4 : 16) * LANES;
constexpr float SAFE_LOW = 0x1p-85f, SAFE_HIGH = 0x1p120f;

template <int P> LINFNET_INLINE F chain(F a) {
  if constexpr (P == 1) {
    return a;
  } else if constexpr (P % 2 == 0) {
    const F half = chain<P / 2>(a);
    return mul(half, half);
  } else {
    return mul(chain<P - 1>(a), a);
  }
}

template <int P> struct StepPower {
  static constexpr int PLANES = 1, INPUTS = 1, ROWS = TILE_ROWS;
  typedef FoldSum Fold;
  static LINFNET_INLINE F apply(F acc, F d) {
    if constexpr (P == 1) {
      return add(acc, abs(d));
    } else if constexpr (P % 2 == 0) {
      const F half = chain<P / 2>(d);
      return fma(half, half, acc);
    } else {
      const F size = abs(d);
      return fma(chain<P - 1>(size), size, acc);
    }
  }
};

template <int P> LINFNET_INLINE F chain_root(F sum) {
  if constexpr (P == 1)
    return sum;
  else if constexpr (P % 2 == 0)
    return chain_root<P / 2>(sqrt(sum));
  else
    return Root(P)(sum);
}

// Return the exponent of the power of two by which x and w are multiplied: 0 if the sampled distances are in range.
inline int sampled_shift(const float* x, const float* w, int p, const Shape& shape) {
  constexpr long SAMPLES = 8;
  int lowest = 1000, highest = -1000;
  for (long s = 0; s < SAMPLES; ++s) {
    const long row = s * (shape.rows - 1) / (SAMPLES - 1);
    const long out = (SAMPLES - 1 - s) * (shape.outs - 1) / (SAMPLES - 1);
    const float largest = max_of(x + row * shape.features, w + out * shape.features, shape.features);
    if (!(largest > 0 && largest < __builtin_inff())) continue;
    const int exponent = __builtin_ilogbf(largest);
    if (exponent < lowest) lowest = exponent;
    if (exponent > highest) highest = exponent;
  }
  // Leave room for sums of many terms and for pairs that differ from the samples.
  if (lowest > highest || (lowest * p >= -50 && highest * p <= 70)) return 0;
  const int shift = -(lowest + highest) / 2;
  return shift < -120 ? -120 : shift > 120 ? 120 : shift;
}

struct Scaled {
  float* memory = nullptr;
  Scaled() = default;
  Scaled(const Scaled&) = delete;
  ~Scaled() { release(memory); }

  const float* operator()(const float* a, long rows, long features, float scale, int threads) {
    memory = static_cast<float*>(allocate(rows * features * sizeof(float)));
    parallel_for(rows, threads, [&](long r) {
      by_vectors(features, [&](long k, int n) {
        store_part(memory + r * features + k, mul(load_part(a + r * features + k, n), set1(scale)), n);
      });
    });
    return memory;
  }
};

template <int P> void chain_power(const float* x, const float* w, float* y, Shape shape) {
  const long in = shape.features;
  const int shift = sampled_shift(x, w, P, shape);
  Scaled x_memory, w_memory;
  const float *xs = x, *ws = w;
  if (shift != 0) {
    xs = x_memory(x, shape.rows, in, __builtin_ldexpf(1.0f, shift), shape.threads);
    ws = w_memory(w, shape.outs, in, __builtin_ldexpf(1.0f, shift), shape.threads);
  }
  const float back = __builtin_ldexpf(1.0f, -shift);
  for_blocks(shape, [&](long row, long rows, long out, long outs) {
    const float* top = xs + row * in;
    // Equal terms are always rounded in the same direction: segments are short, and rounding errors are compensated.
    alignas(64) float total[BLOCK_PAIRS] = {}, errors[BLOCK_PAIRS] = {};
    run_block<StepPower<P>, SUM_SEGMENT<P>>(&top, ws + out * in, rows, outs, in, [&](long, const float* partial) {
      for (long i = 0; i < BLOCK_PAIRS; i += LANES) {
        const F a = load(total + i), b = load(partial + i), sum = add(a, b), added = sub(sum, a);
        const F error = add(sub(a, sub(sum, added)), sub(b, added));
        store(total + i, sum);
        store(errors + i, add(load(errors + i), error));
      }
    });
    for (long r = 0; r < rows; ++r) {
      float* target = y + (row + r) * shape.outs + out;
      by_vectors(outs, [&](long o, int n) {
        const F sum = add(load(total + r * BLOCK_OUTS + o), load(errors + r * BLOCK_OUTS + o));
        const Mask safe = within(sum, set1(SAFE_LOW), set1(SAFE_HIGH));
        const F root = chain_root<P>(select(safe, sum, set1(1.0f)));
        store_part(target + o, mul(root, set1(back)), n);
        for (unsigned lost = ~bits(safe) & ((1u << n) - 1); lost; lost &= lost - 1) {
          const long j = o + __builtin_ctz(lost);
          target[j] = pair_distance(x + (row + r) * in, w + (out + j) * in, P, in);
        }
      });
    }
  });
}

void power(const float* x, const float* w, float* y, double p, Shape shape) {
#define LINFNET_CHAIN(P) \
  if (p == P) return chain_power<P>(x, w, y, shape);
  LINFNET_CHAINS(LINFNET_CHAIN)
#undef LINFNET_CHAIN
  general_power(x, w, y, p, shape);
}

}  // namespace
}  // namespace linfnet
