// The derivative of the distance, grad * sign(d) (|d| / y)^(p - 1), in several forms.
#pragma once
#include "power.hpp"

namespace linfnet {
namespace {

LINFNET_INLINE F with_sign(F size, F from) {
  return as_float(ori(as_int(size), andi(as_int(from), set1i(int(0x80000000u)))));
}

// Return a * sign(from).
LINFNET_INLINE F times_sign(F a, F from) {
  return as_float(xori(as_int(a), andi(as_int(from), set1i(int(0x80000000u)))));
}

LINFNET_INLINE F zero_at_zero(F value, F d) { return select(equal(d, set1(0.0f)), set1(0.0f), value); }

constexpr long OUT_BLOCK = 64;

// Coefficients of each pair in a strip of rows and a block of outputs, computed from grad and y.
template <int ROWS> struct Coefficients {
  alignas(64) float inverse[ROWS][OUT_BLOCK], weight[ROWS][OUT_BLOCK], shift[ROWS][OUT_BLOCK],
      threshold[ROWS][OUT_BLOCK];
  const float* folded[ROWS];  // grad / y^(p - 1)
  float exponent;             // p - 1
  bool extreme = false;  // whether a distance is non-finite, or so large or small that its reciprocal needs a shift

  void fill(const float* grad, const float* y, long stride, long outs, float cut) {
    for (int r = 0; r < ROWS; ++r)
      by_vectors(outs, [&](long o, int n) {
        const F distance = load_part(y + r * stride + o, n), zero = set1(0.0f), most = set1(0x1.fffffep127f);
        const Reciprocals by(distance);
        store(inverse[r] + o, by.inverse);
        store(shift[r] + o, by.shift);
        // Correct the rounding error of the reciprocal to first order.
        const F factor = fma(set1(exponent), by.residue, set1(1.0f));
        store(weight[r] + o, mul(load_part(grad + r * stride + o, n), factor));
        // A non-finite gradient makes every slope NaN, since 0 * NaN is NaN: no slope may be dropped.
        const Mask flows = within(abs(load_part(grad + r * stride + o, n)), zero, most);
        const F cutoff = select(equal(distance, zero), set1(__builtin_inff()), mul(distance, set1(cut)));
        store(threshold[r] + o, select(flows, cutoff, zero));
        const unsigned moved = ~bits(equal(by.shift, set1(1.0f))), finite = bits(within(distance, zero, most));
        if ((moved | ~finite) & ((1u << n) - 1)) extreme = true;
      });
  }
};

// Any p and any size of y: powers by log2 and exp2.
struct GeneralForm {
  F weight, inverse, shift, exponent;

  template <int ROWS> LINFNET_INLINE GeneralForm(const Coefficients<ROWS>& c, int r, long o)
      : weight(set1(c.weight[r][o])),
        inverse(set1(c.inverse[r][o])),
        shift(set1(c.shift[r][o])),
        exponent(set1(c.exponent)) {}

  static LINFNET_INLINE F slope(F d, F inverse, F exponent) {
    return zero_at_zero(with_sign(exp2_of(mul(exponent, log2_of_product(abs(d), inverse))), d), d);
  }
  LINFNET_INLINE F operator()(F d) const { return slope(mul(d, shift), inverse, exponent); }
};

// The same without shifts. Many slopes must be summed, so that the rounding errors of the ratios average out.
struct PlainForm {
  F weight, inverse, exponent;

  template <int ROWS> LINFNET_INLINE PlainForm(const Coefficients<ROWS>& c, int r, long o)
      : weight(set1(c.weight[r][o])), inverse(set1(c.inverse[r][o])), exponent(set1(c.exponent)) {}

  template <int N> LINFNET_INLINE void all(const F* d, F* slopes) const {
    for (int i = 0; i < N; ++i) slopes[i] = abs(mul(d[i], inverse));
    powers<N>(slopes, exponent, set1(0.0f));
    for (int i = 0; i < N; ++i) slopes[i] = zero_at_zero(with_sign(slopes[i], d[i]), d[i]);
  }
};

// Compute the slopes (derivatives) for N SIMD vectors of features of one (row, output) pair.
template <class Form, int N> LINFNET_INLINE void slopes_of(const Form& form, const F* d, F* slopes) {
  for (int i = 0; i < N; ++i) slopes[i] = form(d[i]);
}
template <class Form, int N> LINFNET_INLINE void slopes_of(const PlainForm& form, const F* d, F* slopes) {
  form.all<N>(d, slopes);
}

// Return sign(d) |d|^(P - 1).
template <int P> LINFNET_INLINE F signed_chain(F d) {
  if constexpr (P == 1)
    return zero_at_zero(with_sign(set1(1.0f), d), d);
  else if constexpr (P % 2 == 0)
    return chain<P - 1>(d);
  else
    return with_sign(chain<P - 1>(d), d);
}

// The slope for integer p as a power of d / y. Used for any y whose reciprocal is a normal number.
template <int P> struct RatioForm {
  F weight, inverse;

  template <int ROWS> LINFNET_INLINE RatioForm(const Coefficients<ROWS>& c, int r, long o)
      : weight(set1(c.weight[r][o])), inverse(set1(c.inverse[r][o])) {}

  LINFNET_INLINE F operator()(F d) const {
    if constexpr (P == 1) return signed_chain<1>(d);
    const F ratio = mul(d, inverse), power = signed_chain<P>(ratio);
    // The error of a rounded ratio near 1 is multiplied by p - 1: correct it to first order.
    const F lost = times_sign(product_error(d, inverse, ratio), ratio);
    return fma(mul(power, set1(P - 1.0f)), lost, power);
  }
};

// The slope for integer p as sign(d) |d|^(p - 1), with 1 / y^(p - 1) folded into the weight. Used only if y^(p - 1) and
// grad / y^(p - 1) are well within the float range.
template <int P> struct FoldedForm {
  F weight;

  template <int ROWS> LINFNET_INLINE FoldedForm(const Coefficients<ROWS>& c, int r, long o)
      : weight(set1(c.folded[r][o])) {}

  LINFNET_INLINE F operator()(F d) const { return signed_chain<P>(d); }
};

// Compute grad / y^(p - 1) for a row of pairs; return whether all results are in range.
template <int P> bool fold(const float* grad, const float* y, float* folded, long count) {
  int safe = 1;
  for (long o = 0; o < count; ++o) {
    const double distance = y[o] == 0 ? 1.0 : y[o], size = grad[o] < 0 ? -grad[o] : grad[o];
    double power = 1.0, square = distance;
    for (int n = P - 1; n; n >>= 1, square *= square)
      if (n & 1) power *= square;
    folded[o] = float(grad[o] / power);
    safe &= int(power >= 0x1p-60) & int(power <= 0x1p60);
    safe &= int(size <= 0x1p40) & int((size >= 0x1p-40) | (size == 0));
  }
  return safe;
}

}  // namespace
}  // namespace linfnet
