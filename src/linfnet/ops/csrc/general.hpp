// Any finite p: compute the maximum first, then the sum of (|d| / max)^p.
//
// Terms below 2^-c times the largest term, c = 26 + log2(features) - log2(p), are dropped: together they change y by
// less than 2^-26 of its value. The features are divided into segments, whose maxima show where the other terms are. If
// a pair has few of these, they are collected over many pairs and raised to the power by full vectors; otherwise all
// terms of the pair are computed. The choice depends only on the data of a block.
#pragma once
#include "elementary.hpp"
#include "infinity.hpp"

namespace linfnet {
namespace {

constexpr int DENSE_STREAK = 15;  // number of pairs computed from all terms before collecting is tried again

inline float sum_of(F a) {
  const F four[4] = {a, set1(0.0f), set1(0.0f), set1(0.0f)};
  float out[4];
  fold4<FoldSum>(four, out);
  return out[0];
}

inline float max_of(const float* x, const float* w, long count) {
  F best[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  for (long k = 0; k < count; k += LANES)
    best[0] = StepMax::apply(best[0], distance_of(x + k, w + k, int(min_of(LANES, count - k))));
  float out[4];
  fold4<FoldMax>(best, out);
  return out[0];
}

inline bool ordinary(float largest) { return largest > 0 && largest < __builtin_inff(); }

// (|d| * shift * inverse)^p, corrected for the rounding error of the reciprocal.
struct Term {
  F shift, inverse, p, offset;

  LINFNET_INLINE Term(const Reciprocal& r, float p)
      : shift(set1(r.shift)), inverse(set1(r.inverse)), p(set1(p)), offset(set1(p * r.residue * LOG2_E)) {}
  LINFNET_INLINE Term(const Reciprocals& r, float p)
      : shift(r.shift), inverse(r.inverse), p(set1(p)), offset(mul(r.residue, set1(p * LOG2_E))) {}

  LINFNET_INLINE F operator()(F size) const {
    return exp2_of(fma(p, log2_of_product(mul(size, shift), inverse), offset));
  }
};

// A sum that also accumulates its rounding errors, which costs much less than the powers it adds.
struct Sum {
  F total = set1(0.0f), error = set1(0.0f);

  LINFNET_INLINE void add_term(F term) {
    const F sum = add(total, term), added = sub(sum, total);
    error = add(error, add(sub(total, sub(sum, added)), sub(term, added)));
    total = sum;
  }
  LINFNET_INLINE float value() const { return sum_of(add(total, error)); }
};

// Return the sum over all features. The rounding errors of the ratios average out unless there are few features.
inline float sum_of_powers(const float* x, const float* w, long count, const Term& term) {
  Sum sum;
  for (long k = 0; k < count; k += LANES) sum.add_term(term(distance_of(x + k, w + k, int(min_of(LANES, count - k)))));
  return sum.value();
}

inline float dense_sum(const float* x, const float* w, long count, const Reciprocal& r, float p) {
  const Term term(r, p);
  if (r.shift != 1.0f || count < BLOCK_FEATURES / 2) return sum_of_powers(x, w, count, term);
  constexpr int N = LOCKSTEP;
  Sum sum;
  long k = 0;
  for (; k + N * LANES <= count; k += N * LANES) {
    F a[N];
    for (int i = 0; i < N; ++i) a[i] = mul(abs(sub(load(x + k + i * LANES), load(w + k + i * LANES))), term.inverse);
    powers<N>(a, term.p, term.offset);
    for (int i = 1; i < N; ++i) a[0] = add(a[0], a[i]);
    sum.add_term(a[0]);
  }
  return sum.value() + (k < count ? sum_of_powers(x + k, w + k, count - k, term) : 0.0f);
}

// Compute y from the maximum and the sum. If the maximum is 0, infinite or NaN, it is itself the distance.
LINFNET_INLINE F finish(F largest, F sum, const Root& root) {
  const Mask usual = within(largest, set1(0x1p-149f), set1(0x1.fffffep127f));
  return select(usual, root.times(largest, select(usual, sum, set1(1.0f))), largest);
}

// Compute the distance of a single pair.
inline float pair_distance(const float* x, const float* w, double p, long features) {
  const float largest = max_of(x, w, features);
  if (!ordinary(largest)) return largest;
  const Reciprocal reciprocal(largest);
  float out[LANES];
  store(out, finish(set1(largest), set1(sum_of_powers(x, w, features, Term(reciprocal, float(p)))), Root(p)));
  return out[0];
}

// The large terms of several pairs, collected before they are raised to the power.
struct Terms {
  static constexpr long ROOM = 1024;
  float *size, *inverse, *offset;
  long count = 0, limit;
  long first[BLOCK_OUTS + 1];
  float* target[BLOCK_OUTS];
  int pairs = 0;

  static long floats(long features) { return 3 * (ROOM + features + 16 * LANES); }
  Terms(float* memory, long features)
      : size(memory),
        inverse(memory + floats(features) / 3),
        offset(memory + floats(features) / 3 * 2),
        limit(features / PACK_SHARE) {}

  // Collect the terms of one pair that are at least `threshold`, from the segments with such terms. The maxima of the
  // segments are BLOCK_PAIRS apart in `maxima`. Return false if there are too many terms.
  bool collect(const float* x, const float* w, const float* maxima, float threshold, long features) {
    const F least = set1(threshold);
    long found = count;
    for (long base = 0; base < features; base += 64 * INDEX_SEGMENT) {
      unsigned long long segments = 0;
      const long many = min_of(64, blocks_of(features - base, INDEX_SEGMENT));
      for (long s = 0; s < many; ++s)
        segments |= (unsigned long long)(maxima[(base / INDEX_SEGMENT + s) * BLOCK_PAIRS] >= threshold) << s;
      for (; segments; segments &= segments - 1) {
        const long begin = base + __builtin_ctzll(segments) * INDEX_SEGMENT;
        const long end = min_of(begin + INDEX_SEGMENT, features);
        for (long k = begin; k < end; k += LANES) {
          const F d = distance_of(x + k, w + k, int(min_of(LANES, end - k)));
          found += pack(size + found, d, not_less(d, least));
        }
        if (found - count > limit) return false;
      }
    }
    first[pairs] = count;
    count = found;
    return true;
  }

  // Store the numbers that `flush` needs for the terms of one pair.
  void finish_pair(const Reciprocal& r, float p, float* result) {
    for (long k = first[pairs]; k < count; k += LANES) {
      if (r.shift != 1.0f) store(size + k, mul(load(size + k), set1(r.shift)));
      store(inverse + k, set1(r.inverse));
      store(offset + k, set1(p * r.residue * LOG2_E));
    }
    target[pairs++] = result;
  }

  // Raise all terms to the power and write the sum of each pair.
  void flush(float p) {
    for (long k = 0; k < count; k += LANES) {
      const F logarithm = log2_of_product(load(size + k), load(inverse + k));
      store(size + k, exp2_of(fma(set1(p), logarithm, load(offset + k))));
    }
    first[pairs] = count;
    for (int i = 0; i < pairs; ++i) {
      F total = set1(0.0f);
      for (long k = first[i]; k < first[i + 1]; k += LANES)
        total = add(total, load_part(size + k, int(min_of(LANES, first[i + 1] - k))));
      *target[i] = sum_of(total);
    }
    count = pairs = 0;
  }
};

void general_power(const float* x, const float* w, float* y, double exact_p, Shape shape) {
  const long in = shape.features, pages = blocks_of(in, INDEX_SEGMENT);
  const float p = float(exact_p);
  const double c = 26.0 + __builtin_log2(double(in)) - __builtin_log2(exact_p);
  const float cut = float(__builtin_exp2(-c / exact_p));
  for_blocks(shape, [&](long row, long rows, long out, long outs) {
    const float* top = x + row * in;
    const float* left = w + out * in;
    alignas(64) float best[BLOCK_PAIRS] = {};
    alignas(64) float sums[BLOCK_OUTS] = {};
    float* maxima = static_cast<float*>(scratch((pages * BLOCK_PAIRS + Terms::floats(in)) * sizeof(float)));
    run_block<StepMax, INDEX_SEGMENT>(&top, left, rows, outs, in, [&](long k, const float* partial) {
      keep_largest(partial, best);
      __builtin_memcpy(maxima + k / INDEX_SEGMENT * BLOCK_PAIRS, partial, BLOCK_PAIRS * sizeof(float));
    });
    Terms terms(maxima + pages * BLOCK_PAIRS, in);
    const Root root(exact_p);
    int streak = 0;
    for (long r = 0; r < rows; ++r) {
      const float* largest = best + r * BLOCK_OUTS;
      for (long o = 0; o < outs; ++o) {
        sums[o] = 1.0f;
        if (!ordinary(largest[o])) continue;
        const Reciprocal reciprocal(largest[o]);
        const float *a = top + r * in, *b = left + o * in;
        if (streak == 0 && terms.collect(a, b, maxima + r * BLOCK_OUTS + o, largest[o] * cut, in)) {
          terms.finish_pair(reciprocal, p, sums + o);
          if (terms.count > Terms::ROOM) terms.flush(p);
        } else {
          sums[o] = dense_sum(a, b, in, reciprocal, p);
          streak = streak == 0 ? DENSE_STREAK : streak - 1;
        }
      }
      terms.flush(p);
      float* target = y + (row + r) * shape.outs + out;
      by_vectors(outs,
                 [&](long o, int n) { store_part(target + o, finish(load(largest + o), load(sums + o), root), n); });
    }
  });
}

}  // namespace
}  // namespace linfnet
