// Threads of the OpenMP runtime that torch has loaded, found by name, so that a process never has two runtimes.
//
// With two runtimes, idle threads of one would slow down the other. GOMP_parallel is the stable entry point of the GNU
// runtime; the Intel and LLVM runtimes provide it as well. If no runtime is loaded, threads are started for each call.
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "kernels.hpp"
#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#endif

namespace linfnet {
namespace {

typedef void (*Fork)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

Fork find_runtime() {
#if defined(__unix__) || defined(__APPLE__)
  return reinterpret_cast<Fork>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
#else
  return nullptr;
#endif
}

Fork fork_join() {
  static const Fork found = find_runtime();
  return found;
}

struct Job {
  std::atomic<long> next{0};
  long count;
  void (*piece)(void*, long);
  void* data;
};

void work(void* pointer) {
  Job& job = *static_cast<Job*>(pointer);
  for (long i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;) job.piece(job.data, i);
}

struct Buffer {
  void* memory = nullptr;
  unsigned long size = 0;
  ~Buffer() { std::free(memory); }
};

}  // namespace

void parallel(long count, int threads, void (*piece)(void*, long), void* data) {
  if (threads > count) threads = int(count);
  if (threads <= 1) {
    for (long i = 0; i < count; ++i) piece(data, i);
    return;
  }
  Job job;
  job.count = count;
  job.piece = piece;
  job.data = data;
  if (fork_join()) {
    fork_join()(work, &job, unsigned(threads), 0);
    return;
  }
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work, &job);
  work(&job);
  for (std::thread& other : others) other.join();
}

const char* thread_runtime() { return fork_join() ? "the OpenMP runtime of torch" : "its own threads"; }

void* allocate(unsigned long bytes) {
  void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!memory) throw std::bad_alloc();
  return memory;
}

void release(void* memory) { std::free(memory); }

void* scratch(unsigned long bytes) {
  thread_local Buffer buffer;
  if (buffer.size < bytes) {
    release(buffer.memory);
    buffer.memory = nullptr;
    buffer.size = 0;
    buffer.memory = allocate(bytes);
    buffer.size = bytes;
  }
  return buffer.memory;
}

}  // namespace linfnet
