#include "simd_avx512.hpp"
// Include after the vector type, which level.hpp uses.
#include "level.hpp"

namespace linfnet {
const Kernels* avx512_kernels() {
  static constexpr Kernels kernels = table("AVX-512");
  return &kernels;
}
}  // namespace linfnet
