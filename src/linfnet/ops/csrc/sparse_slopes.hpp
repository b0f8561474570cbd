// Gradients of the distances in sparse_power.hpp. Each lane is one image here as well, except for inputs of blocks with
// few images, where each lane is one connection. Every gradient of an input is summed in the order of the connections,
// and every gradient of a weight in an order that does not depend on the threads.
#pragma once
#include "gradient.hpp"
#include "sparse_power.hpp"

namespace linfnet {
namespace {

constexpr long CHUNK_ROWS = 512;  // images whose weight gradients are summed together

// sign(d) (|d| / y)^(P - 1) for whole P.
template <int P> struct ChainSlope {
  F scale, inverse;

  ChainSlope() = default;
  LINFNET_INLINE ChainSlope(F y, F, double) {
    const F one = set1(1.0f), usual = select(within(y, set1(TINY), set1(HUGE_)), y, one);
    scale = PairScale(usual).scale;
    if constexpr (P == 1)
      inverse = one;
    else
      inverse = div(one, chain<P - 1>(mul(usual, scale)));
  }
  LINFNET_INLINE bool drops(F) const { return false; }
  LINFNET_INLINE F operator()(F d) const { return mul(signed_chain<P>(without_tiny<P>(mul(d, scale))), inverse); }
};

// The same for any p. Slopes below 2^-SLOPE_BITS are replaced by 0.
struct GeneralSlope {
  F shift, inverse, factor, exponent, threshold;

