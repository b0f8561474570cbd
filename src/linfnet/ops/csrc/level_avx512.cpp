#include "simd_avx512.hpp"
// The vector type comes first.
#include "level.hpp"

namespace linfnet {
const Kernels* avx512_kernels() {
    static constexpr Kernels kernels = table("AVX-512");
    return &kernels;
}
}  // namespace linfnet
