// All kernels of one instruction-set level. Each file level_*.cpp includes a vector type and then this file, and is
// compiled with separate flags. Everything has internal linkage, so that no level can use code compiled for another.
#pragma once

// Exponents whose powers need few multiplications.
// clang-format off
#define LINFNET_CHAINS(CASE) \
  CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(12) CASE(14) CASE(16) \
  CASE(20) CASE(24) CASE(28) CASE(32)
// clang-format on

#include "sorted.hpp"
#include "sparse_slopes.hpp"

namespace linfnet {
namespace {
constexpr Kernels table(const char* name) {
  return {name,
          infinity,
          power,
          gradients,
          bounds,
          sparse_infinity,
          sparse_measured,
          sparse_bounds,
          sparse_power,
          sparse_power_gradients,
          sorted,
          sorted_bounds,
          elementary};
}
}  // namespace
}  // namespace linfnet
