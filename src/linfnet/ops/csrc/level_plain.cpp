#include "simd_plain.hpp"
// The vector type comes first.
#include "level.hpp"

namespace linfnet {
const Kernels* plain_kernels() {
    static constexpr Kernels kernels = table("plain");
    return &kernels;
}
}  // namespace linfnet
