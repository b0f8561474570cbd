// The vector type of the AVX2+FMA level: eight floats.
#pragma once
#include <immintrin.h>

#include "transpose_x86.hpp"

namespace {

typedef __m256 F;
typedef __m256i I;
typedef __m256 Mask;
constexpr int LANES = 8;
constexpr int TILE_ROWS = 2, TILE_OUTS = 4;  // 8 accumulators, 2 rows of x, temporaries: 16 registers
constexpr int LOCKSTEP = 2;                  // vectors raised to a power at a time
// Terms are collected if at most one in PACK_SHARE (forward) or in SCATTER_SHARE (backward) is large.
constexpr long PACK_SHARE = 6, SCATTER_SHARE = 10;
constexpr int GRAD_ROWS = 2, GRAD_VECTORS = 2;

inline I set1i(int a) { return _mm256_set1_epi32(a); }
inline I first(int n) { return _mm256_cmpgt_epi32(set1i(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline F load_part(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
inline F keep_first(F a, int n) { return _mm256_and_ps(a, _mm256_castsi256_ps(first(n))); }
inline void store(float* p, F a) { _mm256_storeu_ps(p, a); }
inline void store_part(float* p, F a, int n) { _mm256_maskstore_ps(p, first(n), a); }
inline void store(int* p, I a) { _mm256_storeu_si256(reinterpret_cast<I*>(p), a); }
inline F gather(const float* p, const int* index) {
  return _mm256_i32gather_ps(p, _mm256_loadu_si256(reinterpret_cast<const I*>(index)), 4);
}
inline void scatter(float* p, const int* index, F a, int n) {
  float lanes[LANES];
  store(lanes, a);
  for (int k = 0; k < n; ++k) p[index[k]] = lanes[k];
}
inline F set1(float a) { return _mm256_set1_ps(a); }
inline F as_float(I a) { return _mm256_castsi256_ps(a); }
inline I as_int(F a) { return _mm256_castps_si256(a); }

inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
// The rounding error of a * b.
inline F product_error(F a, F b, F product) { return _mm256_fmsub_ps(a, b, product); }
inline F sqrt(F a) { return _mm256_sqrt_ps(a); }
inline F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F abs(F a) { return _mm256_and_ps(a, as_float(set1i(0x7fffffff))); }
// Maximum that returns b if either operand is NaN, like the x86 instruction.
inline F max_or_second(F a, F b) { return _mm256_max_ps(a, b); }
inline F min_or_second(F a, F b) { return _mm256_min_ps(a, b); }

inline I addi(I a, I b) { return _mm256_add_epi32(a, b); }
inline I subi(I a, I b) { return _mm256_sub_epi32(a, b); }
inline I andi(I a, I b) { return _mm256_and_si256(a, b); }
inline I ori(I a, I b) { return _mm256_or_si256(a, b); }
inline I xori(I a, I b) { return _mm256_xor_si256(a, b); }
inline I maxi(I a, I b) { return _mm256_max_epi32(a, b); }
template <int N> I shift_left(I a) { return _mm256_slli_epi32(a, N); }
template <int N> I shift_right(I a) { return _mm256_srai_epi32(a, N); }
inline F to_float(I a) { return _mm256_cvtepi32_ps(a); }
inline I to_int(F a) { return _mm256_cvtps_epi32(a); }

inline Mask greater(I a, I b) { return as_float(_mm256_cmpgt_epi32(a, b)); }
inline Mask equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline Mask not_less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); }
inline Mask within(F a, F low, F high) {
  return _mm256_and_ps(_mm256_cmp_ps(a, low, _CMP_GE_OQ), _mm256_cmp_ps(a, high, _CMP_LE_OQ));
}
inline unsigned bits(Mask m) { return unsigned(_mm256_movemask_ps(m)); }
inline F select(Mask m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
inline I select(Mask m, I yes, I no) { return _mm256_blendv_epi8(no, yes, as_int(m)); }

// Store the selected lanes of a next to each other; up to LANES floats are written. Return their number.
inline int pack(float* out, F a, Mask m) {
  alignas(32) float lanes[LANES];
  store(lanes, a);
  int count = 0;
  for (unsigned left = bits(m); left; left &= left - 1) out[count++] = lanes[__builtin_ctz(left)];
  return count;
}
inline int pack(int* out, I a, Mask m) { return pack(reinterpret_cast<float*>(out), as_float(a), m); }

// Reduce each of four vectors to one number.
template <class Fold> void fold4(const F* a, float* out) {
  F s = Fold::of(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
  F t = Fold::of(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));
  F u = Fold::of(_mm256_shuffle_ps(s, t, 0x44), _mm256_shuffle_ps(s, t, 0xee));
  _mm_storeu_ps(out, Fold::of(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1)));
}

struct FoldSum {
  static F of(F a, F b) { return add(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_add_ps(a, b); }
};
// Maximum by bit pattern: correct for non-negative numbers; NaN is the largest.
struct FoldMax {
  static F of(F a, F b) { return as_float(maxi(as_int(a), as_int(b))); }
  static __m128 of(__m128 a, __m128 b) {
    return _mm_castsi128_ps(_mm_max_epi32(_mm_castps_si128(a), _mm_castps_si128(b)));
  }
};

}  // namespace
