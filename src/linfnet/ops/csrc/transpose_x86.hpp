// Transposes a square of eight by eight floats; for the levels that have AVX2.
#pragma once
#include <immintrin.h>

namespace {

constexpr long TRANSPOSED = 8;

inline void transpose_square(const float* from, long from_stride, float* to, long to_stride) {
  __m256 a[8], b[8];
  // Rows r and r + 4 of four columns are the halves of a vector.
  for (int r = 0; r < 4; ++r)
    for (int half = 0; half < 2; ++half) {
      const __m128 low = _mm_loadu_ps(from + r * from_stride + 4 * half);
      a[r + 4 * half] =
          _mm256_insertf128_ps(_mm256_castps128_ps256(low), _mm_loadu_ps(from + (r + 4) * from_stride + 4 * half), 1);
    }
  for (int half = 0; half < 8; half += 4) {
    b[half] = _mm256_unpacklo_ps(a[half], a[half + 1]);
    b[half + 1] = _mm256_unpackhi_ps(a[half], a[half + 1]);
    b[half + 2] = _mm256_unpacklo_ps(a[half + 2], a[half + 3]);
    b[half + 3] = _mm256_unpackhi_ps(a[half + 2], a[half + 3]);
  }
  for (int half = 0; half < 8; half += 4) {
    float* const out = to + half * to_stride;
    _mm256_storeu_ps(out, _mm256_shuffle_ps(b[half], b[half + 2], 0x44));
    _mm256_storeu_ps(out + to_stride, _mm256_shuffle_ps(b[half], b[half + 2], 0xee));
    _mm256_storeu_ps(out + 2 * to_stride, _mm256_shuffle_ps(b[half + 1], b[half + 3], 0x44));
    _mm256_storeu_ps(out + 3 * to_stride, _mm256_shuffle_ps(b[half + 1], b[half + 3], 0xee));
  }
}

}  // namespace
