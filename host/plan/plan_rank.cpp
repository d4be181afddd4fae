// Runs the rehearsal, and reads the memory counters at each event.
#include "host/plan/plan_rank.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "host/save/saved_tensors.hpp"
#include "host/service/memory.hpp"
#include "host/service/meta_memory.hpp"
#include "host/session/fields.hpp"
#include "host/session/reference_model.hpp"
#include "host/session/reference_values.hpp"
#include "host/session/sequence_values.hpp"
#include "host/session/step.hpp"
#include "host/state/schedule_repeats.hpp"

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

using Bytes = std::array<int64_t, kNumPlanCategories>;

Bytes plus(Bytes a, const Bytes& b, int64_t times = 1) {
  for (size_t c = 0; c < kNumPlanCategories; ++c) a[c] += times * b[c];
  return a;
}

Bytes live_bytes(const MemoryUsage& usage) {
  Bytes out{};
  for (size_t i = 0; i < kNumMemoryCategories; ++i)
    out[static_cast<size_t>(plan_category_of(static_cast<MemoryCategory>(i)))] +=
        static_cast<int64_t>(usage.categories[i].live_bytes);
  return out;
}

// The state of the memory counters at an event.
struct Interval {
  std::string event;
  PlanMemory memory;             // peaks since the event before
  uint64_t host_peak_bytes = 0;  // the host's peak, if the run's device has its own memory
  Bytes live{};
  int64_t host_live = 0;

  // Returns this interval with more bytes live.
  Interval above(const Bytes& bytes, int64_t host_bytes) const {
    Interval out = *this;
    for (size_t c = 0; c < kNumPlanCategories; ++c) {
      const auto more = static_cast<uint64_t>(bytes[c]);  // may be negative, modulo 2^64
      out.memory.categories[c].peak_bytes += more;
      out.memory.categories[c].bytes_at_total_peak += more;
      out.memory.peak_bytes += more;
      out.live[c] += bytes[c];
    }
    out.host_peak_bytes += static_cast<uint64_t>(host_bytes);
    out.host_live += host_bytes;
    return out;
  }
  bool operator==(const Interval&) const = default;
};

// Reads the memory counters at each event, and passes events on to the strategies.
class Observer final : public UnitEvents {
 public:
  Observer(Device device, const Program& program) : device_(device), unit_names_(program.unit_names()) {
    reset_peak_meta_memory();
  }
  void pass_on_to(UnitEvents& strategies) { strategies_ = &strategies; }

  // Ends an interval.
  void mark(const std::string& event) {
    const MemoryUsage usage = meta_memory_usage(device_);
    Interval interval{event, plan_memory(usage), 0, live_bytes(usage), 0};
    if (device_ != kMetaHost) {
      const MemoryUsage host = meta_memory_usage(kMetaHost);
      interval.host_peak_bytes = host.peak_bytes;
      interval.host_live = static_cast<int64_t>(host.live_bytes);
    }
    reset_peak_meta_memory();
    if (in_entries_)
      of_entries_.push_back(std::move(interval));
    else
      add(std::move(interval));
  }
  // The intervals that follow belong to entries of a list.
  void begin_entries() {
    in_entries_ = true;
    of_entries_ = {last_};
    ends_.clear();
  }
  void end_entry() { ends_.push_back(of_entries_.size()); }
  // Adds the intervals of all entries, and of the repeats that the list leaves out. Returns false if those repeats
  // would not be the same.
  bool end_entries(const ShortList& list);

  // The memory since the last call.
  PlanMemory take() { return std::exchange(memory_, {}); }
  const PlanMemory& seen() const { return memory_; }
  void record(bool on) { recording_ = on; }
  PlanTimeline take_timeline() { return std::move(timeline_); }
  uint64_t host_peak_bytes() const { return host_peak_bytes_; }

  void pre_forward(size_t unit, Flags flags) override { strategies_->pre_forward(unit, flags); }
  void post_forward(size_t unit, Flags flags) override {
    strategies_->post_forward(unit, flags);
    mark((flags.recompute ? "recompute " : "forward ") + unit_names_[unit]);
  }
  void pre_backward(size_t unit, Flags flags) override { strategies_->pre_backward(unit, flags); }
  void post_backward(size_t unit, Flags flags) override {
    strategies_->post_backward(unit, flags);
    mark("backward " + unit_names_[unit]);
  }

 private:
  void keep_peaks(const Interval& interval) {
    keep_larger(memory_, interval.memory);
    host_peak_bytes_ = std::max(host_peak_bytes_, interval.host_peak_bytes);
  }
  void add(Interval interval) {
    keep_peaks(interval);
    if (recording_) {
      PlanSample& sample = timeline_.samples.emplace_back(PlanSample{interval.event, {}});
      for (size_t c = 0; c < kNumPlanCategories; ++c)
        sample.bytes[c] = interval.memory.categories[c].bytes_at_total_peak;
    }
    last_ = std::move(interval);
  }

