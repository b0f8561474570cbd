// The threads of the kernels. All threads take pieces from one counter, until none is left.
//
// Pool: own threads, which sleep when idle. The calling thread waits only for pieces that other threads have begun, so
// on a busy machine it does not wait for threads that do not run.
//
// Team: the threads of the OpenMP runtime that torch has loaded. After an operation of torch they spin for milliseconds,
// and the pool would have to share the cores with them. But a call returns only when every thread of the team has run.
// So the team is used while it is punctual, and the pool if the threads of torch do not spin or the machine is busy.
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "kernels.hpp"
#if defined(__unix__) || defined(__APPLE__)
#define LINFNET_POSIX
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <strings.h>
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

  // Compute pieces until none is left; return how many. Never throws; the first exception is stored for `rethrow`.
  long work() {
    long done = 0;
    try {
      for (long i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_; ++done) piece_(data_, i);
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
    return done;
  }

  // Threads differ in their treatment of subnormal numbers; the result must not depend on the thread.
  void work_like_caller() {
    std::fenv_t before;
    std::fegetenv(&before);
    std::fesetenv(&environment_);
    work();
    std::fesetenv(&before);
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
    if (in_use_.exchange(true, std::memory_order_acquire)) {
      job.work();
      return;
    }
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

std::atomic<bool> forked{false};

#ifdef LINFNET_POSIX
// A child process has no threads but the one that called fork. It needs a new pool, and must not use the team.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
  current_pool = nullptr;
  forked = true;
});
#endif

Pool& pool() {
  Pool* found = current_pool.load(std::memory_order_acquire);
  if (found) return *found;
  Pool* const fresh = new Pool;
  if (current_pool.compare_exchange_strong(found, fresh)) return *fresh;
  delete fresh;
  return *found;
}

class Team {
 public:
  Team() {
#ifdef LINFNET_POSIX
    // A stable entry point of the GNU runtime; the Intel and LLVM runtimes have it as well.
    fork_ = reinterpret_cast<Fork>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    const auto binding = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_proc_bind"));
    const char* const policy = std::getenv("OMP_WAIT_POLICY");
    const bool sleeps = policy && strcasecmp(policy, "passive") == 0;
    // Threads of the pool would all be bound to the core of the thread that starts them.
    const bool bound = binding && binding() != 0;
    if (sleeps && !bound) fork_ = nullptr;
#endif
  }

  bool exists() const { return fork_ != nullptr; }

  bool usable() const { return fork_ && !forked && Clock::now().time_since_epoch().count() >= resume_.load(); }

  // Compute a job by the team. If it was late, do not use it for a while.
  void run(Job& job, int threads) {
    Call call{job, std::this_thread::get_id(), Clock::now(), Clock::duration(0), 0};
    fork_(&Call::work, &call, unsigned(threads), 0);
    if (!call.pieces) return;
    // The other threads may have begun a piece just before the caller ended.
    const Clock::time_point now = Clock::now();
    const Clock::duration waited = now - call.start - call.worked, piece = call.worked / call.pieces;
    if (waited <= 2 * piece + LATE) return;
    const bool again = (now.time_since_epoch() - Clock::duration(resume_.load())) < LONGEST_PAUSE;
    const Clock::duration pause = again ? std::min<Clock::duration>(2 * Clock::duration(pause_.load()), LONGEST_PAUSE)
                                        : Clock::duration(FIRST_PAUSE);
    pause_ = pause.count();
    resume_ = (now.time_since_epoch() + pause).count();
  }

 private:
  typedef std::chrono::steady_clock Clock;
  typedef void (*Fork)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

  static constexpr std::chrono::microseconds LATE{500};
  static constexpr std::chrono::milliseconds FIRST_PAUSE{250}, LONGEST_PAUSE{8000};

  struct Call {
    Job& job;
    std::thread::id caller;
    Clock::time_point start;
    Clock::duration worked;
    long pieces;

    static void work(void* data) {
      Call& call = *static_cast<Call*>(data);
      if (std::this_thread::get_id() != call.caller) return call.job.work_like_caller();
      call.pieces = call.job.work();
      call.worked = Clock::now() - call.start;
    }
  };

  Fork fork_ = nullptr;
  std::atomic<Clock::rep> resume_{0}, pause_{0};
};

Team& team() {
  static Team found;
  return found;
}

}  // namespace

void parallel(long count, int threads, void (*piece)(void*, long), void* data) {
  if (threads > count) threads = int(count);
  if (threads <= 1) {
    for (long i = 0; i < count; ++i) piece(data, i);
    return;
  }
  Job job(count, piece, data);
  if (team().usable())
    team().run(job, threads);
  else
    pool().run(job, threads - 1);
  job.rethrow();
}

const char* thread_runtime() { return team().exists() ? "those of torch, or a pool on a busy machine" : "a pool"; }

}  // namespace linfnet
