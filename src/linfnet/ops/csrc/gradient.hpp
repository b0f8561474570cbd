// Gradients for finite p; both are computed from the same powers. The features are divided into pieces, and each piece
// is processed by one thread: it sums every element of the gradients in an order that does not depend on the number of
// threads.
//
// If most slopes are small (large p), slopes below 2^-SLOPE_BITS are dropped. The remaining slopes are found by
// comparison, collected over many outputs, evaluated by full vectors and added to the gradients.
#pragma once
#include "slope.hpp"

namespace linfnet {
namespace {

constexpr long PIECE = 128;  // largest number of features per piece
constexpr long STEP = GRAD_VECTORS * LANES;
// Dropped slopes must be far below the eps of Adam, which divides by the size of a gradient.
constexpr double SLOPE_BITS = 48.0;

// A contiguous copy of the features that one thread processes: x, w and their gradients, in rows of `width` floats.
struct Piece {
  float *x, *w, *grad_x, *grad_w;
  long width;
};

template <class Form, int ROWS>
__attribute__((noinline)) void dense(const Piece& piece, const Coefficients<ROWS>& c, long row, long out, long outs) {
  for (long k = 0; k < piece.width; k += STEP) {
    F x[ROWS][GRAD_VECTORS], grad_x[ROWS][GRAD_VECTORS];
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < GRAD_VECTORS; ++v) {
        x[r][v] = load(piece.x + (row + r) * piece.width + k + v * LANES);
        grad_x[r][v] = set1(0.0f);
      }
    for (long o = 0; o < outs; ++o) {
      const long at = (out + o) * piece.width + k;
      F w[GRAD_VECTORS], grad_w[GRAD_VECTORS];
      for (int v = 0; v < GRAD_VECTORS; ++v) {
        w[v] = load(piece.w + at + v * LANES);
        grad_w[v] = set1(0.0f);
      }
      for (int r = 0; r < ROWS; ++r) {
        const Form form(c, r, o);
        F d[GRAD_VECTORS], slope[GRAD_VECTORS];
        for (int v = 0; v < GRAD_VECTORS; ++v) d[v] = sub(x[r][v], w[v]);
        slopes_of<Form, GRAD_VECTORS>(form, d, slope);
        for (int v = 0; v < GRAD_VECTORS; ++v) {
          grad_x[r][v] = fma(form.weight, slope[v], grad_x[r][v]);
          grad_w[v] = fma(form.weight, slope[v], grad_w[v]);
        }
      }
      for (int v = 0; v < GRAD_VECTORS; ++v) {
        float* target = piece.grad_w + at + v * LANES;
        store(target, sub(load(target), grad_w[v]));
      }
    }
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < GRAD_VECTORS; ++v) {
        float* target = piece.grad_x + (row + r) * piece.width + k + v * LANES;
        store(target, add(load(target), grad_x[r][v]));
      }
  }
}

struct Hits {
  static constexpr long ROOM = 512, MOST = ROOM + PIECE + 2 * STEP;
  alignas(64) float difference[MOST], inverse[MOST], weight[MOST];
  alignas(64) int out[MOST], feature[MOST];
  long count = 0;

  // Add the slopes collected for one row to both gradients.
  void flush(float exponent, float* grad_x, float* grad_w, long width) {
    for (long k = 0; k < count; k += LANES) {
      const F slope = GeneralForm::slope(load(difference + k), load(inverse + k), set1(exponent));
      store(difference + k, mul(load(weight + k), slope));
    }
    for (long k = 0; k < count; ++k) {
      grad_x[feature[k]] += difference[k];
      grad_w[out[k] * width + feature[k]] -= difference[k];
    }
    count = 0;
  }
};

