// Runs the rehearsal, and reads the memory counters at each event.
#include "host/plan/plan_rank.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "host/save/saved_tensors.hpp"
#include "host/service/meta_memory.hpp"
#include "host/session/fields.hpp"
#include "host/session/step.hpp"

namespace chassis {
namespace {

PlanCategory plan_category_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParameters:
      return PlanCategory::kParameters;
    case MemoryCategory::kGradients:
      return PlanCategory::kGradients;
    case MemoryCategory::kOptimizer:
      return PlanCategory::kOptimizer;
    case MemoryCategory::kActivations:
    case MemoryCategory::kWorkspace:
      return PlanCategory::kActivations;
    case MemoryCategory::kLogits:
      return PlanCategory::kLogits;
    case MemoryCategory::kGathered:
      return PlanCategory::kGathered;
    case MemoryCategory::kCommunication:
      return PlanCategory::kCommunication;
    default:
      return PlanCategory::kOther;
  }
}

void keep_larger(PlanMemory& kept, const PlanMemory& seen) {
  const bool larger = seen.peak_bytes > kept.peak_bytes;
  kept.peak_bytes = std::max(kept.peak_bytes, seen.peak_bytes);
  for (size_t i = 0; i < kNumPlanCategories; ++i) {
    PlanPart& part = kept.categories[i];
    part.peak_bytes = std::max(part.peak_bytes, seen.categories[i].peak_bytes);
    if (larger) part.bytes_at_total_peak = seen.categories[i].bytes_at_total_peak;
  }
}

// Reads the memory counters at each event, and passes events on to the strategies.
class Observer final : public UnitEvents {
 public:
  Observer(Device device, const Program& program, UnitEvents& strategies)
      : device_(device), unit_names_(program.unit_names()), strategies_(strategies) {
    reset_peak_meta_memory();
  }

  // Ends an interval.
  void mark(const std::string& event) {
    const PlanMemory interval = plan_memory(meta_memory_usage(device_));
    keep_larger(memory_, interval);
    if (device_ != kMetaHost) host_peak_bytes_ = std::max(host_peak_bytes_, meta_memory_usage(kMetaHost).peak_bytes);
    reset_peak_meta_memory();
    if (!recording_) return;
    PlanSample& sample = timeline_.emplace_back(PlanSample{event, {}});
    for (size_t i = 0; i < kNumPlanCategories; ++i) sample.bytes[i] = interval.categories[i].bytes_at_total_peak;
  }
  // The memory since the last call.
  PlanMemory take() { return std::exchange(memory_, {}); }
  const PlanMemory& seen() const { return memory_; }
  void record(bool on) { recording_ = on; }
  std::vector<PlanSample> take_timeline() { return std::move(timeline_); }
  uint64_t host_peak_bytes() const { return host_peak_bytes_; }

  void pre_forward(size_t unit, Flags flags) override { strategies_.pre_forward(unit, flags); }
  void post_forward(size_t unit, Flags flags) override {
    strategies_.post_forward(unit, flags);
    mark((flags.recompute ? "recompute " : "forward ") + unit_names_[unit]);
  }
  void pre_backward(size_t unit, Flags flags) override { strategies_.pre_backward(unit, flags); }
  void post_backward(size_t unit, Flags flags) override {
    strategies_.post_backward(unit, flags);
    mark("backward " + unit_names_[unit]);
  }

 private:
  const Device device_;
  const std::vector<std::string> unit_names_;
  UnitEvents& strategies_;
  PlanMemory memory_;
  uint64_t host_peak_bytes_ = 0;
  bool recording_ = false;
  std::vector<PlanSample> timeline_;
};

class Rehearsal {
 public:
  Rehearsal(Session& session, Recompute recompute, uint64_t header_bytes)
      : session_(session),
        header_bytes_(header_bytes),
        ranks_(session.ranks()),
        sizes_(batch_sizes(session.settings(), ranks_.num_data_ranks())),
        device_(session.device().type == Device::Type::kCuda ? kMetaDevice : kMetaHost),
        observer_(device_, session.program(), ranks_.stack) {
    session.executor().set_recompute(recompute);
    session.executor().rehearse_on(device_);
    session.executor().set_events(&observer_);
  }

