// The functions that every instruction-set level provides. There is one table per level; the best one is selected when
// the module is loaded.
#pragma once

namespace linfnet {

// x: [rows, features], w: [outs, features], y: [rows, outs], all contiguous.
struct Shape {
  long rows, outs, features;
  int threads;
};

// Neurons with connections to some inputs: weight and index [connections], offsets [outs + 1].
struct Connections {
  const float* weight;
  const int *index, *offsets;
};

// Images that the sparse kernels compute together: their values of one input are a cache line.
constexpr long SPARSE_BLOCK = 16;

// x: [rows, features], y: [rows, outs].
struct SparseShape {
  long rows, outs, features, connections;
  int threads;
};

// The factors of the largest, the second largest ... |x - w| of a pair.
constexpr int MOST_TERMS = 16;
struct Terms {
  int count;  // from 1 to MOST_TERMS, and at most the number of features
  float factor[MOST_TERMS];
};

struct Kernels {
  const char* name;
  // y = max |x - w|; index (may be null) receives the first feature that attains it.
  void (*infinity)(const float* x, const float* w, float* y, int* index, Shape shape);
  // y = (sum |x - w|^p)^(1/p) for finite p >= 1.
  void (*power)(const float* x, const float* w, float* y, double p, Shape shape);
  // Gradients of `power`; grad_x or grad_w may be null.
  void (*gradients)(const float* grad, const float* x, const float* w, const float* y, float* grad_x, float* grad_w,
                    double p, Shape shape);
  // The smallest and largest infinity distance over a box, and the first features that attain them (may be null).
  void (*bounds)(const float* lower, const float* upper, const float* w, float* smallest, float* largest, int* near,
                 int* far, Shape shape);
  // y = max |x - w| over the connections of a neuron; decisive (may be null) receives the first that attains it.
  void (*sparse_infinity)(const float* x, Connections net, float* y, int* decisive, SparseShape shape);
  // y = these distances - mean + bias (each may be null). sizes [1 + terms, rows] receives a bound on the magnitude of
  // the results of each step that rounds: of the distances, and of the sums with each term.
  void (*sparse_measured)(const float* x, Connections net, const float* mean, const float* bias, float* y, float* sizes,
                          SparseShape shape);
  // The smallest and largest of these distances over a box, and the connections that attain them (may be null).
  void (*sparse_bounds)(const float* lower, const float* upper, Connections net, float* smallest, float* largest,
                        int* near, int* far, SparseShape shape);
  // y = (sum |x - w|^p)^(1/p) over the connections of a neuron, for finite p >= 1.
  void (*sparse_power)(const float* x, Connections net, float* y, double p, SparseShape shape);
  // Gradients of `sparse_power`; grad_x or grad_w may be null.
  void (*sparse_power_gradients)(const float* grad, const float* x, Connections net, const float* y, float* grad_x,
                                 float* grad_w, double p, SparseShape shape);
  // y = the weighted sum of the largest |x - w|; index [rows, outs, terms] (may be null) receives their features.
  void (*sorted)(const float* x, const float* w, float* y, int* index, Terms terms, Shape shape);
  // The smallest and largest of these sums over a box.
  void (*sorted_bounds)(const float* lower, const float* upper, const float* w, float* smallest, float* largest,
                        Terms terms, Shape shape);
  // Compute log2, exp2 or the p-th root of `count` numbers like the kernels do, to test the errors.
  void (*elementary)(int which, const float* a, float* out, double p, long count);
};

const Kernels* avx512_kernels();
const Kernels* avx2_kernels();
const Kernels* plain_kernels();

// Gradients at p = infinity: the gradient of each pair is added to the feature given by `index`.
void scatter_gradients(const float* grad, const float* x, const float* w, const int* index, float* grad_x,
                       float* grad_w, Shape shape);

// Gradients of `sparse_infinity`; grad_x or grad_w may be null.
void sparse_gradients(const float* grad, const float* x, Connections net, const int* decisive, float* grad_x,
                      float* grad_w, SparseShape shape);
// Throw std::invalid_argument: the connections would be read outside of the arrays.
[[noreturn]] void refuse_connections();

// Call piece(data, i) once for each i < count, on at most `threads` threads; pieces must not share outputs.
void parallel(long count, int threads, void (*piece)(void* data, long i), void* data);
// Return a description of the thread runtime in use.
const char* thread_runtime();

// Return memory that the calling thread keeps between calls: at least `bytes` bytes, aligned to 64 bytes.
void* scratch(unsigned long bytes);
// Allocate memory for one call, aligned to 64 bytes.
void* allocate(unsigned long bytes);
void release(void* memory);

namespace {
template <class Piece> void parallel_for(long count, int threads, Piece piece) {
  parallel(
      count, threads, [](void* data, long i) { (*static_cast<Piece*>(data))(i); }, &piece);
}
constexpr long min_of(long a, long b) { return a < b ? a : b; }
inline long blocks_of(long count, long size) { return (count + size - 1) / size; }
}  // namespace

}  // namespace linfnet
