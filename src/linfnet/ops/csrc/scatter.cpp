// Gradients at p = infinity: each pair contributes to one feature. The rows of grad_x and grad_w are divided among the
// threads; each row is summed in the order of the outputs or samples, as in the reference.
#include "kernels.hpp"

namespace linfnet {
namespace {

inline float flow(float grad, float d) { return d > 0 ? grad : d < 0 ? -grad : grad * 0.0f; }

}  // namespace

void scatter_gradients(const float* grad, const float* x, const float* w, const int* index, float* grad_x,
                       float* grad_w, Shape shape) {
  const long in = shape.features, outs = shape.outs;
  constexpr long ROWS = 16;
  if (grad_x)
    parallel_for(blocks_of(shape.rows, ROWS), shape.threads, [&](long block) {
      for (long r = block * ROWS; r < min_of(shape.rows, (block + 1) * ROWS); ++r) {
        float* target = grad_x + r * in;
        __builtin_memset(target, 0, in * sizeof(float));
        for (long o = 0; o < outs; ++o) {
          const long i = index[r * outs + o];
          target[i] += flow(grad[r * outs + o], x[r * in + i] - w[o * in + i]);
        }
      }
    });
  if (grad_w)
    parallel_for(blocks_of(outs, ROWS), shape.threads, [&](long block) {
      const long first = block * ROWS, last = min_of(outs, first + ROWS);
      __builtin_memset(grad_w + first * in, 0, (last - first) * in * sizeof(float));
      for (long r = 0; r < shape.rows; ++r)
        for (long o = first; o < last; ++o) {
          const long i = index[r * outs + o];
          grad_w[o * in + i] -= flow(grad[r * outs + o], x[r * in + i] - w[o * in + i]);
        }
    });
}

}  // namespace linfnet
