#include "simd_plain.hpp"
// Include after the vector type, which level.hpp uses.
#include "level.hpp"

namespace linfnet {
const Kernels* plain_kernels() {
  static constexpr Kernels kernels = table("plain");
  return &kernels;
}
}  // namespace linfnet
