// The Python module: functions take addresses and sizes and return nothing. It does not depend on torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "search.hpp"

namespace nb = nanobind;
using namespace linfnet;

namespace {

typedef std::uintptr_t Address;

float* floats(Address a) { return reinterpret_cast<float*>(a); }
int* ints(Address a) { return reinterpret_cast<int*>(a); }

const Kernels* find(const std::string& name) {
#ifdef LINFNET_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("popcnt");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (avx512 && (name.empty() || name == avx512_kernels()->name)) return avx512_kernels();
  if (avx2 && (name.empty() || name == avx2_kernels()->name)) return avx2_kernels();
#endif
  if (name.empty() || name == plain_kernels()->name) return plain_kernels();
  return nullptr;
}

const Kernels* current = find("");

nb::list levels() {
  nb::list names;
  for (const char* name : {"AVX-512", "AVX2+FMA", "plain"})
    if (find(name)) names.append(name);
  return names;
}

void use(const std::string& name) {
  const Kernels* found = find(name);
  if (!found) throw std::invalid_argument("no level of that name runs on this machine");
  current = found;
}

// With fewer (row, output, feature) triples, the interpreter lock is not released: that would take longer than the
// computation.
constexpr long LOCKED_TRIPLES = 1 << 18;
// A thread is used for each this many triples: they take 40 to 100 microseconds, and so does waking a thread.
constexpr long TRIPLES_PER_THREAD = 1 << 20;
// The same for connections of one image, or of a block of images, which take about as long.
constexpr long CONNECTIONS_PER_THREAD = 1 << 16;

template <class Work> void run(Shape shape, Work work) {
  if (shape.rows * shape.outs * shape.features < LOCKED_TRIPLES) {
    work();
    return;
  }
  nb::gil_scoped_release release;
  work();
}

void forward(Address x, Address w, Address y, Address index, double p, long rows, long outs, long features,
             int threads) {
  const Shape shape{rows, outs, features, threads};
  run(shape, [&] {
    if (p == __builtin_inf())
      current->infinity(floats(x), floats(w), floats(y), ints(index), shape);
    else
      current->power(floats(x), floats(w), floats(y), p, shape);
  });
}

void backward(Address grad, Address x, Address w, Address y, Address index, Address grad_x, Address grad_w, double p,
              long rows, long outs, long features, int threads) {
  const Shape shape{rows, outs, features, threads};
  run(shape, [&] {
    if (p == __builtin_inf())
      scatter_gradients(floats(grad), floats(x), floats(w), ints(index), floats(grad_x), floats(grad_w), shape);
    else
      current->gradients(floats(grad), floats(x), floats(w), floats(y), floats(grad_x), floats(grad_w), p, shape);
  });
}

void bounds(Address lower, Address upper, Address w, Address smallest, Address largest, Address near, Address far,
            long rows, long outs, long features, int threads) {
  const Shape shape{rows, outs, features, threads};
  run(shape, [&] {
    current->bounds(floats(lower), floats(upper), floats(w), floats(smallest), floats(largest), ints(near), ints(far),
                    shape);
  });
}

Connections connections(Address weight, Address index, Address offsets) {
  return {floats(weight), ints(index), ints(offsets)};
}

template <class Work> void run(SparseShape shape, Work work) {
  run(Shape{shape.rows, shape.connections, 1, shape.threads}, work);
}

void sparse_forward(Address x, Address weight, Address index, Address offsets, Address y, Address decisive, long rows,
                    long outs, long features, long count, int threads) {
  const SparseShape shape{rows, outs, features, count, threads};
  run(shape, [&] {
    current->sparse_infinity(floats(x), connections(weight, index, offsets), floats(y), ints(decisive), shape);
  });
}

// A stack of layers. `layers` has 8 numbers for each: the addresses of weight, index, offsets, mean and bias (0 if there
// is none), outputs, connections and threads. sizes: [1 + terms of each layer, rows].
void sparse_measured(Address x, const std::vector<Address>& layers, Address y, Address sizes, long rows,
                     long features) {
  constexpr size_t NUMBERS = 8;
  long total = 0, widest = 0;
  for (size_t k = 0; k < layers.size(); k += NUMBERS) {
    total += long(layers[k + 6]);
    widest = std::max(widest, long(layers[k + 5]));
  }
  run(SparseShape{rows, 0, features, total, 1}, [&] {
    std::unique_ptr<float[]> outputs[2];
    const float* input = floats(x);
    float* bound = floats(sizes);
    long inputs = features;
    for (size_t k = 0; k < layers.size(); k += NUMBERS) {
      const Address* const layer = &layers[k];
      const SparseShape shape{rows, long(layer[5]), inputs, long(layer[6]), int(layer[7])};
      auto& buffer = outputs[k / NUMBERS % 2];
      const bool last = k + NUMBERS == layers.size();
      if (!last && !buffer) buffer.reset(new float[rows * widest]);
      float* const output = last ? floats(y) : buffer.get();
      current->sparse_measured(input, connections(layer[0], layer[1], layer[2]), floats(layer[3]), floats(layer[4]),
                               output, bound, shape);
      bound += rows * (1 + (layer[3] != 0) + (layer[4] != 0));
      input = output;
      inputs = shape.outs;
    }
  });
}

void sparse_backward(Address grad, Address x, Address weight, Address index, Address decisive, Address grad_x,
                     Address grad_w, long rows, long outs, long features, long count, int threads) {
  const SparseShape shape{rows, outs, features, count, threads};
  run(shape, [&] {
    sparse_gradients(floats(grad), floats(x), connections(weight, index, 0), ints(decisive), floats(grad_x),
                     floats(grad_w), shape);
  });
}

void sparse_bounds(Address lower, Address upper, Address weight, Address index, Address offsets, Address smallest,
                   Address largest, Address near, Address far, long rows, long outs, long features, long count,
                   int threads) {
  const SparseShape shape{rows, outs, features, count, threads};
  run(shape, [&] {
    current->sparse_bounds(floats(lower), floats(upper), connections(weight, index, offsets), floats(smallest),
                           floats(largest), ints(near), ints(far), shape);
  });
}

void sparse_power(Address x, Address weight, Address index, Address offsets, Address y, double p, long rows, long outs,
                  long features, long count, int threads) {
  const SparseShape shape{rows, outs, features, count, threads};
  run(shape, [&] { current->sparse_power(floats(x), connections(weight, index, offsets), floats(y), p, shape); });
}

void sparse_power_backward(Address grad, Address x, Address weight, Address index, Address offsets, Address y,
                           Address grad_x, Address grad_w, double p, long rows, long outs, long features, long count,
                           int threads) {
  const SparseShape shape{rows, outs, features, count, threads};
  run(shape, [&] {
    current->sparse_power_gradients(floats(grad), floats(x), connections(weight, index, offsets), floats(y),
                                    floats(grad_x), floats(grad_w), p, shape);
  });
}

Terms terms_of(const std::vector<float>& factors, long features) {
  if (factors.empty() || factors.size() > MOST_TERMS || long(factors.size()) > features)
    throw std::invalid_argument("the number of factors does not fit");
  Terms terms{int(factors.size()), {}};
  std::copy(factors.begin(), factors.end(), terms.factor);
  return terms;
}

void sorted_forward(Address x, Address w, Address y, Address index, const std::vector<float>& factors, long rows,
                    long outs, long features, int threads) {
  const Shape shape{rows, outs, features, threads};
  const Terms terms = terms_of(factors, features);
  run(shape, [&] { current->sorted(floats(x), floats(w), floats(y), ints(index), terms, shape); });
}

void sorted_bounds(Address lower, Address upper, Address w, Address smallest, Address largest,
                   const std::vector<float>& factors, long rows, long outs, long features, int threads) {
  const Shape shape{rows, outs, features, threads};
  const Terms terms = terms_of(factors, features);
  run(shape, [&] {
    current->sorted_bounds(floats(lower), floats(upper), floats(w), floats(smallest), floats(largest), terms, shape);
  });
}

void elementary(int which, Address a, Address out, double p, long count) {
  current->elementary(which, floats(a), floats(out), p, count);
}

// The outcome and the number of branches.
nb::tuple search_circuit(Address kinds, Address starts, Address offsets, Address index, Address weight, Address low,
                         Address high, Address image, Address found, long stages, long nodes, long pixels, long own,
                         long rival, long branches, double seconds) {
  const auto whole = [](Address a) { return reinterpret_cast<const std::int64_t*>(a); };
  const Query query{whole(kinds), whole(starts), whole(offsets), whole(index), floats(weight),
                    floats(low),  floats(high),  floats(image),  stages,       nodes,
                    pixels,       own,           rival,          branches,     seconds};
  Verdict verdict;
  {
    nb::gil_scoped_release release;
    verdict = search(query, floats(found));
  }
  return nb::make_tuple(int(verdict.outcome), verdict.branches);
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.def("forward", &forward);
  m.def("backward", &backward);
  m.def("bounds", &bounds);
  m.def("sparse_forward", &sparse_forward);
  m.def("sparse_measured", &sparse_measured);
  m.def("sparse_backward", &sparse_backward);
  m.def("sparse_bounds", &sparse_bounds);
  m.def("sparse_power", &sparse_power);
  m.def("sparse_power_backward", &sparse_power_backward);
  m.def("sorted_forward", &sorted_forward);
  m.def("sorted_bounds", &sorted_bounds);
  m.def("elementary", &elementary);
  m.def("search", &search_circuit);
  m.def("levels", &levels, "The instruction-set levels that run on this machine, best first.");
  m.def(
      "level", [] { return current->name; }, "The level in use.");
  m.def("use", &use, nb::arg("level"), "Use this level from now on; an empty name chooses the best.");
  m.def("thread_runtime", &thread_runtime);
  m.attr("TRIPLES_PER_THREAD") = TRIPLES_PER_THREAD;
  m.attr("CONNECTIONS_PER_THREAD") = CONNECTIONS_PER_THREAD;
  m.attr("SPARSE_BLOCK") = SPARSE_BLOCK;
}
