// Weighted sums of the largest |x - w| of a pair. All levels give the same bits as the reference.
//
// First pass: the sizes |x - w| are stored in a buffer, and the maxima of CLASSES classes of features are found. The
// T-th largest of these maxima is a lower bound on the T-th largest size. Second pass: the sizes that reach this bound,
// usually little more than T, are the candidates, which are sorted. Almost no branch depends on the data.
#pragma once
#include "infinity.hpp"

namespace linfnet {
namespace {

constexpr int CLASSES = 16, MOST_CANDIDATES = 128;
constexpr long WORD = 64, SEGMENT_WORDS = 32;  // features of a word of 64 bits; words that are searched together
static_assert(MOST_TERMS <= CLASSES && CLASSES % LANES == 0 && MOST_CANDIDATES >= MOST_TERMS + WORD, "");

// Sizes are bits of numbers that are not negative, which are ordered as integers; NaN is the largest.
struct Largest {
  int size[MOST_TERMS];
  int feature[MOST_TERMS];
};

LINFNET_INLINE I load_ints(const int* p) { return as_int(load(reinterpret_cast<const float*>(p))); }

// The candidates are in the order of their features, unless some were removed.
struct Candidates {
  alignas(64) int size[MOST_CANDIDATES + LANES];
  int feature[MOST_CANDIDATES];
  int count = 0;

  // Find the `terms` largest candidates in descending order; of equal ones, the first is the larger one. The rank of a
  // candidate is the number of those before it in this order.
  void sort(int terms, Largest& found) {
    store(size + count, set1i(-1));
    for (int i = 0; i < count; ++i) {
      const I own = set1i(size[i]);
      int rank = 0;
      for (int j = 0; j < count; j += LANES) {
        const I other = load_ints(size + j);
        const unsigned long long before = i > j ? (1ull << min_of(i - j, LANES)) - 1 : 0;
        rank += __builtin_popcountll(bits(greater(other, own)) | (~bits(greater(own, other)) & before));
      }
      if (rank < terms) found.size[rank] = size[i], found.feature[rank] = feature[i];
    }
  }

