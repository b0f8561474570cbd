// The vector type of the AVX-512 level (F, DQ, BW, VL): sixteen floats.
#pragma once
#include <immintrin.h>

#include "transpose_x86.hpp"

namespace {

typedef __m512 F;
typedef __m512i I;
typedef __mmask16 Mask;
constexpr int LANES = 16;
constexpr int TILE_ROWS = 4, TILE_OUTS = 4;  // 16 accumulators and 4 rows of x fit in 32 registers
constexpr int LOCKSTEP = 4;                  // vectors raised to a power at a time
// Terms are collected if at most one in PACK_SHARE (forward) or in SCATTER_SHARE (backward) is large.
constexpr long PACK_SHARE = 2, SCATTER_SHARE = 6;
constexpr int GRAD_ROWS = 4, GRAD_VECTORS = 2;

inline Mask first(int n) { return Mask((1u << n) - 1); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline F load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
inline F keep_first(F a, int n) { return _mm512_maskz_mov_ps(first(n), a); }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a); }
inline void store_part(float* p, F a, int n) { _mm512_mask_storeu_ps(p, first(n), a); }
inline void store(int* p, I a) { _mm512_storeu_si512(p, a); }
inline F gather(const float* p, const int* index) { return _mm512_i32gather_ps(_mm512_loadu_si512(index), p, 4); }
inline void scatter(float* p, const int* index, F a, int n) {
  _mm512_mask_i32scatter_ps(p, first(n), _mm512_loadu_si512(index), a, 4);
}
inline F set1(float a) { return _mm512_set1_ps(a); }
inline I set1i(int a) { return _mm512_set1_epi32(a); }
inline F as_float(I a) { return _mm512_castsi512_ps(a); }
inline I as_int(F a) { return _mm512_castps_si512(a); }

inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
// The rounding error of a * b.
inline F product_error(F a, F b, F product) { return _mm512_fmsub_ps(a, b, product); }
inline F sqrt(F a) { return _mm512_sqrt_ps(a); }
inline F round(F a) { return _mm512_roundscale_ps(a, 8); }
inline F abs(F a) { return _mm512_abs_ps(a); }
// Maximum that returns b if either operand is NaN, like the x86 instruction.
inline F max_or_second(F a, F b) { return _mm512_max_ps(a, b); }
inline F min_or_second(F a, F b) { return _mm512_min_ps(a, b); }

inline I addi(I a, I b) { return _mm512_add_epi32(a, b); }
inline I subi(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I andi(I a, I b) { return _mm512_and_si512(a, b); }
inline I ori(I a, I b) { return _mm512_or_si512(a, b); }
inline I xori(I a, I b) { return _mm512_xor_si512(a, b); }
inline I maxi(I a, I b) { return _mm512_max_epi32(a, b); }
template <int N> I shift_left(I a) { return _mm512_slli_epi32(a, N); }
template <int N> I shift_right(I a) { return _mm512_srai_epi32(a, N); }
inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
inline I to_int(F a) { return _mm512_cvtps_epi32(a); }

inline Mask greater(I a, I b) { return _mm512_cmpgt_epi32_mask(a, b); }
inline Mask equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask not_less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
inline Mask within(F a, F low, F high) {
  return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(a, low, _CMP_GE_OQ), a, high, _CMP_LE_OQ);
}
inline unsigned bits(Mask m) { return m; }
inline F select(Mask m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
inline I select(Mask m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }

// Store the selected lanes of a next to each other; up to LANES floats are written. Return their number.
inline int pack(float* out, F a, Mask m) {
  store(out, _mm512_maskz_compress_ps(m, a));  // a compressing store is slow on some machines
  return __builtin_popcount(m);
}
inline int pack(int* out, I a, Mask m) {
  store(out, _mm512_maskz_compress_epi32(m, a));
  return __builtin_popcount(m);
}

// Reduce each of four vectors to one number.
template <class Fold> void fold4(const F* a, float* out) {
  __m256 h[4];
  for (int k = 0; k < 4; ++k) h[k] = Fold::of(_mm512_castps512_ps256(a[k]), _mm512_extractf32x8_ps(a[k], 1));
  __m256 s = Fold::of(_mm256_unpacklo_ps(h[0], h[1]), _mm256_unpackhi_ps(h[0], h[1]));
  __m256 t = Fold::of(_mm256_unpacklo_ps(h[2], h[3]), _mm256_unpackhi_ps(h[2], h[3]));
  __m256 u = Fold::of(_mm256_shuffle_ps(s, t, 0x44), _mm256_shuffle_ps(s, t, 0xee));
  _mm_storeu_ps(out, Fold::of(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1)));
}

struct FoldSum {
  static __m256 of(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static __m128 of(__m128 a, __m128 b) { return _mm_add_ps(a, b); }
};
// Maximum by bit pattern: correct for non-negative numbers; NaN is the largest.
struct FoldMax {
  static __m256 of(__m256 a, __m256 b) {
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static __m128 of(__m128 a, __m128 b) {
    return _mm_castsi128_ps(_mm_max_epi32(_mm_castps_si128(a), _mm_castps_si128(b)));
  }
};

}  // namespace
