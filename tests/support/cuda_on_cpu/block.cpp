// The scheduler: runs the threads of a block as fibers. Compiled without sanitizers; with AddressSanitizer or
// ThreadSanitizer in the program it tells them of every switch. ThreadSanitizer then sees a barrier as the only order
// between threads of a block, so that it finds races, although the fibers share one thread.
#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" {
// Functions of the sanitizers, null unless the program has them.
#define WEAK __attribute__((weak))
WEAK void asan_start_switch(void** fake_stack, const void* bottom, size_t size) asm("__sanitizer_start_switch_fiber");
WEAK void asan_finish_switch(void* fake_stack, const void** bottom,
                             size_t* size) asm("__sanitizer_finish_switch_fiber");
WEAK void* tsan_current() asm("__tsan_get_current_fiber");
WEAK void* tsan_create(unsigned flags) asm("__tsan_create_fiber");
WEAK void tsan_switch(void* fiber, unsigned flags) asm("__tsan_switch_to_fiber");
WEAK void tsan_acquire(void* address) asm("__tsan_acquire");
WEAK void tsan_release(void* address) asm("__tsan_release");
// Shared memory of all kernels; null if none has any. The linker defines these symbols.
WEAK extern volatile char shared_begin[] asm("__start_cuda_on_cpu_shared");
WEAK extern volatile char shared_end[] asm("__stop_cuda_on_cpu_shared");