  const Device device_;
  const std::vector<std::string> unit_names_;
  UnitEvents* strategies_ = nullptr;
  PlanMemory memory_;
  uint64_t host_peak_bytes_ = 0;
  bool recording_ = false;
  PlanTimeline timeline_;
  Interval last_;
  bool in_entries_ = false;
  std::vector<Interval> of_entries_;  // the first is the interval before the entries
  std::vector<size_t> ends_;          // the end of each entry in of_entries_
};

bool Observer::end_entries(const ShortList& list) {
  in_entries_ = false;
  Bytes more{};  // bytes that the counters do not show, because repeats were left out
  int64_t host_more = 0;
  auto repeat = list.repeats.begin();
  size_t next = 1;
  for (size_t entry = 0; entry < ends_.size(); ++entry) {
    for (; next < ends_[entry]; ++next) add(of_entries_[next].above(more, host_more));
    if (repeat == list.repeats.end() || entry + 1 < repeat->end()) continue;
    const size_t begin = repeat->begin == 0 ? 1 : ends_[repeat->begin - 1], end = ends_[entry];
    const Interval &before = of_entries_[begin - 1], &after = of_entries_[end - 1];
    const Bytes growth = plus(after.live, before.live, -1);
    const int64_t host_growth = after.host_live - before.host_live;
    if (ends_[entry + repeat->num_entries] - end != end - begin) return false;
    for (size_t i = begin; i < end; ++i)
      if (of_entries_[i].above(growth, host_growth) != of_entries_[i + end - begin]) return false;
    // Between the first repeat and the last one, all bytes grow or shrink steadily.
    for (const int64_t times : {int64_t{1}, repeat->times})
      for (size_t i = begin; i < end; ++i)
        keep_peaks(of_entries_[i].above(plus(more, growth, times), host_more + times * host_growth));
    if (const size_t size = timeline_.samples.size(); recording_ && end > begin)
      timeline_.repeats.push_back({size - (end - begin), size, repeat->times, growth});
    more = plus(more, growth, repeat->times);
    host_more += repeat->times * host_growth;
    ++repeat;
  }
  return more == Bytes{} && host_more == 0;
}

using Counts = std::vector<CommCount>;

bool same_traffic(const Counts& a, const Counts& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const CommCount& x, const CommCount& y) {
    return x.group == y.group && x.op == y.op && x.calls == y.calls && x.bytes == y.bytes;
  });
}

class RankRehearsal {
 public:
  RankRehearsal(Session& session, Recompute recompute, uint64_t header_bytes, bool counts_repeats)
      : session_(session),
        recompute_(recompute),
        header_bytes_(header_bytes),
        counts_repeats_(counts_repeats),
        ranks_(session.ranks()),
        sizes_(batch_sizes(session.settings(), ranks_.num_data_ranks())),
        device_(session.device().spec().has_own_memory ? kMetaDevice : kMetaHost),
        observer_(device_, session.program()) {
    precomputes_ = precomputes_reference(session);
    if (session.objective() != nullptr && session.objective()->needs_reference() && !precomputes_)
      reference_.emplace(session);
  }

