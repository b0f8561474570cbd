// log2, exp2 and the p-th root of vectors, by polynomials fitted for the smallest relative error.
//
// Largest errors relative to exact arithmetic, in units in the last place of the float32 result (tested):
//   log2 of a normal number in (0, 1]  2
//   exp2 of a number in [-126, 1]      1.5
//   p-th root                          2.5
#pragma once
#include "tile.hpp"

namespace linfnet {
namespace {

constexpr float LOG2_E = 1.442695f;

struct LogParts {
  F exponent, fraction;  // log2 = exponent + fraction, |fraction| <= 1/2
};

// log2(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1], relative error 2.7e-8; highest power first.
#define LINFNET_LOG2_POLYNOMIAL \
  { 0.12583533f, -0.20726892f, 0.21571586f, -0.23894496f, 0.28791624f, -0.36070368f, 0.48091063f, -0.72134733f, LOG2_E }
// 2^f on [-1/2, 1/2], relative error 1.9e-9.
#define LINFNET_EXP2_POLYNOMIAL \
  { 0.00015345808f, 0.0013399931f, 0.009618489f, 0.055503286f, 0.24022646f, 0.6931472f, 1.0f }

LINFNET_INLINE LogParts log2_parts(F a) {
  constexpr float LOG[] = LINFNET_LOG2_POLYNOMIAL;
  const I exponent = shift_right<23>(subi(as_int(a), set1i(0x3f3504f3)));
  const F f = sub(as_float(subi(as_int(a), shift_left<23>(exponent))), set1(1.0f));
  F q = set1(LOG[0]);
  q = fma(q, f, set1(LOG[1]));
  q = fma(q, f, set1(LOG[2]));
  q = fma(q, f, set1(LOG[3]));
  q = fma(q, f, set1(LOG[4]));
  q = fma(q, f, set1(LOG[5]));
  q = fma(q, f, set1(LOG[6]));
  q = fma(q, f, set1(LOG[7]));
  q = fma(q, f, set1(LOG[8]));
  return {to_float(exponent), mul(q, f)};
}

// log2(a). For zero and subnormal numbers the result is about -127, so that their powers are (nearly) zero.
LINFNET_INLINE F log2_of(F a) {
  const LogParts parts = log2_parts(a);
  return add(parts.exponent, parts.fraction);
}

// (2^f - 1) / f on [-1/2, 1/2].
LINFNET_INLINE F exp2_slope(F f) {
  constexpr float EXP[] = LINFNET_EXP2_POLYNOMIAL;
  F q = set1(EXP[0]);
  q = fma(q, f, set1(EXP[1]));
  q = fma(q, f, set1(EXP[2]));
  q = fma(q, f, set1(EXP[3]));
  q = fma(q, f, set1(EXP[4]));
  return fma(q, f, set1(EXP[5]));
}

LINFNET_INLINE F power_of_two(F whole) { return as_float(shift_left<23>(addi(to_int(whole), set1i(127)))); }

// 2^t. The result is 2^-126 for arguments below -126, and NaN for NaN.
LINFNET_INLINE F exp2_of(F t) {
  t = max_or_second(set1(-126.0f), t);
  const F whole = round(t), f = sub(t, whole);
  const F q = fma(exp2_slope(f), f, set1(1.0f));
  return as_float(addi(as_int(q), shift_left<23>(to_int(whole))));
}

struct Root {
  F p, inverse;
  explicit LINFNET_INLINE Root(double p) : p(set1(float(p))), inverse(set1(float(1.0 / p))) {}

  // Return factor * a^(1/p) for a normal a > 0. The whole part of the exponent is separated before rounding, and the
  // factor is applied before the last rounding.
  LINFNET_INLINE F times(F factor, F a) const {
    const LogParts parts = log2_parts(a);
    const F whole = round(mul(add(parts.exponent, parts.fraction), inverse));
    const F f = mul(add(fnma(whole, p, parts.exponent), parts.fraction), inverse);
    const F scale = power_of_two(whole), one = set1(1.0f);
    // Scale a small factor first, so that no bits are lost in a subnormal number, and a large factor last, so that it
    // does not overflow.
    const Mask large = not_less(factor, one);
    factor = mul(factor, select(large, one, scale));
    return mul(fma(factor, mul(f, exp2_slope(f)), factor), select(large, scale, one));
  }

