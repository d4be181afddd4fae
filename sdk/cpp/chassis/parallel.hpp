// The base of parallel strategies: where shards live, and what happens around the units of a program.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "chassis/kind/parallel.h"
#include "chassis/member.hpp"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

// Ranks along an axis; 1 if the mesh has none of that name.
inline uint32_t size_along(std::span<const chassis_mesh_axis_t> axes, std::string_view name) noexcept {
  for (const chassis_mesh_axis_t& axis : axes)
    if (text_of(axis.name) == name) return axis.size;
  return 1;
}

// The units and parameters to divide; valid for the call, as are its spans.
class ParallelProblem {
 public:
  explicit ParallelProblem(const chassis_parallel_problem_t* raw) : raw_(read_sized(raw)) {
    for (uint32_t i = 0; i < raw_.num_parameters; ++i) parameters_.push_back(read_sized(raw_.parameters[i]));
  }

  std::span<const chassis_mesh_axis_t> axes() const noexcept { return {raw_.axes, raw_.num_axes}; }
  uint32_t axis_size(std::string_view name) const noexcept { return size_along(axes(), name); }
  std::span<const chassis_parallel_parameter_t> parameters() const noexcept { return parameters_; }
  uint32_t num_units() const noexcept { return raw_.num_units; }
  std::string_view unit_name(uint32_t unit) const noexcept { return text_of(raw_.unit_names[unit]); }
  uint32_t compute_dtype() const noexcept { return raw_.compute_dtype; }
  uint32_t reduce_dtype() const noexcept { return raw_.reduce_dtype; }
  uint32_t device_type() const noexcept { return raw_.device_type; }
  uint32_t num_microbatches() const noexcept { return raw_.num_microbatches; }
  // The parts of the units that run as pipeline stages; one chunk of all units without a pipeline.
  std::span<const chassis_chunk_t> chunks() const noexcept { return {raw_.chunks, raw_.num_chunks}; }
  uint32_t num_stages() const noexcept { return raw_.num_stages; }
  // For each unit, the parameters that it reads; tied parameters appear in several units.
  std::vector<std::vector<uint32_t>> parameters_by_unit() const {
    std::vector<std::vector<uint32_t>> units(num_units());
    for (uint32_t i = 0; i < parameters_.size(); ++i)
      for (uint32_t u = 0; u < parameters_[i].num_units; ++u) units[parameters_[i].units[u]].push_back(i);
    return units;
  }

 private:
  chassis_parallel_problem_t raw_;
  std::vector<chassis_parallel_parameter_t> parameters_;
};

// The computation that may be divided; it and its spans are valid for the call.
class DivisionProblem {
 public:
  explicit DivisionProblem(const chassis_division_problem_t* raw) : raw_(read_sized(raw)) {}

  std::span<const chassis_mesh_axis_t> axes() const noexcept { return {raw_.axes, raw_.num_axes}; }
  uint32_t axis_size(std::string_view name) const noexcept { return size_along(axes(), name); }
  std::span<const chassis_dim_size_t> dims() const noexcept { return {raw_.dims, raw_.num_dims}; }
  bool has_dim(std::string_view name) const noexcept {
    for (const chassis_dim_size_t& dim : dims())
      if (text_of(dim.name) == name) return true;
    return false;
  }

 private:
  chassis_division_problem_t raw_;
};

class DivisionSink {
 public:
  DivisionSink(const Host& host, const chassis_division_sink_t& raw) : host_(host), raw_(raw) {}

  void divide(std::string_view dim, std::string_view axis, bool pads = false) {
    host_.check(raw_.divide(&raw_, str(dim), str(axis), pads ? CHASSIS_DIVIDE_PAD : 0));
  }
  void sequence_parallel(std::string_view axis) { host_.check(raw_.sequence_parallel(&raw_, str(axis))); }
  // `mode`: CHASSIS_CONTEXT_…
  void context_parallel(std::string_view axis, uint32_t mode) {
    host_.check(raw_.context_parallel(&raw_, str(axis), mode));
  }
  // `how`: CHASSIS_OVERLAP_…
  void overlap(std::string_view axis, uint32_t how) { host_.check(raw_.overlap(&raw_, str(axis), how)); }

