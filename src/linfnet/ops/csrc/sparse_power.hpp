// Neurons with connections to some inputs only, at a finite p.
//
// Images are processed in blocks of LINE, transposed as in sparse.hpp. Each lane is one image, so that the results of an
// image do not depend on the other images of its block: no lane is computed in another way because of its neighbours.
// A block with few images would waste most lanes. Its images are computed one by one: lanes are then connections, parts
// of sums and neurons, with the same operations in the same order, so that the bits are the same.
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
// Up to this many images of a block are computed one by one; P = 0 means any p, which takes more time per lane.
template <int P> constexpr long FEW_POWERS = LANES < 8 ? 0 : P == 0 ? 2 : 1;

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

// The difference of one image and the weights of `n` consecutive connections; 0 beyond them.
LINFNET_INLINE F image_difference(const float* x, const Connections& net, long c, int n) {
  if (n == LANES) return sub(gather(x, net.index + c), load(net.weight + c));
  int rest[LANES] = {};
  for (int k = 0; k < n; ++k) rest[k] = net.index[c + k];
  return keep_first(sub(gather(x, rest), load_part(net.weight + c, n)), n);
}

// STAGE neurons of one image. Sums consist of parts of SUM_PART connections; LANES parts are computed together.
struct ImageNeurons {
  float *differences, *part_largest, *part_sum;
  int *part_start, *part_length;
  alignas(64) float largest[STAGE] = {};
  alignas(64) int first[STAGE] = {}, number[STAGE] = {};  // parts of each neuron
  long parts = 0;

  static long part_room(long connections) { return connections / SUM_PART + STAGE + LANES; }
  static long room(long connections) { return connections + LANES + SUM_PART + 4 * part_room(connections); }

  ImageNeurons(const float* x, const Connections& net, long o, long many, float* memory) : differences(memory) {
    const long base = net.offsets[o], count = net.offsets[o + many] - base, more = part_room(count);
    part_largest = memory + count + LANES + SUM_PART, part_sum = part_largest + more;
    part_start = reinterpret_cast<int*>(part_sum + more), part_length = part_start + more;
    for (long c = 0; c < count; c += LANES)
      store(differences + c, image_difference(x, net, base + c, int(min_of(LANES, count - c))));
    for (long j = 0; j < many; j += 4) {
      F four[4];
      for (long k = 0; k < 4; ++k) {
        I best = set1i(0);
        if (j + k < many) {
          const float* const row = differences + net.offsets[o + j + k] - base;
          const long length = net.offsets[o + j + k + 1] - net.offsets[o + j + k];
          for (long c = 0; c < length; c += LANES) {
            const F d = length - c >= LANES ? load(row + c) : load_part(row + c, int(length - c));
            best = maxi(best, as_int(abs(d)));
          }
        }
        four[k] = as_float(best);
      }
      fold4<FoldMax>(four, largest + j);
    }
    for (long j = 0; j < many; ++j) {
      const int start = net.offsets[o + j] - int(base), stop = net.offsets[o + j + 1] - int(base);
      first[j] = int(parts), number[j] = int(blocks_of(stop - start, SUM_PART));
      for (int c = start; c < stop; c += SUM_PART, ++parts) {
        part_start[parts] = c, part_length[parts] = int(min_of(SUM_PART, stop - c));
        part_largest[parts] = largest[j];
      }
    }
    for (int k = 0; k < LANES; ++k) part_start[parts + k] = part_length[parts + k] = 0, part_largest[parts + k] = 1.0f;
  }

  // Add up the terms of all parts. `make` returns the function that adds a term, for the largest sizes of LANES parts.
  template <class Make> __attribute__((noinline)) void add_up(const Make& make) {
    for (long q = 0; q < parts; q += LANES) {
      const auto add_term = make(load(part_largest + q));
      const I length = as_int(load(reinterpret_cast<const float*>(part_length) + q));
      F sum = set1(0.0f);
      for (int c = 0; c < SUM_PART; ++c) {
        const Mask active = greater(length, set1i(c));
        if (!bits(active)) break;
        sum = select(active, add_term(sum, gather(differences + c, part_start + q)), sum);
      }
      store(part_sum + q, sum);
    }
  }

  // The sums of neurons j to j + LANES - 1.
  LINFNET_INLINE F sum(long j) const {
    const I count = as_int(load(reinterpret_cast<const float*>(number) + j));
    Sum sum;
    for (int k = 0;; ++k) {
      const Mask active = greater(count, set1i(k));
      if (!bits(active)) return add(sum.total, sum.error);
      Sum next = sum;
      int at[LANES];
      for (int lane = 0; lane < LANES; ++lane) at[lane] = k < number[j + lane] ? first[j + lane] + k : 0;
      next.add_term(gather(part_sum, at));
      sum.total = select(active, next.total, sum.total), sum.error = select(active, next.error, sum.error);
    }
  }
};

// The distances of neurons `begin` to `end` of one image.
template <int P>
void image_distances(const float* x, const Connections& net, long begin, long end, float* y, double p, float cut) {
  long longest = 0;
  for (long o = begin; o < end; o += STAGE)
    longest = -min_of(-longest, net.offsets[o] - net.offsets[min_of(end, o + STAGE)]);
  float* const memory = static_cast<float*>(scratch(ImageNeurons::room(longest) * sizeof(float)));
  const Root root(p);
  const auto general = [&](F largest) {
    return GeneralTerm{Term(Reciprocals{largest}, float(p)), mul(largest, set1(cut))};
  };
  for (long o = begin; o < end; o += STAGE) {
    const long many = min_of(STAGE, end - o);
    ImageNeurons neurons(x, net, o, many, memory);
    alignas(64) float out[STAGE];
    unsigned extreme = P == 0;
    if constexpr (P != 0) {
      neurons.add_up([&](F largest) {
        const Mask usual = within(largest, set1(TINY), set1(HUGE_));
        return ChainTerm<P>{PairScale(select(usual, largest, set1(1.0f))).scale};
      });
      for (long j = 0; j < STAGE; j += LANES) {
        const F largest = load(neurons.largest + j);
        extreme |= extreme_lanes(largest);
        const Mask usual = within(largest, set1(TINY), set1(HUGE_));
        const F back = PairScale(select(usual, largest, set1(1.0f))).back;
        const F root = chain_root<P>(select(usual, neurons.sum(j), set1(1.0f)));
        store(out + j, select(usual, mul(root, back), largest));
      }
    }
    if (extreme) {
      neurons.add_up(general);
      for (long j = 0; j < STAGE; j += LANES) {
        const F largest = load(neurons.largest + j), distance = finish(largest, neurons.sum(j), root);
        const Mask usual = within(largest, set1(TINY), set1(HUGE_));
        store(out + j, P == 0 ? distance : select(usual, load(out + j), distance));
      }
    }
    __builtin_memcpy(y + o, out, many * sizeof(float));
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
    if (rows <= FEW_POWERS<P>) {
      for (long r = row; r < row + rows; ++r) image_distances<P>(x + r * in, net, begin, end, y + r * outs, p, cut);
      return;
    }
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