  RankPlan run() {
    RankPlan plan;
    plan.rank = session_.rank();
    load();
    plan.load_peak_bytes = observer_.seen().peak_bytes;
    step();
    plan.start = observer_.take();
    // From the second step on, strategies use what they learned from the first.
    traffic_.clear();
    stage();
    observer_.record(true);
    step();
    plan.traffic = std::move(traffic_);
    plan.timeline = observer_.take_timeline();
    plan.step = observer_.take();
    observer_.record(false);
    save();
    plan.export_peak_bytes = observer_.take().peak_bytes;
    plan.host_peak_bytes = observer_.host_peak_bytes();
    return plan;
  }

 private:
  // As in Run::prepare.
  void load() {
    session_.allocate(device_);
    const uint64_t bucket_bytes = static_cast<uint64_t>(*session_.settings().checkpoint.bucket_mib) << 20;
    buckets_.emplace(2 * bucket_bytes, MemoryCategory::kCheckpoint, kMetaHost);
    data_.emplace(step_data_bytes(session_.program(), session_.settings(), sizes_), MemoryCategory::kData, kMetaHost);
    session_.refresh_parameters();
    take_traffic(0);
    observer_.mark("load");
  }

  // Without a pipeline, runs at most 3 micro-batches: those between the second and the last do the same as the second.
  void step() {
    const bool divides = ranks_.stack.pipeline().divides();
    const int64_t num_rehearsed = divides ? sizes_.num_microbatches : std::min<int64_t>(sizes_.num_microbatches, 3);
    StepParts parts = session_.step_parts();
    parts.device = device_;
    StepInputs inputs;
    inputs.schedule = ranks_.work(num_rehearsed);
    const int64_t seq_len = session_.settings().train.seq_len;
    inputs.fields = [&](int) { return empty_fields(session_.program(), sizes_.micro_batch_size, seq_len, device_); };
    inputs.observer = [&](StepPhase phase, int microbatch) {
      if (phase == StepPhase::kBackward)
        take_traffic(!divides && microbatch == 1 && num_rehearsed == 3 ? sizes_.num_microbatches - 2 : 1);
      if (phase == StepPhase::kReduction) observer_.mark("reduction of gradients");
      if (phase == StepPhase::kUpdate) observer_.mark("optimizer");
      if (phase != StepPhase::kEnd) return;
      take_traffic(1);
      observer_.mark("after the step");
    };
    run_step(parts, inputs);
  }

  // Charges the copy in host memory that async = "staged" keeps from the first save on.
  void stage() {
    if (session_.settings().checkpoint.async == "staged")
      staged_.emplace(staged_bytes(session_), MemoryCategory::kCheckpoint, kMetaHost);
  }

  // A save streams through the buckets, and also holds the header of one file.
  void save() {
    const MemoryCharge header(header_bytes_, MemoryCategory::kCheckpoint, kMetaHost);
    observer_.mark("save");
  }

  void take_traffic(int64_t times) {
    for (const CommCount& count : ranks_.communicator.take_counts()) {
      auto known = std::find_if(traffic_.begin(), traffic_.end(), [&](const CommCount& other) {
        return other.group == count.group && other.op == count.op;
      });
      if (known == traffic_.end()) known = traffic_.insert(known, {count.group, count.op});
      known->calls += count.calls * static_cast<uint64_t>(times);
      known->bytes += count.bytes * static_cast<uint64_t>(times);
    }
  }

  Session& session_;
  const uint64_t header_bytes_;
  const Ranks ranks_;
  const BatchSizes sizes_;
  const Device device_;
  Observer observer_;
  std::optional<MemoryCharge> buckets_, staged_, data_;
  std::vector<CommCount> traffic_;
};

}  // namespace

PlanMemory plan_memory(const MemoryUsage& usage) {
  PlanMemory memory;
  memory.peak_bytes = usage.peak_bytes;
  for (size_t i = 0; i < kNumMemoryCategories; ++i) {
    PlanPart& part = memory.categories[static_cast<size_t>(plan_category_of(static_cast<MemoryCategory>(i)))];
    part.peak_bytes += usage.categories[i].peak_bytes;
    part.bytes_at_total_peak += usage.categories[i].bytes_at_total_peak;
  }
  return memory;
}

RankPlan rehearse(Session& session, Recompute recompute, uint64_t header_bytes) {
  install_meta_allocator();
  return Rehearsal(session, recompute, header_bytes).run();
}

}  // namespace chassis
