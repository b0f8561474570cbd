// CUDA's words on a CPU, so that the kernels can be tested where there is no GPU. The threads of a block are fibres: one
// runs until it waits at a barrier or for the other lanes of its warp, then the next. Blocks run one after the other.
// What a GPU leaves undefined is NaN here: shared memory when a block starts, values of lanes that have left. Copies to
// shared memory arrive as late as they may. `order` says who goes first: 0 the first thread, 1 the last, else at random.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// All shared variables lie in one section, to be filled with NaN; under AddressSanitizer each has its own fences instead.
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static
#else
#define __shared__ static __attribute__((section("shared_memory")))
extern "C" char __start_shared_memory[] __attribute__((weak)), __stop_shared_memory[] __attribute__((weak));
#endif

struct dim3 { int x, y, z; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

constexpr int MOST_THREADS = 1024, WARP = 32, STACK = 1 << 17, MOST_COPIES = 64, MOST_SHARED = 200 << 10, FENCE = 4096;
constexpr const char* STUCK = "its threads wait for each other at different places";
constexpr const char* BEYOND = "it writes beyond its dynamic shared memory";

struct Barrier {
  int members, arrived;
  unsigned turns;
};

struct Copy {
  void* to;
  const void* from;
  int size;
};

typedef void* Place[5];

struct Fibre {
  ucontext_t start;
  Place place;
  char* stack;
  bool started, left;
  Copy copies[MOST_COPIES];
  int pending;
};

static Fibre fibres[MOST_THREADS];
static Place home;
static int current;
static bool moved;  // whether a barrier opened or a fibre left since this was last cleared
static Barrier block, warps[MOST_THREADS / WARP];
static uint64_t values[MOST_THREADS];  // what each lane shows to the others of its warp
static uint64_t chance;
alignas(16) static unsigned char dynamic_shared[MOST_SHARED + FENCE];

static int lane() { return current % WARP; }
static uint64_t* warp_values() { return values + current - lane(); }

// A jump is all it takes once a fibre has started; changing the whole context would ask the operating system each time.
#define JUMPS __attribute__((noinline, no_sanitize_address))
JUMPS static void jump(Place& place) { __builtin_longjmp(place, 1); }

JUMPS static void give_way() {
  if (!__builtin_setjmp(fibres[current].place)) jump(home);
}

JUMPS static void resume(Fibre& fibre) {
  if (__builtin_setjmp(home)) return;
  if (fibre.started) jump(fibre.place);
  fibre.started = true;
  setcontext(&fibre.start);
}

static void open_if_complete(Barrier& barrier) {
  if (barrier.arrived < barrier.members) return;
  barrier.arrived = 0;
  ++barrier.turns;
  moved = true;
}

static void wait(Barrier& barrier) {
  unsigned turn = barrier.turns;
  ++barrier.arrived;
  open_if_complete(barrier);
  while (barrier.turns == turn) give_way();
}

static void wait_for_warp() { wait(warps[current / WARP]); }

// What every lane of the warp showed, given to `use`; nobody shows the next value before all have used this one.
template <class T, class Use>
static auto exchanged(T value, Use use) {
  values[current] = 0;
  memcpy(values + current, &value, sizeof value);
  wait_for_warp();
  auto result = use(warp_values());
  wait_for_warp();
  return result;
}

template <class T>
static T from_lane(T value, int source) {
  return exchanged(value, [&](const uint64_t* shown) {
    T result;
    memcpy(&result, shown + (source & (WARP - 1)), sizeof result);
    return result;
  });
}

template <class Test>
static unsigned lanes_where(Test test) {
  unsigned result = 0;
  for (int k = 0; k < WARP; ++k)
    if (!fibres[current - lane() + k].left && test(k)) result |= 1u << k;
  return result;
}

static int below(int n) {
  chance = chance * 6364136223846793005ull + 1442695040888963407ull;
  return (int)((chance >> 33) % (unsigned)n);
}

// The numbers below n in the order asked for.
static void arrange(int* places, int n, int order) {
  for (int k = 0; k < n; ++k) places[k] = order == 1 ? n - 1 - k : k;
  for (int k = n - 1; k > 0 && order > 1; --k) {
    int other = below(k + 1), kept = places[k];
    places[k] = places[other];
    places[other] = kept;
  }
}

static void (*body)(void**);
static void** arguments;

static void leave() {
  fibres[current].left = moved = true;
  memset(values + current, 0xff, sizeof *values);
  Barrier& warp = warps[current / WARP];
  --block.members, --warp.members;
  if (block.members) open_if_complete(block);
  if (warp.members) open_if_complete(warp);
  give_way();
}

// A fibre lives on: in every block it is the thread of its number.
static void live() {
  for (;; leave()) body(arguments);
}

static void prepare(Fibre& fibre) {
  fibre.left = false;
  fibre.pending = 0;
  if (fibre.started) return;
  if (!fibre.stack) fibre.stack = (char*)malloc(STACK);
  getcontext(&fibre.start);
  fibre.start.uc_stack.ss_sp = fibre.stack;
  fibre.start.uc_stack.ss_size = STACK;
  makecontext(&fibre.start, live, 0);
}

static const char* run_block(int threads, int shared, int order) {
  block = {threads, 0, 0};
  memset(dynamic_shared, 0xff, shared + FENCE);
#ifndef __SANITIZE_ADDRESS__
  if (__start_shared_memory) memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
#endif
  for (int k = 0; k < threads; ++k) {
    prepare(fibres[k]);
    if (k % WARP == 0) warps[k / WARP] = {threads - k < WARP ? threads - k : WARP, 0, 0};
  }
  int places[MOST_THREADS];
  while (block.members) {
    moved = false;
    arrange(places, threads, order);
    for (int k = 0; k < threads; ++k) {
      current = places[k];
      if (fibres[current].left) continue;
      threadIdx = {current, 0, 0};
      resume(fibres[current]);
    }
    if (moved) continue;
    for (int k = 0; k < threads; ++k) fibres[k].started = false;
    return STUCK;
  }
  for (int k = 0; k < FENCE; ++k)
    if (dynamic_shared[shared + k] != 0xff) return BEYOND;
  return nullptr;
}

template <class... Parameters, size_t... Places>
static void call(void (*kernel)(Parameters...), void** values, std::index_sequence<Places...>) {
  kernel(*(Parameters*)values[Places]...);
}

template <class... Parameters>
static void call(void (*kernel)(Parameters...), void** values) {
  call(kernel, values, std::index_sequence_for<Parameters...>{});
}

// Runs the grid; what went wrong, or null.
static const char* launch(void (*kernel)(void**), const int* grid, int threads, int shared, int order, void** values) {
  body = kernel;
  arguments = values;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {threads, 1, 1};
  chance = order;
  int blocks = grid[0] * grid[1] * grid[2];
  int* places = (int*)malloc(blocks * sizeof(int));
  arrange(places, blocks, order);
  const char* trouble = nullptr;
  for (int k = 0; k < blocks && !trouble; ++k) {
    blockIdx = {places[k] % grid[0], places[k] / grid[0] % grid[1], places[k] / grid[0] / grid[1]};
    trouble = run_block(threads, shared, order);
  }
  free(places);
  return trouble;
}

}  // namespace simt

