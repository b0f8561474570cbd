// The threads of the kernels: a pool whose idle threads sleep.
//
// All threads take pieces from one counter. The calling thread computes pieces until none is left and then waits only
// for pieces that other threads have begun, so on a busy machine it does not wait for threads that do not run. A thread
// that waits tests for the end of the wait for a short time before it sleeps.
#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "kernels.hpp"
#if defined(__unix__) || defined(__APPLE__)
#define LINFNET_POSIX
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#endif

namespace linfnet {
namespace {

// How long a thread waits before it sleeps: longer than most pieces, and than the time from a forward to a backward pass.
// A thread that sleeps is woken too late to be of use in a short job.
constexpr std::chrono::microseconds SPIN(200);

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

// Test `ready` until it is true or SPIN has passed. With `yielding`, other threads that want this core are let through.
template <class Ready> void spin(Ready ready, bool yielding) {
  const auto end = std::chrono::steady_clock::now() + SPIN;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return;
      relax();
    }
    if (yielding) std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
}

class Job {
 public:
  Job(long count, void (*piece)(void*, long), void* data) : count_(count), piece_(piece), data_(data) {
    std::fegetenv(&environment_);
  }

  // Compute pieces until none is left. Never throws; the first exception is stored for `rethrow`.
  void work() {
    try {
      for (long i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) piece_(data_, i);
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }

  // Threads differ in their treatment of subnormal numbers; the result must not depend on the thread.
  void work_like_caller() {
    std::fesetenv(&environment_);
    work();
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<long> next_{0};
  const long count_;
  void (*const piece_)(void*, long);
  void* const data_;
  std::fenv_t environment_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

class Pool {
 public:
  // Compute a job by the calling thread and at most `helpers` threads of the pool. If another thread uses the pool, the
  // calling thread computes alone.
  void run(Job& job, int helpers) {
    if (in_use_.exchange(true, std::memory_order_acquire)) return job.work();
    start(helpers);
    post(job, helpers < started_ ? helpers : started_);
    job.work();
    finish();
    in_use_.store(false, std::memory_order_release);
  }

 private:
  // Start threads until the pool has `count`, or as many as the system allows.
  void start(int count) {
    if (started_ >= count) return;
#ifdef LINFNET_POSIX
    // Signals are left to the threads of the program.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    try {
      for (; started_ < count; ++started_) std::thread([this] { help(); }).detach();
    } catch (const std::system_error&) {
    }
#ifdef LINFNET_POSIX
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
  }

  void post(Job& job, int helpers) {
    bool wake;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      wanted_ = helpers;
      posted_.fetch_add(1, std::memory_order_release);
      wake = helpers > started_ - sleeping_;  // the others spin, or are about to test `wanted_`
    }
    if (wake) helpers == 1 ? work_.notify_one() : work_.notify_all();
  }

  // Let no more threads begin, and wait for those that have begun.
  void finish() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      wanted_ = 0;
    }
    const auto done = [this] { return active_.load(std::memory_order_acquire) == 0; };
    spin(done, false);
    if (done()) return;
    std::unique_lock<std::mutex> lock(mutex_);
    caller_sleeps_ = true;
    done_.wait(lock, done);
    caller_sleeps_ = false;
  }

  // The loop of a thread of the pool.
  void help() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++sleeping_;
      work_.wait(lock, [this] { return wanted_ > 0; });
      --sleeping_;
      --wanted_;
      active_.fetch_add(1, std::memory_order_relaxed);
      const unsigned seen = posted_.load(std::memory_order_relaxed);
      Job* const job = job_;
      lock.unlock();
      job->work_like_caller();
      lock.lock();
      // The job no longer exists after this line.
      if (active_.fetch_sub(1, std::memory_order_release) == 1 && caller_sleeps_) done_.notify_one();
      lock.unlock();
      spin([&] { return posted_.load(std::memory_order_relaxed) != seen; }, true);
      lock.lock();
    }
  }

  std::atomic<bool> in_use_{false};
  int started_ = 0;  // used only by the thread that set in_use_

  std::mutex mutex_;  // protects the members below; the atomic ones are also read without it
  std::condition_variable work_, done_;
  Job* job_ = nullptr;
  int wanted_ = 0;  // threads that may still begin the job
  int sleeping_ = 0;
  bool caller_sleeps_ = false;
  std::atomic<int> active_{0};       // threads that have begun the job and not ended
  std::atomic<unsigned> posted_{0};  // the number of jobs so far
};

// The pool is never destroyed: its threads use it until the process ends.
std::atomic<Pool*> current_pool{nullptr};

#ifdef LINFNET_POSIX
// A child process has no threads but the one that called fork, so it needs a new pool.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { current_pool = nullptr; });
#endif

Pool& pool() {
  Pool* found = current_pool.load(std::memory_order_acquire);
  if (found) return *found;
  Pool* const fresh = new Pool;
  if (current_pool.compare_exchange_strong(found, fresh)) return *fresh;
  delete fresh;
  return *found;
}

typedef void (*Fork)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

// If the OpenMP runtime of torch binds its threads to cores (OMP_PROC_BIND), return its function that runs a team.
// Otherwise all threads of the pool would share the core of the thread that starts them.
Fork bound_team() {
#ifdef LINFNET_POSIX
  typedef int (*Binding)();
  const Binding binding = reinterpret_cast<Binding>(dlsym(RTLD_DEFAULT, "omp_get_proc_bind"));
  if (binding && binding() != 0) return reinterpret_cast<Fork>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
#endif
  return nullptr;
}

Fork team() {
  static const Fork found = bound_team();
  return found;
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
  Job job(count, piece, data);
  if (team())
    team()([](void* job) { static_cast<Job*>(job)->work_like_caller(); }, &job, unsigned(threads), 0);
  else
    pool().run(job, threads - 1);
  job.rethrow();
}

const char* thread_runtime() { return team() ? "bound to cores by the OpenMP runtime of torch" : "a pool"; }

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