 private:
  const Host& host_;
  const chassis_division_sink_t& raw_;
};

// The units that may be divided into pipeline stages; it and its spans are valid for the call.
class StageProblem {
 public:
  explicit StageProblem(const chassis_stage_problem_t* raw) : raw_(read_sized(raw)) {}

  std::span<const chassis_mesh_axis_t> axes() const noexcept { return {raw_.axes, raw_.num_axes}; }
  uint32_t axis_size(std::string_view name) const noexcept { return size_along(axes(), name); }
  uint32_t num_units() const noexcept { return raw_.num_units; }
  // Units [first_layer, end_layer) are the layers.
  uint32_t first_layer() const noexcept { return raw_.first_layer; }
  uint32_t end_layer() const noexcept { return raw_.end_layer; }
  uint32_t num_layers() const noexcept { return raw_.end_layer - raw_.first_layer; }
  std::string_view unit_name(uint32_t unit) const noexcept { return text_of(raw_.unit_names[unit]); }
  std::span<const double> unit_costs() const noexcept { return {raw_.unit_costs, raw_.num_units}; }
  uint32_t num_microbatches() const noexcept { return raw_.num_microbatches; }  // 0: nothing is trained

 private:
  chassis_stage_problem_t raw_;
};

// chassis_stage_sink_t with exceptions; documented there.
class StageSink {
 public:
  StageSink(const Host& host, const chassis_stage_sink_t& raw) : host_(host), raw_(raw) {}

  void named(std::string_view axis, std::string_view schedule, uint32_t num_chunks, uint32_t group_size = 0) {
    host_.check(raw_.named(&raw_, str(axis), str(schedule), num_chunks, group_size));
  }
  void csv(std::string_view axis, std::string_view text, std::string_view origin) {
    host_.check(raw_.csv(&raw_, str(axis), str(text), str(origin)));
  }
  // ranks: by stage; works: by rank
  void lists(std::string_view axis, std::span<const uint32_t> ranks,
             const std::vector<std::vector<chassis_work_t>>& works) {
    std::vector<const chassis_work_t*> pointers;
    std::vector<uint32_t> counts;
    for (const auto& list : works)
      pointers.push_back(list.data()), counts.push_back(static_cast<uint32_t>(list.size()));
    host_.check(raw_.lists(&raw_, str(axis), ranks.data(), static_cast<uint32_t>(ranks.size()), pointers.data(),
                           counts.data()));
  }
  void layers(std::span<const int64_t> per_stage) {
    host_.check(raw_.layers(&raw_, per_stage.data(), static_cast<uint32_t>(per_stage.size())));
  }

 private:
  const Host& host_;
  const chassis_stage_sink_t& raw_;
};

// How one parameter is stored.
struct ShardPlacement {
  uint32_t kind = CHASSIS_SHARD_REPLICATE;
  std::vector<std::string_view> axes = {};
  bool resident = false;
  uint32_t gather_dtype = 0, reduce_dtype = 0;  // 0: the problem's
  bool offload = false, pin_memory = false;
};

class ParallelSink {
 public:
  ParallelSink(const Host& host, const chassis_parallel_sink_t& raw) : host_(host), raw_(raw) {}

  void claim(std::string_view axis) { host_.check(raw_.claim(&raw_, str(axis))); }
  void place(uint32_t parameter, const ShardPlacement& placement) {
    std::vector<chassis_str_t> axes;
    for (std::string_view axis : placement.axes) axes.push_back(str(axis));
    chassis_shard_rule_t rule{};
    rule.struct_size = sizeof rule;
    rule.parameter = parameter;
    rule.kind = placement.kind;
    rule.num_axes = static_cast<uint32_t>(axes.size());
    rule.axes = axes.data();
    rule.resident = placement.resident;
    rule.gather_dtype = placement.gather_dtype;
    rule.reduce_dtype = placement.reduce_dtype;
    rule.offload = placement.offload;
    rule.pin_memory = placement.pin_memory;
    host_.check(raw_.place(&raw_, &rule));
  }

