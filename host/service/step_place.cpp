// Rationale: process-wide, like the step number, since the allocator cannot get it from a caller when memory runs out.
#include "host/service/step_place.hpp"

#include <atomic>

namespace chassis {
namespace {

std::atomic<const char*> phase_now = "";
std::atomic<int> microbatch_now = -1;
std::atomic<int64_t> unit_now = -1;
std::atomic<const std::string*> node_now = nullptr;
constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void enter_phase(const char* phase, int microbatch) noexcept { enter_unit(phase, microbatch, -1); }

void enter_unit(const char* phase, int microbatch, int64_t unit) noexcept {
  node_now.store(nullptr, kRelaxed);
  phase_now.store(phase, kRelaxed);
  microbatch_now.store(microbatch, kRelaxed);
  unit_now.store(unit, kRelaxed);
}

void enter_node(const std::string* node) noexcept { node_now.store(node, kRelaxed); }

StepPlace step_place() noexcept {
  return {phase_now.load(kRelaxed), microbatch_now.load(kRelaxed), unit_now.load(kRelaxed), node_now.load(kRelaxed)};
}

}  // namespace chassis
