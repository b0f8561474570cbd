// Aligned memory of the kernels.
#include <cstdlib>
#include <new>

#include "kernels.hpp"

namespace linfnet {
namespace {

struct Buffer {
  void* memory = nullptr;
  unsigned long size = 0;
  ~Buffer() { std::free(memory); }
};

}  // namespace

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
