// Gradients of sparse distances: each output contributes to one connection. Sums are in the order of the outputs or of
// the samples, as in the reference.
#include <stdexcept>

#include "kernels.hpp"

namespace linfnet {
namespace {

inline float flow(float grad, float d) { return d > 0 ? grad : d < 0 ? -grad : grad * 0.0f; }

}  // namespace

void refuse_connections() {
  throw std::invalid_argument("index or offsets do not fit to the inputs, neurons and connections");
}

void sparse_gradients(const float* grad, const float* x, Connections net, const int* decisive, float* grad_x,
                      float* grad_w, SparseShape shape) {
  const long in = shape.features, outs = shape.outs;
  constexpr long ROWS = 16, OUTS = 64;
  const auto flow_of = [&](long r, long o, long& c, long& i) {
    c = decisive[r * outs + o];
    if (c < 0 || c >= shape.connections) refuse_connections();
    i = net.index[c];
    if (i < 0 || i >= in) refuse_connections();
    return flow(grad[r * outs + o], x[r * in + i] - net.weight[c]);
  };
  long c, i;
  if (grad_x)
    parallel_for(blocks_of(shape.rows, ROWS), shape.threads, [&, c, i](long block) mutable {
      for (long r = block * ROWS; r < min_of(shape.rows, (block + 1) * ROWS); ++r) {
        float* target = grad_x + r * in;
        __builtin_memset(target, 0, in * sizeof(float));
        for (long o = 0; o < outs; ++o) {
          const float f = flow_of(r, o, c, i);
          target[i] += f;
        }
      }
    });
  if (grad_w) {
    __builtin_memset(grad_w, 0, shape.connections * sizeof(float));
    parallel_for(blocks_of(outs, OUTS), shape.threads, [&, c, i](long block) mutable {
      for (long r = 0; r < shape.rows; ++r)
        for (long o = block * OUTS; o < min_of(outs, (block + 1) * OUTS); ++o) {
          const float f = flow_of(r, o, c, i);
          grad_w[c] -= f;
        }
    });
  }
}

}  // namespace linfnet
