// The threads of a block as fibres: each runs until it waits at a barrier or for the other lanes of its warp; then the
// next one runs. Blocks run one after another. Values that are undefined on a GPU are NaN here: shared memory at the
// start of a block, and values of lanes that have returned. `order`: 0 starts with the first thread, 1 with the last, otherwise the order is
// random.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <utility>

// All shared variables are in one section, which is filled with NaN; under AddressSanitizer each variable has separate fences.
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static
#else
#define __shared__ static __attribute__((section("shared_memory")))
extern "C" char __start_shared_memory[] __attribute__((weak)), __stop_shared_memory[] __attribute__((weak));
#endif

struct dim3 {
  int x, y, z;
};
static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

constexpr int MOST_THREADS = 1024, WARP = 32, STACK = 1 << 17, MOST_COPIES = 64, MOST_SHARED = 200 << 10, FENCE = 4096;
constexpr const char* STUCK = "its threads wait for each other at different barriers";
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
static bool moved;  // whether a barrier opened or a fibre ended since this was last cleared
static Barrier block, warps[MOST_THREADS / WARP];
static uint64_t values[MOST_THREADS];  // the value that each lane passes to the other lanes of its warp
static uint64_t chance;
alignas(16) static unsigned char dynamic_shared[MOST_SHARED + FENCE];

static int lane() { return current % WARP; }
static uint64_t* warp_values() { return values + current - lane(); }

// After the start of a fibre a jump is enough; switching the whole context would need a system call each time.
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

// Pass the values of all lanes of the warp to `use`; no lane publishes its next value before all have used this one.
template <class T, class Use> static auto exchanged(T value, Use use) {
  values[current] = 0;
  memcpy(values + current, &value, sizeof value);
  wait_for_warp();
  auto result = use(warp_values());
  wait_for_warp();
  return result;
}

template <class T> static T from_lane(T value, int source) {
  return exchanged(value, [&](const uint64_t* shown) {
    T result;
    memcpy(&result, shown + (source & (WARP - 1)), sizeof result);
    return result;
  });
}

template <class Test> static unsigned lanes_where(Test test) {
  unsigned result = 0;
  for (int k = 0; k < WARP; ++k)
    if (!fibres[current - lane() + k].left && test(k)) result |= 1u << k;
  return result;
}

static int below(int n) {
  chance = chance * 6364136223846793005ull + 1442695040888963407ull;
  return (int)((chance >> 33) % (unsigned)n);
}

// Return the numbers below n in the requested order.
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

// Fibres are reused: in every block, fibre i runs thread i.
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

template <class... Parameters> static void call(void (*kernel)(Parameters...), void** values) {
  call(kernel, values, std::index_sequence_for<Parameters...>{});
}

// Run the grid; return an error message, or null.
static const char* launch(void (*kernel)(void**), const int* grid, int threads, int shared, int order, void** values) {
  body = kernel;
  arguments = values;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {threads, 1, 1};
  chance = order;
  int blocks = grid[0] * grid[1] * grid[2];
  int* places = (int*)malloc(blocks * sizeof(int));
  arrange(places, blocks, order);
  const char* error = nullptr;
  for (int k = 0; k < blocks && !error; ++k) {
    blockIdx = {places[k] % grid[0], places[k] / grid[0] % grid[1], places[k] / grid[0] / grid[1]};
    error = run_block(threads, shared, order);
  }
  free(places);
  return error;
}

}  // namespace simt

// One line for each kernel follows the source; it defines the function that tests call.
#define SIMT_KERNEL(name)                                                                                     \
  extern "C" __attribute__((visibility("default")))                                                           \
  const char* simt_##name(const int* grid, int threads, int shared, int order, void** values) {               \
    return simt::launch([](void** given) { simt::call(name, given); }, grid, threads, shared, order, values); \
  }
