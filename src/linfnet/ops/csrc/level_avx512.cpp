#include "simd_avx512.hpp"
// Needs the vector type.
#include "level.hpp"

namespace linfnet {
const Kernels* avx512_kernels() {
  static constexpr Kernels kernels = table("AVX-512");
  return &kernels;
}
}  // namespace linfnet