  // Remove all but the `terms` largest candidates, and return the smallest of these.
  int reduce(int terms, Largest& found) {
    sort(terms, found);
    count = terms;
    __builtin_memcpy(size, found.size, terms * sizeof(int));
    __builtin_memcpy(feature, found.feature, terms * sizeof(int));
    return found.size[terms - 1];
  }
};

// Return the largest class maximum that at least `terms` class maxima reach.
LINFNET_INLINE int bound_of(const I* classes, int terms) {
  alignas(64) int maxima[CLASSES];
  for (int v = 0; v < CLASSES / LANES; ++v) store(maxima + v * LANES, classes[v]);
  int bound = -1;
  for (int c = 0; c < CLASSES; ++c) {
    int reached = CLASSES;
    for (int v = 0; v < CLASSES / LANES; ++v)
      reached -= __builtin_popcount(bits(greater(set1i(maxima[c]), classes[v])));
    const int allowed = reached >= terms ? maxima[c] : -1;
    bound = allowed > bound ? allowed : bound;
  }
  return bound;
}

// size(k, n) returns the sizes of features k to k + n - 1. `buffer` has room for them, rounded up to whole words.
template <class Size>
LINFNET_INLINE void find_largest(long features, int terms, int* buffer, Size size, Largest& found) {
  I classes[CLASSES / LANES];
  for (I& one : classes) one = set1i(-1);
  long k = 0;
  for (; k + CLASSES <= features; k += CLASSES)
    for (int v = 0; v < CLASSES / LANES; ++v) {
      const I sizes = as_int(size(k + v * LANES, LANES));
      store(buffer + k + v * LANES, sizes);
      classes[v] = maxi(classes[v], sizes);
    }
  // The remaining features are in no class; they can only raise the result.
  for (; k < features; k += LANES) {
    const int n = int(min_of(LANES, features - k));
    store_part(reinterpret_cast<float*>(buffer) + k, size(k, n), n);
  }
  for (; k % WORD; k += LANES) store(buffer + k, set1i(-1));
  for (long rest = features; rest < k && rest % LANES; ++rest) buffer[rest] = -1;

  const long words = blocks_of(features, WORD);
  Candidates candidates;
  int limit = bound_of(classes, terms) - 1;  // sizes that are not above the limit are no candidates
  for (long first = 0; first < words; first += SEGMENT_WORDS) {
    unsigned long long found_in[SEGMENT_WORDS];  // the words with a candidate, and their numbers
    long number[SEGMENT_WORDS];
    int some = 0;
    for (long word = first; word < min_of(words, first + SEGMENT_WORDS); ++word) {
      unsigned long long above = 0;
      for (int v = 0; v < WORD / LANES; ++v)
        above |= (unsigned long long)bits(greater(load_ints(buffer + word * WORD + v * LANES), set1i(limit)))
                 << v * LANES;
      found_in[some] = above, number[some] = word;
      some += above != 0;
    }
    for (int i = 0; i < some; ++i) {
      // Many equal sizes: of those that are left, only larger ones matter.
      if (candidates.count > MOST_CANDIDATES - WORD) limit = candidates.reduce(terms, found);
      for (unsigned long long above = found_in[i]; above; above &= above - 1) {
        const int feature = int(number[i] * WORD) + __builtin_ctzll(above);
        candidates.size[candidates.count] = buffer[feature];
        candidates.feature[candidates.count] = feature;
        candidates.count += buffer[feature] > limit;
      }
    }
  }
  candidates.sort(terms, found);
}

// The order of the sum is part of the result: from the smallest term to the largest.
LINFNET_INLINE float weighted_sum(const Largest& found, const Terms& terms) {
  float sum = 0.0f;
  for (int t = terms.count - 1; t >= 0; --t) {
    float size;
    __builtin_memcpy(&size, &found.size[t], sizeof size);
    const float term = terms.factor[t] * size;
    sum = t == terms.count - 1 ? term : sum + term;
  }
  return sum;
}

int* sizes_buffer(long features) { return static_cast<int*>(scratch(blocks_of(features, WORD) * WORD * sizeof(int))); }

void sorted(const float* x, const float* w, float* y, int* index, Terms terms, Shape shape) {
  const long in = shape.features;
  for_blocks(shape, [&](long row, long rows, long out, long outs) {
    int* const buffer = sizes_buffer(in);
    for (long o = out; o < out + outs; ++o)
      for (long r = row; r < row + rows; ++r) {
        const float *a = x + r * in, *b = w + o * in;
        Largest found;
        find_largest(
            in, terms.count, buffer, [&](long k, int n) { return distance_of(a + k, b + k, n); }, found);
        const long pair = r * shape.outs + o;
        y[pair] = weighted_sum(found, terms);
        if (index) __builtin_memcpy(index + pair * terms.count, found.feature, terms.count * sizeof(int));
      }
  });
}

void sorted_bounds(const float* lower, const float* upper, const float* w, float* smallest, float* largest, Terms terms,
                   Shape shape) {
  const long in = shape.features;
  for_blocks(shape, [&](long row, long rows, long out, long outs) {
    int* const buffer = sizes_buffer(in);
    for (long o = out; o < out + outs; ++o)
      for (long r = row; r < row + rows; ++r) {
        const float *a = lower + r * in, *b = upper + r * in, *c = w + o * in;
        const auto part = [](const float* p, int n) { return n == LANES ? load(p) : load_part(p, n); };
        const auto gap = [&](long k, int n) {
          const F anchor = part(c + k, n);
          const F below = sub(part(a + k, n), anchor), above = sub(anchor, part(b + k, n));
          return as_float(maxi(set1i(0), maxi(as_int(below), as_int(above))));
        };
        const auto farthest = [&](long k, int n) {
          const F anchor = part(c + k, n);
          const F below = abs(sub(part(a + k, n), anchor)), above = abs(sub(part(b + k, n), anchor));
          return as_float(maxi(as_int(below), as_int(above)));
        };
        const long pair = r * shape.outs + o;
        Largest found;
        find_largest(in, terms.count, buffer, farthest, found);
        largest[pair] = smallest[pair] = weighted_sum(found, terms);
        // A NaN with a negative sign does not appear in the gaps, but always in the farthest distances.
        if (largest[pair] != largest[pair]) continue;
        find_largest(in, terms.count, buffer, gap, found);
        smallest[pair] = weighted_sum(found, terms);
      }
  });
}

}  // namespace
}  // namespace linfnet