  GeneralSlope() = default;
  LINFNET_INLINE GeneralSlope(F y, F grad, double p) : exponent(set1(float(p - 1.0))) {
    const Reciprocals by(y);
    shift = by.shift, inverse = by.inverse, factor = fma(exponent, by.residue, set1(1.0f));
    // Where the gradient is not finite, no slope is replaced: 0 * infinity is NaN.
    const Mask flows = within(abs(grad), set1(0.0f), set1(0x1.fffffep127f));
    const float cut = p > 1 ? float(__builtin_exp2(-SLOPE_BITS / (p - 1.0))) : 0.0f;
    threshold = select(flows, mul(y, set1(cut)), set1(0.0f));
  }
  LINFNET_INLINE bool drops(F d) const { return !bits(not_less(abs(d), threshold)); }
  LINFNET_INLINE F operator()(F d) const {
    const F slope = mul(factor, GeneralForm::slope(mul(d, shift), inverse, exponent));
    return select(not_less(abs(d), threshold), slope, set1(0.0f));
  }
};

// The same for whole P and lanes with distances of any size.
template <int P> struct MixedSlope {
  ChainSlope<P> chained;
  GeneralSlope general;
  Mask usual;

  MixedSlope() = default;
  LINFNET_INLINE MixedSlope(F y, F grad, double p)
      : chained(y, grad, p), general(y, grad, p), usual(within(y, set1(TINY), set1(HUGE_))) {}
  LINFNET_INLINE bool drops(F) const { return false; }
  LINFNET_INLINE F operator()(F d) const { return select(usual, chained(d), general(d)); }
};

// Add the gradients of one neuron for LANES images to the lines of its inputs.
template <class Slope>
__attribute__((noinline)) void add_to_inputs(const Row& row, F grad, F y, double p, float* grad_x) {
  const Slope slope(y, grad, p);
  for (long c = 0; c < row.count; ++c) {
    const F d = row.difference(c);
    if (slope.drops(d)) continue;
    float* const target = grad_x + row.index[c] * row.stride;
    store(target, fma(grad, slope(d), load(target)));
  }
}

// The same for one image. Connections to the same input are added one after the other.
template <class Slope> __attribute__((noinline)) void add_to_image(const float* x, const Connections& net, long o,
                                                                   F grad, F y, double p, float* grad_x) {
  const Slope slope(y, grad, p);
  const long begin = net.offsets[o], end = net.offsets[o + 1];
  const auto add = [&](const int* index, F d, int n) {
    if (!slope.drops(d)) scatter(grad_x, index, fma(grad, slope(d), gather(grad_x, index)), n);
  };
  int repeated = 0;
  for (long c = begin + 1; c < end; ++c) repeated += net.index[c - 1] >= net.index[c];
  long c = begin;
  if (!repeated)
    for (; c + LANES <= end; c += LANES) add(net.index + c, image_difference(x, net, c, LANES), LANES);
  for (const long step = repeated ? 1 : LANES; c < end; c += step) {
    const int n = int(min_of(step, end - c));
    int rest[LANES] = {};
    for (int k = 0; k < n; ++k) rest[k] = net.index[c + k];
    add(rest, image_difference(x, net, c, n), n);
  }
}

template <int P> void image_gradients(const float* grad, const float* x, const Connections& net, const float* y,
                                      float* grad_x, double p, const SparseShape& shape) {
  __builtin_memset(grad_x, 0, shape.features * sizeof(float));
  for (long o = 0; o < shape.outs; ++o) {
    const F flow = set1(grad[o]), distance = set1(y[o]);
    if constexpr (P == 0)
      add_to_image<GeneralSlope>(x, net, o, flow, distance, p, grad_x);
    else if (extreme_lanes(distance))
      add_to_image<MixedSlope<P>>(x, net, o, flow, distance, p, grad_x);
    else
      add_to_image<ChainSlope<P>>(x, net, o, flow, distance, p, grad_x);
  }
}

// Subtract the gradients of one neuron, summed over `vectors` vectors of images, from those of its weights.
template <class Slope> __attribute__((noinline)) void add_to_weights(const Row& row, const float* grad, const float* y,
                                                                     double p, long vectors, float* grad_w) {
  Slope slopes[CHUNK_ROWS / LANES];
  for (long v = 0; v < vectors; ++v) slopes[v] = Slope(load(y + v * LANES), load(grad + v * LANES), p);
  for (long c = 0; c < row.count; ++c) {
    const float* const line = row.x + row.index[c] * row.stride;
    const F w = set1(row.weight[c]);
    F sum = set1(0.0f);
    for (long v = 0; v < vectors; ++v)
      sum = fma(load(grad + v * LANES), slopes[v](sub(load(line + v * LANES), w)), sum);
    grad_w[c] -= sum_of(sum);
  }
}

// Gradients beyond the last row are 0.
LINFNET_INLINE void clear_rest(float* lines, long stride, long rows, long columns) {
  for (long c = 0; rows % LINE && c < columns; ++c)
    for (long r = rows; r % LINE; ++r) lines[c * stride + r] = 0.0f;
}

template <int P> void input_gradients(const float* grad, const float* x, const Connections& net, const float* y,
                                      float* grad_x, double p, const SparseShape& shape) {
  const long in = shape.features, outs = shape.outs;
  parallel_for(blocks_of(shape.rows, LINE), shape.threads, [&](long block) {
    const long row = block * LINE, rows = min_of(LINE, shape.rows - row);
    if (rows <= FEW_POWERS<P>) {
      for (long r = row; r < row + rows; ++r)
        image_gradients<P>(grad + r * outs, x + r * in, net, y + r * outs, grad_x + r * in, p, shape);
      return;
    }
    float* const lines = static_cast<float*>(scratch(2 * in * LINE * sizeof(float)));
    float* const sums = lines + in * LINE;
    to_lines(x + row * in, in, lines, LINE, rows, in);
    __builtin_memset(sums, 0, in * LINE * sizeof(float));
    alignas(64) float grads[STAGE * LINE], distances[STAGE * LINE];
    for (long o = 0; o < outs; o += STAGE) {
      const long many = min_of(STAGE, outs - o);
      to_lines(grad + row * outs + o, outs, grads, LINE, rows, many);
      to_lines(y + row * outs + o, outs, distances, LINE, rows, many);
      for (long j = 0; j < many; ++j)
        for (int v = 0; v < VECTORS && v * LANES < rows; ++v) {
          const Row connections(net, o + j, lines + v * LANES, LINE);
          const F flow = load(grads + j * LINE + v * LANES), distance = load(distances + j * LINE + v * LANES);
          if constexpr (P == 0)
            add_to_inputs<GeneralSlope>(connections, flow, distance, p, sums + v * LANES);
          else if (extreme_lanes(distance))
            add_to_inputs<MixedSlope<P>>(connections, flow, distance, p, sums + v * LANES);
          else
            add_to_inputs<ChainSlope<P>>(connections, flow, distance, p, sums + v * LANES);
        }
    }
    transpose(sums, LINE, grad_x + row * in, in, in, rows);
  });
}

template <int P> void weight_gradients(const float* grad, const float* x, const Connections& net, const float* y,
                                       float* grad_w, double p, const SparseShape& shape) {
  const long in = shape.features, outs = shape.outs;
  __builtin_memset(grad_w, 0, shape.connections * sizeof(float));
  struct Memory {
    float* lines;
    explicit Memory(long floats) : lines(static_cast<float*>(allocate(floats * sizeof(float)))) {}
    Memory(const Memory&) = delete;
    ~Memory() { release(lines); }
  };
  const long width = blocks_of(min_of(CHUNK_ROWS, shape.rows), LINE) * LINE;
  const Memory memory(in * width);
  float* const lines = memory.lines;
  const long pieces = shape.threads > 1 ? shape.threads * PIECES_PER_THREAD : 1;
  const long share = blocks_of(blocks_of(outs, pieces), STAGE) * STAGE;
  for (long row = 0; row < shape.rows; row += width) {
    const long rows = min_of(width, shape.rows - row), vectors = blocks_of(rows, LINE) * VECTORS;
    parallel_for(blocks_of(rows, LINE), shape.threads, [&](long block) {
      const long first = block * LINE;
      to_lines(x + (row + first) * in, in, lines + first, width, min_of(LINE, rows - first), in);
    });
    parallel_for(blocks_of(outs, share), shape.threads, [&](long piece) {
      alignas(64) float grads[STAGE * CHUNK_ROWS], distances[STAGE * CHUNK_ROWS];
      const long end = min_of(outs, (piece + 1) * share);
      for (long o = piece * share; o < end; o += STAGE) {
        const long many = min_of(STAGE, end - o);
        to_lines(grad + row * outs + o, outs, grads, width, rows, many);
        clear_rest(grads, width, rows, many);
        to_lines(y + row * outs + o, outs, distances, width, rows, many);
        for (long j = 0; j < many; ++j) {
          const Row connections(net, o + j, lines, width);
          const float *flow = grads + j * width, *distance = distances + j * width;
          unsigned extreme = 0;
          for (long v = 0; v < vectors; ++v) extreme |= extreme_lanes(load(distance + v * LANES));
          float* const target = grad_w + net.offsets[o + j];
          if constexpr (P == 0)
            add_to_weights<GeneralSlope>(connections, flow, distance, p, vectors, target);
          else if (extreme)
            add_to_weights<MixedSlope<P>>(connections, flow, distance, p, vectors, target);
          else
            add_to_weights<ChainSlope<P>>(connections, flow, distance, p, vectors, target);
        }
      }
    });
  }
}

template <int P> void sparse_gradients_of(const float* grad, const float* x, const Connections& net, const float* y,
                                          float* grad_x, float* grad_w, double p, const SparseShape& shape) {
  if (grad_x) input_gradients<P>(grad, x, net, y, grad_x, p, shape);
  if (grad_w) weight_gradients<P>(grad, x, net, y, grad_w, p, shape);
}

void sparse_power_gradients(const float* grad, const float* x, Connections net, const float* y, float* grad_x,
                            float* grad_w, double p, SparseShape shape) {
  check_connections(net, shape);
#define LINFNET_CHAIN(P) \
  if (p == P) return sparse_gradients_of<P>(grad, x, net, y, grad_x, grad_w, p, shape);
  LINFNET_SPARSE_CHAINS(LINFNET_CHAIN)
#undef LINFNET_CHAIN
  sparse_gradients_of<0>(grad, x, net, y, grad_x, grad_w, p, shape);
}

}  // namespace
}  // namespace linfnet