  std::optional<RankPlan> run() {
    RankPlan plan;
    plan.rank = session_.rank();
    load();
    plan.load_peak_bytes = observer_.seen().peak_bytes;
    if (!step()) return std::nullopt;
    plan.start = observer_.take();
    // From the second step on, strategies use what they learned from the first.
    traffic_.clear();
    stage();
    observer_.record(true);
    if (!step()) return std::nullopt;
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
  // Loads as prepare_run() does.
  void load() {
    session_.allocate({.recompute = recompute_, .rehearsal = device_, .events = &observer_});
    observer_.pass_on_to(session_.ranks().events());
    if (reference_) reference_->allocate(device_);
    const uint64_t bucket_bytes = static_cast<uint64_t>(*session_.settings().checkpoint.bucket_mib) << 20;
    buckets_.emplace(2 * bucket_bytes, MemoryCategory::kCheckpoint, kMetaHost);
    data_.emplace(step_data_bytes(session_.program(), session_.settings(), sizes_), MemoryCategory::kData, kMetaHost);
    session_.refresh_parameters();
    ranks_.communicator.take_counts();
    observer_.mark("load");
    if (precomputes_) precompute_reference();
  }

  // Forwards without gradients before the first step, each of which needs the same memory.
  void precompute_reference() {
    const int64_t seq_len = session_.settings().train.seq_len;
    session_.executor().outputs(reference_purpose(session_),
                                empty_fields(session_.program(), sizes_.micro_batch_size, seq_len, device_));
    session_.ranks().events().finish_step();
    ranks_.communicator.take_counts();
    observer_.mark("reference");
  }

  // Without a pipeline, at most 3 micro-batches: those between the second and the last do the same as the second.
  ShortList list_of_step() const {
    const Pipeline& pipeline = ranks_.plan.pipeline();
    if (!pipeline.divides()) return {sequential_schedule(std::min<int64_t>(sizes_.num_microbatches, 3)), {}};
    if (counts_repeats_) return without_repeats(pipeline.schedule, ranks_.plan.stage_coordinate());
    return {ranks_.work(sizes_.num_microbatches), {}};
  }

  // Returns false if the repeats that were left out would not be the same.
  bool step() {
    const ShortList list = list_of_step();
    StepParts parts = session_.step_parts();
    parts.device = device_;
    StepInputs inputs;
    inputs.schedule = list.work;
    const int64_t seq_len = session_.settings().train.seq_len;
    inputs.fields = [&](int) { return empty_fields(session_.program(), sizes_.micro_batch_size, seq_len, device_); };
    std::vector<Counts> of_entries;
    bool is_same = true;
    inputs.observer = [&](StepPhase phase, int) {
      if (phase == StepPhase::kForward || phase == StepPhase::kBackward) {
        observer_.end_entry();
        of_entries.push_back(ranks_.communicator.take_counts());
      }
      if (phase == StepPhase::kReduction) {
        is_same = observer_.end_entries(list) && add_traffic(list, of_entries);
        observer_.mark("reduction of gradients");
      }
      if (phase == StepPhase::kUpdate) observer_.mark("optimizer");
      if (phase != StepPhase::kEnd) return;
      add_traffic(ranks_.communicator.take_counts(), 1);
      observer_.mark("after the step");
    };
    if (session_.objective() != nullptr) {
      compare_with_reference(inputs.fields);
      inputs.loss_scale = 1.0;
      inputs.objective = [](int, const StreamValues& outputs) { return ObjectiveValue{0.0, empty_gradients(outputs)}; };
    }
    observer_.begin_entries();
    run_step(parts, inputs);
    return is_same;
  }

  // Forwards without gradients, each of which needs the same memory.
  void compare_with_reference(const FieldSource& fields) {
    if (reference_) {
      reference_->outputs(fields(0));
      reference_->finish_step();
      add_traffic(ranks_.communicator.take_counts(), sizes_.num_microbatches);
      observer_.mark("reference");
    }
    if (!session_.objective()->desc().needs_global()) return;
    session_.executor().outputs(Purpose::kLoss, fields(0));
    session_.ranks().events().finish_step();
    add_traffic(ranks_.communicator.take_counts(), sizes_.num_microbatches);
    observer_.mark("values for the objective");
  }

  // Charges the copy in host memory that async = "staged" keeps from the first save on.
  void stage() {
    if (session_.settings().checkpoint.async == AsyncSave::kStaged)
      staged_.emplace(staged_bytes(session_), MemoryCategory::kCheckpoint, kMetaHost);
  }

  // A save streams through the buckets, and also holds the header of one file.
  void save() {
    const MemoryCharge header(header_bytes_, MemoryCategory::kCheckpoint, kMetaHost);
    observer_.mark("save");
  }

  // Returns false if a repeat that was left out would not send the same traffic.
  bool add_traffic(const ShortList& list, const std::vector<Counts>& of_entries) {
    std::vector<int64_t> times(of_entries.size(), 1);
    for (const ShortList::Repeat& repeat : list.repeats)
      for (size_t i = repeat.begin; i < repeat.end(); ++i) {
        if (!same_traffic(of_entries[i], of_entries[i + repeat.num_entries])) return false;
        times[i] += repeat.times;
      }
    if (!ranks_.plan.pipeline().divides() && sizes_.num_microbatches > 3)
      times[2] = times[3] = sizes_.num_microbatches - 2;  // forward and backward of the second micro-batch
    for (size_t i = 0; i < times.size(); ++i) add_traffic(of_entries[i], times[i]);
    return true;
  }
  void add_traffic(const Counts& counts, int64_t times) {
    for (const CommCount& count : counts) {
      auto known = std::find_if(traffic_.begin(), traffic_.end(), [&](const CommCount& other) {
        return other.group == count.group && other.op == count.op;
      });
      if (known == traffic_.end()) known = traffic_.insert(known, {count.group, count.op});
      known->calls += count.calls * static_cast<uint64_t>(times);
      known->bytes += count.bytes * static_cast<uint64_t>(times);
    }
  }

  Session& session_;
  const Recompute recompute_;
  const uint64_t header_bytes_;
  const bool counts_repeats_;
  const Ranks ranks_;
  const BatchSizes sizes_;
  const Device device_;
  Observer observer_;
  bool precomputes_ = false;                 // the reference
  std::optional<ReferenceModel> reference_;  // only if the objective compares with one in each step
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

std::optional<RankPlan> rehearse(Session& session, Recompute recompute, uint64_t header_bytes, bool counts_repeats) {
  install_meta_allocator();
  return RankRehearsal(session, recompute, header_bytes, counts_repeats).run();
}

}  // namespace chassis