  LINFNET_INLINE F operator()(F a) const { return times(set1(1.0f), a); }
};

// Compute a[i] = a[i]^exponent * 2^offset for N vectors in lockstep: the steps for a single vector depend on
// each other, so that their latency would leave the core idle.
template <int N> LINFNET_INLINE void powers(F* a, F exponent, F offset) {
  constexpr float LOG[] = LINFNET_LOG2_POLYNOMIAL, EXP[] = LINFNET_EXP2_POLYNOMIAL;
  F f[N], q[N];
  I whole[N];
  for (int i = 0; i < N; ++i) whole[i] = shift_right<23>(subi(as_int(a[i]), set1i(0x3f3504f3)));
  for (int i = 0; i < N; ++i) f[i] = sub(as_float(subi(as_int(a[i]), shift_left<23>(whole[i]))), set1(1.0f));
  for (int i = 0; i < N; ++i) q[i] = set1(LOG[0]);
  for (int k = 1; k < 9; ++k)
    for (int i = 0; i < N; ++i) q[i] = fma(q[i], f[i], set1(LOG[k]));
  for (int i = 0; i < N; ++i) a[i] = fma(exponent, fma(q[i], f[i], to_float(whole[i])), offset);
  for (int i = 0; i < N; ++i) a[i] = max_or_second(set1(-126.0f), a[i]);
  for (int i = 0; i < N; ++i) q[i] = round(a[i]);
  for (int i = 0; i < N; ++i) f[i] = sub(a[i], q[i]);
  for (int i = 0; i < N; ++i) whole[i] = shift_left<23>(to_int(q[i]));
  for (int i = 0; i < N; ++i) q[i] = set1(EXP[0]);
  for (int k = 1; k < 7; ++k)
    for (int i = 0; i < N; ++i) q[i] = fma(q[i], f[i], set1(EXP[k]));
  for (int i = 0; i < N; ++i) a[i] = as_float(addi(as_int(q[i]), whole[i]));
}

// Return log2(a * b) for a * b in [0, 1], corrected for the rounding error of the product, which matters near 1.
LINFNET_INLINE F log2_of_product(F a, F b) {
  const F product = mul(a, b);
  return fma(product_error(a, b, product), set1(LOG2_E), log2_of(product));
}

constexpr float TINY = 0x1p-100f, HUGE_ = 0x1p120f;

// The reciprocal of a finite value > 0 as shift and inverse: |d| * shift * inverse = |d| / value without overflow or
// underflow.
struct Reciprocal {
  float shift, inverse, residue;  // 1 / (value * shift) = inverse * (1 + residue)

  explicit LINFNET_INLINE Reciprocal(float value) {
    shift = value < TINY ? 0x1p100f : value > HUGE_ ? 0x1p-100f : 1.0f;
    const float scaled = value * shift;
    inverse = 1.0f / scaled;
    residue = float(1.0 - double(scaled) * double(inverse));
  }
};

// The same for a vector of values of any size: |d| * shift * inverse = |d| / value, or |d| where the value is 0. The
// residue is 0 where the value is 0 or not finite.
struct Reciprocals {
  F shift, inverse, residue;

  explicit LINFNET_INLINE Reciprocals(F value) {
    const F one = set1(1.0f), zero = set1(0.0f), least = set1(0x1p-149f), most = set1(0x1.fffffep127f);
    const Mask small = within(value, least, set1(TINY)), large = within(value, set1(HUGE_), most);
    shift = select(small, set1(0x1p100f), select(large, set1(0x1p-100f), one));
    const F scaled = select(equal(value, zero), one, mul(value, shift));
    inverse = div(one, scaled);
    const F product = mul(scaled, inverse), rest = sub(sub(one, product), product_error(scaled, inverse, product));
    residue = select(within(value, least, most), rest, zero);
  }
};

void elementary(int which, const float* a, float* out, double p, long count) {
  const Root root(p);
  by_vectors(count, [&](long i, int n) {
    const F v = load_part(a + i, n);
    store_part(out + i, which == 0 ? log2_of(v) : which == 1 ? exp2_of(v) : root(v), n);
  });
}

}  // namespace
}  // namespace linfnet
