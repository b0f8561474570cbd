#include "simd_avx2.hpp"
// Include after the vector type, which level.hpp uses.
#include "level.hpp"

namespace linfnet {
const Kernels* avx2_kernels() {
  static constexpr Kernels kernels = table("AVX2+FMA");
  return &kernels;
}
}  // namespace linfnet