template <int ROWS> __attribute__((noinline)) void sparse(const Piece& piece, const Coefficients<ROWS>& c, int r,
                                                          long row, long out, long outs, Hits& hits) {
  alignas(64) float lane[LANES];
  for (int i = 0; i < LANES; ++i) lane[i] = float(i);
  const I lanes = to_int(load(lane));
  const float* x = piece.x + row * piece.width;
  float *grad_x = piece.grad_x + row * piece.width, *grad_w = piece.grad_w + out * piece.width;
  for (long o = 0; o < outs; ++o) {
    const float* w = piece.w + (out + o) * piece.width;
    const F threshold = set1(c.threshold[r][o]);
    for (long k = 0; k < piece.width; k += STEP) {
      F d[GRAD_VECTORS];
      I top = set1i(0);
      for (int v = 0; v < GRAD_VECTORS; ++v) {
        d[v] = sub(load(x + k + v * LANES), load(w + k + v * LANES));
        top = maxi(top, as_int(abs(d[v])));
      }
      if (!bits(not_less(as_float(top), threshold))) continue;
      for (int v = 0; v < GRAD_VECTORS; ++v) {
        const Mask large = not_less(abs(d[v]), threshold);
        const long n = hits.count;
        store(hits.inverse + n, set1(c.inverse[r][o]));
        store(hits.weight + n, set1(c.weight[r][o]));
        store(hits.out + n, set1i(int(o)));
        pack(hits.feature + n, addi(lanes, set1i(int(k + v * LANES))), large);
        hits.count += pack(hits.difference + n, mul(d[v], set1(c.shift[r][o])), large);
      }
    }
    if (hits.count > Hits::ROOM) hits.flush(c.exponent, grad_x, grad_w, piece.width);
  }
  hits.flush(c.exponent, grad_x, grad_w, piece.width);
}

// Whether at most one in `share` slopes matters, estimated from some pairs of a strip; false if `share` is 0.
template <int ROWS>
bool is_sparse(const Piece& piece, const Coefficients<ROWS>& c, long share, long row, long out, long outs) {
  if (share == 0) return false;
  constexpr long SAMPLES = 4;
  long large = 0;
  for (long s = 0; s < SAMPLES; ++s) {
    const long r = s % ROWS, o = s * (outs - 1) / (SAMPLES - 1);
    const float *x = piece.x + (row + r) * piece.width, *w = piece.w + (out + o) * piece.width;
    for (long k = 0; k < piece.width; k += LANES)
      large += __builtin_popcount(bits(not_less(distance_of(x + k, w + k, LANES), set1(c.threshold[r][o]))));
  }
  return large * share <= SAMPLES * piece.width;
}

// Add all slopes of a strip, computed in one of the forms in slope.hpp; P = 0 means any p.
template <int P, int ROWS>
void dense_strip(const Piece& piece, const Coefficients<ROWS>& c, bool folded, long row, long out, long outs) {
  if constexpr (P > 0) {
    if (folded) return dense<FoldedForm<P>, ROWS>(piece, c, row, out, outs);
    if (!c.extreme) return dense<RatioForm<P>, ROWS>(piece, c, row, out, outs);
  }
  // PlainForm requires that the rounding errors of the ratios average out, which fails for few slopes or a large p.
  const bool careful = P == 0 && (c.exponent > 64.0f || piece.width <= STEP);
  if (c.extreme || careful) return dense<GeneralForm, ROWS>(piece, c, row, out, outs);
  if constexpr (P == 0) dense<PlainForm, ROWS>(piece, c, row, out, outs);
}