// Saves the registers that a call preserves in *from, and continues where `to` was saved.
void cuda_on_cpu_switch(void** from, void* to);
}
asm(R"(
.text
.type cuda_on_cpu_switch,@function
cuda_on_cpu_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

namespace cuda_on_cpu {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kWarp = 32, kMaxThreads = 1024;
constexpr int kNumDevices = 2;

thread_local int device_of_thread = 0;

// A function of tests/support/simulated_device; null unless that is in the process.
template <typename Function>
Function* of_simulated_device(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

enum class State { kRuns, kAtBarrier, kAtShuffle, kDone };

struct Fiber {
  void* context = nullptr;  // its saved stack pointer
  std::unique_ptr<char[]> stack;
  void *fake_stack = nullptr, *tsan = nullptr;
  unsigned id = 0;
  uint3 index{};
  State state = State::kDone;
  Site site{};                // where it waits
  unsigned num_barriers = 0;  // that it has reached
  unsigned mask = 0, from_lane = 0;
  uint64_t bits = 0;
};

struct Scheduler {
  Scheduler() {
    const char* chosen = std::getenv("CUDA_ON_CPU_ORDER");
    const std::string text = chosen == nullptr ? "ascending" : chosen;
    if (text == "descending")
      order = Order::kDescending;
    else if (text.rfind("shuffled:", 0) == 0)
      order = Order::kShuffled, random.seed(static_cast<unsigned>(std::stoul(text.substr(9))));
    else if (text != "ascending")
      throw std::runtime_error("CUDA_ON_CPU_ORDER is '" + text + "', not ascending, descending or shuffled:SEED");
  }

  Order order = Order::kAscending;
  std::mt19937 random;
  std::vector<std::unique_ptr<Fiber>> fibers;
  unsigned num_threads = 0;  // of the block that runs
  Fiber* running = nullptr;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  cudaStream_t stream = nullptr;
  int device = 0;
  cudaError_t error = cudaSuccess;
  // The caller of run().
  void *context = nullptr, *fake_stack = nullptr, *tsan = nullptr;
  const void* stack_bottom = nullptr;
  size_t stack_size = 0;
  // Their addresses name moments to ThreadSanitizer. Barriers take turns: the first threads reach the next one before
  // the last ones leave this one.
  char at_start = 0, at_barrier[2] = {}, at_end = 0;
};

Scheduler& scheduler() {
  static Scheduler one;
  return one;
}

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  std::fprintf(stderr, "cuda_on_cpu: block (%u,%u,%u): ", blockIdx.x, blockIdx.y, blockIdx.z);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

std::string name_of(const Fiber& f) {
  return "thread (" + std::to_string(f.index.x) + "," + std::to_string(f.index.y) + "," + std::to_string(f.index.z) +
         ")";
}

// A thread and where it is, for messages.
std::string place_of(const Fiber& f) {
  if (f.state == State::kDone) return name_of(f) + " has returned";
  return name_of(f) + " waits at the " + (f.state == State::kAtBarrier ? "barrier " : "shuffle ") + f.site.file + ":" +
         std::to_string(f.site.line);
}

Fiber& running() {
  Fiber* f = scheduler().running;
  if (f == nullptr) fail("no kernel runs");
  return *f;
}

void acquire(char& moment) {
  if (tsan_acquire != nullptr) tsan_acquire(&moment);
}
void release(char& moment) {
  if (tsan_release != nullptr) tsan_release(&moment);
}

// Continues the scheduler until the thread may go on, if ever.
void wait_in(State state) {
  Scheduler& s = scheduler();
  Fiber& f = running();
  f.state = state;
  if (asan_start_switch != nullptr)
    asan_start_switch(state == State::kDone ? nullptr : &f.fake_stack, s.stack_bottom, s.stack_size);
  if (tsan_switch != nullptr) tsan_switch(s.tsan, 1);
  cuda_on_cpu_switch(&f.context, s.context);
  if (asan_finish_switch != nullptr) asan_finish_switch(f.fake_stack, &s.stack_bottom, &s.stack_size);
}

// The first function on the stack of a fiber.
void enter() {
  Scheduler& s = scheduler();
  if (asan_finish_switch != nullptr) asan_finish_switch(nullptr, &s.stack_bottom, &s.stack_size);
  acquire(s.at_start);
  s.body(s.argument);
  release(s.at_end);
  wait_in(State::kDone);
}

void resume(Fiber& f) {
  Scheduler& s = scheduler();
  s.running = &f;
  threadIdx = f.index;
  if (asan_start_switch != nullptr) asan_start_switch(&s.fake_stack, f.stack.get(), kStackBytes);
  if (tsan_switch != nullptr) tsan_switch(f.tsan, 1);
  cuda_on_cpu_switch(&s.context, f.context);
  if (asan_finish_switch != nullptr) asan_finish_switch(s.fake_stack, nullptr, nullptr);
}

void start(Fiber& f, unsigned id) {
  if (f.stack == nullptr) {
    f.stack.reset(new char[kStackBytes]);
    if (tsan_create != nullptr) f.tsan = tsan_create(0);
  }
  f.id = id;
  f.index = {id % blockDim.x, id / blockDim.x % blockDim.y, id / blockDim.x / blockDim.y};
  f.state = State::kRuns;
  f.num_barriers = 0;
  f.fake_stack = nullptr;
  // cuda_on_cpu_switch pops 6 registers and returns to enter(), whose stack is aligned as if it had been called.
  char* end = f.stack.get() + kStackBytes;
  auto** top = reinterpret_cast<void**>(end - reinterpret_cast<uintptr_t>(end) % 16) - 2;
  top[0] = reinterpret_cast<void*>(&enter);
  top[1] = nullptr;
  f.context = top - 6;
}

// The turns of n threads or blocks.
std::vector<uint64_t> turns(uint64_t n) {
  Scheduler& s = scheduler();
  std::vector<uint64_t> out(n);
  for (uint64_t i = 0; i < n; ++i) out[i] = s.order == Order::kDescending ? n - 1 - i : i;
  if (s.order == Order::kShuffled) std::shuffle(out.begin(), out.end(), s.random);
  return out;
}

// Lets the lanes of one shuffle go on if all have arrived.
bool complete_shuffle(Fiber& f) {
  Scheduler& s = scheduler();
  const unsigned warp = f.id / kWarp * kWarp;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((f.mask >> lane & 1) == 0) continue;
    if (warp + lane >= s.num_threads) fail("%s, whose mask names lane %u of %u", place_of(f).c_str(), lane, kWarp);
    const Fiber& other = *s.fibers[warp + lane];
    if (other.state == State::kDone) fail("%s; %s", place_of(f).c_str(), place_of(other).c_str());
    if (other.state != State::kAtShuffle || other.mask != f.mask || other.site.line != f.site.line ||
        std::strcmp(other.site.file, f.site.file) != 0)
      return false;
  }
  uint64_t received[kWarp] = {};
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((f.mask >> lane & 1) == 0) continue;
    const unsigned from = s.fibers[warp + lane]->from_lane;
    if (from >= kWarp || (f.mask >> from & 1) == 0)
      fail("%s and reads lane %u, which is not in the mask", place_of(*s.fibers[warp + lane]).c_str(), from);
    received[lane] = s.fibers[warp + from]->bits;
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((f.mask >> lane & 1) == 0) continue;
    s.fibers[warp + lane]->bits = received[lane];
    s.fibers[warp + lane]->state = State::kRuns;
  }
  return true;
}

// Lets waiting threads go on. False if all have returned; fails if none can.
bool release_waiting() {
  Scheduler& s = scheduler();
  const Fiber *at_barrier = nullptr, *elsewhere = nullptr;
  bool any_left = false, any_runs = false;
  for (unsigned i = 0; i < s.num_threads; ++i) {
    Fiber& f = *s.fibers[i];
    if (f.state == State::kAtShuffle) any_runs = complete_shuffle(f) || any_runs;
    any_left = any_left || f.state != State::kDone;
    if (f.state == State::kAtBarrier && at_barrier == nullptr) at_barrier = &f;
  }
  if (!any_left || any_runs) return any_left;
  for (unsigned i = 0; i < s.num_threads; ++i) {
    const Fiber& f = *s.fibers[i];
    const bool is_same = at_barrier != nullptr && f.state == State::kAtBarrier &&
                         f.site.line == at_barrier->site.line && std::strcmp(f.site.file, at_barrier->site.file) == 0;
    if (is_same) continue;
    if (elsewhere == nullptr || (elsewhere->state == State::kDone && f.state != State::kDone)) elsewhere = &f;
  }
  if (at_barrier == nullptr) fail("%s, without other lanes of its mask", place_of(*elsewhere).c_str());
  if (elsewhere != nullptr) fail("%s; %s", place_of(*at_barrier).c_str(), place_of(*elsewhere).c_str());
  for (unsigned i = 0; i < s.num_threads; ++i) s.fibers[i]->state = State::kRuns;
  return true;
}

void run_block() {
  Scheduler& s = scheduler();
  for (volatile char* p = shared_begin; p != shared_end; ++p) *p = static_cast<char>(0xff);
  while (s.fibers.size() < s.num_threads) s.fibers.push_back(std::make_unique<Fiber>());
  release(s.at_start);
  for (unsigned i = 0; i < s.num_threads; ++i) start(*s.fibers[i], i);
  const std::vector<uint64_t> order = turns(s.num_threads);
  do {
    for (const uint64_t i : order)
      if (s.fibers[i]->state == State::kRuns) resume(*s.fibers[i]);
  } while (release_waiting());
  acquire(s.at_end);
}

}  // namespace