 private:
  const Host& host_;
  const chassis_parallel_sink_t& raw_;
};

// chassis_shards_t with exceptions; documented there.
class ShardMover {
 public:
  ShardMover() = default;
  ShardMover(const Host& host, const chassis_shards_t& raw) : host_(&host), raw_(&raw) {}

  void gather(std::span<const uint32_t> ids, std::string_view name) const {
    if (!ids.empty()) host_->check(raw_->gather(raw_, ids.data(), size(ids), str(name)));
  }
  void wait_gathered(std::span<const uint32_t> ids) const {
    if (!ids.empty()) host_->check(raw_->wait_gathered(raw_, ids.data(), size(ids)));
  }
  void release(std::span<const uint32_t> ids) const {
    if (!ids.empty()) host_->check(raw_->release(raw_, ids.data(), size(ids)));
  }
  void shrink(std::span<const uint32_t> ids, uint32_t ways) const {
    if (!ids.empty()) host_->check(raw_->shrink(raw_, ids.data(), size(ids), ways));
  }
  void reduce(std::span<const uint32_t> ids, std::string_view name, uint32_t flags = 0) const {
    if (!ids.empty()) host_->check(raw_->reduce(raw_, ids.data(), size(ids), flags, str(name)));
  }
  void wait_reduced(std::span<const uint32_t> ids) const {
    if (!ids.empty()) host_->check(raw_->wait_reduced(raw_, ids.data(), size(ids)));
  }
  bool is_whole(uint32_t id) const noexcept { return raw_->is_whole(raw_, id) != 0; }
  uint64_t gathered_bytes() const noexcept { return raw_->gathered_bytes(raw_); }

 private:
  static uint32_t size(std::span<const uint32_t> ids) { return static_cast<uint32_t>(ids.size()); }
  const Host* host_ = nullptr;
  const chassis_shards_t* raw_ = nullptr;
};

struct UnitFlags {
  bool recompute = false, last_microbatch = false, training = false, inputs_only = false, params_only = false;
  explicit UnitFlags(uint32_t bits)
      : recompute(bits & CHASSIS_EVENT_RECOMPUTE),
        last_microbatch(bits & CHASSIS_EVENT_LAST_MICROBATCH),
        training(bits & CHASSIS_EVENT_TRAINING),
        inputs_only(bits & CHASSIS_EVENT_INPUTS_ONLY),
        params_only(bits & CHASSIS_EVENT_PARAMS_ONLY) {}
};

// A strategy defines `static constexpr std::string_view kHomeAxis`, the axis that gets the ranks that [mesh] leaves
// over, and may define options that save memory: `static constexpr Saving kSavings[] = {{"stage", "3"}}`.
struct Saving {
  std::string_view option;
  std::string_view json;
};

class Parallel : public Member {
 public:
  static constexpr std::string_view kKind = "parallel";
  using Member::Member;

  // [control] Says which dims of the computation are divided, or refuses with a reason. May be called again.
  virtual void divide(const DivisionProblem& /*problem*/, DivisionSink&) {}
  // [control] Says how units are divided into pipeline stages and in which order they run, or refuses with a reason.
  // May be called again.
  virtual void stages(const StageProblem& /*problem*/, StageSink&) {}
  // [control] Claims axes and places parameters, or refuses with a reason. Allocates nothing; may be called again, and
  // the last call counts.
  virtual void resolve(const ParallelProblem& problem, ParallelSink& sink) = 0;
  // [step][all-ranks] See chassis_parallel_t.
  virtual void bound() {}
  virtual void pre_forward(uint32_t /*unit*/, UnitFlags) {}
  virtual void post_forward(uint32_t /*unit*/, UnitFlags) {}
  virtual void pre_backward(uint32_t /*unit*/, UnitFlags) {}
  virtual void grad_ready(uint32_t /*parameter*/, UnitFlags) {}
  virtual void post_backward(uint32_t /*unit*/, UnitFlags) {}
  virtual void finish_grads() {}
  virtual void post_optimizer() {}
  virtual void drain() {}
  // [step] After drain: true if replicas of parameters may differ between the ranks of this axis until the next sync.
  virtual bool replicas_differ(std::string_view /*axis*/) const noexcept { return false; }