// One line for each kernel follows the source: the function that a test calls.
#define SIMT_KERNEL(name)                                                                                       \
  extern "C" __attribute__((visibility("default"))) const char* simt_##name(const int* grid, int threads,       \
                                                                            int shared, int order, void** values) { \
    return simt::launch([](void** given) { simt::call(name, given); }, grid, threads, shared, order, values);   \
  }

static void __syncthreads() { simt::wait(simt::block); }
static void __syncwarp() { simt::wait_for_warp(); }

template <class T>
static T __shfl_sync(unsigned, T value, int source) {
  return simt::from_lane(value, source);
}
template <class T>
static T __shfl_xor_sync(unsigned, T value, int mask) {
  return simt::from_lane(value, simt::lane() ^ mask);
}
template <class T>
static T __shfl_up_sync(unsigned, T value, int by) {
  return simt::from_lane(value, simt::lane() < by ? simt::lane() : simt::lane() - by);
}
static unsigned __ballot_sync(unsigned, bool vote) {
  return simt::exchanged(vote, [](const uint64_t* shown) { return simt::lanes_where([&](int k) { return shown[k] != 0; }); });
}
static bool __any_sync(unsigned, unsigned vote) { return __ballot_sync(~0u, vote != 0) != 0; }
static unsigned __match_any_sync(unsigned, int value) {
  return simt::exchanged(value, [](const uint64_t* shown) {
    return simt::lanes_where([&](int k) { return shown[k] == shown[simt::lane()]; });
  });
}
static unsigned __reduce_max_sync(unsigned, unsigned value) {
  return simt::exchanged(value, [](const uint64_t* shown) {
    unsigned most = 0;
    simt::lanes_where([&](int k) { return most = shown[k] > most ? (unsigned)shown[k] : most; });
    return most;
  });
}