void set_order(Order order, unsigned seed) {
  scheduler().order = order;
  scheduler().random.seed(seed);
}

cudaStream_t last_stream() { return scheduler().stream; }
int last_device() { return scheduler().device; }

unsigned lane() { return running().id % kWarp; }

static void run_blocks(void*) {
  const dim3 grid = gridDim;
  for (const uint64_t i : turns(uint64_t{grid.x} * grid.y * grid.z)) {
    blockIdx = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                static_cast<unsigned>(i / grid.x / grid.y)};
    run_block();
  }
}

void run(dim3 grid, dim3 block, cudaStream_t stream, void (*body)(void*), void* context) {
  Scheduler& s = scheduler();
  s.stream = stream;
  cudaGetDevice(&s.device);
  const uint64_t threads = uint64_t{block.x} * block.y * block.z, blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > kMaxThreads || block.z > 64 || blocks == 0 || grid.x > 0x7fffffff || grid.y > 65535 ||
      grid.z > 65535) {
    s.error = cudaErrorInvalidConfiguration;
    return;
  }
  gridDim = grid, blockDim = block;
  s.num_threads = static_cast<unsigned>(threads);
  s.body = body, s.argument = context;
  if (tsan_current != nullptr) s.tsan = tsan_current();
  // A simulated device waits for the stream before it runs the kernel.
  static auto* const run_on_device =
      of_simulated_device<bool(cudaStream_t, void (*)(void*), void*)>("simulated_device_run_kernel");
  if (run_on_device == nullptr)
    run_blocks(nullptr);
  else if (!run_on_device(stream, run_blocks, nullptr))
    s.error = cudaErrorInvalidResourceHandle;
  s.running = nullptr;
}

void wait_at_barrier(Site site) {
  Fiber& f = running();
  f.site = site;
  char& moment = scheduler().at_barrier[f.num_barriers++ % 2];
  release(moment);
  wait_in(State::kAtBarrier);
  acquire(moment);
}

// CUDA promises no order of memory at a shuffle, so ThreadSanitizer is told of none.
uint64_t exchange(unsigned mask, uint64_t bits, unsigned from_lane, Site site) {
  Fiber& f = running();
  f.site = site, f.mask = mask, f.from_lane = from_lane, f.bits = bits;
  if ((mask >> f.id % kWarp & 1) == 0)
    fail("%s is not in the mask of its shuffle %s:%d", name_of(f).c_str(), site.file, site.line);
  wait_in(State::kAtShuffle);
  return f.bits;
}

}  // namespace cuda_on_cpu

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() { return std::exchange(cuda_on_cpu::scheduler().error, cudaSuccess); }

cudaError_t cudaGetDevice(int* device) {
  using namespace cuda_on_cpu;
  static auto* const current = of_simulated_device<int()>("simulated_device_current");
  *device = current != nullptr ? current() : device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  using namespace cuda_on_cpu;
  static auto* const set_current = of_simulated_device<bool(int)>("simulated_device_set_current");
  if (set_current != nullptr) return set_current(device) ? cudaSuccess : cudaErrorInvalidDevice;
  if (device < 0 || device >= kNumDevices) return cudaErrorInvalidDevice;
  device_of_thread = device;
  return cudaSuccess;
}

// Aligned as on a GPU.
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (posix_memalign(pointer, 256, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*pointer, 0xff, bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes != 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