  const ShardMover& shards() const noexcept { return shards_; }

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static constexpr auto kSavings = savings_of<T>();
    static constexpr chassis_parallel_t kTable = {sizeof(chassis_parallel_t),
                                                  static_cast<uint32_t>(kSavings.size()),
                                                  str(T::kHomeAxis),
                                                  &resolve_entry,
                                                  &bind_entry,
                                                  &unit_entry<&Parallel::pre_forward>,
                                                  &unit_entry<&Parallel::post_forward>,
                                                  &unit_entry<&Parallel::pre_backward>,
                                                  &unit_entry<&Parallel::grad_ready>,
                                                  &unit_entry<&Parallel::post_backward>,
                                                  &entry<&Parallel::finish_grads>,
                                                  &entry<&Parallel::post_optimizer>,
                                                  &entry<&Parallel::drain>,
                                                  kSavings.data(),
                                                  &divide_entry,
                                                  &stages_entry,
                                                  &replicas_differ_entry};
    return id == CHASSIS_PARALLEL_ID ? &kTable : nullptr;
  }

 private:
  template <typename T>
  static constexpr auto savings_of() {
    if constexpr (requires { T::kSavings; }) {
      std::array<chassis_saving_t, std::size(T::kSavings)> out{};
      for (size_t i = 0; i < out.size(); ++i) out[i] = {str(T::kSavings[i].option), str(T::kSavings[i].json)};
      return out;
    } else {
      return std::array<chassis_saving_t, 0>{};
    }
  }
  static chassis_status_t* divide_entry(chassis_instance* self, const chassis_division_problem_t* problem,
                                        const chassis_division_sink_t* out) noexcept {
    Parallel& strategy = member_of<Parallel>(self);
    return guard(strategy.host().table(), [&] {
      DivisionSink sink(strategy.host(), *out);
      strategy.divide(DivisionProblem(problem), sink);
    });
  }
  static chassis_status_t* stages_entry(chassis_instance* self, const chassis_stage_problem_t* problem,
                                        const chassis_stage_sink_t* out) noexcept {
    Parallel& strategy = member_of<Parallel>(self);
    return guard(strategy.host().table(), [&] {
      StageSink sink(strategy.host(), *out);
      strategy.stages(StageProblem(problem), sink);
    });
  }
  static int32_t replicas_differ_entry(chassis_instance* self, chassis_str_t axis) noexcept {
    return member_of<Parallel>(self).replicas_differ(text_of(axis)) ? 1 : 0;
  }
  static chassis_status_t* resolve_entry(chassis_instance* self, const chassis_parallel_problem_t* problem,
                                         const chassis_parallel_sink_t* out) noexcept {
    Parallel& strategy = member_of<Parallel>(self);
    return guard(strategy.host().table(), [&] {
      ParallelSink sink(strategy.host(), *out);
      strategy.resolve(ParallelProblem(problem), sink);
    });
  }
  static chassis_status_t* bind_entry(chassis_instance* self, const chassis_shards_t* shards) noexcept {
    Parallel& strategy = member_of<Parallel>(self);
    return guard(strategy.host().table(), [&] {
      strategy.shards_ = ShardMover(strategy.host(), *shards);
      strategy.bound();
    });
  }
  template <void (Parallel::*Hook)(uint32_t, UnitFlags)>
  static chassis_status_t* unit_entry(chassis_instance* self, uint32_t which, uint32_t flags) noexcept {
    Parallel& strategy = member_of<Parallel>(self);
    return guard(strategy.host().table(), [&] { (strategy.*Hook)(which, UnitFlags(flags)); });
  }
  template <void (Parallel::*Hook)()>
  static chassis_status_t* entry(chassis_instance* self) noexcept {
    Parallel& strategy = member_of<Parallel>(self);
    return guard(strategy.host().table(), [&] { (strategy.*Hook)(); });
  }

  ShardMover shards_;
};

CHASSIS_SDK_END