template <class T>
static T __ldg(const T* at) {
  return *at;
}
template <class A, class B>
static auto min(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B>
static auto max(A a, B b) {
  return a > b ? a : b;
}
template <class To, class From>
static To same_bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from, "as many bits");
  memcpy(&to, &from, sizeof to);
  return to;
}
static float __int_as_float(int a) { return same_bits<float>(a); }
static float __uint_as_float(unsigned a) { return same_bits<float>(a); }
static int __float_as_int(float a) { return same_bits<int>(a); }
static unsigned __float_as_uint(float a) { return same_bits<unsigned>(a); }
static int __popc(unsigned a) { return __builtin_popcount(a); }
static int __ffs(int a) { return __builtin_ffs(a); }
// The quick division gives 0 for the largest divisors.
static float __fdividef(float a, float b) { return a / (fabsf(b) > 0x1p126f ? INFINITY * b : b); }
template <class T, class U>
static T atomicAdd(T* at, U value) {
  T before = *at;
  *at += value;
  return before;
}
template <class T, class U>
static T atomicMax(T* at, U value) {
  T before = *at;
  *at = max(*at, (T)value);
  return before;
}

// In place of instructions.cuh.
typedef unsigned int u32;
typedef unsigned short u16;

#define DYNAMIC_SHARED(type, name) type* name = (type*)simt::dynamic_shared

// NaN is above all, -0 below 0.
static float larger(float a, float b) { return a != a || b != b ? NAN : a > b || (a == b && !signbit(a)) ? a : b; }
// Numbers below the normal range count as zero.
static float flushed(float a) { return fabsf(a) < 0x1p-126f ? 0.0f * a : a; }
static float log2_fast(float a) { return log2f(flushed(a)); }
static float exp2_fast(float a) { return flushed(exp2f(a)); }

// In units of the last place, of which a number has 1024 to 2047 unless it is below the normal range.
static u16 to_half(float a) {
  u16 sign = __float_as_uint(a) >> 16 & 0x8000;
  float size = fabsf(a);
  if (size != size) return 0x7fff;
  if (size >= 65520.0f) return sign | 0x7c00;
  int exponent = max(ilogbf(size), -14);
  return sign | ((exponent + 14) * 1024 + (int)rintf(scalbnf(size, 10 - exponent)));
}
static float from_half(u16 h) {
  int exponent = h >> 10 & 31, units = h & 1023;
  float size = exponent == 31 ? (units ? NAN : INFINITY) : scalbnf(units + (exponent ? 1024 : 0), max(exponent, 1) - 25);
  return copysignf(size, h & 0x8000 ? -1.0f : 1.0f);
}

static void copy(void* to, const void* from, bool here, int size) {
  simt::Fibre& fibre = simt::fibres[simt::current];
  if (fibre.pending == simt::MOST_COPIES) abort();
  fibre.copies[fibre.pending++] = {to, here ? from : nullptr, size};
}
static void copy16(float* to, const float* from, bool here) { copy(to, from, here, 16); }
static void copy4(float* to, const float* from, bool here) { copy(to, from, here, 4); }
static void await_copies() {
  simt::Fibre& fibre = simt::fibres[simt::current];
  for (int k = 0; k < fibre.pending; ++k) {
    simt::Copy& copy = fibre.copies[k];
    if (copy.from) memcpy(copy.to, copy.from, copy.size);
    else memset(copy.to, 0, copy.size);
  }
  fibre.pending = 0;
}
static void settle(u16&) {}
