#include "simd_avx2.hpp"
// Needs the vector type.
#include "level.hpp"

namespace linfnet {
const Kernels* avx2_kernels() {
  static constexpr Kernels kernels = table("AVX2+FMA");
  return &kernels;
}
}  // namespace linfnet