// The data that all pieces of one call share.
template <int P> struct Gradients {
  const float *grad, *y;
  long rows, outs, blocks;
  float exponent, cut;
  float* folded = nullptr;  // [rows, outs]
  char* safe = nullptr;     // [rows, blocks]
  static constexpr long SHARE = P == 0 ? SCATTER_SHARE : P < 12 ? 0 : 24;

  Gradients(const float* grad, const float* y, double p, const Shape& shape)
      : grad(grad),
        y(y),
        rows(shape.rows),
        outs(shape.outs),
        blocks(blocks_of(shape.outs, OUT_BLOCK)),
        exponent(float(p - 1.0)),
        cut(p > 1 ? float(__builtin_exp2(-SLOPE_BITS / (p - 1.0))) : 0.0f) {
    if constexpr (P > 0) {
      folded = static_cast<float*>(allocate(rows * outs * sizeof(float) + rows * blocks));
      safe = reinterpret_cast<char*>(folded + rows * outs);
      parallel_for(rows, shape.threads, [&](long r) {
        for (long b = 0; b < blocks; ++b) {
          const long at = r * outs + b * OUT_BLOCK, count = min_of(OUT_BLOCK, outs - b * OUT_BLOCK);
          safe[r * blocks + b] = fold<P>(this->grad + at, this->y + at, folded + at, count);
        }
      });
    }
  }
  Gradients(const Gradients&) = delete;
  ~Gradients() { release(folded); }

  template <int ROWS> void strip(const Piece& piece, long row, long block, Hits& hits) const {
    const long out = block * OUT_BLOCK, count = min_of(OUT_BLOCK, outs - out), at = row * outs + out;
    Coefficients<ROWS> c;
    c.exponent = exponent;
    bool all_safe = P > 0;
    if constexpr (P > 0)
      for (int r = 0; r < ROWS; ++r) {
        c.folded[r] = folded + at + r * outs;
        all_safe = all_safe && safe[(row + r) * blocks + block];
      }
    if (!all_safe || SHARE > 0) c.fill(grad + at, y + at, outs, count, cut);
    if (is_sparse<ROWS>(piece, c, SHARE, row, out, count))
      for (int r = 0; r < ROWS; ++r) sparse<ROWS>(piece, c, r, row + r, out, count, hits);
    else
      dense_strip<P, ROWS>(piece, c, all_safe, row, out, count);
  }
};

inline void pack_rows(const float* from, float* to, long rows, long stride, long count, long width) {
  for (long r = 0; r < rows; ++r) {
    __builtin_memcpy(to + r * width, from + r * stride, count * sizeof(float));
    __builtin_memset(to + r * width + count, 0, (width - count) * sizeof(float));
  }
}

inline void unpack_rows(const float* from, float* to, long rows, long stride, long count, long width) {
  for (long r = 0; to && r < rows; ++r) __builtin_memcpy(to + r * stride, from + r * width, count * sizeof(float));
}

template <int P> void all_gradients(const float* grad, const float* x, const float* w, const float* y, float* grad_x,
                                    float* grad_w, double p, const Shape& shape) {
  const Gradients<P> gradients(grad, y, p, shape);
  const long in = shape.features, rows = shape.rows, outs = shape.outs;
  const long width = blocks_of(blocks_of(in, blocks_of(in, PIECE)), STEP) * STEP;
  parallel_for(blocks_of(in, width), shape.threads, [&](long i) {
    const long begin = i * width, count = min_of(width, in - begin), xs = rows * width, ws = outs * width;
    float* memory = static_cast<float*>(scratch(2 * (xs + ws) * sizeof(float)));
    const Piece piece{memory, memory + xs, memory + xs + ws, memory + 2 * xs + ws, width};
    pack_rows(x + begin, piece.x, rows, in, count, width);
    pack_rows(w + begin, piece.w, outs, in, count, width);
    __builtin_memset(piece.grad_x, 0, (xs + ws) * sizeof(float));
    Hits hits;
    for (long block = 0; block < gradients.blocks; ++block) {
      long row = 0;
      for (; row + GRAD_ROWS <= rows; row += GRAD_ROWS) gradients.template strip<GRAD_ROWS>(piece, row, block, hits);
      for (; row < rows; ++row) gradients.template strip<1>(piece, row, block, hits);
    }
    unpack_rows(piece.grad_x, grad_x ? grad_x + begin : nullptr, rows, in, count, width);
    unpack_rows(piece.grad_w, grad_w ? grad_w + begin : nullptr, outs, in, count, width);
  });
}

void gradients(const float* grad, const float* x, const float* w, const float* y, float* grad_x, float* grad_w,
               double p, Shape shape) {
#define LINFNET_CHAIN(P) \
  if (p == P) return all_gradients<P>(grad, x, w, y, grad_x, grad_w, p, shape);
  LINFNET_CHAINS(LINFNET_CHAIN)
#undef LINFNET_CHAIN
  all_gradients<0>(grad, x, w, y, grad_x, grad_w, p, shape);
}

}  // namespace
}  // namespace linfnet
