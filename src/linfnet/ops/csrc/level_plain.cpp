#include "simd_plain.hpp"
// Needs the vector type.
#include "level.hpp"

namespace linfnet {
const Kernels* plain_kernels() {
  static constexpr Kernels kernels = table("plain");
  return &kernels;
}
}  // namespace linfnet
