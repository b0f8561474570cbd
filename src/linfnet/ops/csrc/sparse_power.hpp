// Neurons with connections to some inputs only, at a finite p.
//
// Images are processed in blocks of LINE, transposed as in sparse.hpp. Each lane is one image, so that the results of an
// image do not depend on the other images of its block: no lane is computed in another way because of its neighbours.
//
// For whole p with a short chain, differences are multiplied by a power of two of their pair, which is exact: the
// maximum (or the distance) is then between 1 and 2. Terms whose power would leave the float range at the lower end are
// replaced by 0. For other p, powers are computed by log2 and exp2, but not where no lane has a term that matters.
#pragma once
#include "power.hpp"
#include "sparse.hpp"

namespace linfnet {
namespace {

constexpr int SUM_PART = 16;  // connections whose terms are added without compensation

// |size| * scale is between 1 and 2 for TINY <= size <= HUGE_; `back` is the reciprocal of the scale.
struct PairScale {
  F scale, back;

  explicit LINFNET_INLINE PairScale(F size) {
    const I exponent = andi(as_int(size), set1i(0x7f800000));
    back = as_float(exponent);
    scale = as_float(subi(set1i(254 << 23), exponent));
  }
};

// Lanes whose numbers are so large or small, or not finite, that they cannot be scaled; zeros are not extreme.
LINFNET_INLINE unsigned extreme_lanes(F size) {
  const Mask usual = within(size, set1(TINY), set1(HUGE_)), none = equal(size, set1(0.0f));
  return ~(bits(usual) | bits(none)) & ((1u << LANES) - 1);
}

// Replace numbers by 0 whose P-th power would be subnormal, which is slow on some machines.
template <int P> LINFNET_INLINE F without_tiny(F a) {
  if constexpr (P == 1) return a;
  return select(not_less(abs(a), set1(float(__builtin_exp2(-120.0 / P)))), a, set1(0.0f));
}

template <int P> struct ChainTerm {
  F scale;
  LINFNET_INLINE F operator()(F sum, F d) const { return StepPower<P>::apply(sum, without_tiny<P>(mul(d, scale))); }
};

struct GeneralTerm {
  Term term;
  F threshold;

  LINFNET_INLINE F operator()(F sum, F d) const {
    const F size = abs(d);
    const Mask large = not_less(size, threshold);
    return bits(large) ? add(sum, select(large, term(size), set1(0.0f))) : sum;
  }
};

// The connections of one neuron, and the values of their inputs for LANES images: every input has a line of `stride`
// floats.
struct Row {
  const float *x, *weight;
  const int* index;
  long count, stride;

  LINFNET_INLINE Row(const Connections& net, long o, const float* x, long stride)
      : x(x),
        weight(net.weight + net.offsets[o]),
        index(net.index + net.offsets[o]),
        count(net.offsets[o + 1] - net.offsets[o]),
        stride(stride) {}

  LINFNET_INLINE F difference(long c) const { return sub(load(x + index[c] * stride), set1(weight[c])); }

  LINFNET_INLINE F largest() const {
    I best = set1i(0);
    for (long c = 0; c < count; ++c) best = maxi(best, as_int(abs(difference(c))));
    return as_float(best);
  }

  template <class AddTerm> LINFNET_INLINE F sum(const AddTerm& add_term) const {
    Sum sum;
    for (long c = 0; c < count;) {
      F part = set1(0.0f);
      for (const long stop = min_of(c + SUM_PART, count); c < stop; ++c) part = add_term(part, difference(c));
      sum.add_term(part);
    }
    return add(sum.total, sum.error);
  }
};

__attribute__((noinline)) F general_distance(const Row& row, F largest, double p, float cut) {
  const Term term(Reciprocals{largest}, float(p));
  return finish(largest, row.sum(GeneralTerm{term, mul(largest, set1(cut))}), Root(p));
}

// The distances of one neuron for LANES images; P = 0 means any p.
template <int P> LINFNET_INLINE F sparse_distance(const Row& row, double p, float cut) {
  const F largest = row.largest();
  if constexpr (P == 0) {
    return general_distance(row, largest, p, cut);
  } else {
    const unsigned extreme = extreme_lanes(largest);
    const Mask usual = within(largest, set1(TINY), set1(HUGE_));
    const PairScale by(select(usual, largest, set1(1.0f)));
    const F sum = select(usual, row.sum(ChainTerm<P>{by.scale}), set1(1.0f));
    const F y = mul(chain_root<P>(sum), by.back);
    return select(usual, y, extreme ? general_distance(row, largest, p, cut) : largest);
  }
}

// Transpose `rows` rows of `columns` floats to lines of `stride` floats; the line is filled with copies of the last row
// up to a multiple of LINE.
LINFNET_INLINE void to_lines(const float* from, long from_stride, float* to, long stride, long rows, long columns) {
  transpose(from, from_stride, to, stride, rows, columns);
  if (rows % LINE)
    for (long c = 0; c < columns; ++c)
      for (long r = rows; r % LINE; ++r) to[c * stride + r] = to[c * stride + rows - 1];
}

template <int P>
void sparse_power_of(const float* x, const Connections& net, float* y, double p, const SparseShape& shape) {
  const long in = shape.features, outs = shape.outs, blocks = blocks_of(shape.rows, LINE);
  long longest = 1;
  for (long o = 0; o < outs; ++o) longest = -min_of(-longest, net.offsets[o] - net.offsets[o + 1]);
  const double c = 26.0 + __builtin_log2(double(longest)) - __builtin_log2(p);
  const float cut = float(__builtin_exp2(-c / p));
  // With few blocks, the neurons are divided among the threads as well. Every piece transposes its images.
  const long wanted = shape.threads > 1 ? blocks_of(shape.threads * PIECES_PER_THREAD, blocks) : 1;
  const long share = blocks_of(blocks_of(outs, wanted), STAGE) * STAGE, shares = blocks_of(outs, share);
  parallel_for(blocks * shares, shape.threads, [&](long piece) {
    const long row = piece / shares * LINE, rows = min_of(LINE, shape.rows - row);
    const long begin = piece % shares * share, end = min_of(outs, begin + share);
    float* const lines = static_cast<float*>(scratch(in * LINE * sizeof(float)));
    to_lines(x + row * in, in, lines, LINE, rows, in);
    alignas(64) float staged[STAGE * LINE];
    for (long o = begin; o < end; o += STAGE) {
      const long many = min_of(STAGE, end - o);
      for (long j = 0; j < many; ++j)
        for (int v = 0; v < VECTORS && v * LANES < rows; ++v)
          store(staged + j * LINE + v * LANES, sparse_distance<P>(Row(net, o + j, lines + v * LANES, LINE), p, cut));
      transpose(staged, LINE, y + row * outs + o, outs, many, rows);
    }
  });
}

// The exponents of attacks, and small ones; few, because each takes space in the library.
#define LINFNET_SPARSE_CHAINS(CASE) CASE(1) CASE(2) CASE(4) CASE(8) CASE(16) CASE(32) CASE(64)

void sparse_power(const float* x, Connections net, float* y, double p, SparseShape shape) {
  check_connections(net, shape);
  if (!shape.rows || !shape.outs) return;
#define LINFNET_CHAIN(P) \
  if (p == P) return sparse_power_of<P>(x, net, y, p, shape);
  LINFNET_SPARSE_CHAINS(LINFNET_CHAIN)
#undef LINFNET_CHAIN
  sparse_power_of<0>(x, net, y, p, shape);
}

}  // namespace
}  // namespace linfnet
