// Run every kernel of every level with odd shapes, in buffers that end (or begin) at a forbidden page: any access beyond
// them causes a fault, even by masked vector instructions, which sanitizers do not check. Started by memory_check.sh.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels.hpp"

using namespace linfnet;

namespace {

unsigned state = 1;
float number() {
  state = state * 1664525u + 1013904223u;
  return float(int(state >> 8) - (1 << 23)) / float(1 << 21);
}

// A buffer for `count` values of T with a forbidden page at the end or at the beginning.
template <class T> class Fenced {
 public:
  explicit Fenced(long count, bool at_end) {
    const long page = sysconf(_SC_PAGESIZE), bytes = count * long(sizeof(T));
    inside_ = (bytes + page - 1) / page * page;
    whole_ = inside_ + 2 * page;
    base_ = static_cast<char*>(mmap(nullptr, whole_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || (inside_ && mprotect(base_ + page, inside_, PROT_READ | PROT_WRITE))) std::abort();
    data_ = reinterpret_cast<T*>(base_ + page + (at_end ? inside_ - bytes : 0));
  }
  ~Fenced() { munmap(base_, whole_); }
  T* get() const { return data_; }

 private:
  long inside_, whole_;
  char* base_;
  T* data_;
};

Fenced<float>& fill(Fenced<float>& buffer, long count, float scale) {
  for (long i = 0; i < count; ++i) buffer.get()[i] = number() * scale;
  return buffer;
}

void check(const Kernels& kernels, Shape shape, float scale, bool at_end) {
  const long n = shape.rows * shape.features, m = shape.outs * shape.features, pairs = shape.rows * shape.outs;
  Fenced<float> x(n, at_end), upper(n, at_end), w(m, at_end), grad(pairs, at_end), y(pairs, at_end), z(pairs, at_end);
  Fenced<float> grad_x(n, at_end), grad_w(m, at_end);
  Fenced<int> near(pairs, at_end), far(pairs, at_end);
  fill(x, n, scale), fill(w, m, scale), fill(grad, pairs, 1.0f);
  for (long i = 0; i < n; ++i) upper.get()[i] = x.get()[i] + scale;
  kernels.infinity(x.get(), w.get(), z.get(), nullptr, shape);
  kernels.infinity(x.get(), w.get(), y.get(), near.get(), shape);
  if (std::memcmp(y.get(), z.get(), pairs * sizeof(float))) std::abort();
  scatter_gradients(grad.get(), x.get(), w.get(), near.get(), grad_x.get(), grad_w.get(), shape);
  kernels.bounds(x.get(), upper.get(), w.get(), y.get(), z.get(), near.get(), far.get(), shape);
  kernels.bounds(x.get(), upper.get(), w.get(), y.get(), z.get(), nullptr, nullptr, shape);
  for (double p : {1.0, 1.5, 2.0, 3.0, 8.0, 28.0, 30.5, 200.0, 1e4}) {
    kernels.power(x.get(), w.get(), y.get(), p, shape);
    kernels.gradients(grad.get(), x.get(), w.get(), y.get(), grad_x.get(), grad_w.get(), p, shape);
    kernels.gradients(grad.get(), x.get(), w.get(), y.get(), nullptr, grad_w.get(), p, shape);
    for (long i = 0; i < pairs; ++i)
      if (std::isnan(y.get()[i])) std::abort();
  }
}

// Neurons with one connection, all connections or few, in turn.
void check_sparse(const Kernels& kernels, long rows, long outs, long features, bool at_end) {
  std::vector<int> index, offsets{0};
  for (long o = 0; o < outs; ++o) {
    const long step = o % 3 == 0 ? features : o % 3 == 1 ? 1 : 5;
    for (long i = o % features % step; i < features; i += step) index.push_back(int(i));
    offsets.push_back(int(index.size()));
  }
  const long n = rows * features, pairs = rows * outs, count = long(index.size());
  const SparseShape shape{rows, outs, features, count, 2};
  Fenced<float> x(n, at_end), upper(n, at_end), w(count, at_end), grad(pairs, at_end), y(pairs, at_end);
  Fenced<float> z(pairs, at_end), grad_x(n, at_end), grad_w(count, at_end);
  Fenced<int> inputs(count, at_end), starts(outs + 1, at_end), near(pairs, at_end), far(pairs, at_end);
  fill(x, n, 1.0f), fill(w, count, 1.0f), fill(grad, pairs, 1.0f);
  for (long i = 0; i < n; ++i) upper.get()[i] = x.get()[i] + 1.0f;
  std::memcpy(inputs.get(), index.data(), count * sizeof(int));
  std::memcpy(starts.get(), offsets.data(), (outs + 1) * sizeof(int));
  const Connections net{w.get(), inputs.get(), starts.get()};
  kernels.sparse_infinity(x.get(), net, z.get(), nullptr, shape);
  kernels.sparse_infinity(x.get(), net, y.get(), near.get(), shape);
  if (std::memcmp(y.get(), z.get(), pairs * sizeof(float))) std::abort();
  Fenced<float> mean(outs, at_end), bias(outs, at_end), sizes(3 * rows, at_end), largest(rows, at_end);
  fill(mean, outs, 1.0f), fill(bias, outs, 1.0f);
  kernels.sparse_measured(x.get(), net, nullptr, nullptr, z.get(), largest.get(), shape);
  if (std::memcmp(y.get(), z.get(), pairs * sizeof(float))) std::abort();
  kernels.sparse_measured(x.get(), net, mean.get(), bias.get(), z.get(), sizes.get(), shape);
  if (std::memcmp(sizes.get(), largest.get(), rows * sizeof(float))) std::abort();
  sparse_gradients(grad.get(), x.get(), net, near.get(), grad_x.get(), grad_w.get(), shape);
  kernels.sparse_bounds(x.get(), upper.get(), net, y.get(), z.get(), near.get(), far.get(), shape);
  kernels.sparse_bounds(x.get(), upper.get(), net, y.get(), z.get(), nullptr, nullptr, shape);
  for (double p : {1.0, 16.0, 30.5}) {
    kernels.sparse_power(x.get(), net, y.get(), p, shape);
    kernels.sparse_power_gradients(grad.get(), x.get(), net, y.get(), grad_x.get(), grad_w.get(), p, shape);
    kernels.sparse_power_gradients(grad.get(), x.get(), net, y.get(), grad_x.get(), nullptr, p, shape);
  }
}

}  // namespace

int main(int count, char** names) {
  const long sizes[] = {1, 3, 4, 17, 63, 100, 257};
  long runs = 0;
  for (const Kernels* kernels : {avx512_kernels(), avx2_kernels(), plain_kernels()}) {
    bool wanted = count == 1;
    for (int i = 1; i < count; ++i) wanted = wanted || !std::strcmp(names[i], kernels->name);
    if (!wanted) continue;
    for (long features : sizes)
      for (long outs : {1l, 5l, 33l, 70l})
        for (long rows : {1l, 3l, 6l, 33l})
          for (float scale : {1.0f, 1e-40f, 1e30f})
            for (bool at_end : {true, false}) {
              check(*kernels, Shape{rows, outs, features, 2}, scale, at_end);
              ++runs;
            }
    for (long features : {1l, 3l, 17l, 100l, 2500l})
      for (long outs : {1l, 5l, 33l})
        for (long rows : {1l, 2l, 3l, 4l, 16l, 21l})
          for (bool at_end : {true, false}) {
            check_sparse(*kernels, rows, outs, features, at_end);
            ++runs;
          }
    std::printf("%s: clean\n", kernels->name);
  }
  std::printf("%ld runs\n", runs);
}
