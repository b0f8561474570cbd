// Gradients of sparse distances: each output contributes to one connection.
//
// The pairs of samples and neurons are visited in tiles, so that the samples, the gradients and the connections of a tile
// are in the cache. Each sum is in the order of the neurons or of the samples, as in the reference.
#include <stdexcept>

#include "kernels.hpp"

namespace linfnet {
namespace {

constexpr long ROWS = 16, OUTS = 64;  // of a tile
constexpr int PIECES_PER_THREAD = 4;

}  // namespace

void refuse_connections() {
  throw std::invalid_argument("index or offsets do not fit to the inputs, neurons and connections");
}

void sparse_gradients(const float* grad, const float* x, Connections net, const int* decisive, float* grad_x,
                      float* grad_w, SparseShape shape) {
  const long in = shape.features, outs = shape.outs;
  const unsigned long inputs = in, connections = shape.connections;
  if (shape.rows && outs && (!in || !connections)) refuse_connections();
  // Call add(row, connection, input, gradient) for each pair of `rows` samples and of the neurons from begin to end.
  const auto visit = [&](long row, long rows, long begin, long end, auto add) {
    bool good = true;
    int input[OUTS];
    float flow[OUTS];
    for (long left = begin; left < end; left += OUTS)
      for (long r = row; r < row + rows; ++r) {
        const int count = int(min_of(OUTS, end - left));
        const int* const c = decisive + r * outs + left;
        // The sums are in a second loop, so that the reads of the first do not wait for them.
        for (int o = 0; o < count; ++o) {
          const bool known = (unsigned long)c[o] < connections;
          const int i = known ? net.index[c[o]] : -1, near = (unsigned long)i < inputs ? i : 0;
          good &= i == near;
          const float d = x[r * in + near] - net.weight[known ? c[o] : 0];
          input[o] = near;
          // Without branches, because the sign cannot be predicted.
          flow[o] = grad[r * outs + left + o] * float(int(d > 0) - int(d < 0));
        }
        if (!good) refuse_connections();
        for (int o = 0; o < count; ++o) add(r, c[o], input[o], flow[o]);
      }
  };
  if (grad_x)
    parallel_for(blocks_of(shape.rows, ROWS), shape.threads, [&](long block) {
      const long row = block * ROWS, rows = min_of(ROWS, shape.rows - row);
      __builtin_memset(grad_x + row * in, 0, rows * in * sizeof(float));
      visit(row, rows, 0, outs, [&](long r, long, long i, float flow) { grad_x[r * in + i] += flow; });
    });
  if (!grad_w) return;
  __builtin_memset(grad_w, 0, shape.connections * sizeof(float));
  const long pieces = shape.threads > 1 ? shape.threads * PIECES_PER_THREAD : 1;
  const long share = blocks_of(blocks_of(outs, pieces), OUTS) * OUTS;
  if (outs)
    parallel_for(blocks_of(outs, share), shape.threads, [&](long piece) {
      for (long row = 0; row < shape.rows; row += ROWS)
        visit(row, min_of(ROWS, shape.rows - row), piece * share, min_of(outs, (piece + 1) * share),
              [&](long, long c, long, float flow) { grad_w[c] -= flow; });
    });
}

}  // namespace linfnet
