// Neurons with connections to some inputs only, at p = infinity. All levels give the same bits as the reference.
//
// One image: the sizes |x - w| of consecutive connections are written to a buffer, whose rows are then reduced.
// Batches: images are processed in blocks of LINE, transposed so that the values of one input are in one cache line. A
// connection then reads one cache line for the whole block.
// Layers for certificates subtract the mean, add the bias and find the largest magnitude in the same pass.
#pragma once
#include "infinity.hpp"

namespace linfnet {
namespace {

constexpr long LINE = SPARSE_BLOCK;
constexpr int VECTORS = int(LINE) / LANES;  // vectors of a cache line
constexpr long STAGE = 16;                  // neurons of a block that are written together
constexpr long CHUNK = 2048;                // connections that are buffered together
constexpr long FEW = 3;                     // up to this many images of a block are computed one by one
constexpr int PIECES_PER_THREAD = 4;

// Throw an exception unless the connections can be used without reading outside of the arrays.
void check_connections(const Connections& net, const SparseShape& shape) {
  bool good = net.offsets[0] == 0 && net.offsets[shape.outs] == shape.connections;
  for (long o = 0; o < shape.outs; ++o) good &= net.offsets[o] < net.offsets[o + 1];
  const I limit = set1i(int(shape.features) - 1), zero = set1i(0);
  I wrong = zero;  // negative in a lane with an index that is negative or too large
  long c = 0;
  for (; c + LANES <= shape.connections; c += LANES) {
    const I index = as_int(load(reinterpret_cast<const float*>(net.index) + c));
    wrong = ori(wrong, ori(index, subi(limit, index)));
  }
  good &= bits(greater(zero, wrong)) == 0;
  for (; c < shape.connections; ++c) good &= net.index[c] >= 0 && net.index[c] < shape.features;
  if (!good) refuse_connections();
}

// Transpose `rows` rows of `columns` numbers.
LINFNET_INLINE void transpose(const float* from, long from_stride, float* to, long to_stride, long rows, long columns) {
  const long whole = rows / TRANSPOSED * TRANSPOSED;
  long c = 0;
  for (; c + TRANSPOSED <= columns; c += TRANSPOSED)
    for (long r = 0; r < whole; r += TRANSPOSED)
      transpose_square(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
  for (long r = 0; r < rows; ++r)
    for (long k = r < whole ? c : 0; k < columns; ++k) to[k * to_stride + r] = from[r * from_stride + k];
}

LINFNET_INLINE void transpose(const int* from, long from_stride, int* to, long to_stride, long rows, long columns) {
  transpose(reinterpret_cast<const float*>(from), from_stride, reinterpret_cast<float*>(to), to_stride, rows, columns);
}

// What is maximised: PLANES numbers for each connection, from INPUTS values.
struct SparseDistance {
  static constexpr int INPUTS = 1, PLANES = 1;
  static constexpr bool MEASURED = false;
  static LINFNET_INLINE void sizes(const F* x, F w, I* out) { out[0] = as_int(abs(sub(x[0], w))); }
  static LINFNET_INLINE void finish(F*, I*) {}
};

// Distances, to which `Layer` is applied.
struct SparseMeasured : SparseDistance {
  static constexpr bool MEASURED = true;
};

// Plane 0 is the gap between box and w, plane 1 the farthest distance.
struct SparseBounds {
  static constexpr int INPUTS = 2, PLANES = 2;
  static constexpr bool MEASURED = false;
  static LINFNET_INLINE void sizes(const F* x, F w, I* out) {
    const F below = sub(x[0], w), above = sub(x[1], w);
    out[0] = maxi(set1i(0), maxi(as_int(below), as_int(sub(w, x[1]))));
    out[1] = maxi(as_int(abs(below)), as_int(abs(above)));
  }
  // A NaN with a negative sign does not appear in the gap, but always in the farthest distance.
  static LINFNET_INLINE void finish(F* best, I* where) {
    const Mask nan = greater(as_int(best[1]), as_int(set1(__builtin_inff())));
    best[0] = select(nan, best[1], best[0]);
    where[0] = select(nan, where[1], where[0]);
  }
};

typedef int __attribute__((may_alias)) Bits;  // of a float

// Return the largest of some numbers that are not negative.
LINFNET_INLINE float largest_lane(F a) {
  const F four[4] = {a, a, a, a};
  float folded[4];
  fold4<FoldMax>(four, folded);
  return folded[0];
}

// What follows the distances in a layer. All magnitudes are compared as integers, so that NaN is the largest.
struct Layer {
  const float *mean, *bias;  // [outs], may be null
  Bits* largest;             // [rows], the largest distance or, without a mean, the largest |output|

  // Return the output for a distance, and add its magnitude to `most`.
  LINFNET_INLINE F apply(F distance, F own_mean, F own_bias, I& most) const {
    F y = mean ? sub(distance, own_mean) : distance;
    if (bias) y = add(y, own_bias);
    most = maxi(most, as_int(abs(mean ? distance : y)));
    return y;
  }

  // Neuron `o` of several images.
  LINFNET_INLINE F apply(F distance, long o, I& most) const {
    return apply(distance, set1(mean ? mean[o] : 0.0f), set1(bias ? bias[o] : 0.0f), most);
  }

  // Neurons `begin` to `end` of one image, in place.
  void apply(float* y, long begin, long end) const {
    I most = set1i(0);
    for (long o = begin; o < end; o += LANES) {
      const int n = int(min_of(LANES, end - o));
      const F zero = set1(0.0f);
      store_part(
          y + o,
          apply(load_part(y + o, n), mean ? load_part(mean + o, n) : zero, bias ? load_part(bias + o, n) : zero, most),
          n);
    }
    merge(0, largest_lane(as_float(most)));
  }

  // Several threads may compute neurons of the same image.
  void merge(long row, float size) const {
    int most;
    __builtin_memcpy(&most, &size, sizeof most);
    int known = __atomic_load_n(largest + row, __ATOMIC_RELAXED);
    while (most > known &&
           !__atomic_compare_exchange_n(largest + row, &known, most, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }
};

struct Outputs {
  float* best[2];
  int* where[2];  // may be null
  Layer layer;
};

// Neurons `begin` to `end` of one image.
template <class Step>
void one_image(const float* const* x, const Connections& net, long begin, long end, const Outputs& out) {
  constexpr int PLANES = Step::PLANES;
  long longest = 0;
  for (long o = begin; o < end; ++o) {
    const long count = net.offsets[o + 1] - net.offsets[o];
    longest = count > longest ? count : longest;
  }
  const long room = CHUNK + longest + 2 * LANES;
  float* const buffer = static_cast<float*>(scratch(PLANES * room * sizeof(float)));
  for (long o = begin; o < end;) {
    const long base = net.offsets[o];
    long last = o + 1;
    while (last < end && net.offsets[last] - base < CHUNK) ++last;
    const long count = net.offsets[last] - base;
    const float* const weight = net.weight + base;
    const int* const index = net.index + base;
    for (long c = 0; c < count; c += LANES) {
      F values[Step::INPUTS], w;
      I sizes[PLANES];
      if (c + LANES <= count) {
        for (int s = 0; s < Step::INPUTS; ++s) values[s] = gather(x[s], index + c);
        w = load(weight + c);
      } else {
        const int n = int(count - c);
        int rest[LANES] = {};
        __builtin_memcpy(rest, index + c, n * sizeof(int));
        for (int s = 0; s < Step::INPUTS; ++s) values[s] = gather(x[s], rest);
        w = load_part(weight + c, n);
      }
      Step::sizes(values, w, sizes);
      for (int k = 0; k < PLANES; ++k) store(buffer + k * room + c, as_float(sizes[k]));
    }
    for (; o < last; ++o) {
      const long first = net.offsets[o] - base, length = net.offsets[o + 1] - net.offsets[o];
      float best[2];
      int where[2] = {};
      for (int k = 0; k < PLANES; ++k) {
        const float* const row = buffer + k * room + first;
        F four[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
        long c = 0;
        for (; c + LANES <= length; c += LANES) four[0] = as_float(maxi(as_int(four[0]), as_int(load(row + c))));
        if (c < length) four[0] = as_float(maxi(as_int(four[0]), as_int(load_part(row + c, int(length - c)))));
        float folded[4];
        fold4<FoldMax>(four, folded);
        best[k] = folded[0];
        if (out.where[0]) {
          const I wanted = as_int(set1(best[k]));
          for (c = 0; c < length; c += LANES) {
            // Beyond the row the buffer has numbers of the next row or of an earlier chunk, which the mask excludes.
            const unsigned valid = length - c >= LANES ? (1u << LANES) - 1 : (1u << (length - c)) - 1;
            const unsigned hits = ~bits(greater(wanted, as_int(load(row + c)))) & valid;
            if (hits) {
              where[k] = int(base + first + c) + __builtin_ctz(hits);
              break;
            }
          }
        }
      }
      if (PLANES == 2 && best[1] != best[1]) best[0] = best[1], where[0] = where[1];
      for (int k = 0; k < PLANES; ++k) {
        out.best[k][o] = best[k];
        if (out.where[0]) out.where[k][o] = where[k];
      }
    }
  }
  if (Step::MEASURED) out.layer.apply(out.best[0], begin, end);
}

// Neurons `begin` to `end` of a block of at most LINE images. x: [features, INPUTS, LINE].
template <class Step, bool SAVING> void image_block(const float* x, const Connections& net, long begin, long end,
                                                    long rows, long outs, const Outputs& out) {
  constexpr int PLANES = Step::PLANES, INPUTS = Step::INPUTS;
  constexpr int GROUP = min_of(VECTORS, 4 / PLANES);  // vectors computed together: their maxima fit in registers
  alignas(64) float staged[PLANES][STAGE * LINE];
  alignas(64) int places[PLANES][STAGE * LINE];
  I most[VECTORS];
  for (int v = 0; v < VECTORS; ++v) most[v] = set1i(0);
  for (long o = begin; o < end; o += STAGE) {
    const long many = min_of(STAGE, end - o);
    for (long j = 0; j < many; ++j)
      for (int group = 0; group < VECTORS; group += GROUP) {
        I best[GROUP][PLANES], where[GROUP][PLANES];
        for (int v = 0; v < GROUP; ++v)
          for (int k = 0; k < PLANES; ++k) best[v][k] = set1i(SAVING ? -1 : 0), where[v][k] = set1i(0);
        for (int c = net.offsets[o + j], last = net.offsets[o + j + 1]; c < last; ++c) {
          const float* const line = x + long(net.index[c]) * (INPUTS * LINE) + group * LANES;
          const F w = set1(net.weight[c]);
          for (int v = 0; v < GROUP; ++v) {
            F values[INPUTS];
            I sizes[PLANES];
            for (int s = 0; s < INPUTS; ++s) values[s] = load(line + s * LINE + v * LANES);
            Step::sizes(values, w, sizes);
            for (int k = 0; k < PLANES; ++k) {
              if (SAVING) where[v][k] = select(greater(sizes[k], best[v][k]), set1i(c), where[v][k]);
              best[v][k] = maxi(best[v][k], sizes[k]);
            }
          }
        }
        for (int v = 0; v < GROUP; ++v) {
          F values[PLANES];
          for (int k = 0; k < PLANES; ++k) values[k] = as_float(best[v][k]);
          Step::finish(values, where[v]);
          if (Step::MEASURED) values[0] = out.layer.apply(values[0], o + j, most[group + v]);
          const long at = j * LINE + (group + v) * LANES;
          for (int k = 0; k < PLANES; ++k) {
            store(staged[k] + at, values[k]);
            if (SAVING) store(places[k] + at, where[v][k]);
          }
        }
      }
    for (int k = 0; k < PLANES; ++k) {
      transpose(staged[k], LINE, out.best[k] + o, outs, many, rows);
      if (SAVING) transpose(places[k], LINE, out.where[k] + o, outs, many, rows);
    }
  }
  if (Step::MEASURED) {
    float lanes[LINE];
    for (int v = 0; v < VECTORS; ++v) store(lanes + v * LANES, as_float(most[v]));
    for (long r = 0; r < rows; ++r) out.layer.merge(r, lanes[r]);
  }
}

template <class Step>
void sparse_run(const float* const* x, const Connections& net, const Outputs& out, const SparseShape& shape) {
  constexpr int INPUTS = Step::INPUTS, PLANES = Step::PLANES;
  check_connections(net, shape);
  if (!shape.rows || !shape.outs) return;
  const long in = shape.features, outs = shape.outs, blocks = blocks_of(shape.rows, LINE);
  // With few blocks, the neurons are divided among the threads as well. Every piece transposes its images.
  const long wanted = shape.threads > 1 ? blocks_of(shape.threads * PIECES_PER_THREAD, blocks) : 1;
  const long share = blocks_of(blocks_of(outs, wanted), STAGE) * STAGE, shares = blocks_of(outs, share);
  parallel_for(blocks * shares, shape.threads, [&](long piece) {
    const long row = piece / shares * LINE, rows = min_of(LINE, shape.rows - row);
    const long begin = piece % shares * share, end = min_of(outs, begin + share);
    const auto at = [&](long r) {
      Outputs moved = out;
      for (int k = 0; k < PLANES; ++k) {
        moved.best[k] += r * outs;
        if (moved.where[k]) moved.where[k] += r * outs;
      }
      if (Step::MEASURED) moved.layer.largest += r;
      return moved;
    };
    if (rows <= FEW) {
      for (long r = row; r < row + rows; ++r) {
        const float* image[INPUTS];
        for (int s = 0; s < INPUTS; ++s) image[s] = x[s] + r * in;
        one_image<Step>(image, net, begin, end, at(r));
      }
      return;
    }
    float* const lines = static_cast<float*>(scratch(in * INPUTS * LINE * sizeof(float)));
    if (rows < LINE) __builtin_memset(lines, 0, in * INPUTS * LINE * sizeof(float));
    for (int s = 0; s < INPUTS; ++s) transpose(x[s] + row * in, in, lines + s * LINE, INPUTS * LINE, rows, in);
    if (out.where[0])
      image_block<Step, true>(lines, net, begin, end, rows, outs, at(row));
    else
      image_block<Step, false>(lines, net, begin, end, rows, outs, at(row));
  });
}

void sparse_infinity(const float* x, Connections net, float* y, int* decisive, SparseShape shape) {
  sparse_run<SparseDistance>(&x, net, Outputs{{y, nullptr}, {decisive, nullptr}, {}}, shape);
}

// Return the largest magnitude of `count` numbers; NaN if there is one.
float largest_magnitude(const float* numbers, long count) {
  I most = set1i(0);
  for (long k = 0; k < count; k += LANES)
    most = maxi(most, as_int(abs(count - k >= LANES ? load(numbers + k) : load_part(numbers + k, int(count - k)))));
  return largest_lane(as_float(most));
}

void sparse_measured(const float* x, Connections net, const float* mean, const float* bias, float* y, float* sizes,
                     SparseShape shape) {
  const long rows = shape.rows;
  __builtin_memset(sizes, 0, rows * sizeof(float));
  const Layer layer{mean, bias, reinterpret_cast<Bits*>(sizes)};
  sparse_run<SparseMeasured>(&x, net, Outputs{{y, nullptr}, {nullptr, nullptr}, layer}, shape);
  // Rounding is monotone: the rounded sum of two bounds is a bound on every rounded sum.
  const float* const terms[2] = {mean, bias};
  for (const float* const term : terms) {
    if (!term) continue;
    const float most = largest_magnitude(term, shape.outs);
    for (long r = 0; r < rows; ++r) sizes[rows + r] = sizes[r] + most;
    sizes += rows;
  }
}

void sparse_bounds(const float* lower, const float* upper, Connections net, float* smallest, float* largest, int* near,
                   int* far, SparseShape shape) {
  const float* const box[2] = {lower, upper};
  sparse_run<SparseBounds>(box, net, Outputs{{smallest, largest}, {near, far}, {}}, shape);
}

}  // namespace
}  // namespace linfnet
