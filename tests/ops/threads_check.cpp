// Use the thread pool from several threads at once, with pieces that throw, and in forked processes. Started by
// memory_check.sh, under ThreadSanitizer and AddressSanitizer.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "kernels.hpp"

using namespace linfnet;

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "threads: %s\n", what);
  std::_Exit(1);
}

void call(unsigned seed, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    seed = seed * 1664525u + 1013904223u;
    const long count = 1 + (seed >> 8) % 200, bad = (seed >> 20) % 4 == 0 ? long((seed >> 24) % count) : -1;
    const int threads = 1 + int((seed >> 16) % 6);
    std::vector<long> done(count, 0);  // not atomic: every piece is computed by one thread, before the call returns
    bool thrown = false;
    try {
      parallel_for(count, threads, [&](long i) {
        long* memory = static_cast<long*>(scratch(64 * sizeof(long)));
        for (long k = 0; k < 64; ++k) memory[k] = i;
        // Other threads get time to take a piece, and the caller must wait for some of them.
        if (i % 16 == seed % 16) std::this_thread::sleep_for(std::chrono::microseconds(30));
        if (i == bad) throw std::bad_alloc();
        done[i] += memory[i % 64] + 1;
      });
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    require(thrown == (bad >= 0), "an exception must reach the caller");
    for (long i = 0; i < count && !thrown; ++i) require(done[i] == i + 1, "every piece is computed once");
  }
}

void callers(int number, int rounds) {
  std::vector<std::thread> threads;
  for (int i = 0; i < number; ++i) threads.emplace_back(call, unsigned(i), rounds);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int count, char**) {
  call(7, 500);
  callers(4, 300);
  // ThreadSanitizer does not support threads that are started after a fork; an argument leaves this part out.
  for (int i = 0; i < 3 && count == 1; ++i) {
    std::thread other(call, 11u, 200);
    const pid_t child = fork();
    if (child == 0) {
      call(13, 100);
      callers(3, 50);
      std::_Exit(0);
    }
    int status = 1;
    require(waitpid(child, &status, 0) == child && status == 0, "a forked process must be able to compute");
    other.join();
  }
  return 0;
}
