// The vector type of the plain level: four floats in the vector extension of GCC and Clang, for any architecture.
#pragma once
#include <cmath>
#include <cstring>

namespace {

typedef float F __attribute__((vector_size(16)));
typedef int I __attribute__((vector_size(16)));
typedef unsigned U __attribute__((vector_size(16)));  // for sums that may wrap around, which is undefined for int
typedef I Mask;
constexpr int LANES = 4;
constexpr int TILE_ROWS = 2, TILE_OUTS = 4;
constexpr int LOCKSTEP = 2;  // vectors raised to a power at a time
// Terms are collected if at most one in PACK_SHARE (forward) or in SCATTER_SHARE (backward) is large.
constexpr long PACK_SHARE = 6, SCATTER_SHARE = 12;
constexpr int GRAD_ROWS = 2, GRAD_VECTORS = 2;

inline F set1(float a) { return F{a, a, a, a}; }
inline I set1i(int a) { return I{a, a, a, a}; }
inline F load_part(const float* p, int n) {
  F a = set1(0.0f);
  std::memcpy(&a, p, sizeof(float) * n);
  return a;
}
inline F load(const float* p) { return load_part(p, LANES); }
inline F keep_first(F a, int n) { return load_part(reinterpret_cast<const float*>(&a), n); }
inline void store_part(float* p, F a, int n) { std::memcpy(p, &a, sizeof(float) * n); }
inline void store(float* p, F a) { store_part(p, a, LANES); }
inline void store(int* p, I a) { std::memcpy(p, &a, sizeof a); }
inline F gather(const float* p, const int* index) { return F{p[index[0]], p[index[1]], p[index[2]], p[index[3]]}; }
inline void scatter(float* p, const int* index, F a, int n) {
  float lanes[LANES];
  store(lanes, a);
  for (int k = 0; k < n; ++k) p[index[k]] = lanes[k];
}
inline F as_float(I a) { return reinterpret_cast<F>(a); }
inline I as_int(F a) { return reinterpret_cast<I>(a); }

inline F add(F a, F b) { return a + b; }
inline F sub(F a, F b) { return a - b; }
inline F mul(F a, F b) { return a * b; }
inline F div(F a, F b) { return a / b; }
inline F fma(F a, F b, F c) { return a * b + c; }
inline F fnma(F a, F b, F c) { return c - a * b; }
// The rounding error of a * b, by splitting both into halves (Dekker).
inline F product_error(F a, F b, F product) {
  const I half = set1i(int(0xfffff000u));
  const F a1 = reinterpret_cast<F>(reinterpret_cast<I>(a) & half), a2 = a - a1;
  const F b1 = reinterpret_cast<F>(reinterpret_cast<I>(b) & half), b2 = b - b1;
  return ((a1 * b1 - product) + (a1 * b2 + a2 * b1)) + a2 * b2;
}
inline F sqrt(F a) { return F{std::sqrt(a[0]), std::sqrt(a[1]), std::sqrt(a[2]), std::sqrt(a[3])}; }
inline F select(Mask m, F yes, F no) { return as_float((m & as_int(yes)) | (~m & as_int(no))); }
inline I select(Mask m, I yes, I no) { return (m & yes) | (~m & no); }
// Round to the nearest integer; requires |a| < 2^22.
inline F round(F a) { return (a + set1(12582912.0f)) - set1(12582912.0f); }
inline F abs(F a) { return as_float(as_int(a) & set1i(0x7fffffff)); }
// Maximum that returns b if either operand is NaN, like the x86 instruction.
inline F max_or_second(F a, F b) { return select(a > b, a, b); }
inline F min_or_second(F a, F b) { return select(a < b, a, b); }

inline I addi(I a, I b) { return reinterpret_cast<I>(reinterpret_cast<U>(a) + reinterpret_cast<U>(b)); }
inline I subi(I a, I b) { return reinterpret_cast<I>(reinterpret_cast<U>(a) - reinterpret_cast<U>(b)); }
inline I andi(I a, I b) { return a & b; }
inline I ori(I a, I b) { return a | b; }
inline I xori(I a, I b) { return a ^ b; }
inline I maxi(I a, I b) { return select(a > b, a, b); }
template <int N> I shift_left(I a) { return reinterpret_cast<I>(reinterpret_cast<U>(a) << N); }
template <int N> I shift_right(I a) { return a >> N; }
inline F to_float(I a) { return F{float(a[0]), float(a[1]), float(a[2]), float(a[3])}; }
inline I to_int(F a) { return I{int(a[0]), int(a[1]), int(a[2]), int(a[3])}; }

inline Mask greater(I a, I b) { return a > b; }
inline Mask equal(F a, F b) { return a == b; }
inline Mask not_less(F a, F b) { return ~(a < b); }
inline Mask within(F a, F low, F high) { return (a >= low) & (a <= high); }
inline unsigned bits(Mask m) { return (m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8); }

// Store the selected lanes of a next to each other; up to LANES floats are written. Return their number.
inline int pack(float* out, F a, Mask m) {
  float lanes[LANES];
  store(lanes, a);
  int count = 0;
  for (unsigned left = bits(m); left; left &= left - 1) out[count++] = lanes[__builtin_ctz(left)];
  return count;
}
inline int pack(int* out, I a, Mask m) { return pack(reinterpret_cast<float*>(out), as_float(a), m); }

constexpr long TRANSPOSED = 4;
inline void transpose_square(const float* from, long from_stride, float* to, long to_stride) {
  F rows[4];
  for (int r = 0; r < 4; ++r) rows[r] = load(from + r * from_stride);
  for (int c = 0; c < 4; ++c) store(to + c * to_stride, F{rows[0][c], rows[1][c], rows[2][c], rows[3][c]});
}

// Reduce each of four vectors to one number.
template <class Fold> void fold4(const F* a, float* out) {
  F b[4];
  for (int k = 0; k < 4; ++k) b[k] = F{a[0][k], a[1][k], a[2][k], a[3][k]};
  store(out, Fold::of(Fold::of(b[0], b[1]), Fold::of(b[2], b[3])));
}

struct FoldSum {
  static F of(F a, F b) { return a + b; }
};
// Maximum by bit pattern: correct for non-negative numbers; NaN is the largest.
struct FoldMax {
  static F of(F a, F b) { return as_float(maxi(as_int(a), as_int(b))); }
};

}  // namespace
